//! The threads of a recording's rows: a thread under another name is another entry.
use crate::timeline::CommId;
use rustc_hash::FxHashMap;

/// Index of a [`Thread`] in [`ThreadTable`].
pub type ThreadId = u32;

/// A thread under one of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thread {
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// Its name.
    pub comm: CommId,
}

/// Distinct threads with dense ids.
#[derive(Debug, Clone, Default)]
pub struct ThreadTable {
    list: Vec<Thread>,
    index: FxHashMap<Thread, ThreadId>,
}

impl PartialEq for ThreadTable {
    fn eq(&self, other: &ThreadTable) -> bool {
        self.list == other.list
    }
}

impl ThreadTable {
    /// The id of this thread, made on first sight.
    pub(crate) fn intern(&mut self, thread: Thread) -> ThreadId {
        let next = self.list.len() as ThreadId;
        *self.index.entry(thread).or_insert_with(|| {
            self.list.push(thread);
            next
        })
    }

    /// Takes in all threads of `other`; the answer maps its ids to ours.
    pub(crate) fn absorb(&mut self, other: &ThreadTable) -> Vec<ThreadId> {
        other.list.iter().map(|thread| self.intern(*thread)).collect()
    }

    /// The same threads by process, thread and name; the answer maps ids before to ids now.
    pub(super) fn sorted(mut self) -> (ThreadTable, Vec<ThreadId>) {
        let before = self.list.clone();
        self.list.sort_unstable();
        self.index = (0..).zip(&self.list).map(|(id, thread)| (*thread, id)).collect();
        let map = before.iter().map(|thread| self.index[thread]).collect();
        (self, map)
    }

    /// The thread of an id given by this table.
    #[inline]
    pub fn get(&self, id: ThreadId) -> &Thread {
        &self.list[id as usize]
    }

    /// All threads, in the order of their ids: by process, thread and name.
    pub fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.list.iter()
    }

    /// How many threads.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// No thread at all.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}
