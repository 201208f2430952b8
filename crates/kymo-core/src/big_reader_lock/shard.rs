//! Which shard a thread uses.
#[cfg(not(loom))]
use crate::sync::{AtomicUsize, Ordering};

/// How many shards a lock has: a power of two. More than cores that are busy at once is a waste of
/// the writers' time.
#[cfg(not(loom))]
pub(super) const SHARDS: usize = 64;
/// Two are enough to meet in one or not.
#[cfg(loom)]
pub(super) const SHARDS: usize = 2;

/// The shard of this thread: the next one at its first question, so that threads spread evenly.
#[cfg(not(loom))]
pub(crate) fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // Relaxed: any number is right.
        static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    LANE.with(|shard| *shard)
}

#[cfg(loom)]
loom::thread_local! {
    static LANE: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

/// Under loom each execution must be like the first: the test says which shard a thread stands in.
#[cfg(loom)]
pub(crate) fn shard() -> usize {
    LANE.with(|shard| shard.get())
}

#[cfg(all(test, loom))]
pub(crate) fn stand_in_shard(shard: usize) {
    LANE.with(|mine| mine.set(shard % SHARDS));
}
