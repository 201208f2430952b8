//! The events of a recording probe, and the rings that they go to.
use super::clock::Clock;
use super::filter::InternedAction;
use kymo_core::probe::value::Operand;
use kymo_core::probe::wire::{EventId, Fetch, FetchKind, ProbeAction};

/// What writes hits into rings: from [`Rings::record`](crate::patch::Rings::record).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    pub(crate) table: u64,
    pub(crate) data_bytes: u32,
    pub(crate) clock: Clock,
    pub(crate) action: InternedAction,
}

impl Record {
    /// With the six registers that integer arguments are passed in.
    pub fn with_arguments(self) -> Record {
        let fetch = |register| Fetch { operand: Operand::register(register), kind: FetchKind::Number };
        // rdi, rsi, rdx, rcx, r8, r9
        let fetches = [7, 6, 2, 1, 8, 9].map(fetch).to_vec();
        self.with_action(ProbeAction { fetches, ..ProbeAction::clone(&self.action) })
    }

    /// As it is asked for from outside.
    pub fn with_action(self, action: ProbeAction) -> Record {
        Record { action: InternedAction::of(action), ..self }
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
