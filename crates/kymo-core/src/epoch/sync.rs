//! Locks and atomics, from the standard library or from loom.
#[cfg(loom)]
pub(super) use loom::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, fence},
    },
    thread::yield_now,
};
#[cfg(not(loom))]
pub(super) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, fence},
    },
    thread::yield_now,
};

pub(super) use std::sync::PoisonError;
pub(super) use std::sync::atomic::Ordering;

/// How many records the first chunk has; each further one has as many as all before it.
#[cfg(not(loom))]
pub(super) const FIRST_CHUNK: usize = 64;
#[cfg(loom)]
pub(super) const FIRST_CHUNK: usize = 2;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Two numbers and a flag, changed together without a call in between: nothing can panic half
    // way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
