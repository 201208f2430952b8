//! The sums of all holds of a program, in memory that a tracer shares.
use super::HoldKind;
use crate::latency::{self, PER_DOUBLING, USED};
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows of the table: locks by the places that take them.
pub(super) const ROWS: u64 = 1 << 14;
/// So many rows are looked at for one key.
const TRIES: u64 = 64;
/// Words before the rows: a page.
pub(super) const HEADER_WORDS: u64 = 512;
pub(super) const ROW_WORDS: u64 = 8;
/// Buckets of the lengths of holds: those of 2^41 ns (36 minutes) and more are one.
pub(super) const BUCKETS: u64 = PER_DOUBLING as u64 * 39;
/// Words of a row's buckets.
pub(super) const BUCKET_WORDS: u64 = 320;
const WORDS: u64 = HEADER_WORDS + ROWS * (ROW_WORDS + BUCKET_WORDS);

/// Bytes of a table; only what is used takes memory.
pub const TABLE_BYTES: u64 = (WORDS * 8).next_multiple_of(4096);

/// Words of a row.
pub(super) const KEY: u64 = 0;
pub(super) const LOCK: u64 = 1;
pub(super) const PLACE: u64 = 2;
/// The process, and the kind from bit 32 on.
pub(super) const OWNER: u64 = 3;
pub(super) const HOLDS: u64 = 4;
pub(super) const TOTAL: u64 = 5;
pub(super) const LONGEST: u64 = 6;

/// A count of the table's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCount {
    /// Rows that are taken.
    Rows = 0,
    /// Holds that found no row.
    Dropped = 1,
    /// Acquisitions that were not timed: in a signal's handler that interrupted another one, or of
    /// a thread that holds too many locks.
    Missed = 2,
    /// Releases of locks whose acquisition was not seen.
    Unknown = 3,
    /// Holds whose end was not seen.
    Unended = 4,
}

impl HoldCount {
    /// All of them, by their numbers.
    pub const ALL: [HoldCount; 5] =
        [HoldCount::Rows, HoldCount::Dropped, HoldCount::Missed, HoldCount::Unknown, HoldCount::Unended];
}

/// The table.
#[derive(Clone, Copy, Debug)]
pub struct HoldTable<'a> {
    words: &'a [AtomicU64],
}

/// Multiplies by the golden ratio, and brings the high bits down.
#[inline]
fn mixed(value: u64) -> u64 {
    let product = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 32
}

/// Which bucket of a row.
#[inline]
fn bucket(ns: u64) -> u64 {
    u64::from(latency::bucket(ns).wrapping_sub(USED.start)).min(BUCKETS - 1)
}

impl<'a> HoldTable<'a> {
    /// In these words, [`TABLE_BYTES`] of them, made of zeros; `None` if they are fewer.
    #[inline]
    pub fn new(words: &'a [AtomicU64]) -> Option<HoldTable<'a>> {
        (words.len() as u64 >= WORDS).then_some(HoldTable { words })
    }

    // Relaxed, all of it: sums, which are read when the program has ended or let go; a key is
    // written once.
    #[inline]
    fn word(self, at: u64) -> Option<&'a AtomicU64> {
        self.words.get(at as usize)
    }

    #[inline]
    fn raise(self, at: u64, by: u64, atomically: bool) {
        let Some(word) = self.word(at) else { return };
        if atomically {
            word.fetch_add(by, Ordering::Relaxed);
        } else {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// Counts something of the header.
    pub fn count(self, what: HoldCount) {
        self.raise(what as u64, 1, true);
    }

    /// Adds a hold that has ended, by the thread that ends it and before others can have the lock.
    #[inline]
    pub fn add(self, process: u32, kind: HoldKind, lock: u64, place: u64, ns: u64) {
        let owner = u64::from(process) | (kind as u64) << 32;
        let key = mixed(mixed(mixed(lock) ^ place) ^ owner) | 1;
        let Some(row) = self.row(key, owner, lock, place) else {
            return self.count(HoldCount::Dropped);
        };
        let at = HEADER_WORDS + row * ROW_WORDS;
        let shared = !kind.is_exclusive();
        self.raise(at + HOLDS, 1, shared);
        self.raise(at + TOTAL, ns, shared);
        if let Some(longest) = self.word(at + LONGEST)
            && longest.load(Ordering::Relaxed) < ns
        {
            if shared {
                longest.fetch_max(ns, Ordering::Relaxed);
            } else {
                longest.store(ns, Ordering::Relaxed);
            }
        }
        self.raise(HEADER_WORDS + ROWS * ROW_WORDS + row * BUCKET_WORDS + bucket(ns), 1, shared);
    }

    /// The row of a key, which it takes if need be.
    #[inline]
    fn row(self, key: u64, owner: u64, lock: u64, place: u64) -> Option<u64> {
        let first = key >> 50;
        let mut tries = 0;
        while tries < TRIES {
            let row = first.wrapping_add(tries) % ROWS;
            let at = HEADER_WORDS + row * ROW_WORDS;
            let found = self.word(at + KEY)?.load(Ordering::Relaxed);
            if found == key {
                return Some(row);
            }
            if found == 0 && self.take(at, key, owner, lock, place) {
                return Some(row);
            }
            tries += 1;
        }
        None
    }

    /// Takes a free row; `false` if it has become another one's meanwhile.
    #[cold]
    fn take(self, at: u64, key: u64, owner: u64, lock: u64, place: u64) -> bool {
        let Some(word) = self.word(at + KEY) else { return false };
        match word.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                for (part, value) in [(LOCK, lock), (PLACE, place), (OWNER, owner)] {
                    if let Some(word) = self.word(at + part) {
                        word.store(value, Ordering::Relaxed);
                    }
                }
                self.count(HoldCount::Rows);
                true
            }
            Err(other) => other == key,
        }
    }
}
