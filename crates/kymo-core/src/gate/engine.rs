//! The gate: lanes, the turn, and the two guards.
//!
//! # Safety
//! References to the value are made from a cell. What makes them sound is G1, which the lanes keep: a reader's reference exists only
//! while it is counted in a lane, a writer's only while all lanes are barred and empty.
#![allow(unsafe_code)]
use super::sync::{
    AtomicUsize, Condvar, ConstPtr, LANES, MutPtr, Mutex, MutexGuard, Ordering, PoisonError, UnsafeCell,
    lane, lock,
};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A writer waits or works. The bits below it count the readers.
const BAR: usize = 1 << (usize::BITS - 1);

/// A count on a cache line of its own (two: the neighbour is fetched with it).
#[derive(Debug)]
#[repr(align(128))]
struct Lane(AtomicUsize);

/// A value that many read at once without disturbing each other, and one changes alone. See the [module](super).
pub struct Gate<T> {
    lanes: [Lane; LANES],
    /// Who may bar the lanes.
    turn: Mutex<()>,
    /// Held by a writer from a look at the lanes until it sleeps, and by who wakes it.
    look: Mutex<()>,
    left: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: readers on several threads get `&T` (hence `Sync`), a writer on any thread gets `&mut T` and can move it out (hence `Send`).
// That they exclude each other is G1.
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: that would be a read, in the middle of who knows what.
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

impl<T> Gate<T> {
    /// A gate around a value. About 8 KiB beside it.
    pub fn new(value: T) -> Gate<T> {
        Gate {
            lanes: std::array::from_fn(|_| Lane(AtomicUsize::new(0))),
            turn: Mutex::new(()),
            look: Mutex::new(()),
            left: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Lets a reader in, beside any others. Waits while somebody writes or waits to write.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let at = lane();
        let lane = &self.lanes[at].0;
        // Acquire: pairs with the Release that lifted the last bar. What it finds and what it leaves is one instruction.
        if lane.fetch_add(1, Ordering::Acquire) & BAR != 0 {
            self.wait_and_enter(lane);
        }
        ReadGuard { value: self.value.get(), entry: Entry { gate: self, at } }
    }

    /// Lets one writer in, alone. Waits for all readers and for writers before it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let turn = lock(&self.turn);
        for lane in &self.lanes {
            // Relaxed: one word with the count. The readers' work is acquired below, former writers' came with the turn.
            lane.0.fetch_or(BAR, Ordering::Relaxed);
        }
        let mut look = lock(&self.look);
        for lane in &self.lanes {
            // Acquire: pairs with the Release of each reader that left.
            while lane.0.load(Ordering::Acquire) != BAR {
                look = self.left.wait(look).unwrap_or_else(PoisonError::into_inner);
            }
            // A lane that was empty once stays so: who comes later finds the bar, and its attempt, which may show for a moment, is no reader.
        }
        drop(look);
        WriteGuard { value: self.value.get_mut(), closed: Closed { lanes: &self.lanes, _turn: turn } }
    }

    #[cold]
    fn wait_and_enter(&self, lane: &AtomicUsize) {
        self.leave(lane);
        let turn = lock(&self.turn);
        // Acquire: as in `read`. There is no bar (G5), and none comes before the turn is given back.
        let before = lane.fetch_add(1, Ordering::Acquire);
        debug_assert_eq!(before & BAR, 0, "G5");
        drop(turn);
    }

    #[inline]
    fn leave(&self, lane: &AtomicUsize) {
        // Release: pairs with the writer's Acquire.
        if lane.fetch_sub(1, Ordering::Release) == BAR | 1 {
            self.wake_writer();
        }
    }

    #[cold]
    fn wake_writer(&self) {
        // With the lock: the writer has not looked yet, or sleeps. In between it would miss this.
        let _look = lock(&self.look);
        self.left.notify_one();
    }
}

#[cfg(not(loom))]
impl<T> Gate<T> {
    /// The value, when nobody else has the gate any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// One of the count of a lane.
struct Entry<'a, T> {
    gate: &'a Gate<T>,
    at: usize,
}

impl<T> Drop for Entry<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.leave(&self.gate.lanes[self.at].0);
    }
}

/// A reader's way to the value. It leaves when it is dropped.
// Fields are dropped from top to bottom: the access ends, then the lane is left.
pub struct ReadGuard<'a, T> {
    value: ConstPtr<T>,
    entry: Entry<'a, T>,
}

impl<T> ReadGuard<'_, T> {
    /// How many lanes there are: what a value that is divided by lane must have parts for.
    pub const LANES: usize = LANES;

    /// The lane that this reader came in by, below [`ReadGuard::LANES`]: a thread has always the same. A value may keep a part for
    /// each, which then is mostly in that thread's cache. Other threads can have the same lane at the same time.
    #[inline]
    pub fn lane(&self) -> usize {
        self.entry.at
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: G1: the entry is counted, so no writer has the value; the guard's lifetime is within the gate's.
        unsafe { self.value.deref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// All lanes barred and empty.
struct Closed<'a> {
    lanes: &'a [Lane],
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        for lane in self.lanes {
            // Release: pairs with the Acquire of readers that enter.
            lane.0.fetch_and(!BAR, Ordering::Release);
        }
    }
}

/// The writer's way to the value. The gate opens when it is dropped.
// Fields are dropped from top to bottom: the access ends, then the bars are lifted, then the turn ends.
pub struct WriteGuard<'a, T> {
    value: MutPtr<T>,
    #[expect(dead_code, reason = "what it does is its drop")]
    closed: Closed<'a>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: G1: the lanes are closed, so nobody else has the value; `&self` keeps `deref_mut` away meanwhile.
        unsafe { self.value.deref() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: G1: the lanes are closed, so nobody else has the value; `&mut self` keeps others of this guard away.
        unsafe { self.value.deref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
