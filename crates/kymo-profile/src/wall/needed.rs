//! Which waits somebody waited for, and so which are idle.
use super::state::{A_TIMER, may_be_idle};
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

/// Whether the waits of a row are idle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleWaits {
    /// That of its own.
    pub(super) own: bool,
    /// Those without rows of their own, if they are for the same.
    pub(super) short: bool,
}

/// For each row whether its waits are idle.
///
/// From every wait that is none for something to do the marks go on: who ended that wait was waited
/// for from its beginning to its end, and so was whoever ended what that one waited for in between.
/// What the first thread of a process waits for is something to do, unless it was seen to wait for
/// work only.
pub(super) fn idle(wall: &Wall) -> Vec<IdleWaits> {
    let waits = &wall.waits;
    let threads = by_thread(waits);
    let for_work = for_work(wall, &threads);
    // Where there are many processes of one thread, their first threads are no others than the
    // rest.
    let mut processes: FxHashMap<i32, FxHashSet<i32>> = FxHashMap::default();
    for row in waits {
        processes.entry(row.thread.0).or_default().insert(row.thread.1);
    }
    let tells =
        |pid: i32| processes.len() == 1 || processes.get(&pid).is_some_and(|threads| threads.len() > 1);
    let is_first = |row: &WaitRow| row.thread.0 == row.thread.1 && tells(row.thread.0);
    let may_be_idle = |index: usize| {
        let (row, state) = (&waits[index], wall.state(index));
        let call = (wall.is_arm, row.syscall);
        let is_place = || may_be_idle(state, wall.names(row.chain, true), call);
        row.task_state != 0
            && match for_work[index] {
                Some(for_work) => for_work && may_be_for_work(state),
                None => !is_first(row) && is_place(),
            }
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
    // Of short waits nobody saw whom they were for.
    let with_short = |(row, own)| IdleWaits { own, short: own && !is_first(row) };
    waits.iter().zip(idle).map(with_short).collect()
}

/// Whether waits of this state may be told to be for work. Those for signals are `Other`.
fn may_be_for_work(state: State) -> bool {
    matches!(state, State::Poll | State::Network | State::Pipe | State::IoUring | State::Other)
}

/// For each wait whether it was for work (`true`) or perhaps for an answer, where that is known.
///
/// The files of a wait are looked at when the recording ends. It was the same for those before in
/// the same call behind which the thread had nothing to do, because only a timer had ended them.
/// One connection to a server makes every wait of that call perhaps one for an answer.
fn for_work(wall: &Wall, threads: &FxHashMap<i32, Vec<usize>>) -> Vec<Option<bool>> {
    let mut found = vec![None; wall.waits.len()];
    for list in threads.values() {
        let Some((&last, before)) = list.split_last() else { continue };
        let Some(for_work) = wall.waits[last].for_work else { continue };
        found[last] = Some(for_work);
        let in_call = |at: &&usize| wall.waits[**at].syscall == wall.waits[last].syscall;
        let by_timer = |at: &&usize| in_call(at) && wall.end(**at) == End::Interrupt(A_TIMER);
        match for_work {
            false => before.iter().filter(in_call).for_each(|&at| found[at] = Some(false)),
            true => before.iter().rev().take_while(by_timer).for_each(|&at| found[at] = Some(true)),
        }
    }
    found
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
