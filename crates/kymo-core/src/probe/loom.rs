//! A hit beside each kind of change, in every order that matters.
//!
//! Run with
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p kymo-core --lib --release probe::loom`.
//! What is freed is poisoned (`canary`), so that a look at it is an error in every order, and a
//! consumer complains when it is called after its end.
use super::{Consumer, Handle, Key, ModuleId, NoSites, Registry, Verdict};
use crate::epoch::{Symmetric, TaskId};
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc;

/// One consumer, on `key`, who may end itself.
struct Guest {
    ended: AtomicBool,
    calls: AtomicUsize,
    stage: std::sync::Weak<Stage>,
    ends_itself: std::sync::Mutex<Option<Handle>>,
}

impl Consumer for Guest {
    type Context = ();

    fn hit(&self, (): &mut ()) -> Verdict {
        self.call();
        let handle = self.ends_itself.lock().unwrap().take();
        if let Some(handle) = handle {
            self.stage.upgrade().unwrap().registry.unregister(&[handle]);
        }
        Verdict::Keep
    }
}

impl Guest {
    fn call(&self) {
        // Relaxed: it is the grace period that must order this with the end.
        assert!(!self.ended.load(Ordering::Relaxed), "called after its end");
        self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(!self.ended.load(Ordering::Relaxed), "ended while it is called");
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

struct Stage {
    registry: Registry<Guest, NoSites, Symmetric>,
}

fn key(offset: u64) -> Key {
    Key { module: ModuleId(1), offset }
}

impl Stage {
    fn register(self: &Arc<Stage>, key: Key) -> (Arc<Guest>, Handle) {
        let guest = Arc::new(Guest {
            ended: AtomicBool::new(false),
            calls: AtomicUsize::new(0),
            stage: Arc::downgrade(self),
            ends_itself: Default::default(),
        });
        let handle = self.registry.register(key, Arc::clone(&guest)).unwrap();
        (guest, handle)
    }

    fn hit(&self, key: Key) -> bool {
        self.registry.join(TaskId(10)).enter().hit(key, &mut ())
    }

    fn end(&self, me: u64, guest: &Guest, handle: Handle) {
        self.registry.unregister(&[handle]);
        self.registry.synchronize(TaskId(me)).unwrap();
        guest.end();
    }
}

fn check(body: impl Fn(&Arc<Stage>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(model.preemption_bound.unwrap_or(2));
    model.max_branches = 20_000;
    model.check(move || {
        let stage = Arc::new(Stage { registry: Registry::new(Symmetric, NoSites) });
        body(&stage);
    });
}

/// Checks that a hit beside unregister and synchronize calls a consumer before its end or not at
/// all (P1), sees nothing freed (P3), and calls the one that stays exactly once (P2).
#[test]
fn hit_and_unregister() {
    check(|stage| {
        let (stays, _) = stage.register(key(1));
        let (goes, handle) = stage.register(key(1));
        let other = Arc::clone(stage);
        let hitter = thread::spawn(move || assert!(other.hit(key(1))));
        stage.end(1, &goes, handle);
        hitter.join().unwrap();
        assert_eq!(stays.calls.load(Ordering::Relaxed), 1);
    });
}

/// Checks that a search beside insertions and erasures of others, which grow and shrink the table,
/// finds what is there throughout (P4).
#[test]
fn lookup_and_insert() {
    check(|stage| {
        let (stays, _) = stage.register(key(1));
        let other = Arc::clone(stage);
        let hitter = thread::spawn(move || {
            assert!(other.hit(key(1)));
            assert!(!other.hit(key(77)));
        });
        let guests: Vec<_> = (2..4).map(|offset| stage.register(key(offset))).collect();
        let handles: Vec<_> = guests.iter().map(|(_, handle)| *handle).collect();
        stage.registry.unregister(&handles);
        stage.registry.synchronize(TaskId(1)).unwrap();
        hitter.join().unwrap();
        assert_eq!(stays.calls.load(Ordering::Relaxed), 1);
    });
}

/// Checks that two threads which each end a registration of one probe, with a hit beside them, both
/// come back, and the probe is gone (P1, P4).
#[test]
fn two_unregisters() {
    check(|stage| {
        let (a, handle_a) = stage.register(key(1));
        let (b, handle_b) = stage.register(key(1));
        let (first, second) = (Arc::clone(stage), Arc::clone(stage));
        let hitter = thread::spawn(move || _ = first.hit(key(1)));
        let ender = thread::spawn(move || second.end(2, &a, handle_a));
        stage.end(1, &b, handle_b);
        hitter.join().unwrap();
        ender.join().unwrap();
        assert_eq!(stage.registry.probes(), 0);
    });
}

/// Checks that a consumer may end its own registration in its handler while another thread waits
/// for a grace period: it is called once, by hits of one thread, and the wait ends (P1).
#[test]
fn ends_itself() {
    check(|stage| {
        let (guest, handle) = stage.register(key(1));
        *guest.ends_itself.lock().unwrap() = Some(handle);
        let other = Arc::clone(stage);
        let hitter = thread::spawn(move || {
            assert!(other.hit(key(1)));
            assert!(!other.hit(key(1)));
        });
        stage.registry.synchronize(TaskId(1)).unwrap();
        hitter.join().unwrap();
        stage.registry.synchronize(TaskId(1)).unwrap();
        guest.end();
        assert_eq!(guest.calls.load(Ordering::Relaxed), 1);
    });
}
