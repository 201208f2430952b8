//! The consumer: reads head once, yields what is there, hands the space back.
use super::{Area, HEADER_BYTES};
use crate::sync::{AtomicU64, Ordering};
use std::fmt;

/// The counters or the records of a ring make no sense: its producer is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// The producer's counter as it was read.
    pub head: u64,
    /// The reader's own counter.
    pub tail: u64,
    /// The size of the ring's data.
    pub size_bytes: usize,
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Corrupt { head, tail, size_bytes } = self;
        write!(f, "ring of {size_bytes} bytes is corrupt: head {head:#x} does not follow tail {tail:#x}")
    }
}

impl std::error::Error for Corrupt {}

/// The one consumer of a ring.
///
/// It keeps its own tail: the shared one is only written, so a producer that scribbles over it
/// cannot mislead the reader.
#[derive(Debug)]
pub struct Reader<'a> {
    area: Area<'a>,
    tail: u64,
}

impl<'a> Reader<'a> {
    /// A reader that continues where the ring's tail stands.
    pub fn new(area: Area<'a>) -> Reader<'a> {
        // Relaxed: only the (one) reader stores tail.
        let tail = area.tail.load(Ordering::Relaxed) & !7;
        Reader { area, tail }
    }

    /// The size of the ring's data in bytes.
    pub fn size_bytes(&self) -> usize {
        self.area.size_bytes()
    }

    /// Where the reader stands: a free-running byte count, a multiple of 8.
    ///
    /// A reader that is made anew for the same ring finds this value in the shared tail.
    pub fn position(&self) -> u64 {
        self.tail
    }

    /// What is in the ring now; samples head exactly once. Does not block.
    ///
    /// # Errors
    /// [`Corrupt`] if head is not ahead of tail by at most the ring's size; [`Reader::skip`] goes
    /// on after it.
    pub fn begin(&mut self) -> Result<Span<'a>, Corrupt> {
        // Acquire: pairs with the producer's Release (or write barrier) after the record's last
        // byte (I2).
        let head = self.area.head.load(Ordering::Acquire);
        let available = head.wrapping_sub(self.tail);
        if available > self.area.size_bytes() as u64 || !available.is_multiple_of(8) {
            return Err(Corrupt { head, tail: self.tail, size_bytes: self.area.size_bytes() });
        }
        let (first, second) = self.area.words(self.tail, head);
        Ok(Span { first, second })
    }

    /// Hands the first `bytes` of the span back to the producer, once they were copied out.
    ///
    /// # Panics
    /// If `bytes` is more than the span holds or no multiple of 8: the caller would release what it
    /// never saw.
    pub fn release(&mut self, span: Span<'a>, bytes: usize) {
        assert!(bytes <= span.len_bytes() && bytes.is_multiple_of(8), "release of {bytes} bytes");
        self.tail = self.tail.wrapping_add(bytes as u64);
        // Release: pairs with the producer's read of tail; our reads of the data come before it
        // (I3).
        self.area.tail.store(self.tail, Ordering::Release);
    }

    /// Drops everything up to the head as it is now, to go on after [`Corrupt`].
    pub fn skip(&mut self) {
        // Acquire: as in `begin`; the next span starts here.
        self.tail = self.area.head.load(Ordering::Acquire) & !7;
        // Release: as in `release`.
        self.area.tail.store(self.tail, Ordering::Release);
    }
}

/// Whole records that lie in the ring: at most two runs of words.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    first: &'a [AtomicU64],
    second: &'a [AtomicU64],
}

impl Span<'_> {
    /// How many bytes there are.
    pub fn len_bytes(&self) -> usize {
        (self.first.len() + self.second.len()) * 8
    }

    /// Whether there is nothing to read.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// The 8 bytes at word `index`, as a little-endian number.
    ///
    /// # Panics
    /// If the span has fewer words.
    pub fn word(&self, index: usize) -> u64 {
        let cell = match self.first.get(index) {
            Some(cell) => cell,
            None => &self.second[index - self.first.len()],
        };
        // Relaxed: ordered after the Acquire of head in `begin`.
        u64::from_le(cell.load(Ordering::Relaxed))
    }

    /// Copies the first `out.len()` bytes of the span into `out`.
    ///
    /// # Panics
    /// If `out` is longer than the span or no multiple of 8 bytes long.
    pub fn copy_to(&self, out: &mut [u8]) {
        self.copy_from(0, out);
    }

    /// Copies the `out.len()` bytes of the span that begin at word `index` into `out`.
    ///
    /// # Panics
    /// If they reach beyond the span or are no multiple of 8 bytes.
    pub fn copy_from(&self, index: usize, out: &mut [u8]) {
        assert!(out.len().is_multiple_of(8), "copy of {} bytes", out.len());
        let first = self.first.get(index..).unwrap_or(&[]);
        let second = &self.second[index.saturating_sub(self.first.len())..];
        let (one, two) = out.split_at_mut(out.len().min(first.len() * 8));
        copy_words(&first[..one.len() / 8], one);
        copy_words(&second[..two.len() / 8], two);
    }

    /// How many bytes of whole records fit into `limit_bytes`, counted from the start of the span.
    ///
    /// Needed only where a span may be larger than the buffer; it reads each header. A record with
    /// an impossible size ends the walk: 0 then means that the span cannot be split.
    pub fn whole_records_bytes(&self, limit_bytes: usize) -> usize {
        let end = self.len_bytes().min(limit_bytes);
        let mut at = 0;
        while at + HEADER_BYTES <= end {
            let size = (self.word(at / 8) >> 48) as usize;
            if size < HEADER_BYTES || !size.is_multiple_of(8) || at + size > end {
                break;
            }
            at += size;
        }
        at
    }
}

fn copy_words(words: &[AtomicU64], out: &mut [u8]) {
    for (word, bytes) in words.iter().zip(out.chunks_exact_mut(8)) {
        // Relaxed: ordered after the Acquire of head in `begin`.
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}
