//! Errors of watches, as sentences that say what to do.
use kymo_core::breakpoint::Kind;
use std::fmt;
use std::io;

/// Why a watch was refused. Nothing is armed then, and nothing was changed.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Error {
    /// All slots of the processor that this process can have are taken, `ours` of them by itself.
    NoSlot { slots: usize, ours: usize },
    /// No slot is left for one of the threads, because somebody outside of this process holds them.
    Held { thread: i32 },
    /// Slots hold 1, 2, 4 or 8 bytes.
    BadLen { len: usize },
    /// The address is no multiple of the length.
    Unaligned { address: usize, len: usize },
    /// The address is not one of a program.
    NotOurs { address: usize },
    /// The processor cannot watch for that.
    Unsupported { kind: Kind },
    /// This process was forked from the one that watches.
    Forked,
    /// Called by a handler.
    InHandler,
    /// Nobody watches with this number, or no longer.
    Unknown { number: u64 },
    /// The kernel refused.
    System { what: &'static str, source: io::Error },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoSlot { slots: 0, .. } => write!(
                f,
                "no watchpoint can be set: the processor offers none, or a debugger or profiler (of this process, or of whole CPUs) holds all; \
                 end it, or try on another machine"
            ),
            Error::NoSlot { slots, ours } => write!(
                f,
                "all {slots} watchpoints that a thread can have are in use, {ours} of them by this process; stop one, or watch fewer \
                 addresses at a time"
            ),
            Error::Held { thread } => write!(
                f,
                "no watchpoint is left for thread {thread}: a debugger or profiler outside of this process holds them; end it"
            ),
            Error::BadLen { len } => {
                write!(f, "{len} bytes cannot be watched; give 1, 2, 4 or 8, or several watches")
            }
            Error::Unaligned { address, len } => write!(
                f,
                "{len} bytes at {address:#x} cannot be watched: the address must be a multiple of {len}; watch fewer bytes, or from {:#x}",
                address - address % (*len).max(1)
            ),
            Error::NotOurs { address } => {
                write!(f, "{address:#x} is not an address of this program; nothing there can be watched")
            }
            Error::Unsupported { kind } => write!(
                f,
                "this processor cannot watch for {kind} alone; watch for reads and writes and look at whether the value changed"
            ),
            Error::Forked => write!(
                f,
                "this process was forked from the one that watches, and has none of its watches; execute a program to watch in it"
            ),
            Error::InHandler => write!(
                f,
                "called by a handler of a watch, which may interrupt anything; start watches elsewhere (stopping is permitted)"
            ),
            Error::Unknown { number } => {
                write!(
                    f,
                    "there is no watch {number:#x}, or it was stopped before; use a number that kymo_watch_start gave"
                )
            }
            Error::System { what, source } => {
                write!(f, "failed to {what}: {source}")?;
                match source.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM) => {
                        write!(f, "; lower /proc/sys/kernel/perf_event_paranoid to 2 or less")
                    }
                    Some(libc::EMFILE) => write!(f, "; raise the limit of open files (ulimit -n)"),
                    Some(libc::EINVAL) => write!(f, "; it needs Linux 5.13"),
                    Some(libc::ENOSYS) => {
                        write!(f, "; a container's filter hides perf_event_open, or the kernel has none")
                    }
                    _ => Ok(()),
                }
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { source, .. } => Some(source),
            _ => None,
        }
    }
}
