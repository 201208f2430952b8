//! The inbox in the most obvious way: one lock around queues. The oracle of the tests.
use super::Next;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Queues behind one lock, visited in turn.
#[derive(Debug)]
pub(super) struct HandoverModel<T> {
    queues: Mutex<Queues<T>>,
    capacity: usize,
}

#[derive(Debug)]
struct Queues<T> {
    /// What waits, and whether more may come.
    each: Vec<(VecDeque<T>, bool)>,
    /// Where to look next.
    at: usize,
}

impl<T> HandoverModel<T> {
    /// So many queues, each for this many values.
    pub(super) fn new(queues: usize, capacity: usize) -> HandoverModel<T> {
        let each = (0..queues).map(|_| (VecDeque::new(), true)).collect();
        HandoverModel { queues: Mutex::new(Queues { each, at: 0 }), capacity }
    }

    /// As [`super::Outbox::send`].
    ///
    /// # Errors
    /// The value, if the queue is full.
    pub(super) fn send(&self, queue: usize, value: T) -> Result<(), T> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = &mut queues.each[queue].0;
        if queue.len() == self.capacity {
            return Err(value);
        }
        queue.push_back(value);
        Ok(())
    }

    /// As [`super::Outbox::close`].
    pub(super) fn close(&self, queue: usize) {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).each[queue].1 = false;
    }

    /// As [`super::Inbox::receive`], with the queue from which it came.
    pub(super) fn receive(&self) -> Next<(usize, T)> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let Queues { each, at } = &mut *queues;
        for step in 0..each.len() {
            let index = (*at + step) % each.len();
            if let Some(value) = each[index].0.pop_front() {
                *at = index + 1;
                return Next::Item((index, value));
            }
        }
        if each.iter().any(|queue| queue.1) { Next::Empty } else { Next::Closed }
    }
}
