//! What a signal handler knows of a watch: atomics, and a callback that outlives everyone who runs
//! it.
//!
//! ```text
//!   starting:   fields, callback -> token              handler:   running + 1 -> token still the signal's? -> callback -> running - 1
//!   stopping:   token = 0 -> wait for running == 0 -> free the callback
//! ```
//! Both sides write one word and then read the other's, so all four accesses are sequentially
//! consistent: either the handler sees that the watch was stopped, or who stops it sees the
//! handler.
//!
//! # Safety
//! The callback is a box that the slot owns from [`Slot::start`] to [`Slot::clear`].
#![allow(unsafe_code)]
use super::hit::Hit;
use crate::sys::signal;
use kymo_core::breakpoint::Kind;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub(super) struct Callback(pub(super) Box<dyn Fn(&Hit) + Send + Sync>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) address: u64,
    pub(super) len_bytes: usize,
    pub(super) kind: Kind,
}

/// One slot of the processor, as signal handlers see it.
pub(super) struct Slot {
    /// Which watch has it: the number that comes with its signals. 0: none.
    token: AtomicU64,
    /// Handlers that look at it now.
    running: AtomicU32,
    callback: AtomicPtr<Callback>,
    address: AtomicU64,
    len_bytes: AtomicU32,
    kind: AtomicU32,
    /// The last value seen, if there was one.
    last: AtomicU64,
    has_last: AtomicBool,
    hits: AtomicU64,
    /// Whose hits these are: still known when the watch was stopped.
    counted: AtomicU64,
}

/// More than any processor has.
pub(super) const SLOTS: usize = 16;
static ALL: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// Tells our signals from those of other users of perf events.
const MAGIC: u64 = 0x6b_796d << 40;

/// The number of a watch: which slot, and which watch of that slot.
pub(super) fn token(slot: usize, generation: u32) -> u64 {
    MAGIC | u64::from(generation) << 8 | slot as u64
}

/// The slot of a number, if it can be one of ours.
pub(super) fn slot_of(token: u64) -> Option<usize> {
    let slot = (token & 0xff) as usize;
    (token & !((1 << 40) - 1) == MAGIC && slot < SLOTS).then_some(slot)
}

/// The slot with this number, below [`SLOTS`].
pub(super) fn slot(number: usize) -> &'static Slot {
    &ALL[number]
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            token: AtomicU64::new(0),
            running: AtomicU32::new(0),
            callback: AtomicPtr::new(std::ptr::null_mut()),
            address: AtomicU64::new(0),
            len_bytes: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            last: AtomicU64::new(0),
            has_last: AtomicBool::new(false),
            hits: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    /// Begins a watch. By who has the slot for himself, after [`Slot::clear`].
    pub(super) fn start(&self, token: u64, range: Range, callback: Box<Callback>) {
        // Relaxed: the token publishes all of them.
        self.address.store(range.address, Ordering::Relaxed);
        self.len_bytes.store(range.len_bytes as u32, Ordering::Relaxed);
        self.kind.store(range.kind.bits(), Ordering::Relaxed);
        let value = range.value();
        self.last.store(value.unwrap_or(0), Ordering::Relaxed);
        self.has_last.store(value.is_some(), Ordering::Relaxed);
        self.hits.store(0, Ordering::Relaxed);
        self.counted.store(token, Ordering::Relaxed);
        self.callback.store(Box::into_raw(callback), Ordering::Relaxed);
        // SeqCst: pairs with enter().
        self.token.store(token, Ordering::SeqCst);
    }

    /// Ends a watch: no handler begins to run for it. Whether it was this one that ended it.
    pub(super) fn stop(&self, token: u64) -> bool {
        // SeqCst: before is_quiet(), pairs with enter().
        self.token.compare_exchange(token, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether no handler runs. After [`Slot::stop`] none begins that would call anything.
    pub(super) fn is_quiet(&self) -> bool {
        // SeqCst: after stop(), pairs with enter(). It acquires what handlers did.
        self.running.load(Ordering::SeqCst) == 0
    }

    /// Takes the callback of a stopped watch, when it is quiet. By who has the slot.
    pub(super) fn clear(&self) -> Option<Box<Callback>> {
        assert!(self.current() == 0 && self.is_quiet(), "a handler may still use it");
        // Relaxed: nobody else looks.
        let callback = self.callback.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: from start(); no handler has it (above), and none gets it without a token.
        (!callback.is_null()).then(|| unsafe { Box::from_raw(callback) })
    }

    /// Hits of the watch that had it last, if that is this one. By that watch's owner.
    pub(super) fn hits(&self, token: u64) -> Option<u64> {
        // Relaxed: a count; the owner has seen the start.
        (self.counted.load(Ordering::Relaxed) == token).then(|| self.hits.load(Ordering::Relaxed))
    }

    /// Hits of the last watch that had it. By who has the slot for himself.
    pub(super) fn last_hits(&self) -> u64 {
        // Relaxed: is_quiet() acquired what handlers did.
        self.hits.load(Ordering::Relaxed)
    }

    /// Keeps the watch of this number from being cleared; `None` if it was stopped.
    pub(super) fn enter(&self, token: u64) -> Option<Running<'_>> {
        // Not even a look at it for those that nobody has.
        if token == 0 || self.token.load(Ordering::Relaxed) != token {
            return None;
        }
        // SeqCst, twice: pairs with stop() and is_quiet().
        self.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(self);
        (self.token.load(Ordering::SeqCst) == token).then_some(running)
    }

    /// The number of the watch that has it, 0 if none.
    pub(super) fn current(&self) -> u64 {
        self.token.load(Ordering::SeqCst)
    }
}

impl Range {
    /// What is there now, unless it is code.
    fn value(self) -> Option<u64> {
        if self.kind == Kind::EXECUTE { None } else { signal::peek(self.address, self.len_bytes) }
    }
}

/// A handler that runs.
pub(super) struct Running<'a>(&'a Slot);

impl Running<'_> {
    pub(super) fn range(&self) -> Range {
        // Relaxed: published by the token, which enter() saw.
        let kind = Kind::from_bits(self.0.kind.load(Ordering::Relaxed)).unwrap_or(Kind::WRITE);
        let address = self.0.address.load(Ordering::Relaxed);
        Range { address, len_bytes: self.0.len_bytes.load(Ordering::Relaxed) as usize, kind }
    }

    /// The value before and now; what is now is the value before of the next hit.
    pub(super) fn values(&self) -> (Option<u64>, Option<u64>) {
        let new = self.range().value();
        // Relaxed: two handlers at a time each get a value that was there; which of them is first
        // is not known anyway.
        let had = self.0.has_last.swap(new.is_some(), Ordering::Relaxed);
        let old = self.0.last.swap(new.unwrap_or(0), Ordering::Relaxed);
        (had.then_some(old), new)
    }

    pub(super) fn call(&self, hit: &Hit) {
        // Relaxed: a count.
        self.0.hits.fetch_add(1, Ordering::Relaxed);
        let callback = self.0.callback.load(Ordering::Relaxed);
        // SAFETY: there since before the token, and until this handler has ended.
        let callback = unsafe { &*callback };
        (callback.0)(hit);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // SeqCst (Release would do): pairs with is_quiet().
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
