//! Why a process cannot be entered.
use crate::proc::Unanswered;
use std::fmt;
use std::io;

/// A process that the agent cannot be put into, with the reason. The kernel's own probes work there
/// all the same.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnterError {
    /// There is no such process (any more).
    Gone,
    /// It belongs to the kernel.
    KernelThread,
    /// It runs on another kind of processor, or on none that the agent knows.
    Processor {
        /// What it is.
        is: &'static str,
    },
    /// It has no dynamic linker, or one without `dlopen`.
    Static,
    /// Its C library is not the one that the agent was made for.
    Musl,
    /// It may be traced by nobody or not by this user.
    NotPermitted {
        /// What stands in the way, as far as it can be seen.
        because: &'static str,
    },
    /// Somebody else traces it.
    Traced {
        /// Who.
        by: i32,
    },
    /// It has forbidden itself system calls.
    Seccomp {
        /// As /proc tells it: 1 strict, 2 a filter.
        mode: u32,
    },
    /// It is stopped.
    Stopped,
    /// No thread stood where it could be borrowed, although there were several tries.
    Busy {
        /// Where the last one stood.
        last: String,
    },
    /// This program was built without the agent's library in it.
    NoAgent,
    /// There is no folder for the agent's library that programs of a command could load it from,
    /// and nobody else could exchange it in.
    Nowhere {
        /// Folders, with the reasons.
        tried: Vec<String>,
    },
    /// The target's dynamic linker did not load the library.
    NotLoaded {
        /// Its words.
        why: String,
    },
    /// A step took too long, and was undone as far as it could be.
    TooLong {
        /// Which.
        step: &'static str,
    },
    /// A system call failed.
    Failed {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

impl EnterError {
    pub(super) fn failed(step: &'static str) -> impl Fn(io::Error) -> EnterError {
        move |error| match error.kind() {
            io::ErrorKind::TimedOut if !Unanswered::is_why(&error) => EnterError::TooLong { step },
            _ if error.raw_os_error() == Some(libc::ESRCH) => EnterError::Gone,
            _ => EnterError::Failed { step, error },
        }
    }
}

impl fmt::Display for EnterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnterError::Gone => f.write_str("the process is gone"),
            EnterError::KernelThread => f.write_str("it is a thread of the kernel"),
            EnterError::Processor { is } => {
                write!(f, "it is a {is} program, and the agent is one of 64 bits")
            }
            EnterError::Static => {
                f.write_str("it has no dynamic linker that could load the agent (it is linked statically)")
            }
            EnterError::Musl => f.write_str("its C library is musl, and the agent needs glibc"),
            EnterError::NotPermitted { because } => write!(f, "tracing it is not permitted: {because}"),
            EnterError::Traced { by } => {
                write!(
                    f,
                    "process {by} traces it already (a debugger?), and only one can; end that one first"
                )
            }
            EnterError::Seccomp { mode } => write!(
                f,
                "it has restricted its own system calls (seccomp mode {mode}) and could be killed for what the agent needs"
            ),
            EnterError::Stopped => f.write_str("it is stopped; continue it (kill -CONT) and try again"),
            EnterError::Busy { last } => write!(
                f,
                "none of its threads stopped where it can be used (the last one was {last}); try again"
            ),
            EnterError::NoAgent => f.write_str(
                "this kymo has no agent in it; build it with `cargo build` or `cargo install`, or use --engine kernel",
            ),
            EnterError::Nowhere { tried } => write!(
                f,
                "there is no folder in which only you can put the agent for the command to load it ({}); set XDG_RUNTIME_DIR or HOME to one of your own, or use --engine kernel",
                tried.join("; ")
            ),
            EnterError::NotLoaded { why } => write!(f, "its dynamic linker did not load the agent: {why}"),
            EnterError::TooLong { step } => write!(
                f,
                "{step} took too long; the thread was put back to where it was, try again or use --engine kernel"
            ),
            EnterError::Failed { step, error } => write!(f, "{step} failed: {error}"),
        }
    }
}

impl std::error::Error for EnterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EnterError::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}
