//! Queue, inbox and pool against models, and with real threads.
use super::model::HandoverModel;
use super::{Next, Outbox, Pool, Wake, inbox, queue};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

proptest! {
    /// Checks that a queue gives what a `VecDeque` of the same bound gives, over any order of puts
    /// and takes (I1).
    #[test]
    fn queue_is_a_bounded_queue(capacity in 1..9usize, steps in prop::collection::vec(any::<bool>(), 0..200)) {
        let (mut producer, mut consumer) = queue(capacity);
        let (mut model, room) = (VecDeque::new(), capacity.next_power_of_two());
        for (value, put) in steps.into_iter().enumerate() {
            if put {
                let expected = if model.len() == room { Err(value) } else { model.push_back(value); Ok(()) };
                prop_assert_eq!(producer.push(value), expected);
            } else {
                prop_assert_eq!(consumer.pop(), model.pop_front());
            }
        }
        prop_assert!(!consumer.is_closed());
        drop(producer);
        prop_assert!(consumer.is_closed());
        prop_assert_eq!(std::iter::from_fn(|| consumer.pop()).collect::<VecDeque<_>>(), model);
    }

    /// Checks that an inbox gives each producer's values in order, exactly those that the model
    /// gives, is empty and closed when the model is, and that a consumer may sleep exactly when
    /// nothing is there (I1, I5). More queues than bits of a word; none is ever full, since which
    /// one is depends on whose turn it was.
    #[test]
    fn inbox_is_queues_behind_a_lock(
        queues in prop_oneof![1..5usize, 63..131usize],
        steps in prop::collection::vec((0..4u8, any::<prop::sample::Index>()), 0..300),
    ) {
        let (outboxes, mut inbox) = inbox::<(usize, usize)>((0..queues).map(|_| 512));
        let mut outboxes: Vec<Option<Outbox<_>>> = outboxes.into_iter().map(Some).collect();
        let model = HandoverModel::new(queues, 512);
        let (mut got, mut expected) = (vec![Vec::new(); queues], vec![Vec::new(); queues]);
        let mut asleep = false;
        for (value, (step, queue)) in steps.into_iter().enumerate() {
            let queue = queue.index(queues);
            match (step, &mut outboxes[queue]) {
                (0 | 1, Some(outbox)) => {
                    let sent = outbox.send((queue, value));
                    prop_assert_eq!(sent.is_ok(), model.send(queue, value).is_ok());
                    if let Ok(wake) = sent {
                        prop_assert_eq!(wake, if asleep { Wake::Now } else { Wake::No });
                        asleep = false;
                    }
                }
                (2, outbox @ Some(_)) => {
                    let wake = outbox.take().map(Outbox::close);
                    prop_assert_eq!(wake, Some(if asleep { Wake::Now } else { Wake::No }));
                    asleep = false;
                    model.close(queue);
                }
                _ => {
                    if asleep {
                        inbox.awake();
                        asleep = false;
                    }
                    match (inbox.receive(), model.receive()) {
                        (Next::Item((from, value)), Next::Item((model_from, model_value))) => {
                            got[from].push(value);
                            expected[model_from].push(model_value);
                        }
                        (Next::Empty, Next::Empty) => {
                            asleep = inbox.may_sleep();
                            prop_assert!(asleep);
                        }
                        (Next::Closed, Next::Closed) => prop_assert!(!inbox.may_sleep()),
                        (got, expected) => prop_assert!(false, "{got:?} instead of {expected:?}"),
                    }
                }
            }
        }
        while let Next::Item((from, value)) = inbox.receive() {
            got[from].push(value);
        }
        while let Next::Item((from, value)) = model.receive() {
            expected[from].push(value);
        }
        prop_assert_eq!(got, expected);
    }

    /// Checks that a pool holds what was given and not taken, up to its capacity, the last first
    /// (I6).
    #[test]
    fn pool_is_a_bounded_stack(capacity in 0..6usize, steps in prop::collection::vec(any::<bool>(), 0..200)) {
        let (pool, mut model) = (Pool::new(capacity), Vec::new());
        for (value, give) in steps.into_iter().enumerate() {
            if give {
                let expected = if model.len() == capacity { Err(value) } else { model.push(value); Ok(()) };
                prop_assert_eq!(pool.give(value), expected);
            } else {
                prop_assert_eq!(pool.take(), model.pop());
            }
        }
    }
}

/// Checks with three producers and a consumer that sleeps, and buffers that go round through a
/// pool, that everything arrives once and in order and that nobody sleeps for ever (I1, I5, I6).
#[test]
fn threads() {
    const EACH: usize = if cfg!(miri) { 50 } else { 20_000 };
    let (outboxes, mut inbox) = inbox::<(usize, Box<usize>)>([8, 8, 8]);
    let pool: Arc<Pool<Box<usize>>> = Arc::new(Pool::new(16));
    let made = Arc::new(AtomicUsize::new(0));
    (0..8).for_each(|_| pool.give(Box::new(0)).unwrap());
    let consumer = std::thread::current();
    let producers: Vec<_> = (outboxes.into_iter().enumerate())
        .map(|(index, mut outbox)| {
            let (pool, consumer, made) = (Arc::clone(&pool), consumer.clone(), Arc::clone(&made));
            std::thread::spawn(move || {
                let mut sent = 0;
                while sent < EACH {
                    let Some(mut buffer) = pool.take() else {
                        std::thread::yield_now();
                        continue;
                    };
                    *buffer = sent;
                    match outbox.send((index, buffer)) {
                        Ok(Wake::Now) => consumer.unpark(),
                        Ok(Wake::No) => {}
                        Err(_) => unreachable!("there are no more buffers than places"),
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                    sent += 1;
                }
                if outbox.close() == Wake::Now {
                    consumer.unpark();
                }
            })
        })
        .collect();
    let mut next = [0; 3];
    loop {
        match inbox.receive() {
            Next::Item((from, buffer)) => {
                assert_eq!(*buffer, next[from]);
                next[from] += 1;
                pool.give(buffer).unwrap();
            }
            Next::Empty => {
                if inbox.may_sleep() {
                    std::thread::park();
                }
                inbox.awake();
            }
            Next::Closed => break,
        }
    }
    assert_eq!(next, [EACH; 3]);
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    assert_eq!(made.load(Ordering::Relaxed), 3 * EACH);
    let free: BTreeSet<_> =
        std::iter::from_fn(|| pool.take()).map(|buffer| &raw const *buffer as usize).collect();
    assert_eq!(free.len(), 8, "each buffer came back once");
}

/// Checks that a receiver gets what was sent before its sender was dropped without a word, that
/// what nobody receives is dropped, and that a producer learns that nobody will.
#[test]
fn dropped_ends() {
    let value = Arc::new(());
    let (mut outboxes, mut inbox) = inbox([2, 2]);
    let _ = outboxes[0].send(Arc::clone(&value)).unwrap();
    let _ = outboxes[1].send(Arc::clone(&value)).unwrap();
    drop(outboxes);
    assert!(matches!(inbox.receive(), Next::Item(_)));
    assert_eq!(Arc::strong_count(&value), 2);
    drop(inbox);
    assert_eq!(Arc::strong_count(&value), 1);
    let (mut producer, consumer) = queue(1);
    assert!(!producer.is_abandoned());
    drop(consumer);
    assert!(producer.is_abandoned());
    assert_eq!((producer.push(1), producer.push(2)), (Ok(()), Err(2)), "it stays a queue");
}
