//! A ring that keeps the newest records (overwrite mode): its producer writes from high addresses
//! to low ones over the oldest, and never waits for a reader. `kymo-record/src/flight/` reads it;
//! [`Writer`] stands for the kernel in tests.
//!
//! ```text
//!   data:  ..older][oldes|t..free or overwritten..|[newest][newer][older]..
//!                        ^ up to here, one ring    ^ head: moves down with each record
//!                          above head (mod size)
//! ```
//!
//! `perf_event_open` makes one of `write_backward` and a mapping that is only read. You give
//! [`Reader`] an [`Area`] (one counter and the data as words); it copies the window of the last
//! `size` bytes out and tells how much of it is whole: a [`Window`] of records, the newest first.
//! The other side may be the kernel, another process, or [`Writer`].
//!
//! Nothing is handed back: the same window can be read again, and what the producer writes
//! meanwhile only shortens it at its oldest end.
//!
//! # When nobody writes half a record
//! Head tells of whole records only, but a record that is being written lies below it already, over
//! the oldest ones. So a window is exact if at the second look at head no record is half written:
//! the producer has been paused and has finished, or it is the kernel and the reader runs on the
//! CPU of the ring, where no program runs between the two halves of a record. Whole records that
//! come between the two looks are no trouble. Otherwise the oldest records of the window may be
//! torn; nothing worse.
//!
//! # Invariants
//! - **B1** A window is a run without gaps of the newest records as of the first look at head, each
//!   whole, the newest first.
//! - **B2** No byte of it was overwritten before the second look.
//! - **B3** It is the longest such run: a record is left out only if a byte of it was overwritten
//!   (or it lies behind a corrupt one).
//! - **B4** Whatever head and the data are, nothing outside the ring is read, and no more is copied
//!   than the ring holds.
//!
//! | store | load | what it carries |
//! |---|---|---|
//! | head, Release (writer) | head, Relaxed, before an Acquire fence (reader, first look) | the records above head are complete |
//! | data, Relaxed, after a Release fence (writer) | head, Relaxed, after an Acquire fence (reader, second look) | what was overwritten |
//!
//! The kernel has no such fence before its data: on machines that reorder stores, the reader has to
//! run on the CPU of the ring, or pause it.
#[cfg(all(test, loom))]
mod loom;
#[cfg(any(all(test, not(loom)), feature = "model"))]
pub mod model;
mod reader;
#[cfg(all(test, not(loom)))]
mod tests;
mod writer;

pub use reader::{Reader, Unaligned, Window};
pub use writer::{Paused, Writer};

use crate::sync::AtomicU64;

/// A ring that keeps the newest as both sides see it, borrowed from wherever the memory lives.
#[derive(Clone, Copy, Debug)]
pub struct Area<'a> {
    head: &'a AtomicU64,
    data: &'a [AtomicU64],
}

impl<'a> Area<'a> {
    /// A ring over this memory, whose head was 0 when it was made; `None` unless the number of
    /// words is a power of two.
    pub fn new(head: &'a AtomicU64, data: &'a [AtomicU64]) -> Option<Area<'a>> {
        data.len().is_power_of_two().then_some(Area { head, data })
    }

    /// The size of the data in bytes.
    pub fn size_bytes(&self) -> usize {
        self.data.len() * 8
    }

    /// The word at this byte count, a multiple of 8.
    fn word(&self, at: u64) -> &'a AtomicU64 {
        &self.data[(at / 8) as usize & (self.data.len() - 1)]
    }
}

/// A ring of this kind that owns its memory: for producers in user space and for tests.
#[derive(Debug)]
pub struct Buffer {
    head: AtomicU64,
    data: Box<[AtomicU64]>,
}

impl Buffer {
    /// A ring of `size_bytes`, rounded up to a power of two, at least 8.
    pub fn new(size_bytes: usize) -> Buffer {
        let words = size_bytes.div_ceil(8).max(1).next_power_of_two();
        Buffer { head: AtomicU64::new(0), data: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The ring for a [`Reader`] and a [`Writer`].
    pub fn area(&self) -> Area<'_> {
        Area { head: &self.head, data: &self.data }
    }
}
