//! Deliberate faults, to show that the tests find them.
use super::Pmu;
use super::set::family::{EventHome, FamilyState};
use super::set::{ContextEvent, EventState, Set};
use std::sync::atomic::{AtomicBool, Ordering};

/// Wrong policies, all off.
#[derive(Debug, Default)]
pub(super) struct Naive {
    pub(super) start_as_the_top: AtomicBool,
    pub(super) pair_by_position: AtomicBool,
}

impl Naive {
    pub(super) fn starts_as_the_top(&self) -> bool {
        self.start_as_the_top.load(Ordering::Relaxed)
    }

    pub(super) fn pairs_by_position(&self) -> bool {
        self.pair_by_position.load(Ordering::Relaxed)
    }
}

/// A child's first state is that of the event that was opened, wherever that is now, instead of its
/// parent's. (Nothing else changes: which contexts are exchanged is the same.)
pub(super) fn start_as_the_top(kin: &FamilyState, copies: &mut [(bool, Vec<ContextEvent>)]) {
    for event in copies.iter_mut().flat_map(|(_, events)| events) {
        let top = match &kin.own {
            EventHome::Task(context) => context
                .lock()
                .set
                .group_of(event.id)
                .map_or(EventState::Off, |(group, at)| group.events[at].state),
            EventHome::Cpu(_) | EventHome::Gone => EventState::Off,
        };
        event.state = if top >= EventState::Inactive { EventState::Inactive } else { EventState::Off };
    }
}

/// Pairs events by their place in the two lists.
pub(super) fn exchange_by_position<P: Pmu>(runs: &mut Set, rests: &mut Set, pmu: &P, now_ns: u64) {
    let (time_ns, rests_ns) = (runs.time_ns(now_ns), rests.time_ns(now_ns));
    let on = runs.on;
    for (a, b) in runs.groups_mut().zip(rests.groups_mut()) {
        a.settle(time_ns);
        b.settle(rests_ns);
        for (a, b) in a.events.iter_mut().zip(&mut b.events) {
            if let (EventState::Active, Some(cpu)) = (a.state, on) {
                a.collect(pmu.read(cpu, a.attr.source));
            }
            std::mem::swap(&mut a.count, &mut b.count);
        }
    }
}
