//! Registering and ending: the corner cases by name.
use super::super::{Consumer, Key, ModuleId, NoSites, Registry, Verdict};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

type Plain = Registry<Witness, NoSites, Symmetric>;

/// Checks that a key that is registered again before the old probe is freed gets a new one: old
/// consumers are not called, new ones are.
#[test]
fn again_before_the_old_one_is_freed() {
    let registry = Plain::new(Symmetric, NoSites);
    let reader = registry.join(TaskId(1));
    let old = Arc::new(Witness::new(0));
    let handle = registry.register(key(1), Arc::clone(&old)).unwrap();
    let section = reader.enter();
    registry.unregister(&[handle]);
    assert!(!section.has(key(1)));
    let new = Arc::new(Witness::new(1));
    registry.register(key(1), Arc::clone(&new)).unwrap();
    assert!(section.hit(key(1), &mut Log::new()));
    drop(section);
    registry.synchronize(TaskId(1)).unwrap();
    old.end();
    assert!(reader.enter().hit(key(1), &mut Log::new()));
    assert_eq!((old.calls(), new.calls()), (0, 2));
}

/// Checks that ending a registration twice, or one of a probe that is gone, changes nothing.
#[test]
fn end_twice() {
    let registry = Plain::new(Symmetric, NoSites);
    let stays = registry.register(key(1), Arc::new(Witness::new(0))).unwrap();
    let goes = registry.register(key(1), Arc::new(Witness::new(1))).unwrap();
    let alone = registry.register(key(2), Arc::new(Witness::new(2))).unwrap();
    registry.unregister(&[goes, goes, alone]);
    registry.unregister(&[goes, alone]);
    let mut log = Log::new();
    assert!(registry.join(TaskId(1)).enter().hit(key(1), &mut log));
    assert_eq!(log, [(0, 0)]);
    assert_eq!(registry.probes(), 1);
    registry.unregister(&[stays]);
    assert_eq!(registry.probes(), 0);
}

/// Checks that keys which differ only in the module, or in one bit, are different probes.
#[test]
fn modules_differ() {
    let registry = Plain::new(Symmetric, NoSites);
    let keys: Vec<Key> = (0..64)
        .map(|bit| Key { module: ModuleId(1 << bit), offset: 0 })
        .chain((0..64).map(|bit| Key { module: ModuleId(0), offset: 1 << bit }))
        .collect();
    for (name, key) in keys.iter().enumerate() {
        registry.register(*key, Arc::new(Witness::new(name))).unwrap();
    }
    let reader = registry.join(TaskId(1));
    for (name, key) in keys.iter().enumerate() {
        let mut log = Log::new();
        assert!(reader.enter().hit(*key, &mut log));
        assert_eq!(log, [(name, 0)]);
    }
}

/// A consumer that ends its own registration in its handler.
struct Once {
    registry: Weak<Registry<Once, NoSites, Symmetric>>,
    handle: OnceLock<super::super::Handle>,
    hits: AtomicU64,
}

impl Consumer for Once {
    type Context = ();

    fn hit(&self, (): &mut ()) -> Verdict {
        self.hits.fetch_add(1, Ordering::SeqCst);
        let registry = self.registry.upgrade().unwrap();
        registry.unregister(&[*self.handle.get().unwrap()]);
        assert!(registry.synchronize(TaskId(1)).is_err(), "it would wait for itself");
        Verdict::Keep
    }
}

/// Checks that a handler may end its own registration, is refused to wait for itself, and is not
/// called again.
#[test]
fn ends_itself() {
    let registry = Arc::new(Registry::new(Symmetric, NoSites));
    let once = Arc::new(Once {
        registry: Arc::downgrade(&registry),
        handle: OnceLock::new(),
        hits: AtomicU64::new(0),
    });
    once.handle.set(registry.register(key(1), Arc::clone(&once)).unwrap()).unwrap();
    let reader = registry.join(TaskId(1));
    assert!(reader.enter().hit(key(1), &mut ()));
    assert!(!reader.enter().hit(key(1), &mut ()));
    registry.synchronize(TaskId(1)).unwrap();
    assert_eq!(once.hits.load(Ordering::SeqCst), 1);
}

/// Checks that many ended registrations are freed by one grace period.
#[test]
fn one_grace_period_for_many() {
    let registry = Plain::new(Symmetric, NoSites);
    let consumers: Vec<_> = (0..500).map(|name| Arc::new(Witness::new(name))).collect();
    let asked =
        consumers.iter().enumerate().map(|(at, consumer)| (key(at as u64).into(), Arc::clone(consumer)));
    let handles: Vec<_> = registry.register_all(asked).into_iter().map(Result::unwrap).collect();
    registry.unregister(&handles);
    registry.synchronize(TaskId(1)).unwrap();
    assert_eq!(registry.grace_periods(), 1);
}

/// Checks that across a fork the child goes on without the parent's threads: their sections hold
/// nobody up.
#[test]
fn fork() {
    let registry = Plain::new(Symmetric, NoSites);
    let handle = registry.register(key(1), Arc::new(Witness::new(0))).unwrap();
    let (gone, mine) = (registry.join(TaskId(1)), registry.join(TaskId(2)));
    std::mem::forget(gone.enter());
    registry.freeze().into_child(Some(&mine));
    registry.unregister(&[handle]);
    registry.synchronize(TaskId(2)).unwrap();
    assert!(!mine.enter().hit(key(1), &mut Log::new()));
}

/// Checks that a witness complains when it is called after its end, or else the tests that rely on
/// it show nothing.
#[test]
#[should_panic(expected = "called after its end")]
fn a_witness_complains() {
    let witness = Witness::new(0);
    witness.end();
    witness.hit(&mut Log::new());
}
