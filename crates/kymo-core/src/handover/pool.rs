//! A bounded set of things that any thread may take from and give back to, without locks.
#![allow(unsafe_code)]
use super::slot::Slot;
use crate::sync::{AtomicU32, AtomicU64, CacheLine, Ordering};

/// No slot.
const NONE: u32 = u32::MAX;

/// A stack of slots, linked by their numbers. The upper half of `top` counts changes, so that a top
/// which is the same slot again is told from one that never changed (2^32 changes within one
/// attempt of another thread would deceive it: hours at a change per microsecond).
#[derive(Debug)]
struct FreeStack {
    top: CacheLine<AtomicU64>,
}

fn parts(top: u64) -> (u32, u32) {
    (top as u32, (top >> 32) as u32)
}

fn joined(slot: u32, changes: u32) -> u64 {
    u64::from(slot) | u64::from(changes) << 32
}

impl FreeStack {
    fn pop(&self, next: &[AtomicU32]) -> Option<u32> {
        // Acquire: pairs with the Release of the push that made this the top; its `next` and the
        // slot's content are seen.
        let mut top = self.top.0.load(Ordering::Acquire);
        loop {
            let (slot, changes) = parts(top);
            let link = next.get(slot as usize)?;
            // Relaxed: may be overwritten by who took the slot meanwhile; then the exchange fails.
            let below = joined(link.load(Ordering::Relaxed), changes.wrapping_add(1));
            // AcqRel: as above, and what this thread saw of the stack is passed on.
            match self.top.0.compare_exchange_weak(top, below, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(slot),
                Err(now) => top = now,
            }
        }
    }

    fn push(&self, next: &[AtomicU32], slot: u32) {
        let mut top = self.top.0.load(Ordering::Relaxed);
        loop {
            let (below, changes) = parts(top);
            // Relaxed: published by the exchange.
            next[slot as usize].store(below, Ordering::Relaxed);
            let new = joined(slot, changes.wrapping_add(1));
            // AcqRel: the Release pairs with the Acquire of `pop`; the Acquire keeps the chain of
            // releases of the slots below.
            match self.top.0.compare_exchange_weak(top, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }
}

/// A bounded set of things that are alike, such as free buffers. The last that was given is the
/// first to be taken: it is likely to be in the cache.
#[derive(Debug)]
pub struct Pool<T> {
    slots: Box<[Slot<T>]>,
    next: Box<[AtomicU32]>,
    /// Slots that hold something.
    full: FreeStack,
    /// Slots that hold nothing.
    empty: FreeStack,
}

impl<T: Send> Pool<T> {
    /// An empty pool for at most `capacity` things.
    ///
    /// # Panics
    /// If the capacity is 2^32 - 1 or more.
    pub fn new(capacity: usize) -> Pool<T> {
        let count =
            u32::try_from(capacity).ok().filter(|&count| count < NONE).expect("fewer than 2^32 - 1 slots");
        let slots = (0..count).map(|_| Slot::empty()).collect();
        let next = (1..=count).map(|slot| AtomicU32::new(if slot == count { NONE } else { slot })).collect();
        let stack = |top| FreeStack { top: CacheLine(AtomicU64::new(joined(top, 0))) };
        let first = if count == 0 { NONE } else { 0 };
        Pool { slots, next, full: stack(NONE), empty: stack(first) }
    }

    /// How many it can hold.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Takes one out; `None` if there is none.
    pub fn take(&self) -> Option<T> {
        let slot = self.full.pop(&self.next)?;
        // SAFETY: who pops a slot's number is alone with the slot until it pushes the number again,
        // and the pop's Acquire saw the push of who had it before.
        let value = unsafe { self.slots[slot as usize].take() };
        self.empty.push(&self.next, slot);
        value
    }

    /// Puts one in.
    ///
    /// # Errors
    /// The thing, if the pool is full. (While another thread is within `take` or `give`, its slot
    /// counts as taken: a pool with room for everything that exists and one more for each thread
    /// that uses it is never full.)
    pub fn give(&self, value: T) -> Result<(), T> {
        let Some(slot) = self.empty.pop(&self.next) else { return Err(value) };
        // SAFETY: as in `take`.
        unsafe { self.slots[slot as usize].put(value) };
        self.full.push(&self.next, slot);
        Ok(())
    }
}
