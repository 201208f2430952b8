//! Why a process cannot be entered.
use crate::proc::Unanswered;
use std::fmt;
use std::io;

/// A process that the agent cannot be put into, with the reason. The kernel's own probes work there all the same.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
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
    /// There is no folder for the agent's library that programs of a command could load it from, and nobody else could exchange it in.
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

impl Refusal {
    pub(super) fn failed(step: &'static str) -> impl Fn(io::Error) -> Refusal {
        move |error| match error.kind() {
            io::ErrorKind::TimedOut if !Unanswered::is_why(&error) => Refusal::TooLong { step },
            _ if error.raw_os_error() == Some(libc::ESRCH) => Refusal::Gone,
            _ => Refusal::Failed { step, error },
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Gone => f.write_str("the process is gone"),
            Refusal::KernelThread => f.write_str("it is a thread of the kernel"),
            Refusal::Processor { is } => {
                write!(f, "it is a {is} program, and the agent is one of 64 bits")
            }
            Refusal::Static => {
                f.write_str("it has no dynamic linker that could load the agent (it is linked statically)")
            }
            Refusal::Musl => f.write_str("its C library is musl, and the agent needs glibc"),
            Refusal::NotPermitted { because } => write!(f, "tracing it is not permitted: {because}"),
            Refusal::Traced { by } => {
                write!(
                    f,
                    "process {by} traces it already (a debugger?), and only one can; end that one first"
                )
            }
            Refusal::Seccomp { mode } => write!(
                f,
                "it has restricted its own system calls (seccomp mode {mode}) and could be killed for what the agent needs"
            ),
            Refusal::Stopped => f.write_str("it is stopped; continue it (kill -CONT) and try again"),
            Refusal::Busy { last } => write!(
                f,
                "none of its threads came to a place where it can be borrowed (the last one stood {last}); try again"
            ),
            Refusal::NoAgent => f.write_str(
                "this kymo has no agent in it; build it with `cargo build` or `cargo install`, or use --engine kernel",
            ),
            Refusal::Nowhere { tried } => write!(
                f,
                "there is no folder in which only you can put the agent for the command to load it ({}); set XDG_RUNTIME_DIR or HOME to one of your own, or use --engine kernel",
                tried.join("; ")
            ),
            Refusal::NotLoaded { why } => write!(f, "its dynamic linker did not load the agent: {why}"),
            Refusal::TooLong { step } => write!(
                f,
                "{step} took too long; the thread was put back to where it was, try again or use --engine kernel"
            ),
            Refusal::Failed { step, error } => write!(f, "{step} failed: {error}"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refusal::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}
