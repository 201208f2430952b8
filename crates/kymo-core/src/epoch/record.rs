//! A thread's mark, and the two things a thread has in its hands: a reader and a section.
use super::fence::Fence;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// The low bits of a mark: how many sections are open, one in the other.
const NEST_BITS: u32 = 17;
const NEST: u64 = (1 << NEST_BITS) - 1;

/// Who reads, for [`Domain::synchronize`](super::Domain::synchronize) to know its own sections: a
/// thread's number, as the kernel or the program counts threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// What others see of a reader. On cache lines of its own (two: the neighbour is fetched with it).
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct ReaderRecord {
    /// `epoch << NEST_BITS | open sections`. Only its reader writes it.
    mark: AtomicU64,
    task: AtomicU64,
    taken: AtomicBool,
}

impl ReaderRecord {
    pub(super) fn new() -> ReaderRecord {
        ReaderRecord { mark: AtomicU64::new(0), task: AtomicU64::new(0), taken: AtomicBool::new(false) }
    }

    /// Makes it this task's, if it is nobody's.
    pub(super) fn take(&self, task: TaskId) -> bool {
        // Relaxed look: a claim that fails is no harm. Acquire claim: pairs with the Release in
        // `give`, so the mark is the last one's 0.
        let free = !self.taken.load(Ordering::Relaxed)
            && self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if free {
            // Relaxed: read only beside the mark, by the task itself or for a sentence.
            self.task.store(task.0, Ordering::Relaxed);
        }
        free
    }

    pub(super) fn give(&self) {
        // Release: pairs with the Acquire in `take`.
        self.taken.store(false, Ordering::Release);
    }

    /// Empties the record of a thread that is not there any more (in a forked child).
    pub(super) fn bury(&self) {
        // Relaxed: nobody else runs.
        self.mark.store(0, Ordering::Relaxed);
        self.give();
    }

    /// Whether a section is open that was entered before `epoch`.
    pub(super) fn is_before(&self, epoch: u64) -> bool {
        // Acquire: pairs with the Release of the leave, so that what the section did happened
        // before the grace period ends.
        let mark = self.mark.load(Ordering::Acquire);
        mark & NEST != 0 && mark >> NEST_BITS < epoch
    }

    pub(super) fn is_open_by(&self, task: TaskId) -> bool {
        // Relaxed: of interest only when it is the caller's own.
        self.task.load(Ordering::Relaxed) == task.0
            && self.taken.load(Ordering::Relaxed)
            && self.mark.load(Ordering::Relaxed) & NEST != 0
    }
}

/// A thread's way into sections. It stays with its thread while sections are open; it can move
/// between threads otherwise.
pub struct Reader<'d, F: Fence> {
    record: &'d ReaderRecord,
    epoch: &'d AtomicU64,
    fence: &'d F,
    /// Not shared between threads: a mark has one writer.
    _alone: PhantomData<Cell<()>>,
}

impl<'d, F: Fence> Reader<'d, F> {
    pub(super) fn new(record: &'d ReaderRecord, epoch: &'d AtomicU64, fence: &'d F) -> Reader<'d, F> {
        Reader { record, epoch, fence, _alone: PhantomData }
    }

    pub(super) fn record(&self) -> &ReaderRecord {
        self.record
    }

    /// Opens a section: until it is dropped, nothing that is found in it is freed. Never blocks; a
    /// signal handler may open one while this runs.
    ///
    /// # Panics
    /// With 131,071 sections open one in the other.
    #[inline]
    pub fn enter(&self) -> Section<'_> {
        // One word holds epoch and nesting, so a signal handler that enters and leaves between this
        // load and the store finds a whole state and leaves the same. Relaxed: only this thread
        // writes it.
        let mark = self.record.mark.load(Ordering::Relaxed);
        if mark & NEST == 0 {
            // Relaxed: an old epoch makes writers wait longer, not shorter.
            let epoch = self.epoch.load(Ordering::Relaxed);
            // Relaxed: ordered before what follows by the fence.
            self.record.mark.store(epoch << NEST_BITS | 1, Ordering::Relaxed);
            self.fence.light();
        } else {
            assert!(mark & NEST != NEST, "too many sections one in the other");
            // Relaxed: the section around it is what writers wait for.
            self.record.mark.store(mark + 1, Ordering::Relaxed);
        }
        Section { record: self.record, _thread: PhantomData }
    }

    /// Whether a section of this reader is open.
    pub fn is_inside(&self) -> bool {
        // Relaxed: its own.
        self.record.mark.load(Ordering::Relaxed) & NEST != 0
    }
}

impl<F: Fence> Drop for Reader<'_, F> {
    fn drop(&mut self) {
        // A section borrows the reader. One that was forgotten stays open, with its record, for
        // ever: what it protects is not freed.
        if !self.is_inside() {
            self.record.give();
        }
    }
}

impl<F: Fence> fmt::Debug for Reader<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("inside", &self.is_inside()).finish_non_exhaustive()
    }
}

/// What is found while this lives stays. Leave it on the thread that entered it.
#[derive(Debug)]
#[must_use = "the section ends when this is dropped"]
pub struct Section<'r> {
    record: &'r ReaderRecord,
    /// Not to be sent: a mark has one writer.
    _thread: PhantomData<*const ()>,
}

impl Drop for Section<'_> {
    #[inline]
    fn drop(&mut self) {
        // Relaxed load: only this thread writes it. Release store: pairs with the writer's Acquire
        // in `is_before`.
        let mark = self.record.mark.load(Ordering::Relaxed);
        self.record.mark.store(mark - 1, Ordering::Release);
    }
}
