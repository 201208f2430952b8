//! The locks that one thread holds.
use super::HoldKind;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many locks a thread holds at the same time, at most; those beyond are not timed.
pub const HELD_LOCKS: usize = 28;
/// Words of an entry.
const ENTRY: usize = 4;
const LOCK: usize = 0;
const SINCE: usize = 1;
const PLACE: usize = 2;
/// The depth of recursion, and the kind from bit 56 on.
const DEPTH: usize = 3;
const KIND_SHIFT: u32 = 56;
/// Words before the entries: the second one is how many there are, the third one to which
/// observation they belong. The first and the last one are the caller's.
const HEADER: usize = 4;
const COUNT: usize = 1;
const OBSERVATION: usize = 2;

/// Words of a thread's list.
pub const HELD_WORDS: usize = HEADER + HELD_LOCKS * ENTRY;

/// What an acquisition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// A hold begins.
    Begun,
    /// The thread holds the lock already.
    Again,
    /// A hold begins. The end of the one before was not seen.
    Restarted,
    /// The thread holds too many locks.
    NoRoom,
}

/// What a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The hold has ended.
    Ended {
        /// What was held.
        kind: HoldKind,
        /// Where it was taken.
        place: u64,
        /// When, in the clock of whoever asks.
        since: u64,
    },
    /// The thread holds it still.
    Again,
    /// The thread was not seen to take it.
    Unknown,
}

/// The list, in the order in which the locks were taken. Only its thread uses it.
#[derive(Clone, Copy, Debug)]
pub struct HeldLocks<'a> {
    words: &'a [AtomicU64; HELD_WORDS],
}

// Relaxed, all of it: one thread.
#[inline]
fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

#[inline]
fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

impl<'a> HeldLocks<'a> {
    /// A list in these words. If they are of another observation, it is empty.
    #[inline]
    pub fn of(words: &'a [AtomicU64; HELD_WORDS], observation: u64) -> HeldLocks<'a> {
        if get(&words[OBSERVATION]) != observation {
            set(&words[COUNT], 0);
            set(&words[OBSERVATION], observation);
        }
        HeldLocks { words }
    }

    #[inline]
    fn count(self) -> usize {
        (get(&self.words[COUNT]) as usize).min(HELD_LOCKS)
    }

    #[inline]
    fn word(self, entry: usize, at: usize) -> &'a AtomicU64 {
        // No entry is beyond the last one, and the compiler sees it.
        &self.words[(HEADER + entry * ENTRY + at).min(HELD_WORDS - 1)]
    }

    /// The last entry of a lock.
    #[inline]
    fn find(self, lock: u64) -> Option<usize> {
        let mut entry = self.count();
        while entry > 0 {
            entry -= 1;
            if get(self.word(entry, LOCK)) == lock {
                return Some(entry);
            }
        }
        None
    }

    /// The thread has taken a lock. `is_recursive` is asked only if it holds the lock already:
    /// whether it may then.
    #[inline]
    pub fn acquire(
        self,
        lock: u64,
        kind: HoldKind,
        place: u64,
        now: u64,
        is_recursive: impl FnOnce() -> bool,
    ) -> Acquired {
        let (entry, outcome) = match self.find(lock) {
            Some(entry) if is_recursive() => {
                let depth = self.word(entry, DEPTH);
                set(depth, get(depth).wrapping_add(1));
                return Acquired::Again;
            }
            Some(entry) => (entry, Acquired::Restarted),
            None => {
                let entry = self.count();
                if entry >= HELD_LOCKS {
                    return Acquired::NoRoom;
                }
                set(&self.words[COUNT], entry as u64 + 1);
                (entry, Acquired::Begun)
            }
        };
        set(self.word(entry, LOCK), lock);
        set(self.word(entry, SINCE), now);
        set(self.word(entry, PLACE), place);
        set(self.word(entry, DEPTH), 1 | (kind as u64) << KIND_SHIFT);
        outcome
    }

    /// The thread gives a lock back; `wholly`: however often it has taken it.
    #[inline]
    pub fn release(self, lock: u64, wholly: bool) -> Released {
        let Some(entry) = self.find(lock) else { return Released::Unknown };
        let depth = get(self.word(entry, DEPTH));
        let times = depth & ((1 << KIND_SHIFT) - 1);
        if times > 1 && !wholly {
            set(self.word(entry, DEPTH), depth.wrapping_sub(1));
            return Released::Again;
        }
        let (place, since) = (get(self.word(entry, PLACE)), get(self.word(entry, SINCE)));
        let last = self.count().wrapping_sub(1);
        if entry != last {
            self.close_gap(entry, last);
        }
        set(&self.words[COUNT], last as u64);
        match HoldKind::of(depth >> KIND_SHIFT) {
            Some(kind) => Released::Ended { kind, place, since },
            None => Released::Unknown,
        }
    }

    #[cold]
    fn close_gap(self, gap: usize, last: usize) {
        let mut entry = gap;
        while entry < last {
            let mut at = 0;
            while at < ENTRY {
                set(self.word(entry, at), get(self.word(entry.wrapping_add(1), at)));
                at += 1;
            }
            entry += 1;
        }
    }
}
