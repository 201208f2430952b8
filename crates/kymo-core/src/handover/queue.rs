//! A bounded queue between two threads.
#![allow(unsafe_code)]
use super::slot::Slot;
use crate::sync::{AtomicBool, AtomicUsize, CacheLine, Ordering};
use std::sync::Arc;

#[derive(Debug)]
struct QueueState<T> {
    slots: Box<[Slot<T>]>,
    /// How many were taken out so far. Written by the consumer.
    head: CacheLine<AtomicUsize>,
    /// How many were put in so far. Written by the producer.
    tail: CacheLine<AtomicUsize>,
    /// The producer is gone.
    closed: AtomicBool,
    /// The consumer is gone.
    abandoned: AtomicBool,
}

impl<T> QueueState<T> {
    fn slot(&self, count: usize) -> &Slot<T> {
        // The number of slots is a power of two.
        &self.slots[count & (self.slots.len() - 1)]
    }
}

/// The end that puts in. Dropping it closes the queue.
#[derive(Debug)]
pub struct Producer<T> {
    shared: Arc<QueueState<T>>,
    tail: usize,
    /// The consumer's count when it was last looked at: it may be further by now.
    head: usize,
}

/// The end that takes out.
#[derive(Debug)]
pub struct Consumer<T> {
    shared: Arc<QueueState<T>>,
    head: usize,
    /// The producer's count when it was last looked at.
    tail: usize,
}

/// A queue for at least `capacity` values (rounded up to a power of two, at least one).
pub fn queue<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let slots = (0..capacity.max(1).next_power_of_two()).map(|_| Slot::empty()).collect();
    let (head, tail) = (CacheLine(AtomicUsize::new(0)), CacheLine(AtomicUsize::new(0)));
    let (closed, abandoned) = (AtomicBool::new(false), AtomicBool::new(false));
    let shared = Arc::new(QueueState { slots, head, tail, closed, abandoned });
    let producer = Producer { shared: Arc::clone(&shared), tail: 0, head: 0 };
    (producer, Consumer { shared, head: 0, tail: 0 })
}

impl<T> Producer<T> {
    /// Puts a value in.
    ///
    /// # Errors
    /// The value, if the queue is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.is_full() {
            return Err(value);
        }
        // SAFETY: the slot is not between head and tail, so the consumer does not touch it until
        // the store below, and it was done with it before the Acquire above (or a former one); this
        // is the only producer.
        unsafe { self.shared.slot(self.tail).put(value) };
        self.tail = self.tail.wrapping_add(1);
        // Release: pairs with the consumer's Acquire; the value is there before the count says so.
        self.shared.tail.0.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Whether there is no room now. Once there is room it stays until this end puts something in.
    pub fn is_full(&mut self) -> bool {
        let slots = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head) == slots {
            // Acquire: pairs with the consumer's Release; it is done with the slots before this
            // count.
            self.head = self.shared.head.0.load(Ordering::Acquire);
        }
        self.tail.wrapping_sub(self.head) == slots
    }

    /// Whether the consumer is gone: nobody will take anything out any more.
    pub fn is_abandoned(&self) -> bool {
        // Relaxed: nothing follows from it but that it is of no use to go on.
        self.shared.abandoned.load(Ordering::Relaxed)
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        // Release: pairs with `is_closed`; everything was put in before.
        self.shared.closed.store(true, Ordering::Release);
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest value out; `None` if there is none yet.
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            // Acquire: pairs with the producer's Release.
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        // SAFETY: the slot is between head and tail: the producer put it there before the Release
        // that the Acquire above saw, and does not touch it until the store below; this is the only
        // consumer.
        let value = unsafe { self.shared.slot(self.head).take() };
        self.head = self.head.wrapping_add(1);
        // Release: pairs with the producer's Acquire.
        self.shared.head.0.store(self.head, Ordering::Release);
        value
    }

    /// Whether the producer is gone. What [`Consumer::pop`] does not give after this said yes will
    /// never come.
    pub fn is_closed(&self) -> bool {
        // Acquire: pairs with the producer's drop.
        self.shared.closed.load(Ordering::Acquire)
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        // Relaxed: as in `is_abandoned`.
        self.shared.abandoned.store(true, Ordering::Relaxed);
    }
}
