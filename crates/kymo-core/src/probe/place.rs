//! An entry of the registry: a key and its consumers.
//!
//! # Safety
//! As in [`table`](super::table).
#![allow(unsafe_code)]
use super::consumer::Consumer;
use super::key::{Key, Target};
use super::members::{ConsumerId, Member, Members};
use crate::epoch::{Published, Retired, Section};
use crate::sync::{AtomicBool, Ordering};
use std::sync::Arc;

/// One place and its consumers.
pub(super) struct ProbeEntry<C> {
    target: Target,
    members: Published<Members<C>>,
    /// A hit found that nobody needs the site any more; to be looked at by `settle`.
    removal: AtomicBool,
    /// Under the registry's lock: the site is armed.
    armed: AtomicBool,
    /// Under the registry's lock: the site could not be restored.
    broken: AtomicBool,
}

impl<C> ProbeEntry<C> {
    pub(super) fn new(target: Target) -> ProbeEntry<C> {
        ProbeEntry {
            target,
            members: Published::new(None),
            removal: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    pub(super) fn key(&self) -> Key {
        self.target.key
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    // Relaxed, here and below: read and written under the registry's lock.
    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    pub(super) fn set_armed(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Notes that a hit found nobody in need. Whether it was news.
    #[cold]
    pub(super) fn ask_removal(&self) -> bool {
        // Relaxed: a wish, looked at under the lock. The look first, so that a hot probe stores
        // once.
        !self.removal.load(Ordering::Relaxed) && !self.removal.swap(true, Ordering::Relaxed)
    }

    pub(super) fn take_removal(&self) -> bool {
        self.removal.swap(false, Ordering::Relaxed)
    }
}

impl<C: Consumer> ProbeEntry<C> {
    /// Its consumers, for a hit.
    ///
    /// # Safety
    /// The section is of the registry's domain.
    #[inline]
    pub(super) unsafe fn members<'s>(&self, section: &'s Section<'_>) -> Option<&'s Members<C>> {
        // SAFETY: the caller's promise.
        unsafe { self.members.load(section) }
    }

    /// Its consumers, for the holder of the registry's lock.
    pub(super) fn list<'w, W: ?Sized>(&self, writer: &'w W) -> &'w [Member<C>]
    where
        C: 'w,
    {
        // SAFETY: the registry's lock is borrowed by who calls, and only its holder exchanges.
        unsafe { self.members.owned(writer) }.map_or(&[], Members::list)
    }

    /// Whether somebody wants the site armed.
    pub(super) fn is_wanted<W: ?Sized>(&self, writer: &W) -> bool {
        self.list(writer).iter().any(|member| member.consumer.accepts())
    }

    pub(super) fn add<W: ?Sized>(&self, member: Member<C>, writer: &W) -> Option<Retired<Members<C>>> {
        let list = self.list(writer).iter().cloned().chain([member]).collect();
        self.members.exchange(Some(Arc::new(Members::new(list))))
    }

    /// Takes a consumer out. `None` if it is not there.
    pub(super) fn remove<W: ?Sized>(&self, id: ConsumerId, writer: &W) -> Option<Retired<Members<C>>> {
        let list = self.list(writer);
        if !list.iter().any(|member| member.id == id) {
            return None;
        }
        let rest: Vec<_> = list.iter().filter(|member| member.id != id).cloned().collect();
        self.members.exchange((!rest.is_empty()).then(|| Arc::new(Members::new(rest))))
    }
}
