//! The producer in user space: the same layout and the same rules as the kernel's.
use super::super::{HEADER_BYTES, lost_record};
use super::Area;
use crate::sync::{Ordering, fence};
use std::fmt;

/// The ring is paused: the record is lost, and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paused;

impl fmt::Display for Paused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ring is paused; the record is counted as lost")
    }
}

impl std::error::Error for Paused {}

/// The one producer of a ring that keeps the newest.
///
/// A record is lost only while the ring is paused. The next one that goes in brings a LOST record
/// with it that says how many were; the kernel writes both at once, the LOST record at the lower
/// address, so that it is read first although it tells of what was before.
#[derive(Debug)]
pub struct Writer<'a> {
    area: Area<'a>,
    head: u64,
    paused: bool,
    pending: u64,
    lost: u64,
}

impl<'a> Writer<'a> {
    /// A writer that continues where the ring's head stands.
    pub fn new(area: Area<'a>) -> Writer<'a> {
        // Relaxed: only the (one) writer stores head.
        let head = area.head.load(Ordering::Relaxed);
        Writer { area, head, paused: false, pending: 0, lost: 0 }
    }

    /// Refuses records from now on, or takes them again.
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// How many records were refused since the start.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Puts a whole record over the oldest ones. `id` and `trailer` go into a LOST record, if one
    /// is due: the id of the event that writes, and the record's sample_id.
    ///
    /// # Errors
    /// [`Paused`]; the record is counted as lost.
    ///
    /// # Panics
    /// If the record or the trailer is no multiple of 8 bytes, or both do not fit into the ring.
    pub fn push(&mut self, record: &[u8], id: u64, trailer: &[u8]) -> Result<(), Paused> {
        assert!(
            record.len().is_multiple_of(8) && trailer.len().is_multiple_of(8),
            "records are made of words"
        );
        if self.paused {
            self.pending += 1;
            self.lost += 1;
            return Err(Paused);
        }
        let lost_bytes = if self.pending > 0 { HEADER_BYTES + 16 + trailer.len() } else { 0 };
        let all = (record.len() + lost_bytes) as u64;
        assert!(all <= self.area.size_bytes() as u64, "{all} bytes for a ring of {}", self.area.size_bytes());
        self.head = self.head.wrapping_sub(all);
        // Release: pairs with the second Acquire fence in `Reader::window`; who sees a word of this
        // record sees the head of the one before it (B2).
        fence(Ordering::Release);
        let mut at = self.head;
        if self.pending > 0 {
            at = self.store(at, &lost_record(id, self.pending, trailer.len()));
            at = self.store(at, trailer);
            self.pending = 0;
        }
        self.store(at, record);
        // Release: pairs with the first Acquire fence in `Reader::window`; the record is complete
        // (B1).
        self.area.head.store(self.head, Ordering::Release);
        Ok(())
    }

    fn store(&mut self, mut at: u64, bytes: &[u8]) -> u64 {
        for chunk in bytes.chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            // Relaxed: published by the Release of head in `push`.
            self.area.word(at).store(u64::from_ne_bytes(word), Ordering::Relaxed);
            at = at.wrapping_add(8);
        }
        at
    }
}
