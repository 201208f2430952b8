//! Tasks enter CPUs, hand over, and leave.
use super::cpu::{Cpu, Level};
use super::set::task_context::{TaskContext, WITH_COUNTS};
use super::set::{EventState, Set};
use super::shared::EngineState;
use super::task::Task;
use super::{CpuId, Error, Pmu, Switch, TaskId};
use crate::sync::Ordering;
use std::fmt;
use std::sync::Arc;

/// Tasks, CPUs, and the events that count them. A handle: clones are the same engine.
#[doc(alias = "perf_event_context")]
pub struct Engine<P: Pmu> {
    pub(super) shared: Arc<EngineState<P>>,
}

impl<P: Pmu> Clone for Engine<P> {
    fn clone(&self) -> Engine<P> {
        Engine { shared: Arc::clone(&self.shared) }
    }
}

impl<P: Pmu> fmt::Debug for Engine<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("cpus", &self.shared.cpus.len()).finish_non_exhaustive()
    }
}

impl<P: Pmu> Engine<P> {
    /// An engine for this many CPUs, all idle.
    pub fn new(pmu: P, cpus: usize) -> Engine<P> {
        Engine { shared: Arc::new(EngineState::new(pmu, cpus)) }
    }

    /// What it counts with.
    pub fn pmu(&self) -> &P {
        &self.shared.pmu
    }

    /// How many CPUs it has.
    pub fn cpus(&self) -> usize {
        self.shared.cpus.len()
    }

    /// Lets a task run on an idle CPU: what is enabled in it begins to count. Takes as long as its
    /// events are many.
    ///
    /// # Errors
    /// If the CPU is not idle, or the task runs already or has ended.
    pub fn enter(&self, cpu: CpuId, task: &mut Task<P>) -> Result<(), Error> {
        self.shared.cpu(cpu)?.check_dropped()?;
        self.check_rests(task)?;
        self.shared.put_on(cpu, task)
    }

    /// Takes a task off its CPU, which is idle then: what counts in the task stops. Takes as long
    /// as its events are many; a CPU that mostly runs tasks of one family had better switch to an
    /// idle task of that family.
    ///
    /// # Errors
    /// If the task is not on this CPU.
    pub fn leave(&self, cpu: CpuId, task: &mut Task<P>) -> Result<(), Error> {
        self.check_runs(cpu, task)?;
        self.shared.take_off(task);
        Ok(())
    }

    /// Hands a CPU over from the task that runs there to one that rests.
    ///
    /// If their contexts are alike, which those of one family mostly are, the tasks exchange them:
    /// a few loads and stores, whatever the number of events, without a lock, an allocation, or a
    /// look at a clock or counter. (Events with [`inherit_stat`](super::Attr::inherit_stat) need
    /// two locks, which nobody contends for, and one look at each counter.) Otherwise it is
    /// [`leave`](Engine::leave) and [`enter`](Engine::enter) in one.
    ///
    /// # Errors
    /// If `from` is not on this CPU, or `to` is on one, or one has ended. Nothing was switched
    /// then.
    #[inline]
    pub fn switch(&self, cpu: CpuId, from: &mut Task<P>, to: &mut Task<P>) -> Result<Switch, Error> {
        if from.runs_on(cpu) && to.rests() {
            // Relaxed: see Context::classify, which stores it. Classes of different engines are
            // never equal.
            let class = from.context.class.load(Ordering::Relaxed);
            if class == to.context.class.load(Ordering::Relaxed) && class & WITH_COUNTS == 0 {
                from.exchange(to, cpu);
                return Ok(Switch::Exchanged);
            }
        }
        self.switch_slowly(cpu, from, to)
    }

    #[cold]
    #[inline(never)]
    fn switch_slowly(&self, cpu: CpuId, from: &mut Task<P>, to: &mut Task<P>) -> Result<Switch, Error> {
        self.check_runs(cpu, from)?;
        self.check_rests(to)?;
        if self.shared.exchange_with_counts(cpu, from, to) {
            return Ok(Switch::Exchanged);
        }
        self.shared.take_off(from);
        self.shared.put_on(cpu, to)?;
        Ok(Switch::Rescheduled)
    }

