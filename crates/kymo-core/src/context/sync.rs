//! The locks and atomics of the engine, from the standard library or from loom.
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU64};
pub(super) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard, atomic::AtomicU64};

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64 as Plain;

/// Locks. What a panicking `Pmu` left behind is still sound: every number is written whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that no call in this process ever gave before, not 0. Relaxed: it is a name, it
/// publishes nothing.
pub(super) fn unique() -> u64 {
    static LAST: Plain = Plain::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}
