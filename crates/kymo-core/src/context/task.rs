//! A task: it is made, forks, executes another program, and ends.
use super::cpu::Level;
use super::engine::{Engine, Shared};
use super::family::Family;
use super::set::{Event, Group, State};
use super::sync::{Ordering, lock};
use super::task_context::Context;
use super::{Child, Count, CpuId, Error, EventId, Inherit, Pmu, TaskId};
use std::fmt;
use std::sync::Arc;

/// Where a task is that is on no CPU.
const NOWHERE: u32 = u32::MAX;
/// Where a task is that has ended.
const OVER: u32 = u32::MAX - 1;

/// Something that runs, on one CPU at a time. Whoever has it may switch it, so `&mut` is what keeps two threads from it.
///
/// Dropping a task that rests ends it. Dropping one that runs ends it too, but is a mistake, which the next operation on its CPU
/// tells ([`Error::DroppedWhileRunning`]).
pub struct Task<P: Pmu> {
    pub(super) shared: Arc<Shared<P>>,
    pub(super) context: Arc<Context>,
    id: TaskId,
    on: u32,
}

impl<P: Pmu> fmt::Debug for Task<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("id", &self.id).field("cpu", &self.cpu()).finish_non_exhaustive()
    }
}

impl<P: Pmu> Task<P> {
    fn new(shared: &Arc<Shared<P>>, id: TaskId, context: Arc<Context>) -> Task<P> {
        Task { shared: Arc::clone(shared), context, id, on: NOWHERE }
    }

    /// Its number.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The CPU that it runs on, if it runs.
    pub fn cpu(&self) -> Option<CpuId> {
        (!self.rests() && !self.has_ended()).then_some(CpuId(self.on))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.on == OVER
    }

    #[inline]
    pub(super) fn rests(&self) -> bool {
        self.on == NOWHERE
    }

    /// No CPU has the number of "nowhere" or "over": there would have to be so many.
    #[inline]
    pub(super) fn runs_on(&self, cpu: CpuId) -> bool {
        self.on == cpu.0 && cpu.0 < OVER
    }

    pub(super) fn set_on(&mut self, cpu: Option<CpuId>) {
        self.on = cpu.map_or(NOWHERE, |cpu| cpu.0);
    }

    /// The exchange: each task takes the other's context, `self` rests and `to` runs. Nothing in the contexts changes but whose
    /// they are.
    #[inline]
    pub(super) fn exchange(&mut self, to: &mut Task<P>, cpu: CpuId) {
        std::mem::swap(&mut self.context, &mut to.context);
        // Relaxed: only told (and under both locks where somebody computes with it, see read_tasks).
        self.context.holder.store(self.id.0, Ordering::Relaxed);
        to.context.holder.store(to.id.0, Ordering::Relaxed);
        (self.on, to.on) = (NOWHERE, cpu.0);
    }

    /// Ends it, wherever it is.
    fn end(&mut self) -> Vec<(EventId, Count)> {
        let shared = Arc::clone(&self.shared);
        if !self.rests() {
            shared.take_off(self);
        }
        self.on = OVER;
        let mut inner = self.context.lock();
        inner.over = true;
        inner.unclone();
        self.context.classify(&inner, shared.empty);
        drop(inner);
        let mut counts = Vec::new();
        // One family after the other: what a reader of one finds is whole. Who closes an event meanwhile takes it away before us.
        while let Some(family) = self.next_family() {
            let mut kin = lock(&family.kin);
            let mut inner = self.context.lock();
            let time_ns = inner.set.time_ns(0);
            let set = &mut inner.set;
            let mut gone = Vec::new();
            for groups in [&mut set.pinned, &mut set.flexible] {
                gone.extend(groups.extract_if(.., |group| Arc::ptr_eq(&group.family, &family)));
            }
            for mut group in gone {
                group.settle(time_ns);
                for event in &group.events {
                    kin.fold(event.id, event.count);
                    if event.attr.inherit_stat {
                        counts.push((event.id, event.count));
                    }
                }
                kin.vacate(group.child_index);
            }
        }
        counts.sort_by_key(|&(event, _)| event);
        counts
    }

    fn next_family(&self) -> Option<Arc<Family>> {
        self.context.lock().set.groups().next().map(|group| Arc::clone(&group.family))
    }
}

impl<P: Pmu> Drop for Task<P> {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let cpu = self.cpu();
        self.end();
        if let Some(cpu) = cpu
            && let Ok(mut state) = self.shared.cpu(cpu)
        {
            state.dropped = Some(self.id);
        }
    }
}

