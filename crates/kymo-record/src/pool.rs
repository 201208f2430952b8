//! Buffers for records on their way from the rings to the writer: a bounded number, each used again.
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bounded set of equally long buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    left: AtomicUsize,
    buffer_bytes: usize,
}

impl Pool {
    /// At most `count` buffers of `buffer_bytes` each, made when they are first needed.
    pub(crate) fn new(count: usize, buffer_bytes: usize) -> Pool {
        let (back, free) = bounded(count);
        Pool { free, back, left: AtomicUsize::new(count), buffer_bytes }
    }

    /// A buffer if one is free; never blocks.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        if let Ok(buffer) = self.free.try_recv() {
            return Some(buffer);
        }
        // Relaxed: only the count matters.
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.ok().map(|_| vec![0; self.buffer_bytes])
    }

    /// A buffer, waiting at most this long for one to come back.
    pub(crate) fn wait(&self, timeout: std::time::Duration) -> Option<Vec<u8>> {
        self.take().or_else(|| self.free.recv_timeout(timeout).ok())
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        // Cannot be full: there are no more buffers than places.
        let _ = self.back.try_send(buffer);
    }

    /// The length of each buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;
    use std::time::Duration;

    /// Checks that no more buffers exist than allowed and that one that came back is given out again.
    #[test]
    fn bounded() {
        let pool = Pool::new(2, 16);
        let (one, _two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        assert!(pool.wait(Duration::ZERO).is_none());
        pool.give(one);
        assert_eq!(pool.take().map(|buffer| buffer.len()), Some(16));
    }
}
