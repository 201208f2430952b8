//! The hardware: CPUs, and breakpoint registers of each.
use super::{Error, Pool};

/// The most slots that a CPU can have in one pool. Hardware has 4 (x86) to 16 (arm64).
#[cfg(not(loom))]
pub const MAX_SLOTS: usize = 16;
/// As few as show everything, so that loom has less to look at.
#[cfg(loom)]
pub const MAX_SLOTS: usize = 2;

/// The most CPUs that a ledger can be made for. Kernels are built for 8,192.
pub const MAX_CPUS: usize = 1 << 20;

/// The slots that each CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots {
    /// So many for everything: data and instructions compete (x86, with 4).
    Shared(usize),
    /// Registers of two sorts, each of one use (arm).
    Separate {
        /// For reads and writes.
        data: usize,
        /// For execution.
        instructions: usize,
    },
}

/// The hardware: how many CPUs, and what each of them has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// All CPUs that there can be, those offline now included: a task with a slot anywhere can come
    /// to run on one later.
    pub cpus: usize,
    /// What each has. 0 is hardware without breakpoints: every request is refused.
    pub slots: Slots,
}

impl Config {
    /// What nothing can be made for is refused here, for the engine and the model alike.
    pub(super) fn check(self) -> Result<(), Error> {
        let Config { cpus, slots } = self;
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(Error::BadCpus { cpus });
        }
        let slots = match slots {
            Slots::Shared(slots) => slots,
            Slots::Separate { data, instructions } => data.max(instructions),
        };
        if slots > MAX_SLOTS { Err(Error::BadSlots { slots }) } else { Ok(()) }
    }

    /// How many slots a CPU has for this pool.
    pub fn slots_for(self, pool: Pool) -> usize {
        match (self.slots, pool) {
            (Slots::Shared(slots), _) => slots,
            (Slots::Separate { data, .. }, Pool::Data) => data,
            (Slots::Separate { instructions, .. }, Pool::Instructions) => instructions,
        }
    }

    /// How many pools there are.
    pub(super) fn pools(self) -> usize {
        match self.slots {
            Slots::Shared(_) => 1,
            Slots::Separate { .. } => 2,
        }
    }

    /// The number of the pool, below [`Config::pools`]: one for both where registers are shared.
    pub(super) fn index(self, pool: Pool) -> usize {
        match (self.slots, pool) {
            (Slots::Shared(_), _) | (_, Pool::Data) => 0,
            (_, Pool::Instructions) => 1,
        }
    }
}