    /// Lets the flexible groups of a CPU and of the task on it take turns, if some found no
    /// counter: to be called at a tick, say each few milliseconds. Tells whether some group still
    /// waits for its turn.
    ///
    /// # Errors
    /// If there is no such CPU.
    pub fn rotate(&self, cpu: CpuId) -> Result<bool, Error> {
        self.shared.on_cpu(cpu, |pmu, state, mut task| {
            let now_ns = pmu.now_ns(cpu);
            let of_cpu = turn(&mut state.set);
            let of_task = task.as_deref_mut().is_some_and(turn);
            if of_cpu || of_task {
                let level = if of_cpu { Level::CpuFlexible } else { Level::TaskFlexible };
                state.reschedule(pmu, task.as_deref_mut(), level, now_ns);
            }
            state.set.must_rotate || task.is_some_and(|set| set.must_rotate)
        })
    }

    fn check_rests(&self, task: &Task<P>) -> Result<(), Error> {
        self.check_own(task)?;
        match task.cpu() {
            Some(on) => Err(Error::AlreadyRunning { task: task.id(), on }),
            None => Ok(()),
        }
    }

    fn check_runs(&self, cpu: CpuId, task: &Task<P>) -> Result<(), Error> {
        self.shared.cpu(cpu)?.check_dropped()?;
        self.check_own(task)?;
        if task.runs_on(cpu) {
            return Ok(());
        }
        Err(Error::NotRunningHere { task: task.id(), here: cpu, on: task.cpu() })
    }

    /// The task is one of this engine, and lives.
    pub(super) fn check_own(&self, task: &Task<P>) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.shared, &task.shared) {
            Err(Error::OtherEngine)
        } else if task.has_ended() {
            Err(Error::Ended(task.id()))
        } else {
            Ok(())
        }
    }
}

/// Puts the first flexible group that counts (else the first) last, if some wait.
fn turn(set: &mut Set) -> bool {
    if !set.must_rotate || set.flexible.is_empty() {
        return false;
    }
    let first = set.flexible.iter().position(|group| group.leader().state == EventState::Active);
    set.flexible[first.unwrap_or(0)..].rotate_left(1);
    true
}

impl Cpu {
    /// Says once that a task was dropped while it ran here.
    fn check_dropped(&mut self) -> Result<(), Error> {
        match self.dropped.take() {
            Some(task) => Err(Error::DroppedWhileRunning { cpu: self.id(), task }),
            None => Ok(()),
        }
    }
}

impl<P: Pmu> EngineState<P> {
    /// Starts what is enabled in a task that rests.
    fn put_on(&self, cpu: CpuId, task: &mut Task<P>) -> Result<(), Error> {
        let mut inner = task.context.lock();
        let mut state = self.cpu(cpu)?;
        if let Some(active) = &state.active {
            // Relaxed: only told.
            let task = TaskId(active.holder.load(Ordering::Relaxed));
            return Err(Error::Busy { cpu, task });
        }
        state.active = Some(Arc::clone(&task.context));
        if !inner.set.is_empty() {
            let now_ns = self.pmu.now_ns(cpu);
            inner.set.arrive(cpu, now_ns);
            let level = Level::of_task(!inner.set.pinned.is_empty());
            state.reschedule(&self.pmu, Some(&mut inner.set), level, now_ns);
        } else {
            inner.set.arrive(cpu, 0);
        }
        drop((state, inner));
        task.set_on(Some(cpu));
        Ok(())
    }

    /// Exchanges the contexts of two tasks, and the counts of those events that are kept per task,
    /// so that each task takes its own numbers along. `false` if the contexts are not alike:
    /// nothing was done.
    fn exchange_with_counts(&self, cpu: CpuId, from: &mut Task<P>, to: &mut Task<P>) -> bool {
        let alike = || from.context.class.load(Ordering::Relaxed) == to.context.class.load(Ordering::Relaxed);
        if !alike() {
            return false;
        }
        let (mut a, mut b) = TaskContext::lock_both(&from.context, &to.context);
        // Under both locks, for a reader may have pinned one meanwhile (I6).
        if !alike() {
            return false;
        }
        let now_ns = self.pmu.now_ns(cpu);
        #[cfg(test)]
        let naive = self.naive.pairs_by_position();
        #[cfg(not(test))]
        let naive = false;
        if naive {
            #[cfg(test)]
            super::naive::exchange_by_position(&mut a.set, &mut b.set, &self.pmu, now_ns);
        } else {
            a.set.exchange_counts(&mut b.set, &self.pmu, now_ns);
        }
        // Whose counts they are changes under the locks; that nobody else has the tasks is enough
        // for the rest.
        from.context.holder.store(to.id().0, Ordering::Relaxed);
        to.context.holder.store(from.id().0, Ordering::Relaxed);
        drop((a, b));
        from.exchange(to, cpu);
        true
    }
}
