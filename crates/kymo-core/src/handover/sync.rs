//! Atomics and cells, from the standard library or from loom.
#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence},
};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

pub(super) use std::sync::atomic::Ordering;

/// The standard cell with loom's way in.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

/// A value on a cache line of its own (two: the neighbour is fetched with it), so that the ends of
/// a queue do not slow each other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct CacheLine<T>(pub(super) T);
