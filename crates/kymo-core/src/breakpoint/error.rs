//! Why a request was refused, in sentences and in the kernel's numbers.
use super::{CpuId, MAX_CPUS, MAX_SLOTS, Pool, TaskId};
use std::fmt;

/// Whom a refused slot was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRequest {
    /// The task, if it was for one.
    pub task: Option<TaskId>,
    /// The CPU, if it was for one. Of several, the first that had no slot left.
    pub cpu: Option<CpuId>,
}

/// Why the ledger refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of fields say what they are")]
pub enum Error {
    /// All slots that could be given are taken: where it is tightest, `taken` of the `slots` that
    /// each CPU has, by the CPU and by a task that can run there.
    /// [`Ledger::holders`](super::Ledger::holders) knows by whom.
    NoSlot { request: SlotRequest, pool: Pool, slots: usize, taken: usize },
    /// The ledger was made for fewer CPUs: `cpus`, counted from 0.
    UnknownCpu { cpu: CpuId, cpus: usize },
    /// Several CPUs were asked for, and none is listed.
    NoCpus,
    /// The task belongs to another ledger.
    OtherLedger(TaskId),
    /// No kind of breakpoint has these bits.
    BadKind { bits: u32 },
    /// A ledger for no CPU, or for more than can be.
    BadCpus { cpus: usize },
    /// A ledger with more slots per CPU than can be.
    BadSlots { slots: usize },
    /// No memory for the ledger.
    NoMemory { cpus: usize },
}

impl Error {
    /// The number that a kernel gives for the same reason: 28 (ENOSPC), 22 (EINVAL) or 12 (ENOMEM).
    pub fn errno(&self) -> i32 {
        match self {
            Error::NoSlot { .. } => 28,
            Error::UnknownCpu { .. }
            | Error::NoCpus
            | Error::OtherLedger(_)
            | Error::BadKind { .. }
            | Error::BadCpus { .. }
            | Error::BadSlots { .. } => 22,
            Error::NoMemory { .. } => 12,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Error::NoSlot { request, pool, slots, taken } => {
                let pool = match pool {
                    Pool::Data => "watch data",
                    Pool::Instructions => "break at instructions",
                };
                write!(f, "no slot to {pool} is left for ")?;
                match request {
                    SlotRequest { task: Some(task), cpu: Some(cpu) } => write!(f, "{task} on {cpu}")?,
                    SlotRequest { task: Some(task), cpu: None } => write!(f, "{task}")?,
                    SlotRequest { task: None, cpu: Some(cpu) } => write!(f, "{cpu}")?,
                    SlotRequest { task: None, cpu: None } => write!(f, "any CPU")?,
                }
                match slots {
                    0 => write!(f, ": the hardware has none"),
                    _ => write!(
                        f,
                        ": {taken} of the {slots} that each CPU has are taken; release one, or watch fewer addresses at a time"
                    ),
                }
            }
            Error::UnknownCpu { cpu, cpus } => {
                write!(f, "{cpu} does not exist: the ledger was made for {cpus}, counted from 0")
            }
            Error::NoCpus => write!(f, "the list of CPUs is empty; name at least one"),
            Error::OtherLedger(task) => {
                write!(f, "{task} belongs to another ledger; use the one that made it")
            }
            Error::BadKind { bits } => write!(
                f,
                "no breakpoint has the kind {bits:#x}: 1 is read, 2 write, 3 both, 4 execute, and not all of them at once"
            ),
            Error::BadCpus { cpus } => {
                write!(f, "a ledger for {cpus} CPUs cannot be made: it takes 1 to {MAX_CPUS}")
            }
            Error::BadSlots { slots } => {
                write!(f, "a ledger with {slots} slots per CPU cannot be made: it takes at most {MAX_SLOTS}")
            }
            Error::NoMemory { cpus } => {
                write!(f, "no memory for a ledger of {cpus} CPUs; make it for those that exist")
            }
        }
    }
}

impl std::error::Error for Error {}
