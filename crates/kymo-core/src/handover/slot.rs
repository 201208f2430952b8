//! A place for one value, used by one thread at a time by agreement of its users.
#![allow(unsafe_code)]
use crate::sync::UnsafeCell;

/// A place that is empty or holds a value.
#[derive(Debug)]
pub(super) struct Slot<T>(UnsafeCell<Option<T>>);

// SAFETY: a slot is reached only through `put` and `take`, whose callers promise that one thread at
// a time does so and that what the last one did happens before; the value itself moves between
// threads, hence `Send`.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    pub(super) fn empty() -> Slot<T> {
        Slot(UnsafeCell::new(None))
    }

    /// Puts a value in; one that was there is dropped.
    ///
    /// # Safety
    /// No other thread may use the slot meanwhile, and what the last one did to it must happen
    /// before this call.
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: the caller has the slot for itself, so this is the only reference.
        self.0.with_mut(|slot| unsafe { *slot = Some(value) });
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// As [`Slot::put`].
    pub(super) unsafe fn take(&self) -> Option<T> {
        self.0.with_mut(|slot| {
            // SAFETY: the caller has the slot for itself, so this is the only reference.
            let slot = unsafe { &mut *slot };
            slot.take()
        })
    }
}
