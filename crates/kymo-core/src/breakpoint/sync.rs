//! The locks and counts of the ledger, from the standard library or from loom.
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard, atomic::AtomicU32};
pub(super) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard, atomic::AtomicU32};

use std::sync::PoisonError;

/// Locks. Nothing under these locks can panic halfway through a change.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
