//! The holders of slots, for error messages.
use super::ledger::Ledger;
use super::place::SlotPlace;
use super::slot_counts::PoolIndex;
use super::task::Task;
use super::{CpuId, Error, Kind, Target, TaskId};
use crate::sync::lock;
use std::fmt;

/// Somebody with so many slots on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of fields say what they are")]
pub enum Holder {
    /// The CPU has them for whoever runs there.
    Cpu { cpu: CpuId, slots: usize },
    /// A task has them for when it runs there.
    Task { task: TaskId, cpu: CpuId, slots: usize },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Cpu { cpu, slots } => write!(f, "{cpu} has {slots} for whoever runs there"),
            Holder::Task { task, cpu, slots } => write!(f, "{task} has {slots} when it runs on {cpu}"),
        }
    }
}

impl Ledger {
    /// Who holds what stands in the way of one more slot for this target, where it is tightest: the
    /// CPU itself, and of tasks those that hold most there (at most `limit` of them, in no order).
    /// For error messages: it walks all CPUs and tasks, and others go on meanwhile, so it tells
    /// what was so while it looked.
    ///
    /// # Errors
    /// As [`Ledger::reserve`] for a request that makes no sense.
    pub fn holders(&self, target: Target<'_, Task>, kind: Kind, limit: usize) -> Result<Vec<Holder>, Error> {
        let place = self.place(target)?;
        Ok(holders(self, &place, self.shared.config.index(kind.pool()), limit))
    }
}

fn holders(ledger: &Ledger, place: &SlotPlace, pool: PoolIndex, limit: usize) -> Vec<Holder> {
    let counts = &ledger.shared.counts;
    let (cpu, own, mut tasks) = match place {
        SlotPlace::Task { task, cpu } => {
            let holds = lock(&task.0.holds);
            let counts = counts.read();
            let all = (0..ledger.shared.config.cpus as u32).map(CpuId);
            // The first of the tightest.
            let cpu = cpu.unwrap_or_else(|| {
                let taken = |cpu: &CpuId| counts.own(pool, *cpu) + holds[pool].on(*cpu);
                all.rev().max_by_key(taken).unwrap_or(CpuId(0))
            });
            (cpu, counts.own(pool, cpu), vec![(task.id(), holds[pool].on(cpu))])
        }
        SlotPlace::Cpus { cpus, .. } => {
            let mut counts = counts.write();
            let tightest = cpus.iter().rev().max_by_key(|&&cpu| counts.taken_for_cpu(pool, cpu));
            let cpu = tightest.copied().unwrap_or(CpuId(0));
            let own = counts.own(pool, cpu);
            // The tasks have mutexes that come before the lock.
            drop(counts);
            let tasks = ledger.shards.iter().flat_map(|shard| shard.tasks());
            (cpu, own, tasks.map(|task| (task.id, lock(&task.holds)[pool].on(cpu))).collect())
        }
    };
    let most = tasks.iter().map(|&(_, slots)| slots).max().unwrap_or(0);
    tasks.retain(|&(_, slots)| slots == most && slots > 0);
    tasks.truncate(limit);
    let own = (own > 0).then_some(Holder::Cpu { cpu, slots: own as usize });
    let tasks = tasks.into_iter().map(|(task, slots)| Holder::Task { task, cpu, slots: slots as usize });
    own.into_iter().chain(tasks).collect()
}
