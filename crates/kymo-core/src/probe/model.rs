//! The registry as one would write it first: a lock around the tree, a count per hit, a lock around
//! each probe's consumers. The oracle of the tests, and the "before" of the benches: every hit
//! stores to four cache lines that all CPUs share.
use super::consumer::Consumer;
use super::key::Key;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    key: Key,
    id: u64,
}

struct LockedProbe<C> {
    consumers: RwLock<Vec<(u64, Arc<C>)>>,
}

/// What the registry does, under locks.
pub struct Locked<C> {
    tree: RwLock<BTreeMap<Key, Arc<LockedProbe<C>>>>,
    last_id: AtomicU64,
}

impl<C: Consumer> Default for Locked<C> {
    fn default() -> Self {
        Locked { tree: RwLock::new(BTreeMap::new()), last_id: AtomicU64::new(0) }
    }
}

impl<C: Consumer> Locked<C> {
    /// Registers a consumer.
    pub fn register(&self, key: Key, consumer: Arc<C>) -> Handle {
        // Relaxed: any number is right, if nobody else has it.
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let probe =
            tree.entry(key).or_insert_with(|| Arc::new(LockedProbe { consumers: RwLock::new(Vec::new()) }));
        probe.consumers.write().unwrap_or_else(PoisonError::into_inner).push((id, consumer));
        Handle { key, id }
    }

    /// Ends a registration. When it returns, the consumer neither runs nor will: a thread that runs
    /// it has the lock.
    pub fn unregister(&self, handle: Handle) {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let Some(probe) = tree.get(&handle.key) else { return };
        let mut consumers = probe.consumers.write().unwrap_or_else(PoisonError::into_inner);
        consumers.retain(|(id, _)| *id != handle.id);
        let is_empty = consumers.is_empty();
        drop(consumers);
        if is_empty {
            tree.remove(&handle.key);
        }
    }

    /// A hit. Whether there was a probe.
    pub fn hit(&self, key: Key, context: &mut C::Context) -> bool {
        let tree = self.tree.read().unwrap_or_else(PoisonError::into_inner);
        let Some(probe) = tree.get(&key).cloned() else { return false };
        drop(tree);
        for (_, consumer) in probe.consumers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            consumer.hit(context);
        }
        true
    }
}