impl<P: Pmu> Engine<P> {
    /// A new task without events or relatives.
    pub fn task(&self) -> Task<P> {
        let id = self.shared.new_task_id();
        let context = Arc::new(Context::new(id.0, None));
        context.classify(&context.lock(), self.shared.empty);
        Task::new(&self.shared, id, context)
    }

    /// A new task, with a child of each event that its parent has and that is inherited. Each begins enabled if that of the parent
    /// (not: the one that was opened) is, and with nothing counted. Takes as long as the events are many.
    ///
    /// # Errors
    /// If the parent has ended.
    pub fn fork(&self, parent: &mut Task<P>, child: Child) -> Result<Task<P>, Error> {
        self.check_own(parent)?;
        let shared = &*self.shared;
        let wanted = |group: &Group| match group.leader().attr.inherit {
            Inherit::No => false,
            Inherit::Threads => child == Child::Thread,
            Inherit::All => true,
        };
        let from = parent.context.lock();
        let all = from.set.groups().all(wanted);
        let lineage = all.then_some(from.lineage);
        let families = from.set.families();
        drop(from);
        let id = shared.new_task_id();
        let context = Arc::new(Context::new(id.0, lineage));
        for family in families {
            // Under the family's lock, so that a close takes the child too, or nothing is inherited any more (I7).
            let mut kin = lock(&family.kin);
            let from = parent.context.lock();
            let mut copies = Vec::new();
            for (pinned, groups) in [(true, &from.set.pinned), (false, &from.set.flexible)] {
                let groups =
                    groups.iter().filter(|group| Arc::ptr_eq(&group.family, &family) && wanted(group));
                copies.extend(groups.map(|group| (pinned, group.events.iter().map(inherited).collect())));
            }
            drop(from);
            #[cfg(test)]
            if shared.naive.starts_as_the_top() {
                super::naive::start_as_the_top(&kin, &mut copies);
            }
            if copies.is_empty() {
                continue;
            }
            let child_index = Some(kin.add(Arc::clone(&context)));
            let mut into = context.lock();
            for (pinned, events) in copies {
                let group = Group::new(events, Arc::clone(&family), child_index);
                into.set.add(group, pinned);
            }
        }
        context.classify(&context.lock(), shared.empty);
        Ok(Task::new(&self.shared, id, context))
    }

    /// The task becomes another program: [`enable_on_exec`](super::Attr::enable_on_exec) and
    /// [`remove_on_exec`](super::Attr::remove_on_exec) happen.
    ///
    /// # Errors
    /// If the task has ended.
    pub fn exec(&self, task: &mut Task<P>) -> Result<(), Error> {
        self.check_own(task)?;
        let shared = &*self.shared;
        let mut inner = task.context.lock();
        let now_ns = inner.set.now_ns(&shared.pmu);
        let time_ns = inner.set.time_ns(now_ns);
        let mut changed = false;
        let mut leaving = Vec::new();
        for group in inner.set.groups_mut() {
            group.settle(time_ns);
            for event in &mut group.events {
                let enables = std::mem::take(&mut event.attr.enable_on_exec);
                if enables && event.state < State::Inactive {
                    event.state = State::Inactive;
                }
                changed |= enables;
                if event.attr.remove_on_exec {
                    leaving.push((Arc::clone(&group.family), event.id));
                }
            }
        }
        if changed {
            inner.unclone();
            task.context.classify(&inner, shared.empty);
            shared.reschedule(&mut inner, Level::TaskPinned);
        }
        drop(inner);
        for (family, event) in leaving {
            let mut kin = lock(&family.kin);
            let mut inner = task.context.lock();
            if let Some((event, child_index)) = shared.take_out(&mut inner, event) {
                kin.fold(event.id, event.count);
                inner.unclone();
                task.context.classify(&inner, shared.empty);
                if !inner.set.has_family(&family) {
                    kin.vacate(child_index);
                }
            }
        }
        Ok(())
    }

    /// The task ends: what its events had counted goes into the sums of their families. Gives what the task itself had counted, of
    /// the events that keep such numbers ([`inherit_stat`](super::Attr::inherit_stat)), by event. If it runs, its CPU is idle afterwards.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn exit(&self, task: &mut Task<P>) -> Result<Vec<(EventId, Count)>, Error> {
        self.check_own(task)?;
        Ok(task.end())
    }
}

/// The child of an event: enabled as its parent is, nothing counted.
fn inherited(event: &Event) -> Event {
    let state = if event.state >= State::Inactive { State::Inactive } else { State::Off };
    Event::new(event.id, event.attr, false, state)
}
