//! A context: the events of one task, and the number by which two contexts know that they are
//! alike.
use super::Set;
use crate::context::unique::unique;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};

/// The bit of a class that says: some event keeps numbers of single tasks, so an exchange must
/// exchange those too.
pub(crate) const WITH_COUNTS: u64 = 1;

/// What the lock of a context protects.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) set: Set,
    /// A unique number: of this context as it is now, and of all that were cloned from it since it
    /// is so.
    pub(crate) lineage: u64,
    pub(crate) cloned: bool,
    /// How many readers forbid that it is exchanged.
    pub(crate) pins: u32,
    /// Its task ended.
    pub(crate) over: bool,
}

impl Inner {
    /// Not a clone of anything any more, nor the original of any clone.
    pub(crate) fn unclone(&mut self) {
        self.cloned = false;
        self.lineage = unique();
    }
}

/// The events of one task.
#[derive(Debug)]
pub(crate) struct TaskContext {
    /// Two contexts are alike exactly if this is equal (I2). Written under the lock; read without
    /// it.
    pub(crate) class: AtomicU64,
    /// Whose it is. Written by whoever switches that task.
    pub(crate) holder: AtomicU64,
    /// The order in which two contexts are locked.
    id: u64,
    inner: Mutex<Inner>,
}

impl TaskContext {
    /// An empty context of this task, with this lineage if it will be a clone.
    pub(crate) fn new(holder: u64, lineage: Option<u64>) -> TaskContext {
        let id = unique();
        let inner = Inner {
            set: Set::default(),
            lineage: lineage.unwrap_or_else(unique),
            cloned: lineage.is_some(),
            pins: 0,
            over: false,
        };
        TaskContext {
            class: AtomicU64::new(never(id)),
            holder: AtomicU64::new(holder),
            id,
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Locks two, in the one order in which everybody does.
    pub(crate) fn lock_both<'a>(
        a: &'a TaskContext,
        b: &'a TaskContext,
    ) -> (MutexGuard<'a, Inner>, MutexGuard<'a, Inner>) {
        if a.id < b.id {
            let first = a.lock();
            (first, b.lock())
        } else {
            let first = b.lock();
            (a.lock(), first)
        }
    }

    /// Works the class out again, after a change of what it depends on. `empty` is the class of all
    /// contexts without events.
    pub(crate) fn classify(&self, inner: &Inner, empty: u64) {
        let events = || inner.set.groups().flat_map(|group| &group.events);
        let class = if inner.over || inner.pins > 0 || events().any(|event| event.attr.bound) {
            never(self.id)
        } else if inner.set.is_empty() {
            empty
        } else {
            inner.lineage << 1 | if events().any(|event| event.attr.inherit_stat) { WITH_COUNTS } else { 0 }
        };
        // Relaxed: who switches a task has it exclusively, and so after everything that was done to
        // its membership (I3); a change from another thread (a close, a pin) is seen late or not,
        // and either is right.
        self.class.store(class, Ordering::Relaxed);
    }
}

/// The class of a context that is like no other: its own id, apart from all lineages.
fn never(id: u64) -> u64 {
    1 << 63 | id << 1
}
