//! A task, and the list of those that live.
use super::TaskId;
use super::shared::LedgerState;
use super::slot_counts::HeldSlots;
use crate::sync::{Mutex, lock};
use std::fmt;
use std::sync::{Arc, Weak};

/// The tasks that were made by threads of one shard, so that they can be asked what they hold. On
/// cache lines of its own, the count of references included: two shards in one line would make
/// their threads wait for each other at every task.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) shared: Arc<LedgerState>,
    tasks: Mutex<TaskList>,
}

#[derive(Debug, Default)]
struct TaskList {
    entries: Vec<Option<Weak<Inner>>>,
    /// Which of them are empty, the last one left on top: it is in somebody's cache.
    free: Vec<usize>,
}

impl Shard {
    pub(super) fn new(shared: Arc<LedgerState>) -> Shard {
        Shard { shared, tasks: Mutex::new(TaskList::default()) }
    }

    /// The tasks that live now.
    pub(super) fn tasks(&self) -> Vec<Arc<Inner>> {
        let tasks = lock(&self.tasks);
        tasks.entries.iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// How many tasks it had at most at one time.
    #[cfg(all(test, not(loom)))]
    pub(super) fn entries(&self) -> usize {
        lock(&self.tasks).entries.len()
    }
}

/// What a task is to the ledger. It lives as long as a handle or a reservation.
pub(super) struct Inner {
    pub(super) id: TaskId,
    /// Where it is listed. Tasks refer to the ledger through their shard: a count of references
    /// that all tasks of the machine share would be the very thing that slows them down.
    pub(super) shard: Arc<Shard>,
    index: usize,
    /// What it has, by pool.
    pub(super) holds: Mutex<[HeldSlots; 2]>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut tasks = lock(&self.shard.tasks);
        tasks.entries[self.index] = None;
        tasks.free.push(self.index);
    }
}

/// A task: anything that runs on one CPU at a time, a thread mostly. Clones are the same task.
///
/// Whoever makes a task keeps the handle, as a kernel keeps the thread: two tasks are two, also if
/// they have the same number.
#[derive(Clone)]
pub struct Task(pub(super) Arc<Inner>);

impl Task {
    pub(super) fn new(shard: &Arc<Shard>, id: TaskId) -> Task {
        let mut tasks = lock(&shard.tasks);
        let index = tasks.free.pop().unwrap_or_else(|| {
            tasks.entries.push(None);
            tasks.entries.len() - 1
        });
        let inner = Arc::new(Inner { id, shard: Arc::clone(shard), index, holds: Mutex::default() });
        tasks.entries[index] = Some(Arc::downgrade(&inner));
        Task(inner)
    }

    /// The number that the caller gave it.
    pub fn id(&self) -> TaskId {
        self.0.id
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Task").field(&self.id()).finish()
    }
}
