//! Which waits somebody waited for, and so which are idle.
use super::state::may_be_idle;
use super::{End, WaitRow, Wall};
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
        let call = (wall.is_arm, row.syscall);
        let is_idle = || may_be_idle(wall.state(index), wall.names(row.chain, true), call);
        row.task_state != 0 && !is_first && is_idle()
    };
    let mut idle: Vec<bool> = (0..waits.len()).map(may_be_idle).collect();
    let mut to_do: Vec<usize> = (0..waits.len()).filter(|index| !idle[*index]).collect();
    let mut unmarked: FxHashMap<i32, Unmarked> =
        threads.iter().map(|(tid, list)| (*tid, Unmarked((0..=list.len()).collect()))).collect();
    while let Some(index) = to_do.pop() {
        let row = &waits[index];
        let (begun, woken) = span(row);
        let End::Thread(waker, _) = wall.end(index) else { continue };
        let (Some(list), Some(unmarked)) = (threads.get(&waker), unmarked.get_mut(&waker)) else { continue };
        // Those of the waker that ended within, without those that were looked at before.
        let first = list.partition_point(|at| span(&waits[*at]).1 <= begun);
        let mut place = unmarked.from(first);
        while let Some(&at) = list.get(place).filter(|at| span(&waits[**at]).1 <= woken) {
            unmarked.0[place] = place + 1;
            place = unmarked.from(place);
            if idle[at] {
                idle[at] = false;
                to_do.push(at);
            }
        }
    }
    idle
}

/// For each place of a list the next one that was not looked at, or a place on the way there: each
/// is looked at once, whatever a recording says.
struct Unmarked(Vec<usize>);

impl Unmarked {
    /// The first such place from this one on, perhaps the end of the list.
    fn from(&mut self, place: usize) -> usize {
        let mut found = place.min(self.0.len() - 1);
        while self.0[found] != found {
            // The ways get shorter with each walk.
            self.0[found] = self.0[self.0[found]];
            found = self.0[found];
        }
        found
    }
}
