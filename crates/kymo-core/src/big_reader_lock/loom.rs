//! Readers and writers in every order that matters.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --lib --release big_reader_lock::loom`.
//! The value is in loom's cell, so a writer beside anybody else is an error there, whatever is
//! computed with it. A thread that waits for ever is one, too.
use super::{BigReaderLock, stand_in_shard};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

type SharedLock = Arc<BigReaderLock<(usize, AtomicUsize)>>;

fn read(lock: &SharedLock, shard: usize) -> usize {
    stand_in_shard(shard);
    let value = lock.read();
    // Relaxed: that the writer sees it is the lock's work.
    value.1.fetch_add(1, Ordering::Relaxed);
    value.0
}

fn write(lock: &SharedLock) -> usize {
    let mut value = lock.write();
    value.0 += 1;
    value.1.load(Ordering::Relaxed)
}

fn check(others: &[fn(&SharedLock)], preemptions: usize, body: impl Fn(&SharedLock) + Sync + Send + 'static) {
    let others = others.to_vec();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let lock = Arc::new(BigReaderLock::new((0, AtomicUsize::new(0))));
        let threads: Vec<_> = (others.iter().copied())
            .map(|other| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || other(&lock))
            })
            .collect();
        body(&lock);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let value = lock.write();
        assert_eq!(value.1.load(Ordering::Relaxed) + value.0, 4, "work was lost");
    });
}

/// Checks one reader who comes twice beside a writer who comes twice (G1, G2): what the reader sees
/// only grows, and so does what the writer sees of the reader.
#[test]
fn a_reader_and_a_writer() {
    let reader = |lock: &SharedLock| {
        let first = read(lock, 0);
        assert!(read(lock, 0) >= first);
    };
    check(&[reader], 3, |lock| {
        let first = write(lock);
        assert!(write(lock) >= first);
    });
}

/// Checks two readers in one shard, each of whom could be the last that wakes the writer (G1, G3).
#[test]
fn readers_in_one_shard() {
    check(&[|lock| _ = read(lock, 1), |lock| _ = read(lock, 1)], 2, |lock| {
        write(lock);
        write(lock);
    });
}

/// Checks two readers in two shards: a shard that was empty stays empty for the writer (G1, G3).
#[test]
fn readers_in_two_shards() {
    check(&[|lock| _ = read(lock, 0), |lock| _ = read(lock, 1)], 2, |lock| {
        write(lock);
        write(lock);
    });
}

/// Checks two writers and a reader that waits for one or both (G1, G5).
#[test]
fn two_writers() {
    check(&[|lock| _ = write(lock), |lock| _ = write(lock)], 2, |lock| {
        read(lock, 0);
        read(lock, 0);
    });
}
