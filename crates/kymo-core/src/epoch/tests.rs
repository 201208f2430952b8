//! Grace periods with threads. Loom has the small cases in all their orders.
use super::{Domain, Fence, Symmetric, SynchronizeError, TaskId};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

/// Checks that a section holds a grace period up that began in it, and only until it ends (E1).
#[test]
fn waits_for_the_section() {
    let (domain, over) = (Domain::new(Symmetric), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = domain.join(TaskId(1));
        let outer = reader.enter();
        let inner = reader.enter();
        scope.spawn(|| {
            domain.synchronize(TaskId(2)).unwrap();
            over.store(true, Ordering::SeqCst);
        });
        for section in [inner, outer] {
            for _ in 0..50 {
                std::thread::yield_now();
                assert!(!over.load(Ordering::SeqCst), "it ended while a section was open");
            }
            drop(section);
        }
    });
    assert!(over.into_inner());
}

/// Checks that a section which is entered after the grace period began does not hold it up (E1):
/// the waiter is asked to pause for the old section, and opens a new one each time.
#[test]
fn does_not_wait_for_later_sections() {
    struct Meanwhile(mpsc::SyncSender<()>);
    impl Fence for Meanwhile {
        fn light(&self) {
            Symmetric.light();
        }
        fn heavy(&self) {
            Symmetric.heavy();
        }
        fn pause(&self, turn: u32) {
            if turn == 0 {
                self.0.send(()).unwrap();
            }
            std::thread::yield_now();
        }
    }
    let (send, paused) = mpsc::sync_channel(0);
    let domain = Domain::new(Meanwhile(send));
    std::thread::scope(|scope| {
        let old = domain.join(TaskId(1));
        let section = old.enter();
        let waiter = scope.spawn(|| domain.synchronize(TaskId(2)).unwrap());
        paused.recv().unwrap();
        let late = domain.join(TaskId(3));
        let open = late.enter();
        drop(section);
        waiter.join().unwrap();
        drop(open);
    });
}

/// Checks that a thread cannot wait for itself, and can when it has left (E5).
#[test]
fn refuses_to_wait_for_itself() {
    let domain = Domain::new(Symmetric);
    let reader = domain.join(TaskId(7));
    let section = reader.enter();
    let error = domain.synchronize(TaskId(7)).unwrap_err();
    assert!(error.to_string().contains("task 7"), "{error}");
    drop(section);
    assert_eq!(domain.synchronize(TaskId(7)), Ok(()));
}

/// Checks that a bounded wait ends while a section stays open, as often as it is tried, and that
/// one without a bound that waited beside it takes over and ends with the section (E6).
#[test]
fn a_bounded_wait_ends() {
    let (domain, over) = (Domain::new(Symmetric), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = domain.join(TaskId(1));
        let section = reader.enter();
        let mut looks = 0;
        let expired = || {
            looks += 1;
            looks > 3
        };
        assert_eq!(domain.try_synchronize(TaskId(2), expired), Err(SynchronizeError::TimedOut));
        assert_eq!((looks, domain.grace_periods()), (4, 0));
        scope.spawn(|| {
            domain.synchronize(TaskId(3)).unwrap();
            over.store(true, Ordering::SeqCst);
        });
        for _ in 0..50 {
            std::thread::yield_now();
            // Beside the other one's grace period, or before it.
            assert_eq!(domain.try_synchronize(TaskId(2), || true), Err(SynchronizeError::TimedOut));
            assert!(!over.load(Ordering::SeqCst), "it ended while a section was open");
        }
        drop(section);
        assert_eq!(domain.try_synchronize(TaskId(2), || false), Ok(()));
    });
    assert!(over.into_inner());
    let mine = domain.join(TaskId(4));
    let _section = mine.enter();
    let refused = domain.try_synchronize(TaskId(4), || false).unwrap_err();
    assert!(refused.to_string().contains("task 4"), "{refused}");
}

/// Checks that many who wait at once share grace periods (E4): with one held up, all others are
/// served by the next.
#[test]
fn waiters_share() {
    let domain = Domain::new(Symmetric);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let reader = domain.join(TaskId(0));
        let section = reader.enter();
        for task in 1..=8 {
            let (domain, asked) = (&domain, &asked);
            scope.spawn(move || {
                asked.fetch_add(1, Ordering::SeqCst);
                domain.synchronize(TaskId(task)).unwrap();
            });
        }
        while asked.load(Ordering::SeqCst) < 8 {
            std::thread::yield_now();
        }
        drop(section);
    });
    // Those that had not got as far as asking when the section ended may have needed one more each.
    assert!((1..=8).contains(&domain.grace_periods()), "{}", domain.grace_periods());
}

/// Checks that records are used again (E7), that room can be made beforehand, and that without room
/// there is no reader.
#[test]
fn records_are_used_again() {
    let domain = Domain::new(Symmetric);
    let readers: Vec<_> = (0..64).map(|task| domain.try_join(TaskId(task)).unwrap()).collect();
    assert!(domain.try_join(TaskId(99)).is_none(), "64 are taken");
    domain.reserve(128);
    let more: Vec<_> = (0..64).map(|task| domain.try_join(TaskId(task)).unwrap()).collect();
    assert!(domain.try_join(TaskId(99)).is_none(), "128 are taken");
    drop(readers);
    assert!(domain.try_join(TaskId(99)).is_some());
    drop(more);
    let readers: Vec<_> = (0..1000).map(|task| domain.join(TaskId(task))).collect();
    assert!(readers.iter().all(|reader| !reader.is_inside()));
}

/// Checks that in a forked child the sections of threads that are not there hold nobody up, and the
/// caller's own still does.
#[test]
fn forgets_the_parent() {
    let domain = Domain::new(Symmetric);
    let (gone, mine) = (domain.join(TaskId(1)), domain.join(TaskId(2)));
    std::mem::forget(gone.enter());
    let section = mine.enter();
    domain.freeze().into_child(Some(&mine));
    assert!(domain.synchronize(TaskId(2)).is_err(), "the caller's own is kept");
    drop(section);
    domain.synchronize(TaskId(2)).unwrap();
}

/// Checks with threads that what was taken away before a grace period is not in a reader's hands
/// after it (E1, E2).
#[test]
fn nothing_is_held_after_a_grace_period() {
    const ROUNDS: u64 = if cfg!(miri) { 10 } else { 300 };
    let domain = Domain::new(Symmetric);
    let (current, freed) = (AtomicU64::new(1), AtomicU64::new(0));
    let start = Barrier::new(3);
    std::thread::scope(|scope| {
        for task in 0..2 {
            let (domain, current, freed, start) = (&domain, &current, &freed, &start);
            scope.spawn(move || {
                let reader = domain.join(TaskId(task));
                start.wait();
                loop {
                    let section = reader.enter();
                    let mine = current.load(Ordering::Acquire);
                    std::thread::yield_now();
                    assert!(freed.load(Ordering::Acquire) < mine, "it was freed in my hands");
                    drop(section);
                    if mine > ROUNDS {
                        break;
                    }
                }
            });
        }
        start.wait();
        for round in 1..=ROUNDS {
            current.store(round + 1, Ordering::Release);
            domain.synchronize(TaskId(9)).unwrap();
            freed.store(round, Ordering::Release);
        }
    });
}
