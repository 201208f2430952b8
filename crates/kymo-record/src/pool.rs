//! Buffers for records on their way from the rings to the writer: a bounded number, each used
//! again.
//!
//! Drains only take existing buffers. The receiver of messages allocates more while few are free,
//! up to the bound. So a short recording has few buffers, and no drain ever waits for memory.
use crate::channel::Notifier;
use kymo_core::handover;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A small buffer is this part of a large one.
const SMALL_SHARE: usize = 16;
/// So many small ones there are for each large one: a quarter of the memory.
const SMALL_PER_BUFFER: usize = 4;
/// So many are made at most at a time: half a millisecond's work with rings of 512 KiB.
const MADE_AT_ONCE: usize = 8;
/// Places in the pool for threads that are in the middle of taking or giving.
const HANDS: usize = 64;

/// A bounded set of equally long buffers, and of small ones.
#[derive(Debug)]
pub(crate) struct BufferPool {
    large: BufferClass,
    /// Buffers for what became small on its way: a slow writer then does not keep large ones from
    /// the drains.
    small: BufferClass,
    /// How many buffers drains may keep for their next looks.
    kept: usize,
    /// Notified when a large one comes back while a drain waits for it.
    notifier: Notifier,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct BufferClass {
    free: handover::Pool<Vec<u8>>,
    /// How many are free, about.
    free_count: AtomicUsize,
    made: AtomicUsize,
    most: usize,
    bytes: usize,
}

impl BufferPool {
    /// At most `count` buffers of `buffer_bytes` each, and a quarter of their bytes in small ones;
    /// `ready` of them are made now. `drains`: how many threads keep one for themselves.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn new(
        count: usize,
        buffer_bytes: usize,
        ready: usize,
        drains: usize,
    ) -> io::Result<BufferPool> {
        let large = BufferClass::new(count, buffer_bytes);
        (0..ready).for_each(|_| large.give(large.make()));
        let small = BufferClass::new(count * SMALL_PER_BUFFER, buffer_bytes / SMALL_SHARE);
        Ok(BufferPool {
            large,
            small,
            kept: drains,
            notifier: Notifier::new()?,
            waiting: AtomicUsize::new(0),
        })
    }

    /// Bytes of so many buffers with the small ones that belong to them.
    pub(crate) fn bytes_of(count: usize, buffer_bytes: usize) -> u64 {
        (count * (buffer_bytes + SMALL_PER_BUFFER * (buffer_bytes / SMALL_SHARE))) as u64
    }

    /// How many buffers there can be, small ones included.
    pub(crate) fn most(&self) -> usize {
        self.large.most + self.small.most
    }

    /// The first `len` bytes of a buffer, in a small one if they fit and one is free; the large one
    /// is free again then.
    pub(crate) fn compact(&self, buffer: Vec<u8>, len: usize) -> Vec<u8> {
        if len > self.small.bytes || buffer.len() != self.large.bytes {
            return buffer;
        }
        let Some(mut small) = self.small.take().or_else(|| self.small.make()) else { return buffer };
        small[..len].copy_from_slice(&buffer[..len]);
        self.give(buffer);
        small
    }

