//! Every interleaving of few steps of queue, inbox and pool.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --release handover::loom`.
use super::{Next, Pool, Wake, inbox, queue};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// Checks that a queue of two hands over three values in order while both ends run, and then says
/// that it is closed (I1).
#[test]
fn queue_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = queue(2);
        let thread = thread::spawn(move || {
            let mut refused = 0;
            for value in 0..3u32 {
                refused += u32::from(producer.push(Box::new(value)).is_err());
            }
            refused
        });
        let mut got: Vec<u32> = (0..2).filter_map(|_| consumer.pop()).map(|value| *value).collect();
        let refused = thread.join().unwrap();
        assert!(consumer.is_closed());
        got.extend(std::iter::from_fn(|| consumer.pop()).map(|value| *value));
        assert_eq!(got.len() as u32 + refused, 3);
        assert!(got.is_sorted());
    });
}

/// Checks that a consumer which goes to sleep while two producers send and end is woken, and gets
/// everything (I1, I5).
#[test]
fn nobody_sleeps_for_ever() {
    // All interleavings take minutes; a missed wake needs one preemption of each of the three.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(model.preemption_bound.unwrap_or(2));
    model.check(|| {
        let (outboxes, mut inbox) = inbox([1, 1]);
        let rung = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (outboxes.into_iter())
            .map(|mut outbox| {
                let rung = Arc::clone(&rung);
                thread::spawn(move || {
                    let sent = outbox.send(1).unwrap();
                    if sent == Wake::Now {
                        rung.store(true, Ordering::Release);
                    }
                })
            })
            .collect();
        let mut sum = 0;
        while let Next::Item(value) = inbox.receive() {
            sum += value;
        }
        let sleeps = sum < 2 && inbox.may_sleep();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        if sleeps {
            assert!(rung.load(Ordering::Acquire), "something was sent and the consumer sleeps");
        }
        while let Next::Item(value) = inbox.receive() {
            sum += value;
        }
        assert_eq!(sum, 2);
        assert_eq!(inbox.receive(), Next::Closed);
    });
}

/// Checks that two threads which take and give at once never get the same thing, nor lose one (I6).
#[test]
fn pool_gives_once() {
    loom::model(|| {
        let pool = Arc::new(Pool::new(3));
        (0..2).for_each(|value| pool.give(Box::new(value)).unwrap());
        let work = |pool: &Pool<Box<i32>>| {
            if let Some(mut value) = pool.take() {
                // Two owners at once would be a data race on the box, which loom's cells in the
                // slots would show.
                *value += 10;
                pool.give(value).unwrap();
            }
        };
        let other = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || work(&pool))
        };
        work(&pool);
        other.join().unwrap();
        let mut left: Vec<i32> = std::iter::from_fn(|| pool.take()).map(|value| *value).collect();
        left.sort_unstable();
        assert!(matches!(left[..], [0, 21] | [10, 11]), "{left:?}");
    });
}
