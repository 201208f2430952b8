//! Hits on some threads while others register and end.
use super::super::{Handle, NoSites, Registry};
use super::{Log, Witness, key};
use crate::epoch::{Symmetric, TaskId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const HITS: u64 = if cfg!(miri) { 40 } else { 4_000 };
const KEYS: u64 = 5;

/// Checks that consumers which stay are called once per hit, that others which come and go are
/// never called after `synchronize`, and that nothing freed is looked at (P1, P2, P3), with the
/// table growing and shrinking beside.
#[test]
fn come_and_go() {
    let registry = Registry::new(Symmetric, NoSites);
    let stay: Vec<_> = (0..KEYS).map(|at| Arc::new(Witness::new(at as usize))).collect();
    for (at, consumer) in stay.iter().enumerate() {
        registry.register(key(at as u64), Arc::clone(consumer)).unwrap();
    }
    let running = AtomicU64::new(2);
    std::thread::scope(|scope| {
        for task in 0..2 {
            let (registry, running) = (&registry, &running);
            scope.spawn(move || {
                let reader = registry.join(TaskId(task));
                let mut log = Log::new();
                for hit in 0..HITS {
                    assert!(reader.enter().hit(key(hit % KEYS), &mut log));
                    log.clear();
                    if hit % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        for task in 10..12 {
            let (registry, running) = (&registry, &running);
            scope.spawn(move || {
                let mut round = 0;
                while running.load(Ordering::SeqCst) > 0 || round < 20 {
                    round += 1;
                    let guests: Vec<_> = (0..100).map(|at| Arc::new(Witness::new(at))).collect();
                    let asked = guests
                        .iter()
                        .enumerate()
                        .map(|(at, guest)| (key(at as u64).into(), Arc::clone(guest)));
                    let handles: Vec<Handle> =
                        registry.register_all(asked).into_iter().map(Result::unwrap).collect();
                    std::thread::yield_now();
                    registry.unregister(&handles);
                    registry.synchronize(TaskId(task)).unwrap();
                    guests.iter().for_each(|guest| guest.end());
                }
            });
        }
    });
    for (at, consumer) in stay.iter().enumerate() {
        let expected = (0..HITS).filter(|hit| hit % KEYS == at as u64).count() as u64 * 2;
        assert_eq!(consumer.calls(), expected, "consumer {at}");
    }
    assert_eq!(registry.probes(), KEYS as usize);
}

/// Checks that a thread which leaves, and another one that takes its reader, are waited for like
/// any.
#[test]
fn threads_come_and_go() {
    let registry = Registry::new(Symmetric, NoSites);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let registry = &registry;
        let over = &over;
        scope.spawn(move || {
            for task in 0..200 {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let reader = registry.join(TaskId(100 + task));
                        for _ in 0..20 {
                            reader.enter().hit(key(1), &mut Log::new());
                        }
                    });
                });
            }
            over.store(true, Ordering::SeqCst);
        });
        while !over.load(Ordering::SeqCst) {
            let guest = Arc::new(Witness::new(0));
            let handle = registry.register(key(1), Arc::clone(&guest)).unwrap();
            registry.unregister(&[handle]);
            registry.synchronize(TaskId(1)).unwrap();
            guest.end();
        }
    });
}
