//! Thread slots: the threads that run tasks, and the counters of each.
//!
//! A thread takes a slot when it first runs a task, and leaves it when it ends. The counters of a
//! slot only grow; the engine keeps differences. The owner counts with plain loads and stores, for
//! nobody else writes.
use super::clock::{System, ThreadClock};
use crate::sys;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// How many threads can run tasks at a time.
pub const THREADS: usize = 1024;
/// How many counters of its own a program can have.
pub const OWN_COUNTERS: usize = 16;

/// One thread's counters. A cache line of its own, twice over because processors fetch pairs.
#[repr(align(128))]
pub(super) struct ThreadSlot {
    /// The thread that owns it; 0: none.
    tid: AtomicI32,
    /// What the owner's clock showed last.
    shown_ns: AtomicU64,
    /// What others were told that it shows.
    told_ns: AtomicU64,
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    own: [AtomicU64; OWN_COUNTERS],
}

static SLOTS: [ThreadSlot; THREADS] = [const {
    ThreadSlot {
        tid: AtomicI32::new(0),
        shown_ns: AtomicU64::new(0),
        told_ns: AtomicU64::new(0),
        allocations: AtomicU64::new(0),
        allocated_bytes: AtomicU64::new(0),
        own: [const { AtomicU64::new(0) }; OWN_COUNTERS],
    }
}; THREADS];

const NO_SLOT: u32 = u32::MAX;
/// What [`MOMENT`] holds outside of a switch, and in one that has not looked at the clock.
const NO_SWITCH: u64 = u64::MAX;
const NOT_LOOKED: u64 = u64::MAX - 1;

thread_local! {
    // None of these has a destructor, so that allocations are counted to the very end of a thread.
    static MINE: Cell<u32> = const { Cell::new(NO_SLOT) };
    static CLOCK: ThreadClock = const { ThreadClock::new() };
    /// The time of the switch that goes on: all that stops and starts in it does so then.
    static MOMENT: Cell<u64> = const { Cell::new(NO_SWITCH) };
}

/// The number of the calling thread's slot.
#[inline]
pub(super) fn mine() -> Option<u32> {
    let mine = MINE.get();
    (mine != NO_SLOT).then_some(mine)
}

/// Takes a free slot for the calling thread; `None` if all are taken.
pub(super) fn take() -> Option<u32> {
    let tid = sys::clock::own_tid();
    let free = |slot: &ThreadSlot| {
        // Acquire: pairs with the Release in give_back(), so that the owner before us has done its
        // last write.
        slot.tid.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let number = SLOTS.iter().position(free)?;
    let slot = &SLOTS[number];
    // Relaxed: nobody asks about a slot before the engine has a task there.
    slot.shown_ns.store(0, Ordering::Relaxed);
    slot.told_ns.store(0, Ordering::Relaxed);
    MINE.set(number as u32);
    Some(number as u32)
}

/// Leaves the slot, when no task is on it any more.
pub(super) fn give_back() {
    if let Some(number) = mine() {
        MINE.set(NO_SLOT);
        // Release: pairs with the Acquire in take().
        SLOTS[number as usize].tid.store(0, Ordering::Release);
    }
}

/// The thread that has a slot, for messages.
pub(super) fn thread_at(number: u32) -> i32 {
    // Relaxed: only told.
    SLOTS.get(number as usize).map_or(0, |slot| slot.tid.load(Ordering::Relaxed))
}

/// Nanoseconds of CPU time of the thread that has this slot; what it was last if it is free.
pub(super) fn cpu_ns(number: u32) -> u64 {
    if mine() == Some(number) { own_cpu_ns(number) } else { other_cpu_ns(number) }
}

fn own_cpu_ns(number: u32) -> u64 {
    let moment = MOMENT.get();
    if moment < NOT_LOOKED {
        return moment;
    }
    let slot = &SLOTS[number as usize];
    // Relaxed, here and below: whoever compares what we tell with what others tell does so under
    // the engine's lock, which orders us.
    let now = CLOCK.with(|clock| clock.now_ns(&System)).max(slot.told_ns.load(Ordering::Relaxed));
    slot.shown_ns.store(now, Ordering::Relaxed);
    if moment == NOT_LOOKED {
        MOMENT.set(now);
    }
    now
}

fn other_cpu_ns(number: u32) -> u64 {
    let Some(slot) = SLOTS.get(number as usize) else { return 0 };
    let tid = slot.tid.load(Ordering::Relaxed);
    let asked = if tid == 0 { None } else { sys::clock::thread_cpu_ns(tid) };
    // The owner's clock may be ahead of the kernel's by an instant; nobody must see it go back.
    let now = asked.unwrap_or(0).max(slot.shown_ns.load(Ordering::Relaxed));
    slot.told_ns.fetch_max(now, Ordering::Relaxed).max(now)
}

/// Does `switch` at one moment: the clock is looked at once, when first needed, or not at all.
#[inline]
pub(super) fn at_one_moment<R>(switch: impl FnOnce() -> R) -> R {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            MOMENT.set(NO_SWITCH);
        }
    }
    MOMENT.set(NOT_LOOKED);
    let _over = Over;
    switch()
}

/// Allocations so far on this slot, and the bytes asked for in them.
pub(super) fn allocations(number: u32) -> (u64, u64) {
    // Relaxed, here and below: numbers that only grow; the engine's locks order what is compared.
    let of =
        |slot: &ThreadSlot| [&slot.allocations, &slot.allocated_bytes].map(|of| of.load(Ordering::Relaxed));
    SLOTS.get(number as usize).map_or((0, 0), |slot| of(slot).into())
}

/// One of the program's own counters.
pub(super) fn own(number: u32, counter: usize) -> u64 {
    let counter = SLOTS.get(number as usize).and_then(|slot| slot.own.get(counter));
    counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// Adds an allocation, if this thread runs tasks. For the allocator: does not allocate or wait.
#[inline]
pub(crate) fn count_allocation(bytes: usize) {
    // What a switch itself allocates is nobody's.
    let slot = if MOMENT.get() == NO_SWITCH { SLOTS.get(MINE.get() as usize) } else { None };
    let Some(slot) = slot else { return };
    add(&slot.allocations, 1);
    add(&slot.allocated_bytes, bytes as u64);
}

/// Adds to one of the program's own counters, if this thread runs tasks.
#[inline]
pub(super) fn count_own(counter: usize, by: u64) {
    if let Some(counter) = SLOTS.get(MINE.get() as usize).and_then(|slot| slot.own.get(counter)) {
        add(counter, by);
    }
}

/// Relaxed, and not one operation: only the owner of the slot writes.
#[inline]
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
