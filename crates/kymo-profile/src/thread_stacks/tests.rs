//! Deadlocks of threads that were made up.
use super::deadlock::{Deadlock, find};
use super::*;

fn thread(tid: i32, waits_for: Option<i32>, is_steady: bool) -> ThreadNow {
    let lock = waits_for.map(|holder| AwaitedLock {
        address: Some(0x1000),
        variable: None,
        holder: LockHolder::Thread(holder),
    });
    ThreadNow {
        pid: 1,
        tid,
        goroutine: None,
        name: "t".to_owned(),
        activity: Activity::Waiting(State::Lock),
        off_cpu_ns: None,
        object: String::new(),
        lock,
        joins: None,
        is_steady,
        is_dumped: false,
    }
}

fn found(threads: &[(i32, Option<i32>)]) -> Vec<Vec<i32>> {
    let threads = threads.iter().map(|&(tid, waits_for)| thread(tid, waits_for, true)).collect();
    found_of(threads)
}

fn found_of(threads: Vec<ThreadNow>) -> Vec<Vec<i32>> {
    let group = StackGroup {
        threads,
        frames: Vec::new(),
        kernel: Vec::new(),
        extent: StackExtent::Whole,
        reason: String::new(),
    };
    find(&[group]).into_iter().map(|Deadlock { threads }| threads).collect()
}

/// Checks circles of one, two and three threads, threads that wait for one of a circle, and threads
/// that wait in a row, which is none.
#[test]
fn circles() {
    assert_eq!(found(&[(1, Some(2)), (2, Some(1))]), [[1, 2]]);
    assert_eq!(found(&[(5, Some(5))]), [[5]]);
    assert_eq!(found(&[(1, Some(3)), (3, Some(2)), (2, Some(1)), (4, Some(1))]), [[1, 3, 2]]);
    assert_eq!(found(&[(1, Some(2)), (2, Some(3)), (3, None)]), [[0; 0]; 0]);
    assert_eq!(found(&[(1, Some(2)), (2, Some(1)), (7, Some(8)), (8, Some(7))]), [[1, 2], [7, 8]]);
}

/// Checks that threads which ran while stacks were read are in no deadlock: what was read of them
/// need not be true at one moment.
#[test]
fn threads_that_ran_are_in_no_deadlock() {
    assert_eq!(found_of(vec![thread(1, Some(2), true), thread(2, Some(1), false)]), [[0; 0]; 0]);
}

/// Checks that a thread that waits for the end of another can be part of a deadlock.
#[test]
fn a_join_in_a_circle() {
    let joins = ThreadNow { joins: Some(2), ..thread(1, None, true) };
    assert_eq!(found_of(vec![joins, thread(2, Some(1), true)]), [[1, 2]]);
}
