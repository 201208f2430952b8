//! Numbers that are names.
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that no call in this process ever gave before, not 0. Relaxed: it is a name, it
/// publishes nothing.
pub(super) fn unique() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
