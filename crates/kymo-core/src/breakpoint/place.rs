//! Where a slot is taken and given back.
use super::shared::LedgerState;
use super::task::Task;
use super::{CpuId, Error, Kind, Pool};
use crate::sync::lock;
use std::sync::Arc;

/// Where a reservation counts.
pub(super) enum SlotPlace {
    Task { task: Task, cpu: Option<CpuId> },
    Cpus { shared: Arc<LedgerState>, cpus: Box<[CpuId]> },
}

impl SlotPlace {
    fn shared(&self) -> &LedgerState {
        match self {
            SlotPlace::Task { task, .. } => &task.0.shard.shared,
            SlotPlace::Cpus { shared, .. } => shared,
        }
    }

    pub(super) fn reserve(&self, pool: Pool) -> Result<(), Error> {
        let shared = self.shared();
        let index = shared.config.index(pool);
        match self {
            SlotPlace::Task { task, cpu } => {
                // The task first, then the lock: a task that waits must not keep the lock.
                let mut holds = lock(&task.0.holds);
                let counts = shared.counts.read();
                let taken = counts.taken_for_task(index, &holds[index], *cpu);
                shared.admit(pool, taken, Some(task.id()), *cpu)?;
                counts.add(counts.shard(), index, &mut holds[index], *cpu);
            }
            SlotPlace::Cpus { cpus, .. } => shared.take_own(&mut shared.counts.write(), pool, cpus)?,
        }
        Ok(())
    }

    pub(super) fn release(&self, kind: Kind) {
        let shared = self.shared();
        let index = shared.config.index(kind.pool());
        match self {
            SlotPlace::Task { task, cpu } => {
                let mut holds = lock(&task.0.holds);
                let counts = shared.counts.read();
                counts.remove(counts.shard(), index, &mut holds[index], *cpu);
            }
            SlotPlace::Cpus { cpus, .. } => {
                let mut counts = shared.counts.write();
                cpus.iter().for_each(|&cpu| counts.remove_own(index, cpu));
            }
        }
    }

    pub(super) fn modify(&self, from: Kind, to: Kind) -> Result<(), Error> {
        let shared = self.shared();
        let (old, new) = (shared.config.index(from.pool()), shared.config.index(to.pool()));
        if old == new {
            return Ok(());
        }
        // Two pools do not limit each other: a slot in the new one can be taken before the old one
        // is released, and so a refusal has nothing to restore.
        match self {
            SlotPlace::Task { task, cpu } => {
                let mut holds = lock(&task.0.holds);
                let counts = shared.counts.read();
                let taken = counts.taken_for_task(new, &holds[new], *cpu);
                shared.admit(to.pool(), taken, Some(task.id()), *cpu)?;
                counts.add(counts.shard(), new, &mut holds[new], *cpu);
                counts.remove(counts.shard(), old, &mut holds[old], *cpu);
            }
            SlotPlace::Cpus { cpus, .. } => {
                let mut counts = shared.counts.write();
                shared.take_own(&mut counts, to.pool(), cpus)?;
                cpus.iter().for_each(|&cpu| counts.remove_own(old, cpu));
            }
        }
        Ok(())
    }
}
