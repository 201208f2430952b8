//! A CPU: schedules groups of events on its counters.
use super::set::task_context::TaskContext;
use super::set::{ContextEvent, EventState, Group, Set};
use super::{CpuId, EventId, Pmu, TaskId};
use std::sync::Arc;

/// In which order events get counters. Whoever changes one level reschedules it and those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    CpuPinned,
    TaskPinned,
    CpuFlexible,
    TaskFlexible,
}

const LEVELS: [Level; 4] = [Level::CpuPinned, Level::TaskPinned, Level::CpuFlexible, Level::TaskFlexible];

impl Level {
    /// The groups of this level, in the order in which they get counters.
    fn groups<'a>(self, own: &'a mut Set, task: &'a mut Option<&mut Set>) -> &'a mut [Group] {
        match (self, task) {
            (Level::CpuPinned, _) => &mut own.pinned,
            (Level::CpuFlexible, _) => &mut own.flexible,
            (Level::TaskPinned, Some(task)) => &mut task.pinned,
            (Level::TaskFlexible, Some(task)) => &mut task.flexible,
            (_, None) => &mut [],
        }
    }

    pub(super) fn of_task(pinned: bool) -> Level {
        if pinned { Level::TaskPinned } else { Level::TaskFlexible }
    }

    pub(super) fn of_cpu(pinned: bool) -> Level {
        if pinned { Level::CpuPinned } else { Level::CpuFlexible }
    }
}

/// What the lock of a CPU protects.
#[derive(Debug)]
pub(super) struct Cpu {
    /// The events of the CPU itself.
    pub(super) set: Set,
    /// The context of the task that runs here. Exchanging contexts leaves it as it is.
    pub(super) active: Option<Arc<TaskContext>>,
    /// A task that was dropped while it ran here, until somebody was told.
    pub(super) dropped: Option<TaskId>,
    pub(super) counters: Counters,
}

/// The hardware counters of a CPU.
#[derive(Debug)]
pub(super) struct Counters {
    id: CpuId,
    slots: usize,
}

impl Cpu {
    pub(super) fn new<P: Pmu>(id: CpuId, pmu: &P) -> Cpu {
        let mut set = Set::default();
        set.arrive(id, pmu.now_ns(id));
        let counters = Counters { id, slots: pmu.slots(id) };
        Cpu { set, active: None, dropped: None, counters }
    }

    pub(super) fn id(&self) -> CpuId {
        self.counters.id
    }

    /// Gives the counters anew at these levels, and what is left of them to all that waits. Which
    /// groups may count is decided first, then those that may not any more are stopped, and then
    /// the others started: what goes on counting is not touched, for its task goes on running, too,
    /// when another thread does this.
    pub(super) fn reschedule<P: Pmu>(&mut self, pmu: &P, task: Option<&mut Set>, from: Level, now_ns: u64) {
        self.counters.share_out(pmu, &mut self.set, task, Some(from), now_ns);
    }

    /// Takes the events of a task off.
    pub(super) fn stop_task<P: Pmu>(&mut self, pmu: &P, task: &mut Set, now_ns: u64) {
        let time_ns = task.time_ns(now_ns);
        for group in task.groups_mut() {
            self.counters.stop(pmu, group, time_ns);
        }
        if self.set.must_rotate {
            self.counters.share_out(pmu, &mut self.set, None, None, now_ns);
        }
    }

    /// Enables or disables an event of the CPU itself; tells whether something changed.
    pub(super) fn set_state<P: Pmu>(&mut self, pmu: &P, event: EventId, to: EventState, now_ns: u64) -> bool {
        let time_ns = self.set.time_ns(now_ns);
        let found = self.set.group_of(event);
        found.is_some_and(|(group, at)| self.counters.change(pmu, group, at, to, time_ns))
    }

    /// Takes an event of the CPU itself out.
    pub(super) fn remove<P: Pmu>(&mut self, pmu: &P, event: EventId, now_ns: u64) {
        let time_ns = self.set.time_ns(now_ns);
        if let Some((group, at)) = self.set.group_of(event) {
            self.counters.stop_one(pmu, group, at, time_ns);
        }
        self.set.remove(event, time_ns);
    }
}

impl Counters {
    /// Stops a group, if it counts.
    pub(super) fn stop<P: Pmu>(&self, pmu: &P, group: &mut Group, time_ns: u64) {
        if group.leader().state != EventState::Active {
            return;
        }
        for at in 0..group.events.len() {
            self.stop_one(pmu, group, at, time_ns);
        }
    }

