//! Which waits somebody waited for, and so which are idle.
use super::{End, State, WaitRow, Wall};
use rustc_hash::{FxHashMap, FxHashSet};

/// When a wait began and when the thread was woken, ns.
pub(super) fn span(row: &WaitRow) -> (u64, u64) {
    let woken = row.time_ns.saturating_sub(row.runnable_ns);
    (woken.saturating_sub(row.blocked_ns), woken)
}

/// The waits of each thread, in order of time.
pub(super) fn by_thread(waits: &[WaitRow]) -> FxHashMap<i32, Vec<usize>> {
    let mut threads: FxHashMap<i32, Vec<usize>> = FxHashMap::default();
    for (index, row) in waits.iter().enumerate() {
        threads.entry(row.thread.1).or_default().push(index);
    }
    threads
}

/// For each wait whether it is idle.
///
/// From every wait that is none for something to do, and from all of the first thread of a process,
/// the marks go on: who ended that wait was waited for from its beginning to its end, and so was
/// whoever ended what that one waited for in between.
pub(super) fn idle(wall: &Wall) -> Vec<bool> {
    let waits = &wall.waits;
    let threads = by_thread(waits);
    // Where there are many processes of one thread, their first threads are no others than the
    // rest.
    let mut processes: FxHashMap<i32, FxHashSet<i32>> = FxHashMap::default();
    for row in waits {
        processes.entry(row.thread.0).or_default().insert(row.thread.1);
    }
    let tells =
        |pid: i32| processes.len() == 1 || processes.get(&pid).is_some_and(|threads| threads.len() > 1);
    let may_be_idle = |index: usize| {
        let row = &waits[index];
        let is_first = row.thread.0 == row.thread.1 && tells(row.thread.0);
        let state = wall.state(index);
        row.task_state != 0 && !is_first && state.may_be_idle() && state != State::Lock
    };
    let mut idle: Vec<bool> = (0..waits.len()).map(may_be_idle).collect();
    let mut to_do: Vec<usize> = (0..waits.len()).filter(|index| !idle[*index]).collect();
    while let Some(index) = to_do.pop() {
        let row = &waits[index];
        let (begun, woken) = span(row);
        let End::Thread(waker, _) = wall.end(index) else { continue };
        let Some(list) = threads.get(&waker) else { continue };
        // Those of the waker that ended within.
        let first = list.partition_point(|at| span(&waits[*at]).1 <= begun);
        for &at in &list[first..] {
            if span(&waits[at]).1 > woken {
                break;
            }
            if idle[at] {
                idle[at] = false;
                to_do.push(at);
            }
        }
    }
    idle
}
