//! The work that both accounts of slots are raced with: that of a program whose threads inherit watchpoints.
//!
//! Workers share a number of batches; a batch makes tasks, each of which reserves some slots wherever it runs; then all of them end.
//! Other tasks, with as many slots each, live all the time. Some requests may be for a CPU instead of a task: these stop everybody.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use kymo_core::breakpoint::{Accounts, Config, CpuId, Kind, Slots, Target, TaskId};
use kymo_perf::sys::memory;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) cpus: usize,
    /// Slots that each CPU has.
    pub(super) slots: usize,
    /// Tasks that live all the time.
    pub(super) tasks: usize,
    /// Slots of each task.
    pub(super) breakpoints: usize,
    pub(super) workers: usize,
    /// Tasks of a batch.
    pub(super) threads: usize,
    pub(super) batches: usize,
    /// Of a hundred requests, so many are for a CPU.
    pub(super) for_cpus_percent: usize,
    /// Each worker has a CPU of its own, as far as there are enough. Left alone, the scheduler begins with several on one and needs some
    /// milliseconds to spread them.
    pub(super) pinned: bool,
}

impl Shape {
    pub(super) fn config(self) -> Config {
        Config { cpus: self.cpus, slots: Slots::Shared(self.slots) }
    }

    /// Tasks made and ended.
    pub(super) fn operations(self) -> usize {
        self.batches * self.threads
    }

    /// Slots asked for and given back.
    pub(super) fn requests(self) -> usize {
        self.operations() * self.breakpoints * 2
    }

    /// About how many entries the model looks at: for each request some walks through its list for each CPU.
    pub(super) fn steps_of_the_model(self) -> f64 {
        let (cpus, standing) = (self.cpus as f64, (self.tasks * self.breakpoints) as f64);
        // Half full in the mean, of the batches that go on at a time.
        let moving = (self.workers.min(self.batches) * self.threads * self.breakpoints) as f64 / 2.0;
        // Two walks to reserve, one to release.
        let each = 1.5 * cpus * (standing + moving);
        self.requests() as f64 * each + standing * 2.0 * cpus * standing / 2.0
    }
}

/// The tasks that live all the time, with their slots.
pub(super) fn standing<A: Accounts>(account: &A, shape: Shape) -> anyhow::Result<Vec<A::Reservation>> {
    let mut held = Vec::new();
    memory::may_fail(|| held.try_reserve_exact(shape.tasks * shape.breakpoints))
        .context("no memory for so many tasks (--tasks)")?;
    for number in 0..shape.tasks {
        let task = account.task(TaskId(number as u64));
        for _ in 0..shape.breakpoints {
            held.push(account.reserve(Target::Task(&task), Kind::READ_WRITE)?);
        }
    }
    Ok(held)
}

/// The CPUs where this thread may run.
fn cpus() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("failed to ask for the CPUs of this thread")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// How long the batches take, from when the first worker begins to when the last one ends. The account is as before afterwards.
pub(super) fn run<A: Accounts>(account: &A, shape: Shape) -> anyhow::Result<Duration> {
    let (left, start) = (AtomicUsize::new(shape.batches), Barrier::new(shape.workers));
    // Relaxed: nothing but the count is shared.
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    let cpus = if shape.pinned { cpus()? } else { Vec::new() };
    let worker = |number: usize| {
        if let Some(&cpu) = cpus.get(number) {
            let mut one = CpuSet::new();
            one.set(cpu);
            // Else wherever it runs.
            _ = sched_setaffinity(None, &one);
        }
        start.wait();
        let begin = Instant::now();
        let mut paced = 0;
        let mut done = Ok(());
        while done.is_ok() && take() {
            done = batch(account, shape, &mut paced);
        }
        (begin, Instant::now(), done)
    };
    let ends = std::thread::scope(|scope| {
        let worker = &worker;
        let workers = (0..shape.workers).map(|number| {
            let builder = std::thread::Builder::new().stack_size(256 << 10);
            builder.spawn_scoped(scope, move || worker(number))
        });
        // Without all of them the others would wait for ever.
        let workers = crate::needed(workers.collect::<Result<Vec<_>, _>>());
        workers.into_iter().map(|worker| worker.join().expect("a worker only counts")).collect::<Vec<_>>()
    });
    let begin = ends.iter().map(|&(begin, ..)| begin).min();
    let end = ends.iter().map(|&(_, end, _)| end).max();
    ends.into_iter().try_for_each(|(.., done)| done)?;
    Ok(begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end.duration_since(begin)))
}

/// One batch: all of its tasks get their slots, then all of them end.
fn batch<A: Accounts>(account: &A, shape: Shape, paced: &mut usize) -> anyhow::Result<()> {
    let mut held = Vec::with_capacity(shape.threads * shape.breakpoints);
    for number in 0..shape.threads {
        let task = account.task(TaskId(number as u64));
        for _ in 0..shape.breakpoints {
            *paced += shape.for_cpus_percent;
            let for_cpu = *paced >= 100;
            let target = if for_cpu {
                *paced -= 100;
                Target::Cpu(CpuId((number % shape.cpus) as u32))
            } else {
                Target::Task(&task)
            };
            match account.reserve(target, Kind::READ_WRITE) {
                Ok(slot) => held.push(slot),
                // A CPU finds tasks that have all slots; a task finds a CPU that has one.
                Err(_) if shape.for_cpus_percent > 0 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}