    /// Stops one event, if it counts; the others of its group go on.
    pub(super) fn stop_one<P: Pmu>(&self, pmu: &P, group: &mut Group, at: usize, time_ns: u64) {
        if group.events[at].state != EventState::Active {
            return;
        }
        group.settle(time_ns);
        let event = &mut group.events[at];
        event.collect(pmu.stop(self.id, event.attr.source));
        event.state = EventState::Inactive;
    }

    /// Enables or disables an event of a group; tells whether something changed. The group stops if
    /// it is the leader that is disabled.
    pub(super) fn change<P: Pmu>(
        &self,
        pmu: &P,
        group: &mut Group,
        at: usize,
        to: EventState,
        time_ns: u64,
    ) -> bool {
        if group.events[at].is(to) {
            return false;
        }
        if at == 0 {
            self.stop(pmu, group, time_ns);
        } else {
            self.stop_one(pmu, group, at, time_ns);
        }
        group.settle(time_ns);
        group.events[at].change(to);
        true
    }

    /// Lets all that is enabled count as far as it fits. Groups that count at levels before `from`
    /// (at all levels, if there is none) keep their counters.
    fn share_out<P: Pmu>(
        &self,
        pmu: &P,
        own: &mut Set,
        mut task: Option<&mut Set>,
        from: Option<Level>,
        now_ns: u64,
    ) {
        self.grant(pmu, own, &mut task, from);
        for set in [Some(&mut *own), task.as_deref_mut()].into_iter().flatten() {
            let time_ns = set.time_ns(now_ns);
            set.groups_mut().filter(|group| !group.granted).for_each(|group| self.stop(pmu, group, time_ns));
            for group in set.pinned.iter_mut().filter(|group| !group.granted && self.wants(group)) {
                group.settle(time_ns);
                group.events[0].state = EventState::Error;
            }
        }
        for set in [Some(own), task].into_iter().flatten() {
            let time_ns = set.time_ns(now_ns);
            set.groups_mut().filter(|group| group.granted).for_each(|group| self.start(pmu, group, time_ns));
        }
    }

    /// Decides who may count, and touches no counter.
    fn grant<P: Pmu>(&self, pmu: &P, own: &mut Set, task: &mut Option<&mut Set>, from: Option<Level>) {
        let (mut used, mut exclusive) = (0, false);
        for level in LEVELS {
            let keeps = from.is_none_or(|from| level < from);
            for group in level.groups(own, task) {
                group.granted = keeps && group.leader().state == EventState::Active;
                if group.granted {
                    used += needs(pmu, group);
                    exclusive |= is_exclusive(pmu, group);
                }
            }
        }
        for level in LEVELS {
            // Once one found no counter, those after it wait for their turn.
            let mut room = true;
            for group in level.groups(own, task) {
                if group.granted || !self.wants(group) {
                    continue;
                }
                let (needs, alone) = (needs(pmu, group), is_exclusive(pmu, group));
                let fits = room && !exclusive && !(alone && used > 0) && used + needs <= self.slots;
                group.granted = fits || is_software(pmu, group);
                if group.granted {
                    used += needs;
                    exclusive |= alone;
                } else {
                    room = false;
                }
            }
            match (level, &mut *task) {
                (Level::CpuFlexible, _) => own.must_rotate = !room,
                (Level::TaskFlexible, Some(task)) => task.must_rotate = !room,
                _ => (),
            }
        }
    }

    /// Whether a group is to count here if there are counters for it.
    fn wants(&self, group: &Group) -> bool {
        let leader = group.leader();
        leader.state >= EventState::Inactive && leader.attr.cpu.is_none_or(|cpu| cpu == self.id)
    }

    /// Starts those of a group that are enabled and do not count yet.
    fn start<P: Pmu>(&self, pmu: &P, group: &mut Group, time_ns: u64) {
        if group.events.iter().all(|event| event.state != EventState::Inactive) {
            return;
        }
        group.settle(time_ns);
        for event in group.events.iter_mut().filter(|event| event.state == EventState::Inactive) {
            event.begin = pmu.start(self.id, event.attr.source);
            event.state = EventState::Active;
        }
    }
}

/// How many slots a group takes when it counts.
fn needs<P: Pmu>(pmu: &P, group: &Group) -> usize {
    let counts =
        |event: &&ContextEvent| event.state >= EventState::Inactive && pmu.needs_slot(event.attr.source);
    group.events.iter().filter(counts).count()
}

fn is_exclusive<P: Pmu>(pmu: &P, group: &Group) -> bool {
    group.leader().attr.exclusive && !is_software(pmu, group)
}

fn is_software<P: Pmu>(pmu: &P, group: &Group) -> bool {
    !group.events.iter().any(|event| pmu.needs_slot(event.attr.source))
}
