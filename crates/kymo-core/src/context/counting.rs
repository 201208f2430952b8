//! Events: opened, closed, enabled, disabled and read, from any thread.
use super::cpu::Level;
use super::engine::Engine;
use super::set::family::{EventHome, Family, FamilyState, Member};
use super::set::task_context::{Inner, TaskContext};
use super::set::{ContextEvent, EventState, Group};
use super::shared::EngineState;
use super::task::Task;
use super::{Attr, Count, CpuId, Error, EventId, Pmu, TaskId, check_cpu_group, check_group};
use crate::sync::{Ordering, lock};
use std::sync::Arc;

impl<P: Pmu> Engine<P> {
    /// Opens a group of events on a task, the leader first; they count from now on unless
    /// `disabled`. Opened before the task forks, they can count its whole family. Gives their ids
    /// in the same order.
    ///
    /// # Errors
    /// If the task has ended, or the group cannot be.
    pub fn open(&self, task: &mut Task<P>, group: &[Attr]) -> Result<Vec<EventId>, Error> {
        self.check_own(task)?;
        check_group(group)?;
        let shared = &*self.shared;
        let (family, mut events) = shared.new_family(group, EventHome::Task(Arc::clone(&task.context)));
        let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
        let mut inner = task.context.lock();
        let now_ns = inner.set.now_ns(&shared.pmu);
        if let (true, Some(cpu)) = (inner.set.is_empty(), inner.set.on) {
            // An empty set was put on without a look at the clock.
            inner.set.arrive(cpu, now_ns);
        }
        let time_ns = inner.set.time_ns(now_ns);
        events.iter_mut().for_each(|event| event.stamp_ns = time_ns);
        let pinned = group[0].pinned;
        let group = Group::new(events, Arc::clone(&family), None);
        inner.set.add(group, pinned);
        inner.unclone();
        task.context.classify(&inner, shared.empty);
        shared.reschedule(&mut inner, Level::of_task(pinned));
        drop(inner);
        shared.publish(&family, &ids);
        Ok(ids)
    }

    /// Opens a group of events on a CPU: they count whatever runs there, also while nobody does.
    ///
    /// # Errors
    /// If there is no such CPU, or the group cannot be.
    pub fn open_cpu(&self, cpu: CpuId, group: &[Attr]) -> Result<Vec<EventId>, Error> {
        let shared = &*self.shared;
        drop(shared.cpu(cpu)?);
        check_cpu_group(group)?;
        let (family, mut events) = shared.new_family(group, EventHome::Cpu(cpu));
        let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
        let pinned = group[0].pinned;
        shared.on_cpu(cpu, |pmu, state, task| {
            let now_ns = pmu.now_ns(cpu);
            let time_ns = state.set.time_ns(now_ns);
            events.iter_mut().for_each(|event| event.stamp_ns = time_ns);
            let group = Group::new(events, Arc::clone(&family), None);
            state.set.add(group, pinned);
            state.reschedule(pmu, task, Level::of_cpu(pinned), now_ns);
        })?;
        shared.publish(&family, &ids);
        Ok(ids)
    }

    /// Closes an event: it and its children stop and are gone. The others of its group stay, each
    /// by itself if it was the leader. Takes as long as its family is large.
    ///
    /// # Errors
    /// If it is not open.
    pub fn close(&self, event: EventId) -> Result<(), Error> {
        let shared = &*self.shared;
        // Whoever takes it out of here closes it; another finds it closed.
        let family = lock(&shared.events).remove(&event).ok_or(Error::UnknownEvent(event))?;
        let mut kin = lock(&family.kin);
        kin.members.retain(|member| member.event != event);
        for member in &mut kin.members {
            if member.leader == event {
                member.leader = member.event;
            }
        }
        if let EventHome::Cpu(cpu) = kin.own {
            return shared.on_cpu(cpu, |pmu, state, task| {
                let now_ns = pmu.now_ns(cpu);
                state.remove(pmu, event, now_ns);
                state.reschedule(pmu, task, Level::CpuFlexible, now_ns);
            });
        }
        let mut empty = Vec::new();
        for (child_index, context) in kin.contexts() {
            let mut inner = context.lock();
            if shared.take_out(&mut inner, event).is_some() {
                // Clones stay alike: it is taken from all of them. (A kernel tells an original from
                // its clones then.)
                context.classify(&inner, shared.empty);
            }
            if !inner.set.has_family(&family) {
                empty.push(child_index);
            }
        }
        empty.into_iter().for_each(|child_index| kin.vacate(child_index));
        Ok(())
    }

    /// Enables an event in its whole family: it counts wherever it is on a CPU and finds a counter.
    /// A pinned event that had lost its counter tries again.
    ///
    /// # Errors
    /// If it is not open.
    pub fn enable(&self, event: EventId) -> Result<(), Error> {
        self.set(event, EventState::Inactive)
    }

