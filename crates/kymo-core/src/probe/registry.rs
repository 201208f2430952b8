//! The registry, the writers' side: registers and unregisters consumers.
//!
//! # Safety
//! What the lock's holder takes out of the published cells becomes [`Garbage`]; it is released
//! after a grace period, or when the registry goes, which no [`ReaderHandle`](super::ReaderHandle)
//! outlives.
#![allow(unsafe_code)]
use super::consumer::Consumer;
use super::error::Error;
use super::garbage::{Freed, Garbage};
use super::key::{Key, Target};
use super::members::{ConsumerId, Member};
use super::place::ProbeEntry;
use super::sites::Sites;
use super::table::Table;
use crate::epoch::{Domain, Fence, InSection, Published, SynchronizeError, TaskId};
use crate::sync::{AtomicBool, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};

/// A registration, to end it with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    pub(super) key: Key,
    pub(super) id: ConsumerId,
}

impl Handle {
    /// Where it is registered.
    pub fn key(&self) -> Key {
        self.key
    }
}

/// Probes and their consumers. See the [module](super).
#[doc(alias = "uprobe_register")]
pub struct Registry<C: Consumer, S: Sites, F: Fence> {
    pub(super) domain: Domain<F>,
    pub(super) table: Published<Table<C>>,
    state: Mutex<WriterState<C, S>>,
    /// Some probe was asked to go by its consumers.
    pub(super) removals: AtomicBool,
}

/// What only writers see.
pub(super) struct WriterState<C, S> {
    pub(super) sites: S,
    probes: usize,
    last_id: u64,
    garbage: Vec<Garbage<C>>,
    /// Tests keep here what they have poisoned; otherwise there is nothing to keep.
    freed: Vec<Freed<C>>,
}

