//! Filtered probes: which hits count, and what is recorded of them. Each action is interned: one
//! copy for all stubs that do the same.
use crate::sys::lock;
use kymo_core::probe::value::reads_memory;
use kymo_core::probe::wire::{Fetch, FetchKind, ProbeAction};
use std::collections::HashSet;
use std::sync::Mutex;

/// What a probe counts of the hits that meet its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// The hits.
    Count,
    /// The hits and the returns.
    CountReturns,
    /// The hits, and the times until the returns.
    Latency,
}

/// Some of the hits, or more than to count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilteredProbe {
    pub(crate) measure: Measure,
    pub(crate) action: InternedAction,
}

impl FilteredProbe {
    /// Its event is not written ([`Record`](crate::patch::Record) does that).
    pub fn new(measure: Measure, action: ProbeAction) -> FilteredProbe {
        FilteredProbe { measure, action: InternedAction::of(action) }
    }
}

/// One of the things to do that were ever asked for. They stay: stubs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InternedAction(&'static ProbeAction);

impl std::ops::Deref for InternedAction {
    type Target = ProbeAction;

    fn deref(&self) -> &ProbeAction {
        self.0
    }
}

impl InternedAction {
    pub(crate) fn of(action: ProbeAction) -> InternedAction {
        static ALL: Mutex<Option<HashSet<&'static ProbeAction>>> = Mutex::new(None);
        let mut all = lock(&ALL);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&action) {
            return InternedAction(known);
        }
        let action: &'static ProbeAction = Box::leak(Box::new(action));
        all.insert(action);
        InternedAction(action)
    }

    /// Whether hits are looked at before they count, or some are not looked at further.
    pub(crate) fn chooses(&self) -> bool {
        !self.entry_condition.is_empty() || self.every > 1
    }

    /// Whether an entry needs more than a stub's own instructions (`slow_path.rs` does it then).
    pub(crate) fn needs_handler(&self, records: bool) -> bool {
        self.callers
            || reads_memory(&self.entry_condition)
            || records && self.event.is_some() && self.fetches.iter().any(is_far)
    }

    /// Likewise at a return.
    pub(crate) fn needs_handler_back(&self, records: bool) -> bool {
        reads_memory(&self.return_condition) || records && self.return_fetches.iter().any(is_far)
    }
}

/// Whether the handler is needed at an entry, and at a return, by what was asked for.
pub(crate) fn needs(action: InternedAction, records: bool) -> (bool, bool) {
    let back = records && action.return_event.is_some() && action.needs_handler_back(records);
    (action.needs_handler(records), back)
}

fn is_far(fetch: &Fetch) -> bool {
    !fetch.operand.steps.is_empty() || matches!(fetch.kind, FetchKind::String { .. })
}
