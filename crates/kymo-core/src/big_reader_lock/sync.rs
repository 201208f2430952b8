//! Locks, atomics and the cell, from the standard library or from loom; and which shard a thread
//! uses.
#![allow(unsafe_code)]
#[cfg(loom)]
pub(super) use loom::{
    cell::{ConstPtr, MutPtr, UnsafeCell},
    sync::{Condvar, Mutex, MutexGuard, atomic::AtomicUsize},
};
#[cfg(not(loom))]
pub(super) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicUsize};

pub(super) use std::sync::PoisonError;
pub(super) use std::sync::atomic::Ordering;

/// How many shards a lock has: a power of two. More than cores that are busy at once is a waste of
/// the writers' time.
#[cfg(not(loom))]
pub(super) const SHARDS: usize = 64;
/// Two are enough to meet in one or not.
#[cfg(loom)]
pub(super) const SHARDS: usize = 2;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The mutexes of a lock guard no data, so there is nothing that a panic could have left half
    // done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shard of this thread: the next one at its first question, so that threads spread evenly.
#[cfg(not(loom))]
pub(crate) fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: any number is right.
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    LANE.with(|shard| *shard)
}

#[cfg(loom)]
loom::thread_local! {
    static LANE: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

/// Under loom each execution must be like the first: the test says which shard a thread stands in.
#[cfg(loom)]
pub(crate) fn shard() -> usize {
    LANE.with(|shard| shard.get())
}

#[cfg(all(test, loom))]
pub(crate) fn stand_in_shard(shard: usize) {
    LANE.with(|mine| mine.set(shard % SHARDS));
}

/// The standard cell with loom's way in.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
pub(super) struct ConstPtr<T>(*const T);
#[cfg(not(loom))]
pub(super) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn get(&self) -> ConstPtr<T> {
        ConstPtr(self.0.get())
    }

    pub(super) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }

    pub(super) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[cfg(not(loom))]
impl<T> ConstPtr<T> {
    /// # Safety
    /// Nobody may change the value while the reference lives, and it must live longer.
    pub(super) unsafe fn deref(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0 }
    }
}

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    pub(super) fn with<R>(&self, read: impl FnOnce(*mut T) -> R) -> R {
        read(self.0)
    }

    /// # Safety
    /// Nobody else may reach the value while the reference lives, and it must live longer.
    #[expect(clippy::mut_from_ref, reason = "loom's pointer has this shape")]
    pub(super) unsafe fn deref(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0 }
    }
}
