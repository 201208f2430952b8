//! A hit: from the key to the consumers, without a lock or a store that another thread sees.
//!
//! # Safety
//! The cells are read in a section of the registry's own domain: a reader is made by its registry.
#![allow(unsafe_code)]
use super::consumer::Consumer;
use super::instance::{ConsumerId, Cookies, Frame};
use super::key::Key;
use super::members::Entered;
use super::place::Probe;
use super::registry::Registry;
use super::returns::{Hijack, Popped, Returns, Untraced};
use super::sites::Sites;
use super::sync::Ordering;
use crate::epoch::{self, Fence, Reader};
use std::fmt;

/// A thread's way to a registry.
pub struct ReaderHandle<'r, C: Consumer, S: Sites, F: Fence> {
    registry: &'r Registry<C, S, F>,
    reader: Reader<'r, F>,
}

impl<'r, C: Consumer, S: Sites, F: Fence> ReaderHandle<'r, C, S, F> {
    pub(super) fn new(registry: &'r Registry<C, S, F>, reader: Reader<'r, F>) -> Self {
        ReaderHandle { registry, reader }
    }

    pub(super) fn reader(&self) -> &Reader<'r, F> {
        &self.reader
    }

    /// Opens a section. Consumers that are found in it stay until it is dropped. May be done by a signal handler inside another one.
    #[inline]
    pub fn enter(&self) -> Section<'_, C, S, F> {
        Section { registry: self.registry, section: self.reader.enter() }
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for ReaderHandle<'_, C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderHandle").field("reader", &self.reader).finish()
    }
}

/// In which hits are handled.
#[must_use = "the section ends when this is dropped"]
pub struct Section<'s, C: Consumer, S: Sites, F: Fence> {
    registry: &'s Registry<C, S, F>,
    section: epoch::Section<'s>,
}

/// How a hit with its return ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// There is no probe: it was unregistered while the hit was on its way. Go on as if nothing had been there.
    NoProbe,
    /// Its return is of no interest.
    Plain,
    /// Its return is awaited: see to its return address.
    Awaited(Hijack),
    /// Somebody wants its return, and cannot have it.
    Untraced(Untraced),
}

impl<C: Consumer, S: Sites, F: Fence> Section<'_, C, S, F> {
    #[inline]
    fn find(&self, key: Key) -> Option<&Probe<C>> {
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

    #[inline]
    fn run(
        &self,
        key: Key,
        context: &mut C::Context,
        keep: impl FnMut(ConsumerId, u64) -> bool,
    ) -> Option<Entered> {
        let probe = self.find(key)?;
        // SAFETY: a section of the registry's domain.
        let entered = unsafe { probe.members(&self.section) }?.enter(context, keep);
        if entered.removes {
            self.ask_removal(probe);
        }
        Some(entered)
    }

    #[cold]
    fn ask_removal(&self, probe: &Probe<C>) {
        if probe.ask_removal() {
            // Relaxed: pairs with nothing: `settle` takes the lock, and comes again.
            self.registry.removals.store(true, Ordering::Relaxed);
        }
    }

    /// A hit without a return: calls all entry handlers. Whether there was a probe.
    #[inline]
    pub fn hit(&self, key: Key, context: &mut C::Context) -> bool {
        self.run(key, context, |_, _| false).is_some()
    }

    /// A hit at the first instruction of a function: calls all entry handlers, and awaits the return if somebody wants it.
    #[inline]
    pub fn call(&self, key: Key, context: &mut C::Context, frame: Frame, returns: &mut Returns) -> Call {
        let mut cookies = Cookies::default();
        match self.run(key, context, |id, cookie| cookies.put(id, cookie)) {
            None => Call::NoProbe,
            Some(entered) if !entered.awaits => Call::Plain,
            Some(_) => match returns.push(key, frame, &cookies) {
                Ok(hijack) => Call::Awaited(hijack),
                Err(reason) => Call::Untraced(reason),
            },
        }
    }

    /// A hit of the trampoline: calls the return handlers of those who are registered now, for every probe of the slot, newest first,
    /// and gives the address at which control resumes. `None` if nothing was awaited there: whoever put the trampoline's address
    /// there, it was not this registry.
    #[inline]
    pub fn returned(&self, slot: u64, context: &mut C::Context, returns: &mut Returns) -> Option<u64> {
        loop {
            // Out before its handlers run: one that walks the stack finds the original addresses of what is left.
            let Popped { key, return_address, chained, cookies } = returns.pop(slot)?;
            self.leave(key, context, &cookies);
            if !chained {
                return Some(return_address);
            }
        }
    }

    #[inline]
    fn leave(&self, key: Key, context: &mut C::Context, cookies: &Cookies) {
        let Some(probe) = self.find(key) else { return };
        // SAFETY: a section of the registry's domain.
        if let Some(members) = unsafe { probe.members(&self.section) } {
            members.leave(context, cookies);
        }
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for Section<'_, C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").finish_non_exhaustive()
    }
}
