//! One producer, one consumer, one ring of bytes: the layout that `perf_event_open` gives to user
//! space.
//!
//! ```text
//!                tail                                head
//!                 |                                   |
//!   data:  ..free.|[rec][record.....][rec][LOST][rec] |..free..
//!                 ^ the reader moves it               ^ the writer moves it
//!           free-running byte counts; position in data = count mod size
//! ```
//!
//! You give [`Reader`] an [`Area`] (two counters and the data as words); it gives you [`Span`]s of
//! whole records, to copy out, and hands the space back. The other side may be the kernel, another
//! process, or [`Writer`].
//!
//! *Its callers today:* the drains of `kymo-record`, the watches of `kymo-perf`, and whatever reads
//! the rings of an agent, use [`Reader`]. [`Writer`] stands for the kernel and for the agent's
//! stubs, in tests.
//!
//! The data is read as relaxed atomic words: whatever the other side does, nothing here is
//! undefined behaviour; a lying counter is reported as [`Corrupt`]. Records are made of 8-byte
//! words and start on one, so a header never straddles the end of the ring, but a body may.
//!
//! A ring that keeps the newest records instead of the oldest is another engine: [`backward`].
//!
//! # Invariants
//! - **I1** `head - tail <= size - 1` at every moment (the writer keeps one byte free, so a full
//!   ring is not an empty one).
//! - **I2** Between `tail` and a head that was read with Acquire lie whole records only.
//! - **I3** Only the reader stores `tail`, and only after its last read of what it releases.
//! - **I4** Bytes delivered are the bytes produced, in order, each once, minus the records counted
//!   as lost.
//! - **I5** The sum of all LOST records plus what is still uncounted equals the number of refused
//!   records.
//!
//! | store | load | what it carries |
//! |---|---|---|
//! | head, Release (writer) | head, Acquire (reader) | the records before head are complete |
//! | tail, Release (reader) | tail, Acquire (writer) | the reader is done with the bytes before tail |
pub mod backward;
mod reader;
pub mod slots;
mod writer;

#[cfg(all(test, loom))]
mod loom;
#[cfg(any(all(test, not(loom)), feature = "model"))]
pub mod model;
#[cfg(all(test, not(loom)))]
mod tests;

pub use crate::sync::AtomicU64;
use crate::sync::Ordering;
pub use reader::{Corrupt, Reader, Span};
pub use writer::{Full, Writer};

/// The bytes of a record's header: kind (u32), misc (u16), size (u16), little-endian.
pub const HEADER_BYTES: usize = 8;

/// The kind of a LOST record, the one record that a ring's writer makes by itself.
pub const KIND_LOST: u32 = 2;

/// A LOST record without its trailer, which is so many bytes long: the id of the event that writes,
/// and how many records were lost.
fn lost_record(id: u64, lost: u64, trailer_bytes: usize) -> [u8; HEADER_BYTES + 16] {
    let header = u64::from(KIND_LOST) | ((HEADER_BYTES + 16 + trailer_bytes) as u64) << 48;
    let mut record = [0; HEADER_BYTES + 16];
    for (bytes, word) in record.chunks_exact_mut(8).zip([header, id, lost]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    record
}

/// A ring as both sides see it: two counters and the data, borrowed from wherever the memory lives.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "perf_event_mmap_page")]
pub struct Area<'a> {
    head: &'a AtomicU64,
    tail: &'a AtomicU64,
    data: &'a [AtomicU64],
}

impl<'a> Area<'a> {
    /// A ring over this memory; `None` unless the number of words is a power of two.
    pub fn new(head: &'a AtomicU64, tail: &'a AtomicU64, data: &'a [AtomicU64]) -> Option<Area<'a>> {
        data.len().is_power_of_two().then_some(Area { head, tail, data })
    }

    /// The size of the data in bytes.
    pub fn size_bytes(&self) -> usize {
        self.data.len() * 8
    }

    /// What a third thread sees of the ring: how far the reader has come, and how many bytes wait
    /// for it. Both may be outdated at once; the reader alone may act on them.
    pub fn fill(&self) -> Fill {
        // Relaxed: no data is read, and two moments are compared to see whether the reader moves.
        let (head, position) = (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        let bytes = usize::try_from(head.wrapping_sub(position)).unwrap_or(usize::MAX);
        Fill { position, bytes: bytes.min(self.size_bytes()) }
    }

    /// The words from byte count `from` to `to` (both multiples of 8, at most one ring apart): two
    /// slices, the second empty unless the range goes over the end.
    fn words(&self, from: u64, to: u64) -> (&'a [AtomicU64], &'a [AtomicU64]) {
        let mask = self.data.len() - 1;
        let count = (to.wrapping_sub(from) / 8) as usize;
        let begin = (from / 8) as usize & mask;
        let first = count.min(self.data.len() - begin);
        (&self.data[begin..begin + first], &self.data[..count - first])
    }
}

/// How full a ring is, as a thread sees it that neither writes nor reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The reader's byte count.
    pub position: u64,
    /// Bytes that it has not read, at most the ring's size.
    pub bytes: usize,
}

/// A ring that owns its memory: for producers in user space and for tests.
#[derive(Debug)]
pub struct Buffer {
    head: AtomicU64,
    tail: AtomicU64,
    data: Box<[AtomicU64]>,
}

impl Buffer {
    /// A ring of `size_bytes` (rounded up to a power of two, at least 8) whose counters start at
    /// `start`, a multiple of 8.
    pub fn new(size_bytes: usize, start: u64) -> Buffer {
        let words = size_bytes.div_ceil(8).max(1).next_power_of_two();
        let start = start & !7;
        Buffer {
            head: AtomicU64::new(start),
            tail: AtomicU64::new(start),
            data: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The ring for a [`Reader`] and a [`Writer`].
    pub fn area(&self) -> Area<'_> {
        Area { head: &self.head, tail: &self.tail, data: &self.data }
    }
}
