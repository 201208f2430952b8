//! The events of a recording probe, and the rings that they go to.
use super::clock::Clock;
use super::filter::InternedAction;
use kymo_core::probe::value::{Condition, Operand};
use kymo_core::probe::wire::{EventId, Fetch, FetchKind, ProbeAction};

/// What writes hits into rings: from [`Rings::record`](crate::patch::Rings::record).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub(crate) table: u64,
    pub(crate) data_bytes: u32,
    pub(crate) clock: Clock,
    pub(crate) action: InternedAction,
}

/// The counters that a recording stub raises besides its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RecordSlots {
    pub(crate) lost: u32,
}

impl Record {
    pub(crate) fn new(event: u64, table: u64, data_bytes: u32, clock: Clock) -> Record {
        let action = ProbeAction { event: Some(EventId { id: event, kind: 0 }), ..ProbeAction::default() };
        Record { table, data_bytes, clock, action: InternedAction::of(action) }
    }

    fn with(self, change: impl FnOnce(&mut ProbeAction)) -> Record {
        let mut action = self.action.get().clone();
        change(&mut action);
        Record { action: InternedAction::of(action), ..self }
    }

    /// With the six registers that integer arguments are passed in.
    pub fn with_arguments(self) -> Record {
        let fetch = |register| Fetch { operand: Operand::register(register), kind: FetchKind::Number };
        // rdi, rsi, rdx, rcx, r8, r9
        self.with(|action| action.fetches = [7, 6, 2, 1, 8, 9].map(fetch).to_vec())
    }

    /// Only hits that meet a condition; others are not counted either.
    pub fn only_if(self, condition: Condition) -> Record {
        self.with(|action| action.entry_condition = condition)
    }

    /// Only one of `every` hits on each CPU, of those that meet the condition. 0 is taken for 1.
    pub fn every(self, every: u32) -> Record {
        self.with(|action| action.every = every)
    }

    /// As it is asked for from outside.
    pub fn with_action(self, action: ProbeAction) -> Record {
        Record { action: InternedAction::of(action), ..self }
    }

    /// The return is recorded, not the entry; both are counted.
    pub fn returning(self) -> Record {
        self.with(|action| {
            action.return_event = action.event.take();
            action.return_fetches = std::mem::take(&mut action.fetches);
        })
    }

    /// Whether returns are recorded.
    pub(crate) fn returns(&self) -> bool {
        self.action.return_event.is_some()
    }

    pub(crate) fn event(&self, returned: bool) -> EventId {
        let event = if returned { self.action.return_event } else { self.action.event };
        event.unwrap_or(EventId { id: 0, kind: 0 })
    }
}
