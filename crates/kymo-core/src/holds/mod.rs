//! How long locks are held: what is added up inside of programs, for each lock and each place that
//! takes it.
//!
//! *You give* a [`HeldLocks`] of each thread what the thread locks and unlocks, with the time; *it
//! gives you* the holds that have ended. *You give* a [`HoldTable`] these; *it gives* their sums to
//! whoever reads its memory, also after the program's end ([`report::HoldReport`]).
//!
//! ```text
//!  a thread's list                       the table, in memory that a tracer shares
//!  [ lock, since, place, depth ] ...     header:  rows taken, holds that found no place, ...
//!     acquire: appended                  rows:    [ key | lock | place | process | holds | ... ]
//!     release: taken out                 buckets: of each row, by length (crate::latency)
//!        '--> lock, place, ns  -->  row of (process, kind, lock, place)
//! ```
//!
//! # Invariants
//! - **H1** A hold of a recursive lock begins with the outermost acquisition and ends with the
//!   matching release.
//! - **H2** Each hold that has ended is added to one row, or counted as dropped.
//! - **H3** Rows of a lock that one thread holds at a time are written by that thread only, so they
//!   are written without locked instructions. Rows of shared holds are added to atomically.
//! - **H4** Nothing here allocates, locks or panics, whatever is in the memory.
//!
//! The agent calls all of it from code that it has put into functions of the C library; kymo reads
//! the reports.
mod list;
#[cfg(test)]
mod model;
mod report;
mod table;
#[cfg(test)]
mod tests;

pub use list::{Acquired, HELD_LOCKS, HELD_WORDS, HeldLocks, Released};
pub use report::{HoldReport, LockHolds};
pub use table::{HoldCount, HoldTable, TABLE_BYTES};

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldKind {
    /// A mutex.
    Mutex = 1,
    /// A lock for reading, which several threads hold at a time.
    Read = 2,
    /// The same lock for writing.
    Write = 3,
}

impl HoldKind {
    /// By its number; `None` if there is no such kind.
    #[inline]
    pub fn of(number: u64) -> Option<HoldKind> {
        match number {
            1 => Some(HoldKind::Mutex),
            2 => Some(HoldKind::Read),
            3 => Some(HoldKind::Write),
            _ => None,
        }
    }

    /// Whether one thread holds it at a time.
    #[inline]
    pub fn is_exclusive(self) -> bool {
        self != HoldKind::Read
    }
}

/// What a function does with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldRole {
    /// It takes the lock that its first argument points to, if it returns 0.
    Acquire(HoldKind),
    /// It gives the lock back that its first argument points to.
    Release,
    /// It gives the mutex back that its second argument points to, waits, and takes it again.
    Wait,
}

impl HoldRole {
    /// As a number, from 1 to 5.
    pub fn number(self) -> u8 {
        match self {
            HoldRole::Acquire(kind) => kind as u8,
            HoldRole::Release => 4,
            HoldRole::Wait => 5,
        }
    }

    /// By its number; `None` if there is none.
    #[inline]
    pub fn of(number: u8) -> Option<HoldRole> {
        match number {
            4 => Some(HoldRole::Release),
            5 => Some(HoldRole::Wait),
            number => HoldKind::of(number.into()).map(HoldRole::Acquire),
        }
    }

    /// Whether its returns matter.
    pub fn acquires(self) -> bool {
        self != HoldRole::Release
    }
}
