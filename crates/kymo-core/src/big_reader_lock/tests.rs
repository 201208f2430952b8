//! The lock beside its model, with threads.
use super::model::OneLock;
use super::{BigReaderLock, ReadGuard};
use proptest::prelude::*;
use std::ops::{Deref, DerefMut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a program of steps works on: two numbers that are equal whenever nobody writes, and one
/// that readers add to.
#[derive(Debug, Default)]
struct Pair {
    a: u64,
    b: u64,
    reads: AtomicU64,
}

/// BigReaderLock and model alike.
trait Lock: Sync {
    fn new() -> Self;
    fn read(&self) -> impl Deref<Target = Pair>;
    fn write(&self) -> impl DerefMut<Target = Pair>;
}

impl Lock for BigReaderLock<Pair> {
    fn new() -> Self {
        BigReaderLock::new(Pair::default())
    }
    fn read(&self) -> impl Deref<Target = Pair> {
        BigReaderLock::read(self)
    }
    fn write(&self) -> impl DerefMut<Target = Pair> {
        BigReaderLock::write(self)
    }
}

impl Lock for OneLock<Pair> {
    fn new() -> Self {
        OneLock::new(Pair::default())
    }
    fn read(&self) -> impl Deref<Target = Pair> {
        OneLock::read(self)
    }
    fn write(&self) -> impl DerefMut<Target = Pair> {
        OneLock::write(self)
    }
}

/// Runs one program per thread: `Some(n)` writes n, `None` reads. Gives the sums in the end.
fn run<L: Lock>(programs: &[Vec<Option<u64>>]) -> (u64, u64, u64) {
    let lock = L::new();
    let start = Barrier::new(programs.len());
    let (lock, start) = (&lock, &start);
    std::thread::scope(|scope| {
        for program in programs {
            scope.spawn(move || {
                start.wait();
                let mut least = 0;
                for step in program {
                    match *step {
                        Some(n) => {
                            let mut pair = lock.write();
                            assert_eq!(pair.a, pair.b, "somebody writes at the same time");
                            pair.a += n;
                            std::thread::yield_now();
                            pair.b += n;
                        }
                        None => {
                            let pair = lock.read();
                            let a = pair.a;
                            std::thread::yield_now();
                            assert_eq!(a, pair.b, "somebody writes while this reads");
                            assert!(a >= least, "what was there before is gone");
                            least = a;
                            pair.reads.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let pair = lock.write();
    (pair.a, pair.b, pair.reads.load(Ordering::Relaxed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that random programs on several threads end with the same sums as under one lock, and
    /// that no reader sees half a write (G1, G2).
    #[test]
    fn as_one_lock(programs in prop::collection::vec(
        prop::collection::vec(prop::option::weighted(0.2, 1u64..9), 0..60), 1..5)
    ) {
        prop_assert_eq!(run::<BigReaderLock<Pair>>(&programs), run::<OneLock<Pair>>(&programs));
    }
}

/// Checks that readers are in together: each waits inside for the other (G1).
#[test]
fn readers_are_together() {
    let (lock, inside) = (BigReaderLock::new(7), Barrier::new(3));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let value = lock.read();
                inside.wait();
                assert_eq!(*value, 7);
            });
        }
    });
}

/// Checks that a writer does not get in while a reader of another thread is there, and does
/// afterwards (G1).
#[test]
fn a_writer_waits() {
    let (lock, wrote) = (BigReaderLock::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let value = lock.read();
        scope.spawn(|| {
            *lock.write() = 1;
            wrote.store(true, Ordering::SeqCst);
        });
        for _ in 0..100 {
            std::thread::yield_now();
            assert!(!wrote.load(Ordering::SeqCst) && *value == 0, "a writer beside a reader");
        }
        drop(value);
    });
    assert!(wrote.into_inner());
    assert_eq!(lock.into_inner(), 1);
}

/// Checks that a writer gets through although readers keep coming until it did (G3).
#[test]
fn readers_do_not_starve_a_writer() {
    let (lock, start) = (BigReaderLock::new(false), Barrier::new(4));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // One is always inside when the next one asks.
                start.wait();
                while !*lock.read() {
                    std::thread::yield_now();
                }
            });
        }
        start.wait();
        *lock.write() = true;
    });
}

/// Checks that a panic of a writer or a reader leaves the lock usable, with what was written until
/// then.
#[test]
fn a_panic_opens_the_gate() {
    let lock = BigReaderLock::new(1);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            *lock.write() = 2;
            let mut value = lock.write();
            *value = 3;
            std::panic::resume_unwind(Box::new("a test's panic"));
        });
        assert!(writer.join().is_err());
        let reader = scope.spawn(|| {
            let _value = lock.read();
            std::panic::resume_unwind(Box::new("a test's panic"));
        });
        assert!(reader.join().is_err());
    });
    *lock.write() += 1;
    assert_eq!(*lock.read(), 4);
}

/// Checks that a thread keeps its shard, and that threads which come one after the other get
/// different ones.
#[test]
fn a_thread_keeps_its_shard() {
    let lock = BigReaderLock::new(());
    let mine = lock.read().shard();
    assert!(mine < ReadGuard::<()>::SHARDS);
    assert_eq!(lock.read().shard(), mine);
    std::thread::scope(|scope| {
        let shards: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (lock.read().shard(), lock.read().shard())))
            .map(|thread| thread.join().expect("it only reads"))
            .collect();
        assert!(shards.iter().all(|(first, second)| first == second));
        assert!(shards.iter().any(|shard| *shard != shards[0]), "{shards:?}: all in one shard");
    });
}
