//! Errors of the context engine, in sentences.
use super::{CpuId, EventId, TaskId};
use std::fmt;

/// Why the engine refused. Nothing was changed, and every count is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of fields say what they are")]
pub enum Error {
    /// No such event: it was closed, or never opened here.
    UnknownEvent(EventId),
    /// The engine was made for fewer CPUs: `cpus`, counted from 0.
    UnknownCpu { cpu: CpuId, cpus: usize },
    /// A group without a single event.
    EmptyGroup,
    /// One group with events that are inherited differently, or are for different CPUs.
    MixedGroup,
    /// `pinned` or `exclusive` was asked for the event at this position of the group (from 0), which
    /// is not the first.
    NotLeader { position: usize },
    /// An event of a CPU with something that only tasks have: `inherit`, `inherit_stat`, an exec
    /// flag, a `cpu` of its own.
    TaskOnly,
    /// The task ended before.
    Ended(TaskId),
    /// The task is on a CPU already, so it cannot be put on another.
    AlreadyRunning { task: TaskId, on: CpuId },
    /// The task is not on the CPU that it is to leave.
    NotRunningHere { task: TaskId, here: CpuId, on: Option<CpuId> },
    /// Another task is on this CPU.
    Busy { cpu: CpuId, task: TaskId },
    /// A task was dropped while it was on this CPU. Its counts ended at that moment. Said once; the
    /// CPU is idle now.
    DroppedWhileRunning { cpu: CpuId, task: TaskId },
    /// The task or event belongs to another engine.
    OtherEngine,
    /// The event does not keep numbers of single tasks.
    NotPerTask(EventId),
    /// The event does not lead a group: it has another leader.
    NotALeader(EventId),
    /// A pinned event that did not get its counter. Its count has a gap.
    PinnedOut(EventId),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::UnknownEvent(event) => {
                write!(f, "{event} is not open here: it was closed, or its number is wrong")
            }
            Error::UnknownCpu { cpu, cpus } => {
                write!(f, "{cpu} does not exist: the engine was made for {cpus}, counted from 0")
            }
            Error::EmptyGroup => write!(f, "a group needs at least one event"),
            Error::MixedGroup => write!(
                f,
                "the events of one group must be inherited alike and be for the same CPU; open them as two groups"
            ),
            Error::NotLeader { position } => write!(
                f,
                "event {position} of the group asks to be pinned or exclusive; only the first, its leader, can"
            ),
            Error::TaskOnly => write!(
                f,
                "an event of a CPU cannot be inherited, follow an exec, or name a CPU of its own; open it on a task"
            ),
            Error::Ended(task) => write!(f, "{task} has ended already; its counts are in its events"),
            Error::AlreadyRunning { task, on } => {
                write!(f, "{task} is on {on} already; it must leave there before it can run elsewhere")
            }
            Error::NotRunningHere { task, here, on: Some(on) } => write!(
                f,
                "{task} is on {on}, so {here} cannot take it off; switch on the thread where it runs"
            ),
            Error::NotRunningHere { task, here, on: None } => {
                write!(f, "{task} is on no CPU, so {here} cannot take it off; let it enter first")
            }
            Error::Busy { cpu, task } => {
                write!(f, "{cpu} still runs {task}; switch from it, or let it leave, before another enters")
            }
            Error::DroppedWhileRunning { cpu, task } => write!(
                f,
                "{task} was dropped while it ran on {cpu}: its counts end there, and what ran since is not counted; let a task \
                 leave, or end it, before it is dropped"
            ),
            Error::OtherEngine => write!(f, "this task belongs to another engine; use the one that made it"),
            Error::NotPerTask(event) => write!(
                f,
                "{event} keeps numbers of its family only; open it with inherit_stat for those of single tasks"
            ),
            Error::NotALeader(event) => {
                write!(f, "{event} does not lead a group; read it alone, or its leader as a group")
            }
            Error::PinnedOut(event) => write!(
                f,
                "{event} is pinned and could not get its counter, so its count has a gap; enable it again to go on, or open it \
                 without pinned"
            ),
        }
    }
}

impl std::error::Error for Error {}
