//! Locks, atomics and cells, from the standard library or, with the interface that loom's have, from
//! loom.
#![allow(unsafe_code)]
#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::{
    cell::{ConstPtr, MutPtr, UnsafeCell},
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, fence},
    },
    thread::yield_now,
};
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::{PoisonError, atomic::Ordering};
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, fence},
    },
    thread::yield_now,
};

/// Locks, also after a panic: no mutex of this crate guards anything that a panic could leave half
/// done. Numbers are written whole, and where several belong together nothing is called in between.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value on a cache line of its own (two: the neighbour is fetched with it), so that threads that
/// use neighbours do not slow each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// The standard cell with loom's way in.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
pub(crate) struct ConstPtr<T>(*const T);
#[cfg(not(loom))]
pub(crate) struct MutPtr<T>(*mut T);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }

    pub(crate) fn get(&self) -> ConstPtr<T> {
        ConstPtr(self.0.get())
    }

    pub(crate) fn get_mut(&self) -> MutPtr<T> {
        MutPtr(self.0.get())
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

#[cfg(not(loom))]
impl<T> ConstPtr<T> {
    /// # Safety
    /// Nobody may change the value while the reference lives, and it must live longer.
    pub(crate) unsafe fn deref(&self) -> &T {
        // SAFETY: the caller's promise.
        unsafe { &*self.0 }
    }
}

#[cfg(not(loom))]
impl<T> MutPtr<T> {
    pub(crate) fn with<R>(&self, read: impl FnOnce(*mut T) -> R) -> R {
        read(self.0)
    }

    /// # Safety
    /// Nobody else may reach the value while the reference lives, and it must live longer.
    #[expect(clippy::mut_from_ref, reason = "loom's pointer has this shape")]
    pub(crate) unsafe fn deref(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0 }
    }
}
