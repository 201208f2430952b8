//! The producer in user space: the same layout and the same rules of loss as the kernel's.
use super::{Area, HEADER_BYTES, lost_record};
use crate::sync::Ordering;
use std::fmt;

/// The record did not fit: it is lost, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is full; the record is counted as lost")
    }
}

impl std::error::Error for Full {}

/// The one producer of a ring.
///
/// A record that does not fit is dropped. The next one that goes in is preceded by a LOST record
/// that says how many were dropped; both must fit together, or that is a further loss.
#[derive(Debug)]
pub struct Writer<'a> {
    area: Area<'a>,
    head: u64,
    pending: u64,
    lost: u64,
}

impl<'a> Writer<'a> {
    /// A writer that continues where the ring's head stands.
    pub fn new(area: Area<'a>) -> Writer<'a> {
        // Relaxed: only the (one) writer stores head.
        let head = area.head.load(Ordering::Relaxed);
        Writer { area, head, pending: 0, lost: 0 }
    }

    /// How many records were dropped since the start.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// How many dropped records no LOST record has told of yet.
    pub fn pending_lost(&self) -> u64 {
        self.pending
    }

    /// Appends a whole record. `id` and `trailer` go into a LOST record, if one is due before it:
    /// the id of the event that writes, and the record's sample_id.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the record is counted as lost.
    ///
    /// # Panics
    /// If the record or the trailer is no multiple of 8 bytes.
    pub fn push(&mut self, record: &[u8], id: u64, trailer: &[u8]) -> Result<(), Full> {
        assert!(
            record.len().is_multiple_of(8) && trailer.len().is_multiple_of(8),
            "records are made of words"
        );
        let lost_bytes = if self.pending > 0 { HEADER_BYTES + 16 + trailer.len() } else { 0 };
        // Acquire: pairs with the Release in `Reader::release`; the reader is done with what we
        // overwrite (I3).
        let tail = self.area.tail.load(Ordering::Acquire);
        let used = self.head.wrapping_sub(tail);
        // A reader that lies about its tail (used > size) finds the ring full for ever; I1 is never
        // broken for others.
        let free = (self.area.size_bytes() as u64 - 1).saturating_sub(used);
        if (record.len() + lost_bytes) as u64 > free {
            self.pending += 1;
            self.lost += 1;
            return Err(Full);
        }
        if self.pending > 0 {
            self.store(&lost_record(id, self.pending, trailer.len()));
            self.store(trailer);
            self.pending = 0;
        }
        self.store(record);
        // Release: pairs with the Acquire in `Reader::begin`; the record is complete (I2).
        self.area.head.store(self.head, Ordering::Release);
        Ok(())
    }

    fn store(&mut self, bytes: &[u8]) {
        let mask = self.area.data.len() - 1;
        for chunk in bytes.chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            // Relaxed: published by the Release of head in `push`.
            self.area.data[(self.head / 8) as usize & mask]
                .store(u64::from_ne_bytes(word), Ordering::Relaxed);
            self.head = self.head.wrapping_add(8);
        }
    }
}
