//! Waits of which only the wake-up was told: the kernel has left out the switch to the thread.
//!
//! The time of such a wait is in the sums of the thread's next row. Of a long one the wake-up says
//! how long it was and where: it becomes a row of its own, and the sums are less by it.
use super::needed::by_thread;
use super::{WaitRow, WakeupRow, Wall};
use crate::chains::ChainId;
use rustc_hash::FxHashSet;

impl Wall {
    /// Adds their rows; the time of each thread stays the same.
    pub(super) fn add_unseen_waits(&mut self) {
        let seen: FxHashSet<usize> = self.wakeups_of_waits().into_iter().flatten().collect();
        let (places, threads) = (self.waits_at_places(), by_thread(&self.waits));
        let mut added = Vec::new();
        for (_, wakeup) in self.wakeups.iter().enumerate().filter(|(at, _)| !seen.contains(at)) {
            let list = threads.get(&wakeup.woken).map_or(&[][..], Vec::as_slice);
            let next = list.partition_point(|at| self.waits[*at].time_ns < wakeup.time_ns);
            let before = next.checked_sub(1).map_or(0, |before| self.waits[list[before]].time_ns);
            let Some(&row) = list.get(next).filter(|_| begun(wakeup) >= before) else { continue };
            let pid = self.waits[row].thread.0;
            let at_place = wakeup.call.and_then(|call| places.get(&(pid, call.place)));
            let chain = at_place.map_or(self.no_stack, |at| self.waits[*at].chain);
            added.extend(take_wait(&mut self.waits[row], wakeup, chain));
        }
        if !added.is_empty() {
            self.waits.append(&mut added);
            self.waits.sort_by_key(|row| (row.time_ns, row.thread, row.total_ns()));
        }
    }
}

fn begun(wakeup: &WakeupRow) -> u64 {
    wakeup.time_ns.saturating_sub(wakeup.blocked_ns)
}

/// The wait that this wake-up ended, without its time in the sums of the row behind it; `None`:
/// there is no such wait in them.
fn take_wait(row: &mut WaitRow, wakeup: &WakeupRow, chain: ChainId) -> Option<WaitRow> {
    let blocked_ns = wakeup.blocked_ns;
    let longest_ns = row.short_longest_ns.filter(|longest| (1..=*longest).contains(&blocked_ns))?;
    (row.short_blocked_ns, row.short_waits) =
        (row.short_blocked_ns.checked_sub(blocked_ns)?, row.short_waits.checked_sub(1)?);
    // That of the others was not recorded.
    row.short_longest_ns = Some(longest_ns).filter(|longest| *longest > blocked_ns);
    // One that the kernel has left out was at none of the row's places. One that found no room for
    // a record was at its place, which may be that of the others.
    let is_elsewhere = wakeup.call.is_none_or(|call| Some(call.place) != row.short_place);
    let mixed_ns = row.short_mixed_ns.saturating_sub(if is_elsewhere { blocked_ns } else { 0 });
    row.short_mixed_ns = mixed_ns.min(row.short_blocked_ns);
    let nothing = WaitRow::nothing(wakeup.time_ns, row.thread, row.comm, chain);
    let (task_state, waker) = (wakeup.task_state, wakeup.waker.1);
    let wait = WaitRow { task_state, waker, blocked_ns, ..nothing };
    Some(wakeup.call.map_or(wait, |call| WaitRow {
        syscall: call.syscall,
        argument: call.argument,
        operation: call.operation,
        place: Some(call.place),
        ..wait
    }))
}
