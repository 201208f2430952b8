//! A task of the engine, with its statistics.
use super::Inner;
use crate::sys::fork;
use crate::task::counter::Counter;
use crate::task::counters::{Counters, engine};
use crate::task::reading::Reading;
use crate::task::{Error, thread_slot};
use kymo_core::context::{self, Count, EventId};
use std::borrow::Cow;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// How a task is. Once it is over it stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::task) enum Life {
    Lives,
    /// Its owner is gone while a thread still runs it; that thread ends it.
    Dropped,
    Ended,
    /// It ended with the thread that ran it.
    Stranded,
}

/// What everybody may look at while a task runs. Written by the thread that runs it only, hence
/// plain loads and stores; all Relaxed: they are numbers to be shown, and publish nothing.
pub(in crate::task) struct Stats {
    pub(in crate::task) number: u64,
    pub(in crate::task) name: Cow<'static, str>,
    pub(in crate::task) group: Arc<Inner>,
    /// Whether this is a thread itself, rather than something that it runs.
    pub(in crate::task) is_thread: bool,
    polls: AtomicU64,
    switches: AtomicU64,
    migrations: AtomicU64,
    uncounted: AtomicU64,
    /// The slot that runs it, plus one; 0: it rests.
    on: AtomicU32,
    /// The last thread, by [`TaskThread`](crate::task::thread::TaskThread)'s number; 0: none.
    last: AtomicU64,
    life: AtomicU8,
    /// Its own counts, when it has ended.
    finals: OnceLock<Vec<(EventId, Count)>>,
}

fn add(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl Stats {
    pub(in crate::task) fn new(
        number: u64,
        name: Cow<'static, str>,
        group: Arc<Inner>,
        is_thread: bool,
    ) -> Stats {
        Stats {
            number,
            name,
            group,
            is_thread,
            polls: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            migrations: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            on: AtomicU32::new(0),
            last: AtomicU64::new(0),
            life: AtomicU8::new(Life::Lives as u8),
            finals: OnceLock::new(),
        }
    }

    /// Its numbers at one moment, and no counts.
    pub(in crate::task) fn reading(&self) -> Reading {
        Reading {
            polls: self.polls.load(Ordering::Relaxed),
            switches: self.switches.load(Ordering::Relaxed),
            migrations: self.migrations.load(Ordering::Relaxed),
            uncounted: self.uncounted.load(Ordering::Relaxed),
            counts: Vec::new(),
        }
    }

    pub(in crate::task) fn polled(&self) {
        add(&self.polls);
    }

    pub(in crate::task) fn not_counted(&self) {
        add(&self.uncounted);
    }

    /// A slot begins to run it.
    #[inline]
    pub(in crate::task) fn arrives(&self, slot: u32, thread: u64) {
        let last = self.last.load(Ordering::Relaxed);
        if last != thread {
            self.last.store(thread, Ordering::Relaxed);
            if last != 0 {
                add(&self.migrations);
            }
        }
        self.on.store(slot + 1, Ordering::Relaxed);
        add(&self.switches);
    }

    #[inline]
    pub(in crate::task) fn departs(&self) {
        self.on.store(0, Ordering::Relaxed);
    }

    pub(in crate::task) fn is_running(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    pub(in crate::task) fn life(&self) -> Life {
        // Relaxed: a decision taken on it is taken by whoever owns the body, which travels by other
        // means.
        match self.life.load(Ordering::Relaxed) {
            0 => Life::Lives,
            1 => Life::Dropped,
            2 => Life::Ended,
            _ => Life::Stranded,
        }
    }

    /// Its owner is gone, unless it is over already.
    pub(in crate::task) fn lose_owner(&self) {
        let (lives, dropped) = (Life::Lives as u8, Life::Dropped as u8);
        // Relaxed: see life(). Exchanged, because its thread may be ending it just now.
        let _ = self.life.compare_exchange(lives, dropped, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// It lived until now.
    pub(in crate::task) fn set_life(&self, life: Life) {
        self.life.store(life as u8, Ordering::Relaxed);
    }

    /// Why the body of this task is not with its owner.
    pub(in crate::task) fn why_absent(&self) -> Error {
        let task = self.number;
        match self.life() {
            Life::Ended => Error::Ended { task },
            Life::Stranded => Error::ThreadEnded { task },
            Life::Lives | Life::Dropped => {
                let on = self.on.load(Ordering::Relaxed);
                Error::AlreadyRunning { task, thread: on.checked_sub(1).map_or(0, thread_slot::thread_at) }
            }
        }
    }

    /// Its own counts, if it has ended and its group keeps such.
    pub(in crate::task) fn finals(&self) -> Option<&[(EventId, Count)]> {
        self.finals.get().map(Vec::as_slice)
    }
}

/// What a thread holds while it runs a task, and the task's owner while it rests. Dropping it ends
/// the task.
pub(in crate::task) struct Body {
    pub(in crate::task) run: ManuallyDrop<context::Task<Counters>>,
    pub(in crate::task) stats: Arc<Stats>,
}

impl Body {
    pub(in crate::task) fn is(&self, stats: &Arc<Stats>) -> bool {
        Arc::ptr_eq(&self.stats, stats)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        // In a forked child the engine's locks may be taken for good: nothing is touched, and the
        // memory is a copy anyway.
        if fork::is_child() {
            return;
        }
        let counts = engine().exit(&mut self.run).unwrap_or_default();
        // A body is dropped once.
        let _ = self.stats.finals.set(counts);
        self.stats.departs();
        if matches!(self.stats.life(), Life::Lives | Life::Dropped) {
            self.stats.set_life(Life::Ended);
        }
        self.stats.group.forget(&self.stats);
    }
}

/// One count of a list, as it is shown.
pub(in crate::task) fn shown(counts: &[(EventId, Count)], event: EventId, counter: Counter) -> Option<u64> {
    let count = counts.iter().find(|(of, _)| *of == event)?.1.value;
    counter.is_whole().then_some(count)
}
