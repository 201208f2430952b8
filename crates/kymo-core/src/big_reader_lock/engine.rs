//! The lock: shards, the writer mutex, and the two guards.
//!
//! # Safety
//! References to the value are made from a cell. What makes them sound is G1, which the shards
//! keep: a reader's reference exists only while it is counted in a shard, a writer's only while all
//! shards have the writer bit and no readers.
#![allow(unsafe_code)]
use super::shard::{SHARDS, shard};
use crate::sync::{
    AtomicUsize, CacheLine, Condvar, ConstPtr, MutPtr, Mutex, MutexGuard, Ordering, PoisonError, UnsafeCell,
    lock,
};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A writer waits or works. The bits below it count the readers.
const WRITER_BIT: usize = 1 << (usize::BITS - 1);

/// A count of readers, and the writer bit.
type Shard = CacheLine<AtomicUsize>;

/// A value that many read at once without disturbing each other, and one changes alone. See the
/// [module](super).
#[doc(alias = "brlock")]
#[doc(alias = "percpu_rw_semaphore")]
pub struct BigReaderLock<T> {
    shards: [Shard; SHARDS],
    /// Held by the writer; a reader that finds a writer bit waits for it.
    writer_mutex: Mutex<()>,
    /// Held by a writer from a look at the shards until it sleeps, and by who wakes it.
    wait_mutex: Mutex<()>,
    readers_gone: Condvar,
    value: UnsafeCell<T>,
}

// SAFETY: readers on several threads get `&T` (hence `Sync`), a writer on any thread gets `&mut T`
// and can move it out (hence `Send`). That they exclude each other is G1.
unsafe impl<T: Send + Sync> Sync for BigReaderLock<T> {}

impl<T> fmt::Debug for BigReaderLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the value: that would be a read, in the middle of who knows what.
        f.debug_struct("BigReaderLock").finish_non_exhaustive()
    }
}

impl<T> BigReaderLock<T> {
    /// A lock around a value. About 8 KiB beside it.
    pub fn new(value: T) -> BigReaderLock<T> {
        BigReaderLock {
            shards: std::array::from_fn(|_| CacheLine(AtomicUsize::new(0))),
            writer_mutex: Mutex::new(()),
            wait_mutex: Mutex::new(()),
            readers_gone: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// Lets a reader in, beside any others. Waits while somebody writes or waits to write.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let at = shard();
        let shard = &self.shards[at].0;
        // Acquire: pairs with the Release that cleared the last writer bit. What it finds and what
        // it leaves is one instruction.
        if shard.fetch_add(1, Ordering::Acquire) & WRITER_BIT != 0 {
            self.wait_and_enter(shard);
        }
        ReadGuard { value: self.value.get(), entry: ReaderCount { lock: self, at } }
    }

    /// Lets one writer in, alone. Waits for all readers and for writers before it.
    pub fn write(&self) -> WriteGuard<'_, T> {
        let mutex = lock(&self.writer_mutex);
        for shard in &self.shards {
            // Relaxed: one word with the count. The readers' work is acquired below, former
            // writers' came with the mutex.
            shard.0.fetch_or(WRITER_BIT, Ordering::Relaxed);
        }
        let mut look = lock(&self.wait_mutex);
        for shard in &self.shards {
            // Acquire: pairs with the Release of each reader that left.
            while shard.0.load(Ordering::Acquire) != WRITER_BIT {
                look = self.readers_gone.wait(look).unwrap_or_else(PoisonError::into_inner);
            }
            // A shard that was empty once stays so: a later reader finds the writer bit, and its
            // attempt, which may show for a moment, is no reader.
        }
        drop(look);
        WriteGuard {
            value: self.value.get_mut(),
            writer_bits: WriterBits { shards: &self.shards, _mutex: mutex },
        }
    }

    #[cold]
    fn wait_and_enter(&self, shard: &AtomicUsize) {
        self.leave(shard);
        let mutex = lock(&self.writer_mutex);
        // Acquire: as in `read`. There is no writer bit (G5), and none comes before the mutex is
        // unlocked.
        let before = shard.fetch_add(1, Ordering::Acquire);
        debug_assert_eq!(before & WRITER_BIT, 0, "G5");
        drop(mutex);
    }

    #[inline]
    fn leave(&self, shard: &AtomicUsize) {
        // Release: pairs with the writer's Acquire.
        if shard.fetch_sub(1, Ordering::Release) == WRITER_BIT | 1 {
            self.wake_writer();
        }
    }

    #[cold]
    fn wake_writer(&self) {
        // With the lock: the writer has not looked yet, or sleeps. In between it would miss this.
        let _look = lock(&self.wait_mutex);
        self.readers_gone.notify_one();
    }
}

#[cfg(not(loom))]
impl<T> BigReaderLock<T> {
    /// The value, once no other thread uses the lock.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

/// One of the count of a shard.
struct ReaderCount<'a, T> {
    lock: &'a BigReaderLock<T>,
    at: usize,
}

impl<T> Drop for ReaderCount<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.leave(&self.lock.shards[self.at].0);
    }
}

/// A reader's way to the value. It leaves when it is dropped.
// Fields are dropped from top to bottom: the access ends, then the shard is left.
pub struct ReadGuard<'a, T> {
    value: ConstPtr<T>,
    entry: ReaderCount<'a, T>,
}

impl<T> ReadGuard<'_, T> {
    /// How many shards there are: what a value that is divided by shard must have parts for.
    pub const SHARDS: usize = SHARDS;

    /// The shard that this reader came in by, below [`ReadGuard::SHARDS`]: a thread has always the
    /// same. A value may keep a part for each, which then is mostly in that thread's cache. Other
    /// threads can have the same shard at the same time.
    #[inline]
    pub fn shard(&self) -> usize {
        self.entry.at
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: G1: the entry is counted, so no writer has the value; the guard's lifetime is
        // within the lock's.
        unsafe { self.value.deref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for ReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// All shards have the writer bit and no readers.
struct WriterBits<'a> {
    shards: &'a [Shard],
    _mutex: MutexGuard<'a, ()>,
}

impl Drop for WriterBits<'_> {
    fn drop(&mut self) {
        for shard in self.shards {
            // Release: pairs with the Acquire of readers that enter.
            shard.0.fetch_and(!WRITER_BIT, Ordering::Release);
        }
    }
}

/// The writer's way to the value. Dropping it unlocks.
// Fields are dropped from top to bottom: the access ends, then the writer bits are cleared, then
// the mutex is unlocked.
pub struct WriteGuard<'a, T> {
    value: MutPtr<T>,
    #[expect(dead_code, reason = "what it does is its drop")]
    writer_bits: WriterBits<'a>,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // Not by a `&mut`: it would end the references of earlier calls, which may be in use.
        let value = self.value.with(<*mut T>::cast_const);
        // SAFETY: G1: all shards have the writer bit, so no other thread has the value; `&self`
        // excludes `deref_mut` meanwhile.
        unsafe { &*value }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: G1: the shards are closed, so nobody else has the value; `&mut self` keeps others
        // of this guard away.
        unsafe { self.value.deref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