    /// Disables an event in its whole family: it stops, and keeps its count.
    ///
    /// # Errors
    /// If it is not open.
    pub fn disable(&self, event: EventId) -> Result<(), Error> {
        self.set(event, EventState::Off)
    }

    /// The count of the whole family up to now: of the task it was opened on, and of all
    /// descendants, dead or alive, running or not. Takes as long as the family is large.
    ///
    /// # Errors
    /// If it is not open, or is pinned and could not get its counter.
    pub fn read(&self, event: EventId) -> Result<Count, Error> {
        let family = self.shared.family(event)?;
        let kin = lock(&family.kin);
        let counts = self.shared.totals(&kin, &[event])?;
        Ok(counts[0])
    }

    /// The counts of a group, the leader first, all from one moment in each task.
    ///
    /// # Errors
    /// As [`read`](Engine::read), or if this event does not lead its group.
    pub fn read_group(&self, leader: EventId) -> Result<Vec<(EventId, Count)>, Error> {
        let family = self.shared.family(leader)?;
        let kin = lock(&family.kin);
        let members: Vec<EventId> =
            kin.members.iter().filter(|member| member.leader == leader).map(|member| member.event).collect();
        if members.is_empty() {
            return Err(if kin.member(leader).is_some() {
                Error::NotALeader(leader)
            } else {
                Error::UnknownEvent(leader)
            });
        }
        let counts = self.shared.totals(&kin, &members)?;
        Ok(members.into_iter().zip(counts).collect())
    }

    /// What each living task of the family has counted by itself, by task. What the others had is
    /// told by [`exit`](Engine::exit).
    ///
    /// # Errors
    /// If the event is not open, or keeps no numbers of single tasks.
    pub fn read_tasks(&self, event: EventId) -> Result<Vec<(TaskId, Count)>, Error> {
        let shared = &*self.shared;
        let family = shared.family(event)?;
        let kin = lock(&family.kin);
        if !kin.member(event).ok_or(Error::UnknownEvent(event))?.attr.inherit_stat {
            return Err(Error::NotPerTask(event));
        }
        let pinned = Pinned::new(&kin, shared.empty);
        let mut counts = Vec::new();
        for (_, context) in kin.contexts() {
            let inner = context.lock();
            if let Some((event, _)) = inner.set.peek(&shared.pmu, event, inner.set.now_ns(&shared.pmu)) {
                // Relaxed: exchanges with counts write it under the lock, and none is under way
                // (I6).
                counts.push((TaskId(context.holder.load(Ordering::Relaxed)), event.count));
            }
        }
        drop(pinned);
        counts.sort_by_key(|&(task, _)| task);
        Ok(counts)
    }

    /// Whether nobody is left who could count: the task it was opened on and all that inherited it
    /// have ended.
    ///
    /// # Errors
    /// If it is not open.
    pub fn is_over(&self, event: EventId) -> Result<bool, Error> {
        let family = self.shared.family(event)?;
        let kin = lock(&family.kin);
        kin.member(event).ok_or(Error::UnknownEvent(event))?;
        let on_cpu = matches!(kin.own, EventHome::Cpu(_));
        Ok(!on_cpu && !kin.contexts().any(|(_, context)| context.lock().set.group_of(event).is_some()))
    }

    fn set(&self, event: EventId, state: EventState) -> Result<(), Error> {
        let shared = &*self.shared;
        let family = shared.family(event)?;
        let kin = lock(&family.kin);
        kin.member(event).ok_or(Error::UnknownEvent(event))?;
        if let EventHome::Cpu(cpu) = kin.own {
            return shared.on_cpu(cpu, |pmu, on, task| {
                let now_ns = pmu.now_ns(cpu);
                if on.set_state(pmu, event, state, now_ns) {
                    on.reschedule(pmu, task, Level::CpuPinned, now_ns);
                }
            });
        }
        for (_, context) in kin.contexts() {
            shared.set_state(&mut context.lock(), event, state);
        }
        Ok(())
    }
}

impl<P: Pmu> EngineState<P> {
    fn family(&self, event: EventId) -> Result<Arc<Family>, Error> {
        lock(&self.events).get(&event).map(Arc::clone).ok_or(Error::UnknownEvent(event))
    }

    /// Lets everybody know the events of a family, which are where they belong by now.
    fn publish(&self, family: &Arc<Family>, ids: &[EventId]) {
        lock(&self.events).extend(ids.iter().map(|&id| (id, Arc::clone(family))));
    }

    fn new_family(&self, attrs: &[Attr], own: EventHome) -> (Arc<Family>, Vec<ContextEvent>) {
        let ids: Vec<EventId> = self.new_event_ids(attrs.len()).collect();
        let member = |(&event, &attr)| Member { event, leader: ids[0], attr, folded: Count::default() };
        let family = Arc::new(Family::new(ids.iter().zip(attrs).map(member).collect(), own));
        let state = |attr: &Attr| if attr.disabled { EventState::Off } else { EventState::Inactive };
        (
            family,
            ids.iter()
                .zip(attrs)
                .map(|(&id, &attr)| ContextEvent::new(id, attr, true, state(&attr)))
                .collect(),
        )
    }

