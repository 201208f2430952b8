//! What a table says to its reader, who does not believe it.
use super::HoldKind;
use super::table::{
    BUCKET_WORDS, BUCKETS, HEADER_WORDS, HOLDS, HoldCount, KEY, LOCK, LONGEST, OWNER, PLACE, ROW_WORDS, ROWS,
    TOTAL,
};
use crate::latency::{Latencies, SLOTS, USED};
use std::collections::BTreeMap;

/// Holds of a lock that were taken at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolds {
    /// The process, by the number that it has for itself.
    pub pid: i32,
    /// What was held.
    pub kind: HoldKind,
    /// Where the lock is.
    pub lock: u64,
    /// Where the function returned to that took it.
    pub place: u64,
    /// How many holds, how long together, the longest, and how many of which length.
    pub holds: Latencies,
}

/// Everything that is known of holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldReport {
    /// By process, lock, kind and place.
    pub locks: Vec<LockHolds>,
    /// The counts of the header, by [`HoldCount`].
    pub counts: [u64; HoldCount::ALL.len()],
}

impl HoldReport {
    /// Reads a table by `read`, which fills words from a place (counted in words) on; `false` if it
    /// cannot. What is no row is left out.
    pub fn read(mut read: impl FnMut(u64, &mut [u64]) -> bool) -> HoldReport {
        let mut report = HoldReport::default();
        if !read(0, &mut report.counts) || report.counts[HoldCount::Rows as usize] == 0 {
            return report;
        }
        /// Rows that are read at once.
        const PART: u64 = 512;
        let mut rows = vec![0; (PART * ROW_WORDS) as usize];
        for first in (0..ROWS).step_by(PART as usize) {
            if !read(HEADER_WORDS + first * ROW_WORDS, &mut rows) {
                break;
            }
            for (row, words) in (first..).zip(rows.as_chunks::<{ ROW_WORDS as usize }>().0) {
                if words[KEY as usize] == 0 || words[HOLDS as usize] == 0 {
                    continue;
                }
                let mut buckets = [0; BUCKETS as usize];
                if !read(HEADER_WORDS + ROWS * ROW_WORDS + row * BUCKET_WORDS, &mut buckets) {
                    break;
                }
                report.locks.extend(of_row(words, &buckets));
            }
        }
        report.merge_equal();
        report
    }

    /// A count of the header.
    pub fn count(&self, what: HoldCount) -> u64 {
        self.counts[what as usize]
    }

    /// Adds another one.
    pub fn add(&mut self, other: HoldReport) {
        self.locks.extend(other.locks);
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.merge_equal();
    }

    /// Leaves what came since an earlier report of the same table.
    pub fn subtract(&mut self, before: &HoldReport) {
        let key = |of: &LockHolds| (of.pid, of.lock, of.kind, of.place);
        let before_of: BTreeMap<_, &Latencies> = before.locks.iter().map(|of| (key(of), &of.holds)).collect();
        for of in &mut self.locks {
            if let Some(before) = before_of.get(&key(of)) {
                of.holds = of.holds.since(before);
            }
        }
        self.locks.retain(|of| of.holds.count > 0);
        for (count, before) in self.counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(before);
        }
    }

    fn merge_equal(&mut self) {
        let mut merged: BTreeMap<(i32, u64, HoldKind, u64), Latencies> = BTreeMap::new();
        for LockHolds { pid, kind, lock, place, holds } in self.locks.drain(..) {
            merged.entry((pid, lock, kind, place)).or_default().merge(&holds);
        }
        let row = |((pid, lock, kind, place), holds)| LockHolds { pid, kind, lock, place, holds };
        self.locks.extend(merged.into_iter().map(row));
    }
}

fn of_row(words: &[u64; ROW_WORDS as usize], counts: &[u64; BUCKETS as usize]) -> Option<LockHolds> {
    let owner = words[OWNER as usize];
    let kind = HoldKind::of(owner >> 32)?;
    let pid = i32::try_from(owner & u64::from(u32::MAX)).ok()?;
    let mut buckets = vec![0; SLOTS as usize];
    buckets[USED.start as usize..][..counts.len()].copy_from_slice(counts);
    let (count, total_ns, max_ns) = (words[HOLDS as usize], words[TOTAL as usize], words[LONGEST as usize]);
    let holds = Latencies { count, total_ns, max_ns, buckets };
    Some(LockHolds { pid, kind, lock: words[LOCK as usize], place: words[PLACE as usize], holds })
}
