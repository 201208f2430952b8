//! The events of a task or a CPU, in groups, with their counts and times.
pub(super) mod family;
pub(super) mod task_context;

use super::{Attr, Count, CpuId, EventId, Pmu};
use family::Family;
use std::sync::Arc;

/// What an event is doing, in the order in which states can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventState {
    /// Pinned, and there was no counter for it.
    Error,
    /// Disabled.
    Off,
    /// Enabled, and has no counter now.
    Inactive,
    /// Counts.
    Active,
}

/// One event in one context: the one that was opened, or a child of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextEvent {
    pub(crate) id: EventId,
    pub(crate) attr: Attr,
    /// The one that was opened.
    pub(crate) own: bool,
    pub(crate) state: EventState,
    pub(crate) count: Count,
    /// What the counter showed when it was started, if `Active`.
    pub(crate) begin: u64,
    /// Up to where, on the clock of its context, the times are accounted.
    pub(crate) stamp_ns: u64,
}

impl ContextEvent {
    pub(crate) fn new(id: EventId, attr: Attr, own: bool, state: EventState) -> ContextEvent {
        ContextEvent { id, attr, own, state, count: Count::default(), begin: 0, stamp_ns: 0 }
    }

    /// Accounts the times up to `time_ns`, in a group whose leader is in this state.
    fn settle(&mut self, leader: EventState, time_ns: u64) {
        let state = if leader <= EventState::Off { leader } else { self.state };
        let delta = time_ns.saturating_sub(self.stamp_ns);
        if state >= EventState::Inactive {
            self.count.enabled_ns = self.count.enabled_ns.saturating_add(delta);
        }
        if state == EventState::Active {
            self.count.running_ns = self.count.running_ns.saturating_add(delta);
        }
        self.stamp_ns = self.stamp_ns.max(time_ns);
    }

    /// Whether it is enabled, or disabled, already. A pinned event that lost its counter is
    /// neither.
    pub(crate) fn is(&self, to: EventState) -> bool {
        if to == EventState::Off { self.state == EventState::Off } else { self.state >= to }
    }

    /// Enables or disables it. It must not count now, and its times must be settled.
    pub(crate) fn change(&mut self, to: EventState) {
        if !self.is(to) {
            self.state = to;
        }
    }

    /// Takes what the counter shows into the count.
    pub(crate) fn collect(&mut self, raw: u64) {
        self.count.value = self.count.value.wrapping_add(raw.wrapping_sub(self.begin));
        self.begin = raw;
    }
}

/// Events that count all or none; the first leads.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) events: Vec<ContextEvent>,
    pub(crate) family: Arc<Family>,
    /// Where the family has this context in its list, if these are children.
    pub(crate) child_index: Option<usize>,
    /// It may count, as was decided when counters were last given out on its CPU.
    pub(crate) granted: bool,
}

impl Group {
    pub(crate) fn new(events: Vec<ContextEvent>, family: Arc<Family>, child_index: Option<usize>) -> Group {
        Group { events, family, child_index, granted: false }
    }

    pub(crate) fn leader(&self) -> &ContextEvent {
        &self.events[0]
    }

    pub(crate) fn settle(&mut self, time_ns: u64) {
        let leader = self.leader().state;
        for event in &mut self.events {
            event.settle(leader, time_ns);
        }
    }
}

/// The events of a task or of a CPU, by the order in which they get counters.
#[derive(Debug, Default)]
pub(crate) struct Set {
    pub(crate) pinned: Vec<Group>,
    pub(crate) flexible: Vec<Group>,
    /// Where it counts, if it does.
    pub(crate) on: Option<CpuId>,
    /// A flexible group found no counter when it was last tried.
    pub(crate) must_rotate: bool,
    /// Nanoseconds that it has been on a CPU, up to `since_ns` of that CPU's clock.
    clock_ns: u64,
    since_ns: u64,
}

impl Set {
    pub(crate) fn is_empty(&self) -> bool {
        self.pinned.is_empty() && self.flexible.is_empty()
    }

    pub(crate) fn add(&mut self, group: Group, pinned: bool) {
        if pinned {
            self.pinned.push(group);
        } else {
            self.flexible.push(group);
        }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.pinned.iter().chain(&self.flexible)
    }

