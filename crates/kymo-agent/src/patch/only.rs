//! Which hits count, and what is noted of them, as stubs carry it: kept once for all stubs that do the same.
use kymo_core::probe::wire::{Condition, Fetch, How, Kind, Operand};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// What a probe counts of the hits that meet its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// The hits.
    Count,
    /// The hits and the returns.
    CountReturns,
    /// The hits, and the times until the returns.
    Latency,
}

/// Some of the hits, or more than to count them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Only {
    pub(super) look: Look,
    pub(super) how: Kept,
}

impl Only {
    /// From what was asked for; an event in it is not written ([`Record`](super::Record) does that).
    pub fn new(look: Look, how: How) -> Only {
        Only { look, how: Kept::of(how) }
    }
}

/// One of the things to do that were ever asked for. They stay: stubs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kept(&'static How);

impl std::ops::Deref for Kept {
    type Target = How;

    fn deref(&self) -> &How {
        self.0
    }
}

impl Kept {
    pub(super) fn of(how: How) -> Kept {
        static ALL: Mutex<Option<HashSet<&'static How>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_default();
        if let Some(known) = all.get(&how) {
            return Kept(known);
        }
        let how: &'static How = Box::leak(Box::new(how));
        all.insert(how);
        Kept(how)
    }

    /// The same for good, where it can be changed.
    pub(super) fn how(self) -> &'static How {
        self.0
    }

    /// Whether hits are looked at before they count, or some are not looked at further.
    pub(super) fn chooses(&self) -> bool {
        !self.entry.is_empty() || self.every > 1
    }

    /// Whether a stub's own instructions do not do for what happens at an entry (`handler.rs` does then).
    pub(super) fn needs_handler(&self, records: bool) -> bool {
        self.callers
            || reads_memory(&self.entry)
            || records && self.event.is_some() && self.fetches.iter().any(is_far)
    }

    /// Likewise at a return.
    pub(super) fn needs_handler_back(&self, records: bool) -> bool {
        reads_memory(&self.back) || records && self.back_fetches.iter().any(is_far)
    }
}

/// Whether the handler is needed at an entry, and at a return, by what was asked for.
pub(super) fn needs(how: Kept, records: bool) -> (bool, bool) {
    (how.needs_handler(records), records && how.back_event.is_some() && how.needs_handler_back(records))
}

/// Whether one of the tests looks at memory.
pub(super) fn reads_memory(condition: &Condition) -> bool {
    let far = |operand: &Operand| !operand.steps.is_empty();
    condition.iter().flatten().any(|test| far(&test.operand))
}

fn is_far(fetch: &Fetch) -> bool {
    !fetch.operand.steps.is_empty() || matches!(fetch.kind, Kind::String { .. })
}
