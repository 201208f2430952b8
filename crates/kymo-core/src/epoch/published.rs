//! A pointer that readers follow inside sections while a writer exchanges it.
//!
//! # Safety
//! The cell owns one count of an `Arc`. A reader gets a reference that lives as long as its
//! section; a writer gets the old value back as a [`Retired`], which cannot be dropped but only
//! released, and releasing is unsafe: after a grace period.
#![allow(unsafe_code)]
use super::record::Section;
use crate::sync::{AtomicPtr, Ordering};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// A shared value, or none, that is exchanged under readers.
pub(crate) struct Published<T> {
    pointer: AtomicPtr<T>,
}

// SAFETY: it is an `Option<Arc<T>>` that is given out by reference on many threads and moved out on
// one.
unsafe impl<T: Send + Sync> Send for Published<T> {}
// SAFETY: likewise.
unsafe impl<T: Send + Sync> Sync for Published<T> {}

fn into_pointer<T>(value: Option<Arc<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut())
}

/// # Safety
/// The pointer is null or from `into_pointer`, and the count it stands for is given up by the
/// caller.
unsafe fn from_pointer<T>(pointer: *mut T) -> Option<Arc<T>> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer) })
}

impl<T> Published<T> {
    pub(crate) fn new(value: Option<Arc<T>>) -> Published<T> {
        Published { pointer: AtomicPtr::new(into_pointer(value)) }
    }

    /// What is published now. It stays while the section lives, whatever is published meanwhile.
    ///
    /// # Safety
    /// The section is of the domain after whose grace periods this cell's values are released.
    #[inline]
    pub(crate) unsafe fn load<'s>(&self, _section: &'s Section<'_>) -> Option<&'s T> {
        // Acquire: pairs with the Release in `exchange`, so that the value is whole.
        let pointer = self.pointer.load(Ordering::Acquire);
        // SAFETY: null, or a value whose count the cell had while the section was open: it is given
        // up after a grace period that waits for this section.
        unsafe { pointer.as_ref() }
    }

    /// What is published, for the only thread that exchanges: `writer` is what makes it the only
    /// one.
    ///
    /// # Safety
    /// Nobody exchanges this cell's value while `writer` is borrowed.
    pub(crate) unsafe fn owned<'w, W: ?Sized>(&self, _writer: &'w W) -> Option<&'w T> {
        // Relaxed: the lock that made it the only writer ordered the last exchange before this.
        let pointer = self.pointer.load(Ordering::Relaxed);
        // SAFETY: null, or a value whose count the cell has as long as nobody exchanges it.
        unsafe { pointer.as_ref() }
    }

    /// One more count of what is published.
    ///
    /// # Safety
    /// As [`Published::owned`], for as long as this runs.
    pub(crate) unsafe fn share(&self) -> Option<Arc<T>> {
        // Relaxed: as in `owned`.
        let pointer = self.pointer.load(Ordering::Relaxed);
        if pointer.is_null() {
            return None;
        }
        // SAFETY: the cell has a count, and keeps it while this runs.
        unsafe { Arc::increment_strong_count(pointer) };
        // SAFETY: the count that was just added.
        unsafe { from_pointer(pointer) }
    }

    /// Publishes a value. Readers that came before may have the old one until their sections end.
    pub(crate) fn exchange(&self, value: Option<Arc<T>>) -> Option<Retired<T>> {
        // Release: pairs with the Acquire in `load`. Acquire: the old value is this thread's now.
        let old = self.pointer.swap(into_pointer(value), Ordering::AcqRel);
        // SAFETY: the count was the cell's; the cell has another value now.
        unsafe { from_pointer(old) }.map(|old| Retired(ManuallyDrop::new(old)))
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // Relaxed: nobody else has the cell. (No `get_mut`: loom's differs.)
        let pointer = self.pointer.load(Ordering::Relaxed);
        // SAFETY: the cell's own count. Nobody has a section that can reach the cell, or it would
        // not be dropped.
        drop(unsafe { from_pointer(pointer) });
    }
}

impl<T> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Published")
    }
}

/// What was published once. Dropped without release it is leaked: too late is better than too
/// early.
#[must_use]
pub(crate) struct Retired<T>(ManuallyDrop<Arc<T>>);

impl<T> Retired<T> {
    /// Gives the count up.
    ///
    /// # Safety
    /// A grace period of the domain of its readers has passed since it was exchanged, or it has no
    /// readers left.
    pub(crate) unsafe fn release(self) -> Arc<T> {
        ManuallyDrop::into_inner(self.0)
    }
}

impl<T> fmt::Debug for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Retired")
    }
}