    pub(crate) fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.pinned.iter_mut().chain(&mut self.flexible)
    }

    /// Begins to count on a CPU at this time of its clock.
    pub(crate) fn arrive(&mut self, cpu: CpuId, now_ns: u64) {
        (self.on, self.since_ns) = (Some(cpu), now_ns);
    }

    /// Ends counting; the clock stands until the next time.
    pub(crate) fn depart(&mut self, now_ns: u64) {
        self.clock_ns = self.time_ns(now_ns);
        self.on = None;
    }

    /// What the clock of the set shows when its CPU's shows `now_ns`.
    pub(crate) fn time_ns(&self, now_ns: u64) -> u64 {
        match self.on {
            Some(_) => self.clock_ns.saturating_add(now_ns.saturating_sub(self.since_ns)),
            None => self.clock_ns,
        }
    }

    /// The time of the CPU it is on; anything, while it is on none.
    pub(crate) fn now_ns<P: Pmu>(&self, pmu: &P) -> u64 {
        self.on.map_or(0, |cpu| pmu.now_ns(cpu))
    }

    pub(crate) fn group_of(&mut self, event: EventId) -> Option<(&mut Group, usize)> {
        self.groups_mut().find_map(|group| {
            let at = group.events.iter().position(|other| other.id == event)?;
            Some((group, at))
        })
    }

    /// What an event has counted up to now, and its state.
    pub(crate) fn peek<P: Pmu>(
        &self,
        pmu: &P,
        event: EventId,
        now_ns: u64,
    ) -> Option<(ContextEvent, EventState)> {
        let (leader, event) = self.groups().find_map(|group| {
            Some((group.leader().state, group.events.iter().find(|other| other.id == event)?))
        })?;
        let mut copy = *event;
        copy.settle(leader, self.time_ns(now_ns));
        if let (EventState::Active, Some(cpu)) = (event.state, self.on) {
            copy.collect(pmu.read(cpu, event.attr.source));
        }
        Some((copy, event.state))
    }

    /// Takes an event out that does not count now. If it led a group, each of the others, which may
    /// count, is a flexible group by itself then.
    pub(crate) fn remove(&mut self, event: EventId, time_ns: u64) -> Option<ContextEvent> {
        let holds = |group: &Group| group.events.iter().position(|other| other.id == event);
        let find =
            |groups: &[Group]| groups.iter().enumerate().find_map(|(at, group)| Some((at, holds(group)?)));
        let (groups, (at, member)) = match find(&self.pinned) {
            Some(found) => (&mut self.pinned, found),
            None => {
                let found = find(&self.flexible)?;
                (&mut self.flexible, found)
            }
        };
        groups[at].settle(time_ns);
        let event = groups[at].events.remove(member);
        if member == 0 {
            let Group { events, family, child_index, .. } = groups.remove(at);
            let alone = |event| Group::new(vec![event], Arc::clone(&family), child_index);
            self.flexible.extend(events.into_iter().map(alone));
        }
        Some(event)
    }

    /// Exchanges the counts of the events that are kept per task with those of a clone that rests.
    /// Pairs them by event, because a rotation may have changed their order. For each this looks at
    /// the counter, and at nothing else.
    pub(crate) fn exchange_counts<P: Pmu>(&mut self, rests: &mut Set, pmu: &P, now_ns: u64) {
        let (time_ns, rests_ns) = (self.time_ns(now_ns), rests.time_ns(now_ns));
        rests.groups_mut().for_each(|group| group.settle(rests_ns));
        let on = self.on;
        for (list, groups) in [&mut self.pinned, &mut self.flexible].into_iter().enumerate() {
            for (at, group) in groups.iter_mut().enumerate() {
                group.settle(time_ns);
                for (member, event) in
                    group.events.iter_mut().enumerate().filter(|(_, event)| event.attr.inherit_stat)
                {
                    let Some(other) = rests.pair(event.id, (list, at, member)) else {
                        continue;
                    };
                    if let (EventState::Active, Some(cpu)) = (event.state, on) {
                        event.collect(pmu.read(cpu, event.attr.source));
                    }
                    std::mem::swap(&mut event.count, &mut other.count);
                }
            }
        }
    }

    /// The event with this id: most often at the same place as in the clone, so that is tried
    /// first.
    fn pair(
        &mut self,
        event: EventId,
        (list, at, member): (usize, usize, usize),
    ) -> Option<&mut ContextEvent> {
        let groups = if list == 0 { &self.pinned } else { &self.flexible };
        let place = groups.get(at).and_then(|group| group.events.get(member));
        if place.is_some_and(|other| other.id == event) {
            let groups = if list == 0 { &mut self.pinned } else { &mut self.flexible };
            return Some(&mut groups[at].events[member]);
        }
        let (group, member) = self.group_of(event)?;
        Some(&mut group.events[member])
    }

    pub(crate) fn has_family(&self, family: &Arc<Family>) -> bool {
        self.groups().any(|group| Arc::ptr_eq(&group.family, family))
    }

    /// The families of its groups, each once.
    pub(crate) fn families(&self) -> Vec<Arc<Family>> {
        let mut families: Vec<Arc<Family>> = Vec::new();
        for group in self.groups() {
            if !families.iter().any(|family| Arc::ptr_eq(family, &group.family)) {
                families.push(Arc::clone(&group.family));
            }
        }
        families
    }
}
