//! Threads that run tasks, and what each of them has counted so far.
//!
//! A thread takes a seat when it first runs a task, and leaves it when it ends. The counters of a seat only grow; the engine keeps
//! differences. The owner counts with plain loads and stores, for nobody else writes.
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
pub(super) struct Seat {
    /// Who sits here; 0: nobody.
    tid: AtomicI32,
    /// What the owner's clock showed last.
    shown_ns: AtomicU64,
    /// What others were told that it shows.
    told_ns: AtomicU64,
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    own: [AtomicU64; OWN_COUNTERS],
}

static SEATS: [Seat; THREADS] = [const {
    Seat {
        tid: AtomicI32::new(0),
        shown_ns: AtomicU64::new(0),
        told_ns: AtomicU64::new(0),
        allocations: AtomicU64::new(0),
        allocated_bytes: AtomicU64::new(0),
        own: [const { AtomicU64::new(0) }; OWN_COUNTERS],
    }
}; THREADS];

/// No seat.
const STANDING: u32 = u32::MAX;
/// What [`MOMENT`] holds outside of a switch, and in one that has not looked at the clock.
const NO_SWITCH: u64 = u64::MAX;
const NOT_LOOKED: u64 = u64::MAX - 1;

thread_local! {
    // None of these has a destructor, so that allocations are counted to the very end of a thread.
    static MINE: Cell<u32> = const { Cell::new(STANDING) };
    static CLOCK: ThreadClock = const { ThreadClock::new() };
    /// The time of the switch that is going on: all that stops and starts in it does so at one moment.
    static MOMENT: Cell<u64> = const { Cell::new(NO_SWITCH) };
}

/// The number of the calling thread's seat.
#[inline]
pub(super) fn mine() -> Option<u32> {
    let mine = MINE.get();
    (mine != STANDING).then_some(mine)
}

/// Takes a free seat for the calling thread; `None` if all are taken.
pub(super) fn take() -> Option<u32> {
    let tid = sys::clock::own_tid();
    let free = |seat: &Seat| {
        // Acquire: pairs with the Release in give_back(), so that the owner before us has done its last write.
        seat.tid.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok()
    };
    let number = SEATS.iter().position(free)?;
    let seat = &SEATS[number];
    // Relaxed: nobody asks about a seat before the engine has a task there.
    seat.shown_ns.store(0, Ordering::Relaxed);
    seat.told_ns.store(0, Ordering::Relaxed);
    MINE.set(number as u32);
    Some(number as u32)
}

/// Leaves the seat, when no task is on it any more.
pub(super) fn give_back() {
    if let Some(number) = mine() {
        MINE.set(STANDING);
        // Release: pairs with the Acquire in take().
        SEATS[number as usize].tid.store(0, Ordering::Release);
    }
}

/// The thread that has a seat, for messages.
pub(super) fn thread_at(number: u32) -> i32 {
    // Relaxed: only told.
    SEATS.get(number as usize).map_or(0, |seat| seat.tid.load(Ordering::Relaxed))
}

/// Nanoseconds of CPU time of the thread that has this seat; what it was last if it is free.
pub(super) fn cpu_ns(number: u32) -> u64 {
    if mine() == Some(number) { own_cpu_ns(number) } else { other_cpu_ns(number) }
}

fn own_cpu_ns(number: u32) -> u64 {
    let moment = MOMENT.get();
    if moment < NOT_LOOKED {
        return moment;
    }
    let seat = &SEATS[number as usize];
    // Relaxed, here and below: whoever compares what we tell with what others tell does so under the engine's lock, which orders us.
    let now = CLOCK.with(|clock| clock.now_ns(&System)).max(seat.told_ns.load(Ordering::Relaxed));
    seat.shown_ns.store(now, Ordering::Relaxed);
    if moment == NOT_LOOKED {
        MOMENT.set(now);
    }
    now
}

fn other_cpu_ns(number: u32) -> u64 {
    let Some(seat) = SEATS.get(number as usize) else { return 0 };
    let tid = seat.tid.load(Ordering::Relaxed);
    let asked = if tid == 0 { None } else { sys::clock::thread_cpu_ns(tid) };
    // The owner's clock may be ahead of the kernel's by an instant; nobody must see it go back.
    let now = asked.unwrap_or(0).max(seat.shown_ns.load(Ordering::Relaxed));
    seat.told_ns.fetch_max(now, Ordering::Relaxed).max(now)
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

/// Allocations so far on this seat.
pub(super) fn allocations(number: u32) -> u64 {
    // Relaxed: a number that only grows; the engine's locks order what is compared.
    SEATS.get(number as usize).map_or(0, |seat| seat.allocations.load(Ordering::Relaxed))
}

/// Bytes asked for in them.
pub(super) fn allocated_bytes(number: u32) -> u64 {
    SEATS.get(number as usize).map_or(0, |seat| seat.allocated_bytes.load(Ordering::Relaxed))
}

/// One of the program's own counters.
pub(super) fn own(number: u32, counter: usize) -> u64 {
    let counter = SEATS.get(number as usize).and_then(|seat| seat.own.get(counter));
    counter.map_or(0, |counter| counter.load(Ordering::Relaxed))
}

/// Adds an allocation, if this thread runs tasks. Called by the allocator: does not allocate, nor wait.
#[inline]
pub(crate) fn count_allocation(bytes: usize) {
    // What a switch itself allocates is nobody's.
    let seat = if MOMENT.get() == NO_SWITCH { SEATS.get(MINE.get() as usize) } else { None };
    let Some(seat) = seat else { return };
    add(&seat.allocations, 1);
    add(&seat.allocated_bytes, bytes as u64);
}

/// Adds to one of the program's own counters, if this thread runs tasks.
#[inline]
pub(super) fn count_own(counter: usize, by: u64) {
    if let Some(counter) = SEATS.get(MINE.get() as usize).and_then(|seat| seat.own.get(counter)) {
        add(counter, by);
    }
}

/// Relaxed, and not one operation: only the owner of the seat writes.
#[inline]
fn add(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}
