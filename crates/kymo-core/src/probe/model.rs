//! The registry as one would write it first: a lock around the tree, a count per hit, a lock around each probe's consumers. The oracle of
//! the tests, and the "before" of the benches: every hit stores to four cache lines that all CPUs share.
use super::consumer::{Consumer, Verdict, Wants};
use super::instance::{COOKIES, Frame};
use super::key::Key;
use super::returns::DEPTH;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    key: Key,
    id: u64,
}

struct Probe<C> {
    consumers: RwLock<Vec<(u64, Arc<C>)>>,
}

/// An awaited return: it counts its probe.
struct Awaited<C> {
    probe: Arc<Probe<C>>,
    slot: u64,
    return_address: u64,
    chained: bool,
    cookies: Vec<(u64, u64)>,
}

/// The awaited returns of a thread that has one stack.
pub struct Returns<C> {
    trampoline: u64,
    of: Vec<Awaited<C>>,
}

impl<C> Returns<C> {
    /// None awaited.
    pub fn new(trampoline: u64) -> Returns<C> {
        Returns { trampoline, of: Vec::new() }
    }

    /// How many are awaited.
    pub fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether none is awaited.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

/// What the registry does, under locks.
pub struct Locked<C> {
    tree: RwLock<BTreeMap<Key, Arc<Probe<C>>>>,
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
        let probe = tree.entry(key).or_insert_with(|| Arc::new(Probe { consumers: RwLock::new(Vec::new()) }));
        probe.consumers.write().unwrap_or_else(PoisonError::into_inner).push((id, consumer));
        Handle { key, id }
    }

    /// Ends a registration. When it returns, the consumer neither runs nor will: who runs it has the lock.
    pub fn unregister(&self, handle: Handle) {
        let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
        let Some(probe) = tree.get(&handle.key) else { return };
        let mut consumers = probe.consumers.write().unwrap_or_else(PoisonError::into_inner);
        consumers.retain(|(id, _)| *id != handle.id);
        let is_empty = consumers.is_empty();
        drop(consumers);
        // One that is counted by awaited returns is found again by whoever registers before they are over.
        if is_empty && Arc::strong_count(probe) == 1 {
            tree.remove(&handle.key);
        }
    }

    fn find(&self, key: Key) -> Option<Arc<Probe<C>>> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// A hit without a return. Whether there was a probe.
    pub fn hit(&self, key: Key, context: &mut C::Context) -> bool {
        let Some(probe) = self.find(key) else { return false };
        let consumers = probe.consumers.read().unwrap_or_else(PoisonError::into_inner);
        for (_, consumer) in consumers.iter().filter(|(_, consumer)| consumer.wants() != Wants::Return) {
            consumer.entry(context, &mut 0);
        }
        true
    }

    /// A hit at the first instruction of a function. Whether the trampoline's address is to be put in the slot.
    pub fn call(&self, key: Key, context: &mut C::Context, frame: Frame, returns: &mut Returns<C>) -> bool {
        let Some(probe) = self.find(key) else { return false };
        let (mut awaits, mut cookies) = (false, Vec::new());
        for (id, consumer) in probe.consumers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut cookie = 0;
            match consumer.wants() {
                Wants::Return => awaits = true,
                Wants::Entry => _ = consumer.entry(context, &mut cookie),
                Wants::Both => {
                    if consumer.entry(context, &mut cookie) == Verdict::Keep && cookies.len() < COOKIES {
                        cookies.push((*id, cookie));
                        awaits = true;
                    }
                }
            }
        }
        if !awaits {
            return false;
        }
        let chained = frame.return_address == returns.trampoline;
        while let Some(newest) = returns.of.last() {
            let alive = if chained { frame.slot <= newest.slot } else { frame.slot < newest.slot };
            if alive {
                break;
            }
            returns.of.pop();
        }
        if returns.of.len() == DEPTH {
            return false;
        }
        let return_address = match returns.of.last() {
            Some(newest) if chained => newest.return_address,
            None if chained => return false,
            _ => frame.return_address,
        };
        returns.of.push(Awaited { probe, slot: frame.slot, return_address, chained, cookies });
        true
    }

    /// A hit of the trampoline with this stack pointer after the return: where control resumes.
    pub fn returned(&self, pointer: u64, context: &mut C::Context, returns: &mut Returns<C>) -> Option<u64> {
        loop {
            let first = returns.of.iter().rposition(|instance| !instance.chained)?;
            let chain = returns.of.split_off(first);
            // Alive means that the next one has not been returned from, either.
            let valid = returns.of.last().is_none_or(|next| pointer <= next.slot);
            if !valid {
                continue;
            }
            for instance in chain.iter().rev() {
                let consumers = instance.probe.consumers.read().unwrap_or_else(PoisonError::into_inner);
                for (id, consumer) in consumers.iter() {
                    let cookie = instance.cookies.iter().find(|(of, _)| of == id).map(|(_, cookie)| *cookie);
                    match consumer.wants() {
                        Wants::Entry => {}
                        Wants::Return => consumer.leave(context, None),
                        Wants::Both if cookie.is_some() => consumer.leave(context, cookie),
                        Wants::Both => {}
                    }
                }
            }
            return Some(chain[0].return_address);
        }
    }
}
