//! The domain: the epoch, the records of all readers, and the grace periods that wait for them.
use super::fence::Fence;
use super::record::{Reader, ReaderRecord, TaskId};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, PoisonError, lock};
use std::fmt;
use std::sync::OnceLock;

/// How many records the first chunk has; each further one has as many as all before it.
const FIRST_CHUNK: usize = if cfg!(loom) { 2 } else { 64 };
/// Enough for 64 << 23 threads, more than there can be.
const CHUNKS: usize = 24;

/// A set of readers and the grace periods that wait for all of them. See the [module](super).
pub struct Domain<F: Fence> {
    fence: F,
    /// From 1, so that a mark with an open section is never 0. Moves on with each grace period.
    epoch: AtomicU64,
    /// Records are never moved and never freed before the domain: readers have references.
    chunks: [OnceLock<Box<[ReaderRecord]>>; CHUNKS],
    periods: Mutex<Periods>,
    ended: Condvar,
}

/// Grace periods by number: those that have begun, those that have ended.
#[derive(Debug, Default)]
struct Periods {
    begun: u64,
    ended: u64,
}

/// A thread asked to wait for all sections inside a section of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InSection(pub TaskId);

impl fmt::Display for InSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let task = self.0.0;
        write!(f, "task {task} would wait for itself: it is inside a section; synchronize after leaving it")
    }
}

impl std::error::Error for InSection {}

/// Why a bounded wait ended without a grace period. See [`Domain::try_synchronize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynchronizeError {
    /// The caller is a reader with an open section.
    InSection(InSection),
    /// A section did not end in time.
    TimedOut,
}

impl fmt::Display for SynchronizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SynchronizeError::InSection(error) => error.fmt(f),
            SynchronizeError::TimedOut => f.write_str("a section did not end in time"),
        }
    }
}

impl std::error::Error for SynchronizeError {}

impl<F: Fence> Domain<F> {
    /// A domain without readers, with room for 64 (8 KiB).
    pub fn new(fence: F) -> Domain<F> {
        let domain = Domain {
            fence,
            epoch: AtomicU64::new(1),
            chunks: std::array::from_fn(|_| OnceLock::new()),
            periods: Mutex::new(Periods::default()),
            ended: Condvar::new(),
        };
        domain.chunk(0);
        domain
    }

    fn chunk(&self, index: usize) -> &[ReaderRecord] {
        let records = FIRST_CHUNK << index.saturating_sub(1);
        self.chunks[index].get_or_init(|| (0..records).map(|_| ReaderRecord::new()).collect())
    }

    fn records(&self) -> impl Iterator<Item = &ReaderRecord> {
        self.chunks.iter().map_while(OnceLock::get).flatten()
    }

    /// Makes room for this many readers, so that [`try_join`](Domain::try_join) succeeds as long as
    /// there are no more. Allocates.
    pub fn reserve(&self, readers: usize) {
        let (mut room, mut chunks) = (0, 0..CHUNKS);
        while room < readers
            && let Some(index) = chunks.next()
        {
            room += self.chunk(index).len();
        }
    }

