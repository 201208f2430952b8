//! Errors of task counters, as sentences that say what to do.
use super::counter::Counter;
use std::fmt;
use std::io;

/// Why something was refused. Nothing was changed, unless the variant says so, and every count is
/// as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Error {
    /// The task has ended before.
    Ended { task: u64 },
    /// Nothing has this number: no `what`, which is "task" or "group".
    Unknown { what: &'static str, number: u64 },
    /// The task runs already, on the thread with this number of the kernel's (0 if it has just
    /// stopped): it cannot run twice at a time.
    AlreadyRunning { task: u64, thread: i32 },
    /// The task does not run on the calling thread, which therefore cannot take it off.
    NotRunningHere { task: u64 },
    /// The calling thread runs this task, but was said to run none, or another.
    RunsAnother { task: u64 },
    /// A task was dropped while this thread ran it. What it did until now is in its group's sums;
    /// from now on the thread runs no task.
    DroppedWhileRunning { task: u64 },
    /// The thread that ran the task ended without taking it off. The task ended with it; its counts
    /// are in its group's sums.
    ThreadEnded { task: u64 },
    /// This process was forked from the one that counts.
    Forked,
    /// More threads run tasks than there are slots for.
    TooManyThreads,
    /// Called within a switch, by a signal handler, or at the thread's end, by a destructor.
    NotNow,
    /// This machine cannot count that.
    Unsupported { counter: Counter, why: String },
    /// No counter has this name.
    UnknownCounter(String),
    /// The group keeps sums only.
    NotPerTask { group: String },
    /// The engine of contexts refused.
    Engine(kymo_core::context::Error),
}

impl Error {
    /// In a forked child all is refused.
    pub(crate) fn if_forked() -> Result<(), Error> {
        if crate::sys::fork::is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    pub(super) fn unsupported(counter: Counter, why: &io::Error) -> Error {
        let why = match why.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
                "this machine has no such counter, or its hypervisor does not offer it".into()
            }
            Some(libc::EACCES | libc::EPERM) => {
                "not permitted; lower /proc/sys/kernel/perf_event_paranoid to 2 or less".into()
            }
            _ => why.to_string(),
        };
        Error::Unsupported { counter, why }
    }
}

impl From<kymo_core::context::Error> for Error {
    fn from(error: kymo_core::context::Error) -> Error {
        Error::Engine(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Ended { task } => {
                write!(f, "task {task} has ended already; its counts are in the sums of its group")
            }
            Error::Unknown { what, number } => {
                write!(f, "there is no {what} {number} here; use a number that kymo_{what}_* gave")
            }
            Error::AlreadyRunning { task, thread } => write!(
                f,
                "task {task} runs already, on thread {thread}; it must be taken off there before it can run elsewhere"
            ),
            Error::NotRunningHere { task } => write!(
                f,
                "task {task} does not run on this thread, which cannot take it off; switch on the thread that runs it"
            ),
            Error::RunsAnother { task } => {
                write!(f, "this thread runs task {task}; switch from that one, which ends its turn")
            }
            Error::DroppedWhileRunning { task } => write!(
                f,
                "task {task} was dropped while this thread ran it; its counts end here, and the thread runs no task now; take a task \
                 off before it is dropped"
            ),
            Error::ThreadEnded { task } => write!(
                f,
                "task {task} ended when the thread that ran it ended; take it off before its thread ends if it is to go on elsewhere"
            ),
            Error::Forked => write!(
                f,
                "this process was forked from the one that counts, and cannot count on its own; nothing that it does is counted"
            ),
            Error::TooManyThreads => {
                write!(f, "{} threads run tasks already; what others run is not counted", super::THREADS)
            }
            Error::NotNow => {
                write!(
                    f,
                    "called from within a switch of tasks, or at the very end of a thread; call it elsewhere"
                )
            }
            Error::Unsupported { counter, why } => write!(f, "{counter} cannot be counted: {why}"),
            Error::UnknownCounter(name) => write!(
                f,
                "there is no counter {name:?}; there are cpu-time, allocations, allocated-bytes, cycles, instructions, \
                 cache-references, cache-misses, branches, branch-misses, and own:0 to own:{}",
                super::OWN_COUNTERS - 1
            ),
            Error::NotPerTask { group } => write!(
                f,
                "group {group:?} keeps sums of all its tasks only; make it with per_task() for the numbers of single tasks"
            ),
            Error::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}
