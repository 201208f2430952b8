//! Buffers for records on their way from the rings to the writer: a bounded number, each used again.
use crossbeam_channel::{Receiver, Sender, bounded};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A small buffer is this part of a large one.
const SMALL_SHARE: usize = 16;
/// So many small ones there are for each large one: a quarter of the memory.
const SMALL_PER_BUFFER: usize = 4;

/// A bounded set of equally long buffers, and of small ones.
#[derive(Debug)]
pub(crate) struct Pool {
    free: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    left: AtomicUsize,
    buffer_bytes: usize,
    small: Small,
}

/// Buffers for what became small on its way: a slow writer then does not keep large ones from the drains.
#[derive(Debug)]
struct Small {
    free: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    left: AtomicUsize,
    bytes: usize,
}

impl Pool {
    /// At most `count` buffers of `buffer_bytes` each, made when they are first needed.
    pub(crate) fn new(count: usize, buffer_bytes: usize) -> Pool {
        let (back, free) = bounded(count);
        let small = Small::new(count * SMALL_PER_BUFFER, buffer_bytes / SMALL_SHARE);
        Pool { free, back, left: AtomicUsize::new(count), buffer_bytes, small }
    }

    /// How many buffers there can be, small ones included.
    pub(crate) fn most(count: usize) -> usize {
        count * (1 + SMALL_PER_BUFFER)
    }

    /// The first `len` bytes of a buffer, in a small one if they fit and one is free; the large one is free again then.
    pub(crate) fn compact(&self, buffer: Vec<u8>, len: usize) -> Vec<u8> {
        if len > self.small.bytes || buffer.len() != self.buffer_bytes {
            return buffer;
        }
        let Some(mut small) = take(&self.small.free, &self.small.left, self.small.bytes) else {
            return buffer;
        };
        small[..len].copy_from_slice(&buffer[..len]);
        self.give(buffer);
        small
    }

    /// A buffer if one is free; never blocks.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        take(&self.free, &self.left, self.buffer_bytes)
    }

    /// A buffer, waiting at most this long for one to come back.
    pub(crate) fn wait(&self, timeout: std::time::Duration) -> Option<Vec<u8>> {
        self.take().or_else(|| self.free.recv_timeout(timeout).ok())
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        // Cannot be full: there are no more buffers than places.
        let back = if buffer.len() == self.buffer_bytes { &self.back } else { &self.small.back };
        let _ = back.try_send(buffer);
    }

    /// How many large buffers there are.
    pub(crate) fn count(&self) -> usize {
        self.back.capacity().unwrap_or(0)
    }

    /// The length of each buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }
}

impl Small {
    fn new(count: usize, bytes: usize) -> Small {
        let (back, free) = bounded(count);
        Small { free, back, left: AtomicUsize::new(count), bytes }
    }
}

/// A free buffer, or a new one if there may be more.
fn take(free: &Receiver<Vec<u8>>, left: &AtomicUsize, bytes: usize) -> Option<Vec<u8>> {
    if let Ok(buffer) = free.try_recv() {
        return Some(buffer);
    }
    // Relaxed: only the count matters.
    let left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    left.ok().map(|_| vec![0; bytes])
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

    /// Checks that what became small moves into a small buffer while there are some, and that both kinds come back to their places.
    #[test]
    fn small_ones() {
        let pool = Pool::new(1, 64);
        let mut large = pool.take().unwrap();
        large[..4].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(pool.compact(vec![0; 64], 5).len(), 64, "five bytes do not fit");
        let small = pool.compact(large, 4);
        assert_eq!(small, [1, 2, 3, 4]);
        assert_eq!(pool.take().map(|buffer| buffer.len()), Some(64), "the large one is free");
        let more: Vec<_> = (0..4).map(|_| pool.compact(vec![0; 64], 1).len()).collect();
        assert_eq!(more, [4, 4, 4, 64]);
        pool.give(small);
        assert_eq!(pool.compact(vec![0; 64], 1).len(), 4);
    }
}
