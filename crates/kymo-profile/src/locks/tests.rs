//! Rows of known waits: what of them is one lock, what is exact, and who held it.
use super::rows::{FutexKey, LockRows, SumRow, WaitRow, WakeRow};
use super::{LockKind, LockRow, table};
use crate::chains::ChainId;
use crate::functions::{FunctionId, Functions, Level};
use crate::resolve::Stacks;
use crate::timeline::{CommId, ModuleKind, Modules, TimelineBuilder};
use kymo_core::latency::Latencies;

const STACKS: [&[&str]; 6] = [
    &["__lll_lock_wait", "wants"],
    &["pthread_cond_wait", "ObjectMonitor::enter", "enters"],
    &["pthread_cond_wait", "takes"],
    &["__lll_lock_wake", "holds"],
    &["futex_wake", "leaves"],
    &["pthread_cond_wait"],
];
const WANTS: ChainId = 0;
const ENTERS: ChainId = 1;
const TAKES: ChainId = 2;
const HOLDS: ChainId = 3;
const LEAVES: ChainId = 4;
const BARE: ChainId = 5;

const LOCK: FutexKey = (1, 0x1000);
const PARKED: FutexKey = (1, 0x2000);

/// A wait that ended at a time, in a thread, by another.
fn wait(futex: FutexKey, (tid, waker): (i32, i32), chain: ChainId, time_ns: u64, wait_ns: u64) -> WaitRow {
    WaitRow {
        time_ns,
        futex,
        thread: (1, tid),
        comm: CommId::unnamed(tid),
        chain,
        maps: 0,
        wait_ns,
        told_ns: wait_ns,
        count: 1,
        waker,
        operation: 128,
        unfinished: false,
    }
}

fn wake(futex: FutexKey, tid: i32, chain: ChainId, time_ns: u64) -> WakeRow {
    WakeRow { time_ns, futex, thread: (1, tid), comm: CommId::unnamed(tid), chain, count: 1 }
}

fn sums(futex: FutexKey, waits: &[u64]) -> SumRow {
    let mut sums = SumRow { futex, most_waiting: 2, ..SumRow::default() };
    waits.iter().for_each(|ns| sums.waits.add(*ns));
    sums
}

/// The rows, and the name of a place's innermost function.
fn locks(waits: Vec<WaitRow>, wakes: Vec<WakeRow>, sums: Vec<SumRow>) -> Vec<(LockRow, String, String)> {
    let (mut functions, mut modules) = (Functions::default(), Modules::default());
    let app = modules.intern(b"/bin/app", ModuleKind::File, Default::default(), &[]);
    let libc = modules.intern(b"/lib/libc.so.6", ModuleKind::File, Default::default(), &[]);
    let mut stacks = Vec::new();
    for (number, frames) in STACKS.iter().enumerate() {
        let ids = frames.iter().enumerate().map(|(at, name)| {
            let start = 0x100 * number as u64 + 0x10 * at as u64;
            let module = if at + 1 == frames.len() { app } else { libc };
            functions.symbol(module, Level::User, start, start + 8, name)
        });
        let ids: Vec<FunctionId> = ids.collect();
        stacks.push((ids[0], ids));
    }
    let mut timeline = TimelineBuilder::build(Vec::new(), true);
    timeline.modules = modules;
    let mut rows = LockRows { waits, wakes, sums, ..LockRows::default() };
    rows.wakes.sort_unstable_by_key(|row| (row.futex, row.time_ns));
    let found = table::rows(&rows, &Stacks::of(stacks), &functions, &timeline, &mut |_, _| None);
    let place = |places: &[super::LockPlace]| {
        let first = places.first().and_then(|place| place.place.first());
        first.and_then(|id| functions.get(*id).name.as_deref()).unwrap_or("").to_owned()
    };
    found.into_iter().map(|row| (row.clone(), place(&row.waiters), place(&row.holders))).collect()
}

/// Checks that the kernel's sums stand for a lock, also for waits without a row, and that the
/// holder is who woke others last during the wait: the thread that the kernel saw.
#[test]
fn a_lock_by_its_address() {
    let waits = vec![wait(LOCK, (2, 9), WANTS, 100, 50), wait(LOCK, (3, 9), WANTS, 200, 60)];
    // Too early, by another thread, after the wait, and the one that it was.
    let wakes = vec![
        wake(LOCK, 9, LEAVES, 40),
        wake(LOCK, 8, LEAVES, 99),
        wake(LOCK, 9, LEAVES, 201),
        wake(LOCK, 9, HOLDS, 95),
        wake(LOCK, 9, HOLDS, 198),
    ];
    let found = locks(waits, wakes, vec![sums(LOCK, &[50, 60, 7])]);
    let [(row, waiter, holder)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((row.kind, row.exact, row.address), (LockKind::Lock, true, Some(0x1000)));
    assert_eq!((row.waits.count, row.waits.total_ns, row.waits.max_ns), (3, 117, 60));
    assert_eq!((waiter.as_str(), holder.as_str()), ("wants", "holds"));
    assert_eq!((row.threads, row.most_waiting, row.holders.len()), (2, 2, 1));
    assert_eq!((row.holders[0].time_ns, row.holders[0].waits), (110, 2));
}

/// Checks a futex that belongs to a thread, which waits there for a runtime's lock and on a
/// condition: each has its own row, from samples, and a wait without a stack is the lock's, which
/// took more.
#[test]
fn a_futex_of_a_thread() {
    let (mut bare, mut untold) = (wait(PARKED, (2, 0), WANTS, 400, 5), wait(PARKED, (2, 9), ENTERS, 100, 50));
    (bare.unfinished, bare.chain) = (true, BARE);
    (untold.told_ns, untold.count) = (90, 4);
    let waits = vec![untold, wait(PARKED, (2, 9), TAKES, 300, 20), bare];
    let found = locks(waits, vec![wake(PARKED, 9, LEAVES, 90)], vec![sums(PARKED, &[50, 20, 20, 20, 5])]);
    let [(place, enters, leaves), (condition, takes, _)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((place.kind, place.exact, place.address), (LockKind::Place, false, None));
    assert_eq!((place.waits.count, place.waits.total_ns, place.waiting), (5, 95, 1));
    assert_eq!((enters.as_str(), leaves.as_str()), ("enters", "leaves"));
    assert_eq!((condition.kind, condition.exact), (LockKind::Condition, false));
    assert_eq!((condition.waits.total_ns, takes.as_str()), (20, "takes"));
}

/// Checks waits that have not ended, one with its whole stack and one with the innermost function:
/// the first is what its stack says.
#[test]
fn unfinished_waits() {
    let unfinished = |chain| WaitRow { unfinished: true, ..wait(PARKED, (2, 0), chain, 400, 5) };
    let kind = |chain| locks(vec![unfinished(chain)], Vec::new(), vec![sums(PARKED, &[5])])[0].0.kind;
    assert_eq!([TAKES, BARE, WANTS].map(kind), [LockKind::Condition, LockKind::Unknown, LockKind::Lock]);
}

/// Checks sums of which no row tells anything: they are not contention, and nothing is lost.
#[test]
fn sums_alone() {
    let found = locks(Vec::new(), Vec::new(), vec![sums(LOCK, &[50]), sums(PARKED, &[])]);
    let [(row, ..)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((row.kind, row.kind.is_contention()), (LockKind::Unknown, false));
    assert_eq!(
        row.waits,
        Latencies { count: 1, total_ns: 50, max_ns: 50, buckets: row.waits.buckets.clone() }
    );
    assert!(row.waiters.is_empty() && row.holders.is_empty());
}
