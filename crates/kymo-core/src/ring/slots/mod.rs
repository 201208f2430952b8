//! Many writers, one reader: records of one size, which threads of an observed program write by
//! code that a tracer has made.
//!
//! ```text
//!          free                tail           head            reserved
//!            |                   |              |                |
//!   data:  ..|[given back next]  |[for a Reader]|[done][0][done] |..0..
//!            ^ the publisher     ^ the Reader   ^ the publisher  ^ writers, by cmpxchg
//! ```
//!
//! A writer reserves the next slot, writes its record, and the record's header last: a header of
//! zero means that the record is not complete. Nothing of this needs to know the thread. The
//! [`Publisher`] moves `head` over complete records, so that a [`Reader`](super::Reader) finds an
//! ordinary ring, and zeroes the headers of what that one has given back.
//!
//! A writer may lose its CPU in the middle, for long; and one whose signal handler jumps away never
//! comes back. Where a slot stays incomplete for [`PATIENCE_NS`] while later ones were written, it
//! is *abandoned*: it counts as lost, a record of kind 0 takes its place, and no writer is given it
//! again. If its writer does come back, the record is delivered when the ring comes round, and the
//! slot is used again.
//!
//! # Invariants
//! - **S1** The header of a slot that a writer reserves is zero, and nobody else writes to the
//!   slot: of a lap before, every writer of it is done, or it is passed over.
//! - **S2** Between `tail` and `head` lie complete records only, abandoned slots among them.
//! - **S3** Each record is delivered once, or counted as lost, or lies behind `head` at the end
//!   ([`SlotArea::lost`] counts those, too).
//! - **S4** What the program writes into the counters harms its own records only: the publisher
//!   keeps its own.
//!
//! | store | load | what it carries |
//! |---|---|---|
//! | a header, Release (writer) | a header, Acquire (publisher) | the record is complete |
//! | free, Release (publisher) | free, Acquire (writer) | headers of slots before it are zero |
mod publisher;
#[cfg(any(test, feature = "model"))]
mod writer;

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests;

pub use publisher::Publisher;
#[cfg(any(test, feature = "model"))]
pub use writer::SlotWriter;

use super::AtomicU64;
use crate::sync::Ordering;

/// Where a ring's page has what writers could not write, where the next slot is, and how far slots
/// are free, in bytes: each on a cache line of its own, where nothing of the kernel's is.
pub const LOST_AT: usize = 2048;
/// See [`LOST_AT`].
pub const RESERVED_AT: usize = 2112;
/// See [`LOST_AT`].
pub const FREE_AT: usize = 2176;

/// How long a slot may be incomplete while later ones are written, in nanoseconds.
pub const PATIENCE_NS: u64 = 1_000_000_000;

/// The header of an abandoned slot of so many bytes: kind 0, which no record has.
pub const fn abandoned_header(slot_bytes: usize) -> u64 {
    (slot_bytes as u64) << 48
}

/// Such a ring, borrowed from wherever its memory lives. All counters are free-running byte counts.
#[derive(Clone, Copy, Debug)]
pub struct SlotArea<'a> {
    /// Where the next record will be.
    pub reserved: &'a AtomicU64,
    /// Up to here, plus the ring's size, slots may be written.
    pub free: &'a AtomicU64,
    /// The end of what a reader may read.
    pub head: &'a AtomicU64,
    /// Records that had no room, or were abandoned.
    pub lost: &'a AtomicU64,
    /// A power of two of words, at least one slot.
    pub data: &'a [AtomicU64],
    /// A power of two, 16 to 32768.
    pub slot_bytes: usize,
}

impl<'a> SlotArea<'a> {
    fn size_bytes(&self) -> u64 {
        self.data.len() as u64 * 8
    }

    /// The words of the slot at a byte count.
    fn slot(&self, at: u64) -> &'a [AtomicU64] {
        let words = self.slot_bytes / 8;
        let first = (at / 8) as usize & (self.data.len() - 1) & !(words - 1);
        &self.data[first..first + words]
    }

    /// Records that were lost until now: those without room, abandoned ones, and those that are not
    /// complete.
    pub fn lost(&self) -> u64 {
        // Relaxed: counts, to which the program may have written anything.
        let (reserved, head) = (self.reserved.load(Ordering::Relaxed), self.head.load(Ordering::Relaxed));
        let incomplete = reserved.wrapping_sub(head).min(self.size_bytes()) / self.slot_bytes as u64;
        self.lost.load(Ordering::Relaxed).saturating_add(incomplete)
    }
}