impl<C: Consumer, S: Sites, F: Fence> Registry<C, S, F> {
    /// A registry without probes.
    pub fn new(fence: F, sites: S) -> Registry<C, S, F> {
        let state = WriterState { sites, probes: 0, last_id: 0, garbage: Vec::new(), freed: Vec::new() };
        Registry {
            domain: Domain::new(fence),
            table: Published::new(Some(Arc::new(Table::new()))),
            state: Mutex::new(state),
            removals: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WriterState<C, S>> {
        // A panic of `Sites` or of `accepts` leaves the tables whole: each exchange is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn table<'w>(&self, state: &'w WriterState<C, S>) -> &'w Table<C> {
        // SAFETY: the lock is borrowed, and only its holder exchanges the table.
        unsafe { self.table.owned(state) }.expect("there is always a table")
    }

    /// Registers one consumer. Hits may call it before this returns. See
    /// [`Registry::register_all`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn register(&self, target: impl Into<Target>, consumer: Arc<C>) -> Result<Handle, Error<S::Refusal>> {
        self.register_all([(target.into(), consumer)]).pop().expect("one answer for one question")
    }

    /// Registers consumers, each by itself: one that is refused does not keep the others out. Sites
    /// are armed all together. Blocks while another thread registers or ends registrations, and as
    /// long as arming takes.
    ///
    /// # Errors
    /// Per consumer, in order; see [`Error`].
    pub fn register_all(
        &self,
        asked: impl IntoIterator<Item = (Target, Arc<C>)>,
    ) -> Vec<Result<Handle, Error<S::Refusal>>> {
        let mut state = self.lock();
        let mut answers: Vec<_> =
            asked.into_iter().map(|(target, consumer)| self.add(&mut state, target, consumer)).collect();
        let keys = answers.iter().flatten().map(|handle: &Handle| handle.key).collect();
        let refused: HashMap<Key, S::Refusal> = self.arm(&mut state, keys).into_iter().collect();
        for answer in &mut answers {
            if let Ok(handle) = *answer
                && let Some(reason) = refused.get(&handle.key)
            {
                let (key, reason) = (handle.key, reason.clone());
                self.take_out(&mut state, handle);
                *answer = Err(Error::Refused { key, reason });
            }
        }
        // Consumers that were there before want the site as much as the new ones: if they got none,
        // they wait for the next occasion.
        self.sweep(&mut state, refused.into_keys());
        answers
    }

    fn add(
        &self,
        state: &mut MutexGuard<'_, WriterState<C, S>>,
        target: Target,
        consumer: Arc<C>,
    ) -> Result<Handle, Error<S::Refusal>> {
        let key = target.key;
        let found = self.table(state).get(key, &**state);
        let probe = match found {
            Some(probe) if probe.target() != target => {
                return Err(Error::OtherSemaphore {
                    key,
                    has: probe.target().semaphore,
                    asked: target.semaphore,
                });
            }
            Some(probe) if probe.is_broken() => return Err(Error::Broken { key }),
            Some(probe) => probe,
            None => {
                let probe = Arc::new(ProbeEntry::new(target));
                let retired = self.table(state).insert(Arc::clone(&probe));
                state.garbage.extend(retired.map(Garbage::Link));
                state.probes += 1;
                self.resize(state);
                probe
            }
        };
        state.last_id += 1;
        let id = ConsumerId(state.last_id);
        let retired = probe.add(Member { id, consumer }, &**state);
        state.garbage.extend(retired.map(Garbage::Members));
        Ok(Handle { key, id })
    }

    /// Ends registrations, without waiting: handlers of these consumers may still run, and may even
    /// start, until [`Registry::synchronize`] has returned. Sites that nobody else wants are
    /// disarmed, all together. Ending one twice is no error.
    ///
    /// May be called by a handler, if the registry's lock is not held by its thread ([`Sites`] and
    /// [`Consumer::accepts`] run with it) and the sites can be changed from there.
    pub fn unregister(&self, handles: &[Handle]) {
        let mut state = self.lock();
        let mut keys: Vec<Key> = Vec::new();
        for handle in handles {
            if self.take_out(&mut state, *handle) {
                keys.push(handle.key);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        self.disarm_unwanted(&mut state, &keys);
        self.sweep(&mut state, keys);
    }

    /// Waits until no handler of a consumer runs whose registration was ended before, and frees
    /// what belonged to it. One call serves any number of ended registrations, and calls that wait
    /// at the same time share the wait.
    ///
    /// # Errors
    /// [`InSection`] if the calling task `me` is inside a handler (or holds a section otherwise):
    /// it would wait for itself.
    pub fn synchronize(&self, me: TaskId) -> Result<(), InSection> {
        self.collect(|domain| domain.synchronize(me))
    }

    /// As [`synchronize`](Registry::synchronize), until `expired` answers true: see
    /// [`Domain::try_synchronize`].
    ///
    /// # Errors
    /// [`SynchronizeError`]; then nothing is freed before a later call succeeds.
    pub fn try_synchronize(&self, me: TaskId, expired: impl FnMut() -> bool) -> Result<(), SynchronizeError> {
        self.collect(|domain| domain.try_synchronize(me, expired))
    }

    /// Frees what was retired before, if the wait succeeds.
    fn collect<E>(&self, wait: impl FnOnce(&Domain<F>) -> Result<(), E>) -> Result<(), E> {
        let garbage = std::mem::take(&mut self.lock().garbage);
        if let Err(error) = wait(&self.domain) {
            self.lock().garbage.extend(garbage);
            return Err(error);
        }
        // SAFETY: all of it was taken out before the grace period began. Not under the lock:
        // consumers are dropped here.
        let freed: Vec<_> = garbage.into_iter().map(|garbage| unsafe { garbage.release() }).collect();
        if cfg!(test) {
            self.lock().freed.extend(freed);
        }
        Ok(())
    }

    /// The number of probes that somebody is registered for, or that are broken.
    pub fn probes(&self) -> usize {
        self.lock().probes
    }

    /// Makes room for this many threads.
    pub fn reserve(&self, threads: usize) {
        self.domain.reserve(threads);
    }

    /// Grace periods until now.
    pub fn grace_periods(&self) -> u64 {
        self.domain.grace_periods()
    }

    /// Takes a consumer out of its probe's list. Whether it was there.
    fn take_out(&self, state: &mut MutexGuard<'_, WriterState<C, S>>, handle: Handle) -> bool {
        let Some(probe) = self.table(state).get(handle.key, &**state) else { return false };
        let retired = probe.remove(handle.id, &**state);
        let was_there = retired.is_some();
        state.garbage.extend(retired.map(Garbage::Members));
        was_there
    }

    /// Forgets those of the probes that have no consumers and no armed or broken site.
    fn sweep(&self, state: &mut MutexGuard<'_, WriterState<C, S>>, keys: impl IntoIterator<Item = Key>) {
        for key in keys {
            let Some(probe) = self.table(state).get(key, &**state) else { continue };
            if !probe.list(&**state).is_empty() || probe.is_armed() || probe.is_broken() {
                continue;
            }
            let retired = self.table(state).erase(key, &**state);
            state.garbage.extend(retired.map(Garbage::Link));
            state.probes -= 1;
        }
        self.resize(state);
    }

    fn resize(&self, state: &mut MutexGuard<'_, WriterState<C, S>>) {
        let probes = state.probes;
        if let Some(table) = self.table(state).resized(probes, &**state) {
            let retired = self.table.exchange(Some(Arc::new(table)));
            state.garbage.extend(retired.map(Garbage::Table));
        }
    }
}

impl<C: Consumer, S: Sites, F: Fence> Drop for Registry<C, S, F> {
    fn drop(&mut self) {
        for garbage in std::mem::take(&mut self.lock().garbage) {
            // SAFETY: every reader borrows the registry, so there is none.
            _ = unsafe { garbage.release() };
        }
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for Registry<C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}
