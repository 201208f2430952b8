//! A slot that was granted.
use super::place::SlotPlace;
use super::{CpuId, Error, Kind, TaskId};
use std::fmt;

/// One slot (on several CPUs: one on each), until it is dropped. It is the only way to give the
/// slot back, so that cannot happen twice.
///
/// It keeps its slot whether or not the breakpoint is enabled, and also after the last handle of
/// its task is gone.
#[must_use = "a reservation that is dropped releases its slot"]
pub struct Reservation {
    pub(super) place: SlotPlace,
    pub(super) kind: Kind,
}

impl Reservation {
    /// The kind it has now.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The task, if it is for one.
    pub fn task(&self) -> Option<TaskId> {
        match &self.place {
            SlotPlace::Task { task, .. } => Some(task.id()),
            SlotPlace::Cpus { .. } => None,
        }
    }

    /// The CPUs; none if it is for a task wherever it runs.
    pub fn cpus(&self) -> &[CpuId] {
        match &self.place {
            SlotPlace::Task { cpu, .. } => cpu.as_slice(),
            SlotPlace::Cpus { cpus, .. } => cpus,
        }
    }

    /// Makes it a reservation of another kind: if that needs other registers, a slot there is taken
    /// and the old one released in one step. Waits as [`Ledger::reserve`](super::Ledger::reserve)
    /// does.
    ///
    /// # Errors
    /// [`Error::NoSlot`] if the other registers are taken. The reservation is then as it was.
    pub fn modify(&mut self, kind: Kind) -> Result<(), Error> {
        self.place.modify(self.kind, kind)?;
        self.kind = kind;
        Ok(())
    }

    /// Gives the slot back. The same as dropping it, said aloud.
    pub fn release(self) {}
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.place.release(self.kind);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Reservation");
        f.field("task", &self.task()).field("cpus", &self.cpus()).field("kind", &self.kind).finish()
    }
}
