//! The ledger: from a target to the place where its slot counts.
use super::place::SlotPlace;
use super::reservation::Reservation;
use super::shared::LedgerState;
use super::slot_counts::SlotCounts;
use super::task::{Shard, Task};
use super::{Config, CpuId, Error, Kind, Pool, Target, TaskId};
use crate::big_reader_lock::{BigReaderLock, ReadGuard};
use std::fmt;
use std::sync::Arc;

/// The account of all slots of one machine. See the [module](super).
#[doc(alias = "nr_bp_slots")]
#[doc(alias = "hw_breakpoint")]
pub struct Ledger {
    pub(super) shared: Arc<LedgerState>,
    pub(super) shards: Box<[Arc<Shard>]>,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Ledger {
    /// An empty ledger. It takes about 70 bytes per CPU and pool, and 32 KiB.
    ///
    /// # Errors
    /// [`Error::BadCpus`], [`Error::BadSlots`] or [`Error::NoMemory`].
    pub fn new(config: Config) -> Result<Ledger, Error> {
        config.check()?;
        let shared = Arc::new(LedgerState { config, counts: BigReaderLock::new(SlotCounts::new(config)?) });
        let shard = |_| Arc::new(Shard::new(Arc::clone(&shared)));
        let shards = (0..ReadGuard::<SlotCounts>::SHARDS).map(shard).collect();
        Ok(Ledger { shared, shards })
    }

    /// What it was made for.
    pub fn config(&self) -> Config {
        self.shared.config
    }

    /// A new task that holds nothing. Its number is what messages call it.
    pub fn task(&self, id: TaskId) -> Task {
        Task::new(&self.shards[crate::big_reader_lock::shard()], id)
    }

    /// Asks for a slot.
    ///
    /// For a task: waits only while somebody else asks for the same task, or for CPUs. For CPUs:
    /// waits until nobody else asks for anything, and everybody waits meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSlot`] if the [rule](super#the-rule) does not permit it; [`Error::UnknownCpu`],
    /// [`Error::NoCpus`] and [`Error::OtherLedger`] if the request makes no sense.
    pub fn reserve(&self, target: Target<'_, Task>, kind: Kind) -> Result<Reservation, Error> {
        let place = self.place(target)?;
        place.reserve(kind.pool())?;
        Ok(Reservation { place, kind })
    }

    pub(super) fn place(&self, target: Target<'_, Task>) -> Result<SlotPlace, Error> {
        let cpus = match target {
            Target::Task(task) => return self.place_of_task(task, None),
            Target::TaskOn(task, cpu) => return self.place_of_task(task, Some(cpu)),
            Target::Cpu(cpu) => Box::from([cpu]),
            Target::Cpus(cpus) => cpus.into(),
            Target::AllCpus => (0..self.shared.config.cpus as u32).map(CpuId).collect(),
        };
        if cpus.is_empty() {
            return Err(Error::NoCpus);
        }
        cpus.iter().try_for_each(|&cpu| self.shared.check_cpu(cpu))?;
        Ok(SlotPlace::Cpus { shared: Arc::clone(&self.shared), cpus })
    }

    fn place_of_task(&self, task: &Task, cpu: Option<CpuId>) -> Result<SlotPlace, Error> {
        if !Arc::ptr_eq(&task.0.shard.shared, &self.shared) {
            return Err(Error::OtherLedger(task.id()));
        }
        cpu.map_or(Ok(()), |cpu| self.shared.check_cpu(cpu))?;
        Ok(SlotPlace::Task { task: task.clone(), cpu })
    }

    /// How many slots of a CPU are taken: by itself, and by the task that has most there. Stops
    /// everybody for a moment.
    ///
    /// # Errors
    /// [`Error::UnknownCpu`].
    pub fn taken(&self, cpu: CpuId, pool: Pool) -> Result<usize, Error> {
        self.shared.check_cpu(cpu)?;
        let index = self.shared.config.index(pool);
        Ok(self.shared.counts.write().taken_for_cpu(index, cpu) as usize)
    }

    /// Whether nothing is reserved and every count is 0. Walks all CPUs, and stops everybody
    /// meanwhile.
    pub fn is_unused(&self) -> bool {
        self.shared.counts.write().are_empty()
    }
}
