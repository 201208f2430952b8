//! The counts that all tasks and CPUs share.
use super::{Config, CpuId, Error, MAX_SLOTS};
use crate::big_reader_lock::ReadGuard;
use crate::sync::{AtomicU32, Ordering};
use std::collections::BTreeMap;

/// Which of one or two pools.
pub(super) type PoolIndex = usize;

/// Tasks (or CPUs) by how many slots they have: `[n - 1]` is how many have n.
type Cells<C> = [C; MAX_SLOTS];

/// What one shard contributes to the tasks by what they have anywhere. A cache line (and its
/// neighbour) of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ShardCells([Cells<AtomicU32>; 2]);

/// What a task has in one pool.
#[derive(Debug, Default)]
pub(super) struct HeldSlots {
    /// Wherever it runs.
    pub(super) any: u32,
    /// On single CPUs; no zeros.
    pub(super) bound: BTreeMap<CpuId, u32>,
}

impl HeldSlots {
    pub(super) fn on(&self, cpu: CpuId) -> u32 {
        self.any + self.bound.get(&cpu).copied().unwrap_or(0)
    }
}

#[derive(Debug)]
struct PoolCounts {
    /// What each CPU has for itself: P.
    on: Vec<u32>,
    /// CPUs by what they have for themselves.
    by_own: Cells<u32>,
    /// On each CPU, tasks bound to it, by what they have there: any + bound.
    bound: Vec<Cells<AtomicU32>>,
}

/// What the lock guards: what only its writers change is plain, what its readers change is atomic.
#[derive(Debug)]
pub(super) struct SlotCounts {
    pools: Vec<PoolCounts>,
    /// Tasks by what they have anywhere, a part for each shard: only the sum means something (B2).
    anywhere: Vec<ShardCells>,
}