    /// A buffer if one is free. Never waits, never allocates.
    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.large.take()
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        if buffer.len() != self.large.bytes {
            self.small.give(Some(buffer));
            return;
        }
        self.large.give(Some(buffer));
        // SeqCst, as in `wait_for_one`: either the buffer is seen there, or the waiting one is seen
        // here. A wake that is missed all the same costs it no more than the time it set itself.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.notifier.notify();
        }
    }

    /// From now on the notifier fires when a buffer comes back. To be followed by a look at
    /// [`BufferPool::take`].
    pub(crate) fn begin_to_wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// The end of that.
    pub(crate) fn waited(&self) {
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.notifier.clear();
    }

    /// Notifies drains that wait for a buffer.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Makes more buffers if less than half of them are free and there may be more. For whoever
    /// receives messages, often.
    pub(crate) fn replenish(&self) {
        let made = self.large.made.load(Ordering::Relaxed);
        if made == self.large.most || self.large.free_count.load(Ordering::Relaxed) > made / 2 {
            return;
        }
        for _ in 0..made.clamp(1, MADE_AT_ONCE) {
            let Some(buffer) = self.large.make() else { return };
            self.give(buffer);
        }
    }

    /// Whether few are free and no more can be made: who fills them should be stopped while there
    /// is room for what comes until it stands still.
    pub(crate) fn is_short(&self) -> bool {
        let free = self.large.free_count.load(Ordering::Relaxed);
        free <= self.large.most / 3 && self.large.made.load(Ordering::Relaxed) == self.large.most
    }

    /// Whether most of those that were made are free again, or with a drain.
    pub(crate) fn has_recovered(&self) -> bool {
        let free = self.large.free_count.load(Ordering::Relaxed) + self.kept;
        free >= self.large.made.load(Ordering::Relaxed) * 2 / 3
    }

    /// How many large buffers there can be.
    pub(crate) fn count(&self) -> usize {
        self.large.most
    }

    /// How many large buffers there are.
    pub(crate) fn made(&self) -> usize {
        self.large.made.load(Ordering::Relaxed)
    }

    /// The length of each buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.large.bytes
    }
}

impl BufferClass {
    fn new(most: usize, bytes: usize) -> BufferClass {
        let free = handover::Pool::new(most + HANDS);
        BufferClass { free, free_count: AtomicUsize::new(0), made: AtomicUsize::new(0), most, bytes }
    }

    fn take(&self) -> Option<Vec<u8>> {
        let buffer = self.free.take()?;
        // Relaxed, here and in `give`: a measure, which may be off by those who are in the middle
        // of it.
        self.free_count.fetch_sub(1, Ordering::Relaxed);
        Some(buffer)
    }

    fn give(&self, buffer: Option<Vec<u8>>) {
        let Some(buffer) = buffer else { return };
        // Before: the count must not fall below nothing.
        self.free_count.fetch_add(1, Ordering::Relaxed);
        // Cannot be full: there are no more buffers than places.
        let _ = self.free.give(buffer);
    }

    /// A new buffer if there may be more. Its memory is really there: it is not zeroes that the
    /// kernel would provide at first use.
    fn make(&self) -> Option<Vec<u8>> {
        let more = |made: usize| (made < self.most).then_some(made + 1);
        // Relaxed: only the count matters.
        self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(vec![0xff; self.bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::BufferPool;

    /// Checks that no more buffers exist than allowed, that taking makes none, that more are made
    /// while few are free, and that one that came back is given out again.
    #[test]
    fn bounded() {
        let pool = BufferPool::new(5, 16, 2, 0).unwrap();
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        pool.replenish();
        let more: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((more.len(), pool.made()), (2, 4));
        pool.replenish();
        assert_eq!(pool.made(), 5);
        let last = pool.take().unwrap();
        pool.replenish();
        assert!(pool.take().is_none());
        for buffer in [one, two, last].into_iter().chain(more) {
            pool.give(buffer);
        }
        pool.replenish();
        assert_eq!(
            std::iter::from_fn(|| pool.take()).map(|buffer| buffer.len()).collect::<Vec<_>>(),
            [16; 5]
        );
    }

    /// Regression: a pool of which few buffers were made, or of which drains keep most, never
    /// counted as recovered, so that a target which was stopped for it stood still for ever.
    #[test]
    fn recovers() {
        for (most, ready, drains) in [(256, 8, 2), (4, 4, 2), (2, 2, 1), (1, 1, 1)] {
            let pool = BufferPool::new(most, 16, ready, drains).unwrap();
            // Each drain keeps one, and all others come back.
            let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
            assert_eq!(taken.len(), ready);
            let kept = taken.split_off(taken.len() - drains);
            if ready > 2 * drains {
                assert!(!pool.has_recovered(), "{most} {ready} {drains}");
            }
            taken.into_iter().for_each(|buffer| pool.give(buffer));
            assert!(pool.has_recovered(), "{most} {ready} {drains}");
            drop(kept);
        }
    }

    /// Checks that what became small moves into a small buffer while there are some, and that both
    /// kinds come back to their places.
    #[test]
    fn small_ones() {
        let pool = BufferPool::new(1, 64, 1, 0).unwrap();
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
