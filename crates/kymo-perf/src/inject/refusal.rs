//! Why a process cannot be entered.
use crate::proc::Unanswered;
use std::io;

/// A process that the agent cannot be put into, with the reason. The kernel's own probes work there
/// all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnterError {
    /// Another kymo is in it, and does not leave.
    #[error("another kymo is using the agent in it")]
    InUse,
    /// A kymo that was in it has ended or was killed, and what it did is still being undone.
    #[error("what another kymo did in it is still being undone; try again")]
    Leaving,
    /// There is no such process (any more).
    #[error("the process is gone")]
    Gone,
    /// Threads of this machine are not borrowed.
    #[error("programs are entered on x86-64 only; the kernel's probes work here (`--engine kernel`)")]
    Machine,
    /// It belongs to the kernel.
    #[error("it is a thread of the kernel")]
    KernelThread,
    /// It runs on another kind of processor, or on none that the agent knows: this one.
    #[error("it is a {0} program, and the agent is one of 64 bits")]
    Processor(&'static str),
    /// It has no dynamic linker, or one without `dlopen`.
    #[error("it has no dynamic linker that could load the agent (it is linked statically)")]
    Static,
    /// Its C library is not the one that the agent was made for.
    #[error("its C library is musl, and the agent needs glibc")]
    Musl,
    /// It may be traced by nobody or not by this user: what stands in the way, as far as seen.
    #[error("tracing it is not permitted: {0}")]
    NotPermitted(&'static str),
    /// This process traces it.
    #[error("process {0} traces it already (a debugger?), and only one can; end that one first")]
    Traced(i32),
    /// It has forbidden itself system calls, as /proc tells it: 1 strict, 2 a filter.
    #[error(
        "it has restricted its own system calls (seccomp mode {0}) and could be killed for what the agent needs"
    )]
    Seccomp(i32),
    /// It is stopped.
    #[error("it is stopped; continue it (kill -CONT) and try again")]
    Stopped,
    /// No thread stood where it could be borrowed, in several tries; where the last one stood.
    #[error("none of its threads stopped where it can be used (the last one was {0}); try again")]
    Busy(String),
    /// This program was built without the agent's library in it.
    #[error(
        "this kymo has no agent in it; build it with `cargo build` or `cargo install`, or use --engine kernel"
    )]
    NoAgent,
    /// There is no folder from which programs of a command could load the agent's library, and in
    /// which nobody else could exchange it. Folders, with the reasons.
    #[error("there is no folder in which only you can put the agent for the command to load it ({}); set XDG_RUNTIME_DIR or HOME to one of your own, or use --engine kernel", .0.join("; "))]
    Nowhere(Vec<String>),
    /// It has another root directory, without the files that the agent reads.
    #[error("there is no /proc in its root directory (chroot), which the agent needs; use --engine kernel")]
    NoProc,
    /// The target's dynamic linker did not load the library: its words.
    #[error("its dynamic linker did not load the agent: {0}")]
    NotLoaded(String),
    /// It may not have another thread: its own words about the limit.
    #[error("the agent needs a thread in it, and it may have no more: {0}")]
    NoThread(String),
    /// This step took too long, and was undone as far as it could be.
    #[error("{0} took too long; the thread was put back to where it was, try again or use --engine kernel")]
    TooLong(&'static str),
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
            io::ErrorKind::TimedOut if !Unanswered::is_why(&error) => EnterError::TooLong(step),
            _ if error.raw_os_error() == Some(libc::ESRCH) => EnterError::Gone,
            _ => EnterError::Failed { step, error },
        }
    }
}