    /// A reader in the room that there is: allocates nothing and takes no lock, so it may be called
    /// in a signal handler. `None` when all records are taken.
    pub fn try_join(&self, task: TaskId) -> Option<Reader<'_, F>> {
        let record = self.records().find(|record| record.take(task))?;
        Some(Reader::new(record, &self.epoch, &self.fence))
    }

    /// A reader for the calling thread. Looks through the records of all threads; allocates when
    /// they are all taken.
    ///
    /// # Panics
    /// With half a billion readers.
    pub fn join(&self, task: TaskId) -> Reader<'_, F> {
        loop {
            if let Some(reader) = self.try_join(task) {
                return reader;
            }
            let next = self.chunks.iter().position(|chunk| chunk.get().is_none());
            self.chunk(next.expect("too many readers"));
        }
    }

    /// Waits until every section that is open now has ended. After that no reader has what the
    /// caller took away before.
    ///
    /// Blocks as long as the slowest section. Calls that wait at the same time share the wait.
    ///
    /// # Errors
    /// [`InSection`] if `me` is the task of a reader with an open section, which then would never
    /// end.
    #[doc(alias = "synchronize_rcu")]
    pub fn synchronize(&self, me: TaskId) -> Result<(), InSection> {
        match self.wait(me, None) {
            Err(SynchronizeError::InSection(error)) => Err(error),
            Ok(()) | Err(SynchronizeError::TimedOut) => Ok(()),
        }
    }

    /// As [`synchronize`](Domain::synchronize), until `expired` answers true. It is asked between
    /// two looks at a reader that is still inside, each after a [`Fence::pause`]; a deadline is the
    /// caller's business, for nothing here reads a clock.
    ///
    /// # Errors
    /// [`SynchronizeError::TimedOut`]: a reader may still have what was taken away, so it must not
    /// be freed. A later call may succeed.
    pub fn try_synchronize(
        &self,
        me: TaskId,
        mut expired: impl FnMut() -> bool,
    ) -> Result<(), SynchronizeError> {
        self.wait(me, Some(&mut expired))
    }

    fn wait(
        &self,
        me: TaskId,
        mut expired: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<(), SynchronizeError> {
        if self.records().any(|record| record.is_open_by(me)) {
            return Err(SynchronizeError::InSection(InSection(me)));
        }
        let mut periods = lock(&self.periods);
        // One that has begun may have looked at a reader before the caller took away what it took
        // away.
        let needed = periods.begun + 1;
        let mut turn = 0;
        loop {
            if periods.ended >= needed {
                return Ok(());
            }
            if periods.begun == periods.ended {
                periods.begun += 1;
                drop(periods);
                let over = self.wait_for_readers(&mut expired);
                periods = lock(&self.periods);
                if over {
                    // By number, not +1: in a forked child this one may have been buried meanwhile.
                    periods.ended = periods.begun;
                } else {
                    // Its number is given again to one that begins later, which serves this one's
                    // waiters as well (E4).
                    periods.begun = periods.ended;
                }
                self.ended.notify_all();
                if !over {
                    return Err(SynchronizeError::TimedOut);
                }
            } else if let Some(expired) = &mut expired {
                // Another thread's grace period, which may never end.
                drop(periods);
                if expired() {
                    return Err(SynchronizeError::TimedOut);
                }
                self.fence.pause(turn);
                turn = turn.saturating_add(1);
                periods = lock(&self.periods);
            } else {
                periods = self.ended.wait(periods).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Whole grace periods until now: at most one per call of `synchronize`.
    pub fn grace_periods(&self) -> u64 {
        lock(&self.periods).ended
    }

    /// Whether all of them have left, rather than the wait expired.
    fn wait_for_readers(&self, expired: &mut Option<&mut dyn FnMut() -> bool>) -> bool {
        // Relaxed: the fence orders it. The lock of `periods` brought what all waiters took away.
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed) + 1;
        self.fence.heavy();
        for record in self.records() {
            let mut turn = 0;
            while record.is_before(epoch) {
                if expired.as_mut().is_some_and(|expired| expired()) {
                    return false;
                }
                self.fence.pause(turn);
                turn = turn.saturating_add(1);
            }
        }
        // What follows is a free: not before the last look.
        self.fence.heavy();
        true
    }

    /// Holds all grace periods back across a fork: call it before, and [`Frozen::into_child`] or
    /// drop it after.
    pub fn freeze(&self) -> Frozen<'_, F> {
        Frozen { periods: lock(&self.periods), domain: self }
    }
}

impl<F: Fence> fmt::Debug for Domain<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// A domain of which no grace period begins or ends. In the parent, dropping it lets them go on.
#[must_use = "grace periods wait until this is dropped"]
pub struct Frozen<'d, F: Fence> {
    periods: MutexGuard<'d, Periods>,
    domain: &'d Domain<F>,
}

impl<F: Fence> Frozen<'_, F> {
    /// In a forked child, where only the calling thread goes on: forgets all readers but `me`, and
    /// the grace period that a thread of the parent was waiting for.
    pub fn into_child(mut self, me: Option<&Reader<'_, F>>) {
        for record in self.domain.records() {
            if !me.is_some_and(|me| std::ptr::eq(me.record(), record)) {
                record.bury();
            }
        }
        self.periods.ended = self.periods.begun;
    }
}

impl<F: Fence> fmt::Debug for Frozen<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("periods", &*self.periods).finish_non_exhaustive()
    }
}
