//! Threads that wait for each other.
use super::lock::LockHolder;
use super::{StackGroup, ThreadNow};
use rustc_hash::{FxHashMap, FxHashSet};

/// Threads of which each waits for what the next one has, and the last one for what the first has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// Their numbers, the lowest first.
    pub threads: Vec<i32>,
}

/// All of them, by their lowest thread.
pub(super) fn find(groups: &[StackGroup]) -> Vec<Deadlock> {
    let threads: FxHashMap<i32, &ThreadNow> = groups
        .iter()
        .flat_map(|group| &group.threads)
        .filter(|thread| thread.is_steady)
        .map(|thread| (thread.tid, thread))
        .collect();
    let next = |tid: i32| {
        let thread = threads.get(&tid)?;
        let holder = match thread.lock.as_ref().map(|lock| lock.holder) {
            Some(LockHolder::Thread(holder)) => Some(holder),
            Some(LockHolder::Unknown) => None,
            None => thread.joins,
        };
        holder.filter(|holder| threads.contains_key(holder))
    };
    let mut starts: Vec<i32> = threads.keys().copied().collect();
    starts.sort_unstable();
    let (mut seen, mut found) = (FxHashSet::default(), Vec::new());
    for start in starts {
        let mut way = Vec::new();
        let mut at = Some(start);
        while let Some(tid) = at.filter(|tid| seen.insert(*tid)) {
            way.push(tid);
            at = next(tid);
        }
        // It ends in a thread of this way: a circle.
        let Some(first) = at.and_then(|tid| way.iter().position(|known| *known == tid)) else { continue };
        let mut circle = way.split_off(first);
        let lowest = circle.iter().enumerate().min_by_key(|(_, tid)| **tid).map_or(0, |(at, _)| at);
        circle.rotate_left(lowest);
        found.push(Deadlock { threads: circle });
    }
    found.sort_by(|a, b| a.threads.cmp(&b.threads));
    found
}
