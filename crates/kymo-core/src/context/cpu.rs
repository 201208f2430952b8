//! A CPU: who gets its counters.
use super::set::{Group, Set, State};
use super::task_context::Context;
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

impl Level {
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
    pub(super) active: Option<Arc<Context>>,
    /// A task that was dropped while it ran here, until somebody was told.
    pub(super) dropped: Option<TaskId>,
    pub(super) counters: Counters,
}

/// The hardware counters of a CPU.
#[derive(Debug)]
pub(super) struct Counters {
    id: CpuId,
    slots: usize,
    used: usize,
    /// An exclusive group counts.
    exclusive: bool,
}

impl Cpu {
    pub(super) fn new<P: Pmu>(id: CpuId, pmu: &P) -> Cpu {
        let mut set = Set::default();
        set.arrive(id, pmu.now_ns(id));
        let counters = Counters { id, slots: pmu.slots(id), used: 0, exclusive: false };
        Cpu { set, active: None, dropped: None, counters }
    }

    pub(super) fn id(&self) -> CpuId {
        self.counters.id
    }

    /// Stops what counts at these levels and tries all that is enabled again.
    pub(super) fn reschedule<P: Pmu>(
        &mut self,
        pmu: &P,
        mut task: Option<&mut Set>,
        from: Level,
        now_ns: u64,
    ) {
        for level in [Level::TaskFlexible, Level::CpuFlexible, Level::TaskPinned, Level::CpuPinned] {
            if level >= from {
                self.stop_level(pmu, task.as_deref_mut(), level, now_ns);
            }
        }
        self.counters.fill(pmu, &mut self.set, task, now_ns);
    }

    /// Takes the events of a task off.
    pub(super) fn stop_task<P: Pmu>(&mut self, pmu: &P, task: &mut Set, now_ns: u64) {
        let time_ns = task.time_ns(now_ns);
        for group in task.groups_mut() {
            self.counters.stop(pmu, group, time_ns);
        }
        if self.set.must_rotate {
            self.counters.fill(pmu, &mut self.set, None, now_ns);
        }
    }

    fn stop_level<P: Pmu>(&mut self, pmu: &P, task: Option<&mut Set>, level: Level, now_ns: u64) {
        let set = match (level, task) {
            (Level::CpuPinned | Level::CpuFlexible, _) => &mut self.set,
            (_, Some(task)) => task,
            (_, None) => return,
        };
        let time_ns = set.time_ns(now_ns);
        let pinned = matches!(level, Level::CpuPinned | Level::TaskPinned);
        for group in if pinned { &mut set.pinned } else { &mut set.flexible } {
            self.counters.stop(pmu, group, time_ns);
        }
    }

    /// Enables or disables an event of the CPU itself; tells whether something changed.
    pub(super) fn set_state<P: Pmu>(&mut self, pmu: &P, event: EventId, to: State, now_ns: u64) -> bool {
        let time_ns = self.set.time_ns(now_ns);
        let found = self.set.group_of(event);
        found.is_some_and(|(group, at)| self.counters.change(pmu, group, at, to, time_ns))
    }

    /// Takes an event of the CPU itself out.
    pub(super) fn remove<P: Pmu>(&mut self, pmu: &P, event: EventId, now_ns: u64) {
        let time_ns = self.set.time_ns(now_ns);
        if let Some((group, _)) = self.set.group_of(event) {
            self.counters.stop(pmu, group, time_ns);
        }
        self.set.remove(event, time_ns);
    }
}

impl Counters {
    /// Stops a group, if it counts.
    pub(super) fn stop<P: Pmu>(&mut self, pmu: &P, group: &mut Group, time_ns: u64) {
        if group.leader().state != State::Active {
            return;
        }
        group.settle(time_ns);
        for event in group.events.iter_mut().filter(|event| event.state == State::Active) {
            event.collect(pmu.stop(self.id, event.attr.source));
            event.state = State::Inactive;
            self.used = self.used.saturating_sub(usize::from(pmu.needs_slot(event.attr.source)));
        }
        if group.leader().attr.exclusive && !is_software(pmu, group) {
            self.exclusive = false;
        }
    }

    /// Enables or disables an event of a group, which stops for it; tells whether something changed.
    pub(super) fn change<P: Pmu>(
        &mut self,
        pmu: &P,
        group: &mut Group,
        at: usize,
        to: State,
        time_ns: u64,
    ) -> bool {
        if group.events[at].is(to) {
            return false;
        }
        self.stop(pmu, group, time_ns);
        group.settle(time_ns);
        group.events[at].change(to);
        true
    }

    /// Starts what is enabled and fits, at all levels.
    fn fill<P: Pmu>(&mut self, pmu: &P, own: &mut Set, mut task: Option<&mut Set>, now_ns: u64) {
        for pinned in [true, false] {
            for set in [Some(&mut *own), task.as_deref_mut()].into_iter().flatten() {
                let time_ns = set.time_ns(now_ns);
                // Once one found no counter, those after it wait for their turn.
                let mut room = true;
                for group in if pinned { &mut set.pinned } else { &mut set.flexible } {
                    let leader = group.leader();
                    let elsewhere = leader.attr.cpu.is_some_and(|cpu| cpu != self.id);
                    if leader.state != State::Inactive || elsewhere || self.start(pmu, group, time_ns, room) {
                        continue;
                    }
                    if pinned {
                        group.settle(time_ns);
                        group.events[0].state = State::Error;
                    } else {
                        room = false;
                    }
                }
                if !pinned {
                    set.must_rotate = !room;
                }
            }
        }
    }

    /// Starts a group, all of it or nothing.
    fn start<P: Pmu>(&mut self, pmu: &P, group: &mut Group, time_ns: u64, room: bool) -> bool {
        let software = is_software(pmu, group);
        let alone = group.leader().attr.exclusive && !software;
        let ready = group.events.iter().filter(|event| event.state == State::Inactive);
        let needs = ready.filter(|event| pmu.needs_slot(event.attr.source)).count();
        if !software && (!room || self.exclusive || alone && self.used > 0 || self.used + needs > self.slots)
        {
            return false;
        }
        group.settle(time_ns);
        for event in group.events.iter_mut().filter(|event| event.state == State::Inactive) {
            event.begin = pmu.start(self.id, event.attr.source);
            event.state = State::Active;
        }
        self.used += needs;
        self.exclusive |= alone;
        true
    }
}

fn is_software<P: Pmu>(pmu: &P, group: &Group) -> bool {
    !group.events.iter().any(|event| pmu.needs_slot(event.attr.source))
}
