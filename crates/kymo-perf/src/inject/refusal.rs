//! Why a process cannot be entered.
use crate::proc::Unanswered;
use std::io;

/// A process that the agent cannot be put into, with the reason. The kernel's own probes work there
/// all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// There is no such process (any more).
    #[error("the process is gone")]
    Gone,
    /// It belongs to the kernel.
    #[error("it is a thread of the kernel")]
    KernelThread,
    /// It runs on another kind of processor, or on none that the agent knows.
    #[error("it is a {is} program, and the agent is one of 64 bits")]
    Processor {
        /// What it is.
        is: &'static str,
    },
    /// It has no dynamic linker, or one without `dlopen`.
    #[error("it has no dynamic linker that could load the agent (it is linked statically)")]
    Static,
    /// Its C library is not the one that the agent was made for.
    #[error("its C library is musl, and the agent needs glibc")]
    Musl,
    /// It may be traced by nobody or not by this user.
    #[error("tracing it is not permitted: {because}")]
    NotPermitted {
        /// What stands in the way, as far as it can be seen.
        because: &'static str,
    },
    /// Somebody else traces it.
    #[error("process {by} traces it already (a debugger?), and only one can; end that one first")]
    Traced {
        /// Who.
        by: i32,
    },
    /// It has forbidden itself system calls.
    #[error(
        "it has restricted its own system calls (seccomp mode {mode}) and could be killed for what the agent needs"
    )]
    Seccomp {
        /// As /proc tells it: 1 strict, 2 a filter.
        mode: u32,
    },
    /// It is stopped.
    #[error("it is stopped; continue it (kill -CONT) and try again")]
    Stopped,
    /// No thread stood where it could be borrowed, although there were several tries.
    #[error("none of its threads stopped where it can be used (the last one was {last}); try again")]
    Busy {
        /// Where the last one stood.
        last: String,
    },
    /// This program was built without the agent's library in it.
    #[error(
        "this kymo has no agent in it; build it with `cargo build` or `cargo install`, or use --engine kernel"
    )]
    NoAgent,
    /// There is no folder for the agent's library that programs of a command could load it from,
    /// and nobody else could exchange it in.
    #[error("there is no folder in which only you can put the agent for the command to load it ({}); set XDG_RUNTIME_DIR or HOME to one of your own, or use --engine kernel", tried.join("; "))]
    Nowhere {
        /// Folders, with the reasons.
        tried: Vec<String>,
    },
    /// The target's dynamic linker did not load the library.
    #[error("its dynamic linker did not load the agent: {why}")]
    NotLoaded {
        /// Its words.
        why: String,
    },
    /// A step took too long, and was undone as far as it could be.
    #[error(
        "{step} took too long; the thread was put back to where it was, try again or use --engine kernel"
    )]
    TooLong {
        /// Which.
        step: &'static str,
    },
    /// A system call failed.
    #[error("{step} failed: {error}")]
    Failed {
        /// What was tried.
        step: &'static str,
        /// What the kernel said.
        #[source]
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
