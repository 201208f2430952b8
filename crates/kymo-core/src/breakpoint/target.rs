//! Targets of breakpoints: tasks and CPUs.
use super::CpuId;
use std::fmt;

/// The number by which the caller knows a task: a thread's number, mostly. The ledger only says it
/// back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}", self.0)
    }
}

/// Whom a breakpoint is for. `T` is the ledger's [`Task`](super::Task), or the model's.
#[derive(Debug)]
pub enum Target<'a, T> {
    /// A task, wherever it runs.
    Task(&'a T),
    /// A task, while it runs on this CPU.
    TaskOn(&'a T, CpuId),
    /// A CPU, whoever runs there.
    Cpu(CpuId),
    /// Several CPUs, all or none: those that are online, for instance. One that is listed twice
    /// gives two slots.
    Cpus(&'a [CpuId]),
    /// All CPUs that there can be, all or none.
    AllCpus,
}

// Not derived: that would ask for `T: Copy`.
impl<T> Clone for Target<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Target<'_, T> {}
