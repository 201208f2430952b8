//! The two tasks with events: the scheduler hears of each hand-over, and its counters say what they count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context;
use kymo_core::context::{Attr, Child, Count, CpuId, Error, EventId, Pmu, Scheduler, Source, Switch};

use super::executor::{Hook, Work};

/// The thread that runs both tasks.
const CPU: CpuId = CpuId(0);

/// A clock is read wherever a counter would be. It stands for a counter that a program reads by itself, and is of the same kind: a lock-free
/// look at a page that the kernel shares, an instruction, some arithmetic. Unlike those it is there on every machine.
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn start() -> Clock {
        Clock(Instant::now())
    }

    fn ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

impl Pmu for Clock {
    fn now_ns(&self, _: CpuId) -> u64 {
        self.ns()
    }

    fn read(&self, _: CpuId, _: Source) -> u64 {
        self.ns()
    }
}

/// Counts what the tasks say they did, and how often it was asked. Never measured: it is there to check the sums.
#[derive(Clone, Default)]
pub(super) struct Tally(Arc<Inside>);

#[derive(Default)]
struct Inside {
    done: AtomicU64,
    asked: AtomicU64,
}

impl Tally {
    /// How often a counter was read, started or stopped.
    pub(super) fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::Relaxed)
    }
}

impl Work for Tally {
    fn done(&self) {
        self.0.done.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pmu for Tally {
    fn now_ns(&self, _: CpuId) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    fn read(&self, _: CpuId, _: Source) -> u64 {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        self.0.done.load(Ordering::Relaxed)
    }
}

/// A parent and the child that it forked, on the CPU, with the events of both.
pub(super) struct Counted<S: Scheduler> {
    scheduler: S,
    tasks: [S::Task; 2],
    running: usize,
    events: Vec<EventId>,
    /// Hand-overs at which no counter was touched.
    pub(super) exchanged: u64,
    failed: Option<Error>,
}

impl<S: Scheduler> Counted<S> {
    /// Opens the events on the first task and lets it fork the second.
    pub(super) fn start(scheduler: S, events: u32, per_task: bool) -> Result<Counted<S>, Error> {
        let mut parent = scheduler.task();
        let mut ids = Vec::new();
        for source in 0..events {
            let attr = Attr { inherit_stat: per_task, ..Attr::family(Source(source)) };
            ids.extend(scheduler.open(&mut parent, &[attr])?);
        }
        let child = scheduler.fork(&mut parent, Child::Thread)?;
        scheduler.enter(CPU, &mut parent)?;
        let tasks = [parent, child];
        Ok(Counted { scheduler, tasks, running: 0, events: ids, exchanged: 0, failed: None })
    }

    /// Takes the tasks off the CPU and gives what each event counted in both.
    ///
    /// # Errors
    /// A hand-over that was refused: nothing that was measured is worth anything then.
    pub(super) fn finish(mut self) -> anyhow::Result<Totals> {
        if let Some(error) = self.failed {
            return Err(error).context("a hand-over was refused; nothing was measured");
        }
        self.scheduler.leave(CPU, &mut self.tasks[self.running])?;
        let (mut family, mut single) = (Vec::new(), Vec::new());
        for &event in &self.events {
            family.push(self.scheduler.read(event)?);
            if let Ok(found) = self.scheduler.read_tasks(event) {
                let of = |task: &S::Task| {
                    let own = found.iter().find(|(id, _)| *id == S::id(task));
                    own.map(|(_, count)| count.value)
                };
                single.push(self.tasks.each_ref().map(of));
            }
        }
        for task in &mut self.tasks {
            self.scheduler.exit(task)?;
        }
        Ok(Totals { family, single })
    }
}

/// What was counted.
pub(super) struct Totals {
    /// Each event's, in both tasks together.
    pub(super) family: Vec<Count>,
    /// Each event's, in the first and in the second task; empty where only families are counted.
    pub(super) single: Vec<[Option<u64>; 2]>,
}

impl<S: Scheduler> Hook for Counted<S> {
    #[inline]
    fn hand_over(&mut self, from: usize, to: usize) {
        let Ok([from, next]) = self.tasks.get_disjoint_mut([from, to]) else { return };
        match self.scheduler.switch(CPU, from, next) {
            Ok(Switch::Exchanged) => self.exchanged += 1,
            Ok(Switch::Rescheduled) => {}
            Err(error) => self.failed = Some(error),
        }
        self.running = to;
    }
}
