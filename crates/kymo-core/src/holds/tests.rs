use super::table::ROWS;
use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

use super::model::HoldModel;

const PID: u32 = 77;

fn memory() -> Vec<AtomicU64> {
    (0..TABLE_BYTES / 8).map(|_| AtomicU64::new(0)).collect()
}

fn list() -> [AtomicU64; HELD_WORDS] {
    std::array::from_fn(|_| AtomicU64::new(0))
}

fn report(words: &[AtomicU64]) -> HoldReport {
    HoldReport::read(|at, into| {
        into.iter_mut().zip(&words[at as usize..]).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        true
    })
}

/// What a thread does.
#[derive(Clone, Debug)]
struct Step {
    thread: u32,
    lock: u64,
    place: u64,
    shared: bool,
    acquires: bool,
    after: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let times = prop_oneof![0..10_u64, 0..5_000_u64, 0..(1_u64 << 40)];
    (0..3_u32, 1..5_u64, 1..4_u64, any::<bool>(), any::<bool>(), times).prop_map(
        |(thread, lock, place, shared, acquires, after)| Step {
            thread,
            lock,
            place,
            shared,
            acquires,
            after,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Checks that what threads do with locks adds up as the model says, with recursion, shared
    /// holds, releases of what was never taken, and in any order.
    #[test]
    fn adds_up_as_the_model(steps in prop::collection::vec(step(), 0..200)) {
        let (words, lists) = (memory(), [list(), list(), list()]);
        let table = HoldTable::new(&words).expect("it is long enough");
        let (mut model, mut now) = (HoldModel::default(), 1000);
        for Step { thread, lock, place, shared, acquires, after } in steps {
            now += after;
            let held = HeldLocks::of(&lists[thread as usize], 1);
            let kind = if shared { HoldKind::Read } else { HoldKind::Mutex };
            if acquires {
                held.acquire(lock, kind, place, now, || true);
                model.acquire(thread, lock, kind, place, now);
            } else {
                if let Released::Ended { kind, place, since } = held.release(lock, false) {
                    table.add(PID, kind, lock, place, now - since);
                }
                model.release(thread, lock, now);
            }
        }
        let report = report(&words);
        let mut rows = model.rows(PID as i32);
        // Those of 36 minutes and more are one bucket.
        for row in rows.iter_mut().chain(&mut report.locks.clone()) {
            prop_assert_eq!(row.holds.buckets.iter().sum::<u64>(), row.holds.count);
        }
        prop_assert_eq!(report.locks.len(), rows.len());
        for (found, expected) in report.locks.iter().zip(&rows) {
            let key = |row: &LockHolds| (row.pid, row.lock, row.kind, row.place);
            prop_assert_eq!(key(found), key(expected));
            let sums = |row: &LockHolds| (row.holds.count, row.holds.total_ns, row.holds.max_ns);
            prop_assert_eq!(sums(found), sums(expected));
            if expected.holds.max_ns < 1 << 40 {
                prop_assert_eq!(&found.holds.buckets, &expected.holds.buckets);
            }
        }
    }

    /// Checks that a table with anything in it is read without harm, and added to.
    #[test]
    fn any_table(noise in prop::collection::vec((0..TABLE_BYTES / 8, any::<u64>()), 0..200)) {
        let words = memory();
        noise.iter().for_each(|(at, value)| words[*at as usize].store(*value, Ordering::Relaxed));
        let table = HoldTable::new(&words).expect("it is long enough");
        for lock in 0..100 {
            table.add(PID, HoldKind::Mutex, lock, lock, u64::MAX - lock);
        }
        let mut twice = report(&words);
        twice.add(report(&words));
    }
}

/// Checks that holds beyond the table are counted as dropped, and no other.
#[test]
fn a_full_table_counts_what_it_drops() {
    let words = memory();
    let table = HoldTable::new(&words).expect("it is long enough");
    const LOCKS: u64 = 20_000;
    for lock in 0..LOCKS {
        table.add(PID, HoldKind::Mutex, 0x1000 + 64 * lock, 0x40_1000, 5);
    }
    let report = report(&words);
    let (rows, dropped) = (report.count(HoldCount::Rows), report.count(HoldCount::Dropped));
    assert_eq!(report.locks.iter().map(|row| row.holds.count).sum::<u64>() + dropped, LOCKS);
    assert_eq!(report.locks.len() as u64, rows);
    assert!(rows > ROWS * 9 / 10 && dropped > 0, "{rows} {dropped}");
}

/// Checks that threads that hold a lock for reading at the same time lose no hold.
#[test]
fn readers_at_the_same_time() {
    let words = memory();
    let table = HoldTable::new(&words).expect("it is long enough");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|ns| table.add(PID, HoldKind::Read, 64, 1, ns)));
        }
    });
    let report = report(&words);
    let holds = &report.locks[0].holds;
    assert_eq!((report.locks.len(), holds.count, holds.max_ns), (1, 4000, 999));
    assert_eq!(holds.total_ns, 4 * 999 * 1000 / 2);
}

/// Checks that a lock which is not recursive begins anew where its end was not seen, that a wait
/// gives a recursive one back wholly, and that a list has an end.
#[test]
fn ends_that_were_not_seen() {
    let words = list();
    let held = HeldLocks::of(&words, 1);
    assert_eq!(held.acquire(8, HoldKind::Mutex, 1, 10, || unreachable!()), Acquired::Begun);
    assert_eq!(held.acquire(8, HoldKind::Mutex, 2, 20, || false), Acquired::Restarted);
    assert_eq!(held.acquire(8, HoldKind::Mutex, 3, 30, || true), Acquired::Again);
    assert_eq!(held.release(8, true), Released::Ended { kind: HoldKind::Mutex, place: 2, since: 20 });
    assert_eq!(held.release(8, true), Released::Unknown);
    for lock in 0..HELD_LOCKS as u64 {
        assert_eq!(held.acquire(lock, HoldKind::Write, lock, 0, || true), Acquired::Begun);
    }
    assert_eq!(held.acquire(99, HoldKind::Write, 0, 0, || true), Acquired::NoRoom);
    // Not the last one.
    assert!(matches!(held.release(3, false), Released::Ended { place: 3, .. }));
    assert!(matches!(held.release(27, false), Released::Ended { place: 27, .. }));
    // Another observation finds nothing.
    assert_eq!(HeldLocks::of(&words, 2).release(4, false), Released::Unknown);
}

/// Checks that roles survive their numbers.
#[test]
fn roles_by_number() {
    let roles = [HoldKind::Mutex, HoldKind::Read, HoldKind::Write].map(HoldRole::Acquire);
    for role in roles.into_iter().chain([HoldRole::Release, HoldRole::Wait]) {
        assert_eq!(HoldRole::of(role.number()), Some(role));
    }
    assert_eq!([0, 6, 255].map(HoldRole::of), [None; 3]);
}
