//! A hit: from the key to the consumers, without a lock or a store that another thread sees.
//!
//! # Safety
//! The cells are read in a section of the registry's own domain: a reader is made by its registry.
#![allow(unsafe_code)]
use super::consumer::Consumer;
use super::key::Key;
use super::place::ProbeEntry;
use super::registry::Registry;
use super::sites::Sites;
use crate::epoch::{self, Fence, Reader, TaskId};
use crate::sync::Ordering;
use std::fmt;

impl<C: Consumer, S: Sites, F: Fence> Registry<C, S, F> {
    /// A way in for a thread that is hit. Allocates if more threads are in than
    /// [`reserve`](Registry::reserve) made room for.
    pub fn join(&self, task: TaskId) -> ReaderHandle<'_, C, S, F> {
        ReaderHandle { registry: self, reader: self.domain.join(task) }
    }

    /// As [`join`](Registry::join), without allocation; `None` if there is no room.
    pub fn try_join(&self, task: TaskId) -> Option<ReaderHandle<'_, C, S, F>> {
        Some(ReaderHandle { registry: self, reader: self.domain.try_join(task)? })
    }
}

/// A thread's way to a registry.
pub struct ReaderHandle<'r, C: Consumer, S: Sites, F: Fence> {
    registry: &'r Registry<C, S, F>,
    reader: Reader<'r, F>,
}

impl<'r, C: Consumer, S: Sites, F: Fence> ReaderHandle<'r, C, S, F> {
    pub(super) fn reader(&self) -> &Reader<'r, F> {
        &self.reader
    }

    /// Opens a section. Consumers that are found in it stay until it is dropped. May be done by a
    /// signal handler inside another one.
    #[inline]
    pub fn enter(&self) -> HitSection<'_, C, S, F> {
        HitSection { registry: self.registry, section: self.reader.enter() }
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for ReaderHandle<'_, C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderHandle").field("reader", &self.reader).finish()
    }
}

/// In which hits are handled.
#[must_use = "the section ends when this is dropped"]
pub struct HitSection<'s, C: Consumer, S: Sites, F: Fence> {
    registry: &'s Registry<C, S, F>,
    section: epoch::Section<'s>,
}

impl<C: Consumer, S: Sites, F: Fence> HitSection<'_, C, S, F> {
    #[inline]
    fn find(&self, key: Key) -> Option<&ProbeEntry<C>> {
        // SAFETY: a section of the registry's domain.
        let table = unsafe { self.registry.table.load(&self.section) }?;
        // SAFETY: as above.
        unsafe { table.find(key, &self.section) }
    }

    /// Whether there is a probe.
    #[inline]
    pub fn has(&self, key: Key) -> bool {
        self.find(key).is_some()
    }

    #[cold]
    fn ask_removal(&self, probe: &ProbeEntry<C>) {
        if probe.ask_removal() {
            // Relaxed: pairs with nothing: `settle` takes the lock, and comes again.
            self.registry.removals.store(true, Ordering::Relaxed);
        }
    }

    /// A hit: calls all handlers. Whether there was a probe; without one it was unregistered while
    /// the hit was on its way.
    #[inline]
    pub fn hit(&self, key: Key, context: &mut C::Context) -> bool {
        let Some(probe) = self.find(key) else { return false };
        // SAFETY: a section of the registry's domain.
        let Some(members) = (unsafe { probe.members(&self.section) }) else { return false };
        if members.hit(context) {
            self.ask_removal(probe);
        }
        true
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for HitSection<'_, C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").finish_non_exhaustive()
    }
}
