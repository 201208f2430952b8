//! The ledger: who asks takes the locks that the request needs, and the counts are read and written.
use super::reservation::{Place, Reservation};
use super::slot_counts::SlotCounts;
use super::sync::lock;
use super::task::{Shard, Task};
use super::{Config, CpuId, Error, Holder, Kind, Pool, SlotRequest, Target, TaskId};
use crate::big_reader_lock::{BigReaderLock, ReadGuard};
use std::fmt;
use std::sync::Arc;

/// What reservations keep alive.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) counts: BigReaderLock<SlotCounts>,
}

/// The account of all slots of one machine. See the [module](super).
pub struct Ledger {
    pub(super) shared: Arc<Shared>,
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
        let shared = Arc::new(Shared { config, counts: BigReaderLock::new(SlotCounts::new(config)?) });
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
    /// For a task: waits only while somebody else asks for the same task, or for CPUs. For CPUs: waits until nobody else asks for
    /// anything, and everybody waits meanwhile.
    ///
    /// # Errors
    /// [`Error::NoSlot`] if the [rule](super#the-rule) does not permit it; [`Error::UnknownCpu`], [`Error::NoCpus`] and
    /// [`Error::OtherLedger`] if the request makes no sense.
    pub fn reserve(&self, target: Target<'_, Task>, kind: Kind) -> Result<Reservation, Error> {
        let place = self.place(target)?;
        self.shared.reserve(&place, kind.pool())?;
        Ok(Reservation { place, kind })
    }

    fn place(&self, target: Target<'_, Task>) -> Result<Place, Error> {
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
        Ok(Place::Cpus { shared: Arc::clone(&self.shared), cpus })
    }

    fn place_of_task(&self, task: &Task, cpu: Option<CpuId>) -> Result<Place, Error> {
        if !Arc::ptr_eq(&task.0.shard.shared, &self.shared) {
            return Err(Error::OtherLedger(task.id()));
        }
        cpu.map_or(Ok(()), |cpu| self.shared.check_cpu(cpu))?;
        Ok(Place::Task { task: task.clone(), cpu })
    }

    /// How many slots of a CPU are taken: by itself, and by the task that has most there. Stops everybody for a moment.
    ///
    /// # Errors
    /// [`Error::UnknownCpu`].
    pub fn taken(&self, cpu: CpuId, pool: Pool) -> Result<usize, Error> {
        self.shared.check_cpu(cpu)?;
        let index = self.shared.config.index(pool);
        Ok(self.shared.counts.write().taken_for_cpu(index, cpu) as usize)
    }

    /// Whether nothing is reserved and every count is 0. Walks all CPUs, and stops everybody meanwhile.
    pub fn is_unused(&self) -> bool {
        self.shared.counts.write().are_empty()
    }

    /// Who holds what stands in the way of one more slot for this target, where it is tightest: the CPU itself, and of tasks those that
    /// hold most there (at most `limit` of them, in no order). For error messages: it walks all CPUs and tasks, and others go on
    /// meanwhile, so it tells what was so while it looked.
    ///
    /// # Errors
    /// As [`Ledger::reserve`] for a request that makes no sense.
    pub fn holders(&self, target: Target<'_, Task>, kind: Kind, limit: usize) -> Result<Vec<Holder>, Error> {
        let place = self.place(target)?;
        Ok(super::holder::holders(self, &place, self.shared.config.index(kind.pool()), limit))
    }
}

impl Shared {
    fn check_cpu(&self, cpu: CpuId) -> Result<(), Error> {
        let cpus = self.config.cpus;
        if (cpu.0 as usize) < cpus { Ok(()) } else { Err(Error::UnknownCpu { cpu, cpus }) }
    }

    fn admit(&self, pool: Pool, taken: u32, task: Option<TaskId>, cpu: Option<CpuId>) -> Result<(), Error> {
        let (slots, taken) = (self.config.slots_for(pool), taken as usize);
        if taken < slots {
            Ok(())
        } else {
            Err(Error::NoSlot { request: SlotRequest { task, cpu }, pool, slots, taken })
        }
    }

    fn reserve(&self, place: &Place, pool: Pool) -> Result<(), Error> {
        let index = self.config.index(pool);
        match place {
            Place::Task { task, cpu } => {
                // The task first, then the lock: a task that waits must not keep the lock.
                let mut holds = lock(&task.0.holds);
                let counts = self.counts.read();
                let taken = counts.taken_for_task(index, &holds[index], *cpu);
                self.admit(pool, taken, Some(task.id()), *cpu)?;
                counts.add(counts.shard(), index, &mut holds[index], *cpu);
            }
            Place::Cpus { cpus, .. } => self.take_own(&mut self.counts.write(), pool, cpus)?,
        }
        Ok(())
    }

    pub(super) fn release(&self, place: &Place, kind: Kind) {
        let index = self.config.index(kind.pool());
        match place {
            Place::Task { task, cpu } => {
                let mut holds = lock(&task.0.holds);
                let counts = self.counts.read();
                counts.remove(counts.shard(), index, &mut holds[index], *cpu);
            }
            Place::Cpus { cpus, .. } => {
                let mut counts = self.counts.write();
                cpus.iter().for_each(|&cpu| counts.remove_own(index, cpu));
            }
        }
    }

    pub(super) fn modify(&self, place: &Place, from: Kind, to: Kind) -> Result<(), Error> {
        let (old, new) = (self.config.index(from.pool()), self.config.index(to.pool()));
        if old == new {
            return Ok(());
        }
        // Two pools do not limit each other: a slot in the new one can be taken before the old one is released, and so a refusal
        // has nothing to restore.
        match place {
            Place::Task { task, cpu } => {
                let mut holds = lock(&task.0.holds);
                let counts = self.counts.read();
                let taken = counts.taken_for_task(new, &holds[new], *cpu);
                self.admit(to.pool(), taken, Some(task.id()), *cpu)?;
                counts.add(counts.shard(), new, &mut holds[new], *cpu);
                counts.remove(counts.shard(), old, &mut holds[old], *cpu);
            }
            Place::Cpus { cpus, .. } => {
                let mut counts = self.counts.write();
                self.take_own(&mut counts, to.pool(), cpus)?;
                cpus.iter().for_each(|&cpu| counts.remove_own(old, cpu));
            }
        }
        Ok(())
    }

    /// A slot for each of these CPUs, or none.
    fn take_own(&self, counts: &mut SlotCounts, pool: Pool, cpus: &[CpuId]) -> Result<(), Error> {
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
