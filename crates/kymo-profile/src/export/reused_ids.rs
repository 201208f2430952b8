//! Process numbers that were used again: what later processes had is theirs.
use super::model::{ExportProfile, Thread};
use crate::columns::{Columns, RowField};
use crate::timeline::{Moment, Timeline};
use rustc_hash::FxHashMap;

/// Since when (ns) the threads of columns are other threads of the profile.
#[derive(Debug, Default)]
pub(super) struct LaterThreads(FxHashMap<u32, Vec<(u64, u32)>>);

impl LaterThreads {
    /// The thread of the profile that a thread of the columns is at a time, if it is not the first
    /// one.
    pub(super) fn at(&self, named_thread: u32, time_ns: u64) -> Option<u32> {
        let later = self.0.get(&named_thread)?;
        later.iter().rev().find(|(from, _)| *from <= time_ns).map(|(_, thread)| *thread)
    }
}

/// Makes threads of their own of processes that got the number of one that had ended, which the
/// numbers of the columns do not tell apart; those that are there are taken. `threads`: by thread
/// of the columns the first one with its numbers.
pub(super) fn later_threads(
    profile: &mut ExportProfile,
    (timeline, is_of_spans): (&Timeline, bool),
    columns: &Columns,
    threads: &[u32],
) -> LaterThreads {
    if columns.time().last().is_none_or(|time| *time == 0) {
        // Without times nobody knows which samples are whose.
        return LaterThreads::default();
    }
    let known = profile.threads.iter().zip(0..).filter(|(thread, _)| thread.earlier_processes > 0);
    let key = |thread: &Thread| (thread.pid, thread.tid, thread.earlier_processes);
    let mut made: FxHashMap<(i32, i32, u32), u32> =
        known.map(|(thread, number)| (key(thread), number)).collect();
    let already_made = made.len();
    let mut later = LaterThreads::default();
    for ((named, thread), first) in (0..).zip(columns.threads.iter()).zip(threads) {
        let (pid, tid) = (thread.pid, thread.tid);
        let reuses = timeline.reuses(pid);
        let Some(first_reuse) = reuses.first() else { continue };
        let comm = |until| timeline.comm_before(pid, tid, until).into_owned();
        profile.threads[*first as usize].comm = comm(*first_reuse);
        let of_reuse = |(number, from): (usize, &Moment)| {
            let earlier_processes = number as u32 + 1;
            let thread = *made.entry((pid, tid, earlier_processes)).or_insert_with(|| {
                let until = reuses.get(number + 1).copied().unwrap_or(Moment::END);
                let comm = comm(until);
                profile.threads.push(Thread { pid, tid, comm, samples: 0, earlier_processes });
                (profile.threads.len() - 1) as u32
            });
            (from.time_ns, thread)
        };
        later.0.insert(named, reuses.iter().enumerate().map(of_reuse).collect());
    }
    if made.len() > already_made {
        move_samples(profile, is_of_spans, columns, (threads, &later));
    }
    later
}

/// What the first one had of all goes to each its own.
fn move_samples(
    profile: &mut ExportProfile,
    is_of_spans: bool,
    columns: &Columns,
    (threads, later): (&[u32], &LaterThreads),
) {
    for row in 0..columns.len() {
        let named = columns.get(RowField::Thread, row) as u32;
        if let Some(thread) = later.at(named, columns.time()[row]) {
            let count = if is_of_spans { columns.get(RowField::Period, row) } else { 1 };
            profile.threads[thread as usize].samples += count;
            let first = &mut profile.threads[threads[named as usize] as usize];
            first.samples = first.samples.saturating_sub(count);
        }
    }
}