/// Moves a task from one count to another; 0 is not counted.
// Relaxed, twice: what is between them is seen by other readers of the lock only, who do not look;
// to a writer the lock shows both.
fn shift(cells: &Cells<AtomicU32>, from: u32, to: u32) {
    if let Some(at) = from.checked_sub(1) {
        cells[at as usize].fetch_sub(1, Ordering::Relaxed);
    }
    if let Some(at) = to.checked_sub(1) {
        cells[at as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// The largest n that anybody has.
fn top(mut count: impl FnMut(usize) -> u32) -> u32 {
    (0..MAX_SLOTS).rev().find(|&at| count(at) != 0).map_or(0, |at| at as u32 + 1)
}

fn reserve<T>(cpus: usize, make: impl FnMut() -> T) -> Result<Vec<T>, Error> {
    let mut rows = Vec::new();
    rows.try_reserve_exact(cpus).map_err(|_| Error::NoMemory { cpus })?;
    rows.resize_with(cpus, make);
    Ok(rows)
}

impl SlotCounts {
    pub(super) fn new(config: Config) -> Result<SlotCounts, Error> {
        let own = |_| {
            let (on, bound) = (reserve(config.cpus, || 0)?, reserve(config.cpus, Cells::default)?);
            Ok(PoolCounts { on, by_own: [0; MAX_SLOTS], bound })
        };
        let pools = (0..config.pools()).map(own).collect::<Result<_, _>>()?;
        let anywhere = (0..ReadGuard::<SlotCounts>::SHARDS).map(|_| ShardCells::default()).collect();
        Ok(SlotCounts { pools, anywhere })
    }

    /// What is taken where it is tightest for this task, on one CPU or on all. By who has the
    /// task's mutex.
    pub(super) fn taken_for_task(&self, pool: PoolIndex, holds: &HeldSlots, cpu: Option<CpuId>) -> u32 {
        let own = &self.pools[pool];
        let on = |cpu: CpuId| own.on[cpu.0 as usize] + holds.on(cpu);
        match cpu {
            Some(cpu) => on(cpu),
            // The tightest CPU without a bound slot is one with the largest P; one with a bound
            // slot is among the others. (That the first may be bound, too, does no harm: then it is
            // found again, higher.)
            None => {
                let largest = top(|at| own.by_own[at]);
                holds.bound.keys().map(|&cpu| on(cpu)).fold(largest + holds.any, u32::max)
            }
        }
    }

    /// Gives a task one more slot. By who has the task's mutex.
    pub(super) fn add(&self, shard: usize, pool: PoolIndex, holds: &mut HeldSlots, cpu: Option<CpuId>) {
        match cpu {
            None => self.move_anywhere(shard, pool, holds, holds.any + 1),
            Some(cpu) => {
                let bound = holds.bound.entry(cpu).or_insert(0);
                let before = if *bound == 0 { 0 } else { holds.any + *bound };
                *bound += 1;
                shift(&self.pools[pool].bound[cpu.0 as usize], before, holds.any + *bound);
            }
        }
    }

    /// Takes a slot back from a task that has it. By who has the task's mutex.
    pub(super) fn remove(&self, shard: usize, pool: PoolIndex, holds: &mut HeldSlots, cpu: Option<CpuId>) {
        match cpu {
            None => self.move_anywhere(shard, pool, holds, holds.any - 1),
            Some(cpu) => {
                let before = holds.on(cpu);
                let after = before - 1;
                let left = after - holds.any;
                shift(&self.pools[pool].bound[cpu.0 as usize], before, if left == 0 { 0 } else { after });
                if left == 0 {
                    holds.bound.remove(&cpu);
                } else {
                    holds.bound.insert(cpu, left);
                }
            }
        }
    }

    fn move_anywhere(&self, shard: usize, pool: PoolIndex, holds: &mut HeldSlots, to: u32) {
        shift(&self.anywhere[shard].0[pool], holds.any, to);
        for (cpu, bound) in &holds.bound {
            shift(&self.pools[pool].bound[cpu.0 as usize], holds.any + bound, to + bound);
        }
        holds.any = to;
    }

    /// The most that any task has on a CPU. Only with the lock held for writing (hence `&mut`): no
    /// task is between two counts.
    pub(super) fn largest_task(&mut self, pool: PoolIndex, cpu: CpuId) -> u32 {
        let bound = &self.pools[pool].bound[cpu.0 as usize];
        // Relaxed: the lock is held for writing.
        top(|at| bound[at].load(Ordering::Relaxed)).max(top(|at| self.anywhere(pool, at)))
    }

    /// The sum over shards. One may be below zero and wrap; the sum is not (B2).
    fn anywhere(&self, pool: PoolIndex, at: usize) -> u32 {
        let cell = |shard: &ShardCells| shard.0[pool][at].load(Ordering::Relaxed);
        self.anywhere.iter().map(cell).fold(0, u32::wrapping_add)
    }

    /// What is taken on a CPU: by itself and by the task that has most. Only with the lock held for
    /// writing.
    pub(super) fn taken_for_cpu(&mut self, pool: PoolIndex, cpu: CpuId) -> u32 {
        self.own(pool, cpu) + self.largest_task(pool, cpu)
    }

    /// What a CPU has for itself.
    pub(super) fn own(&self, pool: PoolIndex, cpu: CpuId) -> u32 {
        self.pools[pool].on[cpu.0 as usize]
    }

    pub(super) fn add_own(&mut self, pool: PoolIndex, cpu: CpuId) {
        let to = self.own(pool, cpu) + 1;
        self.set_own(pool, cpu, to);
    }

    pub(super) fn remove_own(&mut self, pool: PoolIndex, cpu: CpuId) {
        let to = self.own(pool, cpu) - 1;
        self.set_own(pool, cpu, to);
    }

    fn set_own(&mut self, pool: PoolIndex, cpu: CpuId, to: u32) {
        let own = &mut self.pools[pool];
        let from = std::mem::replace(&mut own.on[cpu.0 as usize], to);
        if from > 0 {
            own.by_own[from as usize - 1] -= 1;
        }
        if to > 0 {
            own.by_own[to as usize - 1] += 1;
        }
    }

    /// Whether every count is 0. Only with the lock held for writing.
    pub(super) fn are_empty(&mut self) -> bool {
        let pool = |(at, own): (PoolIndex, &PoolCounts)| {
            own.on.iter().chain(&own.by_own).all(|&n| n == 0)
                && own.bound.iter().flatten().all(|cell| cell.load(Ordering::Relaxed) == 0)
                && (0..MAX_SLOTS).all(|cell| self.anywhere(at, cell) == 0)
        };
        self.pools.iter().enumerate().all(pool)
    }

    /// Tasks by what they have: anywhere, and bound to a CPU. Only with the lock held for writing.
    #[cfg(all(test, not(loom)))]
    pub(super) fn counts(
        &mut self,
        pool: PoolIndex,
        cpu: CpuId,
    ) -> ([u32; MAX_SLOTS], [u32; MAX_SLOTS], [u32; MAX_SLOTS]) {
        let own = &self.pools[pool];
        let bound = own.bound[cpu.0 as usize].each_ref().map(|cell| cell.load(Ordering::Relaxed));
        (std::array::from_fn(|at| self.anywhere(pool, at)), bound, own.by_own)
    }
}
