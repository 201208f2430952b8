//! How long locks were held, by the locks that the table knows.
use super::lock::{HoldPlace, Holds, LockRow};
use super::rows::{FutexKey, HoldRow};
use crate::functions::FunctionId;
use crate::futex_kind::LockKind;
use kymo_core::holds::HoldKind;
use kymo_core::latency::Latencies;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;

/// Where the futexes of a lock for reading and writing are, from its address on (glibc).
const RWLOCK_FUTEXES: [u64; 3] = [0, 8, 12];

/// A lock's holds with the version of the address space.
pub(super) struct LockHolds {
    pub(super) lock: FutexKey,
    pub(super) maps: u32,
    /// It is a lock for reading and writing.
    pub(super) is_rwlock: bool,
    pub(super) of: Holds,
}

/// Adds up the holds of each lock, in order of the locks; `place` resolves where they were taken.
pub(super) fn by_lock(rows: &[HoldRow], place: impl Fn(&HoldRow) -> Vec<FunctionId>) -> Vec<LockHolds> {
    let by_lock = rows.chunk_by(|a, b| a.lock == b.lock);
    by_lock.map(|rows| of_lock(rows, &place)).collect()
}

fn of_lock(rows: &[HoldRow], place: &impl Fn(&HoldRow) -> Vec<FunctionId>) -> LockHolds {
    let mut of = Holds::default();
    let mut places: FxHashMap<Vec<FunctionId>, Latencies> = FxHashMap::default();
    for row in rows {
        of.holds.merge(&row.holds);
        if row.kind == HoldKind::Read {
            of.shared = of.shared.saturating_add(row.holds.count);
        }
        places.entry(place(row)).or_default().merge(&row.holds);
    }
    let place = |(place, holds): (Vec<FunctionId>, Latencies)| {
        let Latencies { count, total_ns, max_ns, .. } = holds;
        HoldPlace { place, holds: count, total_ns, max_ns }
    };
    of.places = places.into_iter().map(place).collect();
    of.places.sort_by(|a, b| (Reverse(a.total_ns), &a.place).cmp(&(Reverse(b.total_ns), &b.place)));
    // SANITY: chunks are not empty.
    let (lock, maps) = rows.first().map_or(((0, 0), 0), |row| (row.lock, row.maps));
    let is_rwlock = rows.iter().any(|row| row.kind != HoldKind::Mutex);
    LockHolds { lock, maps, is_rwlock, of }
}

/// The row that a lock's waits are in, if threads waited for it. Those of a lock for reading and
/// writing, which has several futexes, become one. What is held is a lock, also where threads waited
/// for it in a function of conditions, which takes the mutex again.
pub(super) fn row_of(list: &mut Vec<LockRow>, lock: FutexKey, is_rwlock: bool) -> Option<&mut LockRow> {
    let offsets = if is_rwlock { &RWLOCK_FUTEXES[..] } else { &RWLOCK_FUTEXES[..1] };
    let is_of = |row: &LockRow| {
        let at = |address: u64| offsets.iter().any(|offset| lock.1.wrapping_add(*offset) == address);
        (row.pid == lock.0 || row.pid == 0) && row.address.is_some_and(at)
    };
    let first = list.iter().position(is_of)?;
    let others: Vec<LockRow> = {
        let mut at = 0;
        list.extract_if(.., |row| {
            at += 1;
            at > first + 1 && is_of(row)
        })
        .collect()
    };
    let row = list.get_mut(first)?;
    others.into_iter().for_each(|other| absorb(row, other));
    (row.address, row.kind) = (Some(lock.1), LockKind::Lock);
    Some(row)
}

/// Adds the waits of another futex of the same lock.
fn absorb(row: &mut LockRow, other: LockRow) {
    row.waits.merge(&other.waits);
    row.exact &= other.exact;
    row.timeouts = row.timeouts.saturating_add(other.timeouts);
    row.waiting = row.waiting.saturating_add(other.waiting);
    // Those of both are not known.
    row.threads = row.threads.max(other.threads);
    row.most_waiting = row.most_waiting.max(other.most_waiting);
    for (places, others) in [(&mut row.waiters, other.waiters), (&mut row.holders, other.holders)] {
        for other in others {
            match places.iter_mut().find(|place| place.place == other.place) {
                Some(place) => {
                    place.time_ns = place.time_ns.saturating_add(other.time_ns);
                    place.waits = place.waits.saturating_add(other.waits);
                    place.threads = place.threads.max(other.threads);
                }
                None => places.push(other),
            }
        }
        places.sort_by(|a, b| (Reverse(a.time_ns), &a.place).cmp(&(Reverse(b.time_ns), &b.place)));
    }
}
