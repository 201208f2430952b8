//! The state that tasks and reservations of a ledger share.
use super::slot_counts::SlotCounts;
use super::{Config, CpuId, Error, Pool, SlotRequest, TaskId};
use crate::big_reader_lock::BigReaderLock;

/// What reservations keep alive.
#[derive(Debug)]
pub(super) struct LedgerState {
    pub(super) config: Config,
    pub(super) counts: BigReaderLock<SlotCounts>,
}

impl LedgerState {
    pub(super) fn check_cpu(&self, cpu: CpuId) -> Result<(), Error> {
        let cpus = self.config.cpus;
        if (cpu.0 as usize) < cpus { Ok(()) } else { Err(Error::UnknownCpu { cpu, cpus }) }
    }

    pub(super) fn admit(
        &self,
        pool: Pool,
        taken: u32,
        task: Option<TaskId>,
        cpu: Option<CpuId>,
    ) -> Result<(), Error> {
        let (slots, taken) = (self.config.slots_for(pool), taken as usize);
        if taken < slots {
            Ok(())
        } else {
            Err(Error::NoSlot { request: SlotRequest { task, cpu }, pool, slots, taken })
        }
    }

    /// A slot for each of these CPUs, or none.
    pub(super) fn take_own(&self, counts: &mut SlotCounts, pool: Pool, cpus: &[CpuId]) -> Result<(), Error> {
        let index = self.config.index(pool);
        for (done, &cpu) in cpus.iter().enumerate() {
            let taken = counts.taken_for_cpu(index, cpu);
            if let Err(error) = self.admit(pool, taken, None, Some(cpu)) {
                cpus[..done].iter().for_each(|&cpu| counts.remove_own(index, cpu));
                return Err(error);
            }
            counts.add_own(index, cpu);
        }
        Ok(())
    }
}
