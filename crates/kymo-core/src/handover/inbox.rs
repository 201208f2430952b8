//! Many queues with one consumer, which looks only at those that have something, and may sleep.
use super::queue::{Consumer, Producer, queue};
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::Arc;

const BITS: usize = 64;

#[derive(Debug)]
struct Door {
    /// A bit for each queue: something was put in (or the producer went) since the consumer last
    /// took the bit.
    ready: Box<[AtomicU64]>,
    /// The consumer sleeps or is about to.
    asleep: AtomicBool,
}

impl Door {
    fn mark(&self, index: usize) {
        // Release: pairs with the consumer's Acquire when it takes the bits; the value is in the
        // queue before.
        self.ready[index / BITS].fetch_or(1 << (index % BITS), Ordering::Release);
    }

    /// Tells the consumer of queue `index`; whether it must be woken.
    fn knock(&self, index: usize) -> Wake {
        self.mark(index);
        // Either this fence comes first, and then the consumer's look after its own fence sees the
        // bit; or the consumer's does, and then `asleep` is seen here. Pairs with the fence in
        // `Inbox::may_sleep`.
        fence(Ordering::SeqCst);
        // Relaxed: the fence orders it; who swaps it wakes, so one does of many.
        let wake = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed);
        if wake { Wake::Now } else { Wake::No }
    }
}

/// Whether the consumer has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a consumer that sleeps must be woken"]
pub enum Wake {
    /// It is awake, or somebody else wakes it.
    No,
    /// It sleeps: wake it.
    Now,
}

/// A producer's end. Dropping it closes its queue without a wake; [`Outbox::close`] says whether
/// the consumer has to be woken.
#[derive(Debug)]
pub struct Outbox<T> {
    queue: Option<Producer<T>>,
    index: usize,
    door: Arc<Door>,
}

/// The consumer's end.
#[derive(Debug)]
pub struct Inbox<T> {
    /// `None`: closed and empty.
    queues: Vec<Option<Consumer<T>>>,
    open: usize,
    door: Arc<Door>,
    /// Bits taken from the door: queues that may have something.
    pending: Box<[u64]>,
    /// Where to look next.
    at: usize,
}

/// What the consumer finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The next value.
    Item(T),
    /// Nothing now.
    Empty,
    /// Nothing any more: all producers are gone.
    Closed,
}

/// An inbox with a queue for each of these capacities.
pub fn inbox<T: Send>(capacities: impl IntoIterator<Item = usize>) -> (Vec<Outbox<T>>, Inbox<T>) {
    let (producers, queues): (Vec<_>, Vec<_>) = capacities.into_iter().map(queue).unzip();
    let words = producers.len().div_ceil(BITS);
    let ready = (0..words).map(|_| AtomicU64::new(0)).collect();
    let door = Arc::new(Door { ready, asleep: AtomicBool::new(false) });
    let outbox = |(index, queue)| Outbox { queue: Some(queue), index, door: Arc::clone(&door) };
    let outboxes = producers.into_iter().enumerate().map(outbox).collect();
    let (open, pending) = (queues.len(), vec![0; words].into_boxed_slice());
    let inbox = Inbox { queues: queues.into_iter().map(Some).collect(), open, door, pending, at: 0 };
    (outboxes, inbox)
}

impl<T> Outbox<T> {
    /// Sends; says whether the consumer has to be woken for it.
    ///
    /// # Errors
    /// The value, if the queue is full.
    pub fn send(&mut self, value: T) -> Result<Wake, T> {
        let Some(queue) = &mut self.queue else { return Err(value) };
        queue.push(value)?;
        Ok(self.door.knock(self.index))
    }

    /// Whether there is no room now. Once there is room it stays until this end sends.
    pub fn is_full(&mut self) -> bool {
        self.queue.as_mut().is_none_or(Producer::is_full)
    }

    /// Whether the consumer is gone.
    pub fn is_abandoned(&self) -> bool {
        self.queue.as_ref().is_none_or(Producer::is_abandoned)
    }

    /// Closes the queue.
    pub fn close(mut self) -> Wake {
        self.queue = None;
        self.door.knock(self.index)
    }
}

impl<T> Drop for Outbox<T> {
    fn drop(&mut self) {
        if self.queue.take().is_some() {
            // A consumer that sleeps stays asleep: the next send wakes it.
            self.door.mark(self.index);
        }
    }
}

impl<T> Inbox<T> {
    /// The next value of any queue; queues that have one take turns.
    pub fn receive(&mut self) -> Next<T> {
        // Each queue is looked at at most once before the bits are taken again, and the bits at
        // most once more.
        for _ in 0..2 {
            while let Some(index) = self.next_pending() {
                let slot = &mut self.queues[index];
                let Some(queue) = slot else {
                    self.pending[index / BITS] &= !(1 << (index % BITS));
                    continue;
                };
                // Before the look: what closed it put nothing in afterwards.
                let closed = queue.is_closed();
                if let Some(value) = queue.pop() {
                    self.at = index + 1;
                    return Next::Item(value);
                }
                self.pending[index / BITS] &= !(1 << (index % BITS));
                if closed {
                    *slot = None;
                    self.open -= 1;
                }
            }
            if !self.take_bits() {
                break;
            }
        }
        if self.open == 0 { Next::Closed } else { Next::Empty }
    }

    /// Whether the consumer may sleep: nothing is there. From then on [`Outbox::send`] and
    /// [`Outbox::close`] say whether to wake it.
    pub fn may_sleep(&mut self) -> bool {
        // Relaxed: the fence orders it.
        self.door.asleep.store(true, Ordering::Relaxed);
        // Pairs with the fence in `Door::knock`.
        fence(Ordering::SeqCst);
        if self.take_bits() || self.open == 0 {
            self.door.asleep.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// To be told after sleep, whatever ended it: no more wakes are needed.
    pub fn awake(&mut self) {
        // Relaxed: a wake too many does no harm.
        self.door.asleep.store(false, Ordering::Relaxed);
    }

    /// Takes the bits of the door; whether any queue may have something.
    fn take_bits(&mut self) -> bool {
        let mut any = false;
        for (pending, ready) in self.pending.iter_mut().zip(&self.door.ready) {
            // Relaxed: only whether to look closer.
            if ready.load(Ordering::Relaxed) != 0 {
                // Acquire: pairs with the Release of `Door::knock`.
                *pending |= ready.swap(0, Ordering::Acquire);
            }
            any |= *pending != 0;
        }
        any
    }

    /// The first pending queue from `at` on, around the end.
    fn next_pending(&self) -> Option<usize> {
        let words = self.pending.len();
        let (start, bit) = (self.at / BITS % words.max(1), self.at % BITS);
        for step in 0..=words {
            let word = (start + step) % words.max(1);
            let mut bits = *self.pending.get(word)?;
            if step == 0 {
                bits &= u64::MAX << bit;
            }
            if bits != 0 {
                return Some(word * BITS + bits.trailing_zeros() as usize);
            }
        }
        None
    }
}
