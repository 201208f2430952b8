//! Tasks begin, fork, execute and end.
use super::cpu::Level;
use super::engine::Engine;
use super::set::task_context::TaskContext;
use super::set::{ContextEvent, EventState, Group};
use super::task::Task;
use super::{Child, Count, Error, EventId, Inherit, Pmu};
use crate::sync::lock;
use std::sync::Arc;

impl<P: Pmu> Engine<P> {
    /// A new task without events or relatives.
    pub fn task(&self) -> Task<P> {
        let id = self.shared.new_task_id();
        let context = Arc::new(TaskContext::new(id.0, None));
        context.classify(&context.lock(), self.shared.empty);
        Task::new(&self.shared, id, context)
    }

    /// A new task, with a child of each event that its parent has and that is inherited. Each
    /// begins enabled if that of the parent (not: the one that was opened) is, and with nothing
    /// counted. Takes as long as the events are many.
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
        let context = Arc::new(TaskContext::new(id.0, lineage));
        for family in families {
            // Under the family's lock, so that a close takes the child too, or nothing is inherited
            // any more (I7).
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
                if enables && event.state < EventState::Inactive {
                    event.state = EventState::Inactive;
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

    /// The task ends: what its events had counted goes into the sums of their families. Gives what
    /// the task itself had counted, of the events that keep such numbers
    /// ([`inherit_stat`](super::Attr::inherit_stat)), by event. If it runs, its CPU is idle
    /// afterwards.
    ///
    /// # Errors
    /// If it has ended before.
    pub fn exit(&self, task: &mut Task<P>) -> Result<Vec<(EventId, Count)>, Error> {
        self.check_own(task)?;
        Ok(task.end())
    }
}

/// The child of an event: enabled as its parent is, nothing counted.
fn inherited(event: &ContextEvent) -> ContextEvent {
    let state = event.state.clamp(EventState::Off, EventState::Inactive);
    ContextEvent::new(event.id, event.attr, false, state)
}