    /// Gives the events of a context counters, from this level on, if it is on a CPU.
    pub(super) fn reschedule(&self, inner: &mut Inner, from: Level) {
        if let Some(cpu) = inner.set.on
            && let Ok(mut state) = self.cpu(cpu)
        {
            let now_ns = self.pmu.now_ns(cpu);
            state.reschedule(&self.pmu, Some(&mut inner.set), from, now_ns);
        }
    }

    /// Takes an event out of a context, with its last count and the child index that it had.
    pub(super) fn take_out(
        &self,
        inner: &mut Inner,
        event: EventId,
    ) -> Option<(ContextEvent, Option<usize>)> {
        let now_ns = inner.set.now_ns(&self.pmu);
        let time_ns = inner.set.time_ns(now_ns);
        let on = inner.set.on;
        let (group, at) = inner.set.group_of(event)?;
        let child_index = group.child_index;
        let state = on.and_then(|cpu| self.cpu(cpu).ok());
        if let Some(mut state) = state {
            state.counters.stop_one(&self.pmu, group, at, time_ns);
            let event = inner.set.remove(event, time_ns)?;
            state.reschedule(&self.pmu, Some(&mut inner.set), Level::TaskFlexible, now_ns);
            return Some((event, child_index));
        }
        Some((inner.set.remove(event, time_ns)?, child_index))
    }

    fn set_state(&self, inner: &mut Inner, event: EventId, to: EventState) {
        let now_ns = inner.set.now_ns(&self.pmu);
        let time_ns = inner.set.time_ns(now_ns);
        let on = inner.set.on;
        let Some((group, at)) = inner.set.group_of(event) else {
            return;
        };
        match on.and_then(|cpu| self.cpu(cpu).ok()) {
            None => {
                group.settle(time_ns);
                group.events[at].change(to);
            }
            Some(mut state) => {
                if state.counters.change(&self.pmu, group, at, to, time_ns) {
                    state.reschedule(&self.pmu, Some(&mut inner.set), Level::TaskPinned, now_ns);
                }
            }
        }
    }

    /// The totals of some events of one family: what is folded, and what each context has counted
    /// up to now.
    fn totals(&self, kin: &FamilyState, events: &[EventId]) -> Result<Vec<Count>, Error> {
        let mut totals = Vec::with_capacity(events.len());
        let mut moves = false;
        for &event in events {
            let member = kin.member(event).ok_or(Error::UnknownEvent(event))?;
            totals.push(member.folded);
            moves |= member.attr.inherit_stat;
        }
        if let EventHome::Cpu(cpu) = kin.own {
            let state = self.cpu(cpu)?;
            let now_ns = self.pmu.now_ns(cpu);
            for (&event, total) in events.iter().zip(&mut totals) {
                *total = total.plus(
                    own(state.set.peek(&self.pmu, event, now_ns))?
                        .map_or(Count::default(), |event| event.count),
                );
            }
            return Ok(totals);
        }
        // Counts that move between contexts could be met twice, or never.
        let pinned = moves.then(|| Pinned::new(kin, self.empty));
        for (_, context) in kin.contexts() {
            let inner = context.lock();
            let now_ns = inner.set.now_ns(&self.pmu);
            for (&event, total) in events.iter().zip(&mut totals) {
                if let Some(event) = own(inner.set.peek(&self.pmu, event, now_ns))? {
                    *total = total.plus(event.count);
                }
            }
        }
        drop(pinned);
        Ok(totals)
    }
}

/// Refuses an opened event that is pinned and lost its counter.
fn own(found: Option<(ContextEvent, EventState)>) -> Result<Option<ContextEvent>, Error> {
    match found {
        Some((event, EventState::Error)) if event.own => Err(Error::PinnedOut(event.id)),
        found => Ok(found.map(|(event, _)| event)),
    }
}

/// The contexts of a family, none of which is exchanged while this lives (I6). The lock of the
/// family keeps the list.
struct Pinned<'a> {
    kin: &'a FamilyState,
    empty: u64,
}

impl<'a> Pinned<'a> {
    fn new(kin: &'a FamilyState, empty: u64) -> Pinned<'a> {
        let pinned = Pinned { kin, empty };
        pinned.each(|inner| inner.pins += 1);
        pinned
    }

    fn each(&self, change: impl Fn(&mut Inner)) {
        for (_, context) in self.kin.contexts() {
            let mut inner = context.lock();
            change(&mut inner);
            TaskContext::classify(context, &inner, self.empty);
        }
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        self.each(|inner| inner.pins -= 1);
    }
}
