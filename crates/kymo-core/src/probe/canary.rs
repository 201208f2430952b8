//! Tests only: memory that says so when it is looked at after it was freed. What is to be freed is
//! poisoned and kept instead, so that the look itself is defined.
use std::sync::atomic::{AtomicBool, Ordering};

/// A word of what must not be looked at after it was freed.
#[derive(Debug, Default)]
pub(super) struct Canary(AtomicBool);

impl Canary {
    pub(super) fn check(&self) {
        // Relaxed: an old value is no false alarm, and grace periods order the rest.
        assert!(!self.0.load(Ordering::Relaxed), "looked at after it was freed");
    }

    pub(super) fn poison(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
