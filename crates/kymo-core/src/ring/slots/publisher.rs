//! Moves `head` over complete records, and gives slots back that were read.
use super::{PATIENCE_NS, SlotArea, abandoned_header};
use crate::sync::Ordering;

/// The one who does.
#[derive(Debug)]
pub struct Publisher<'a> {
    area: SlotArea<'a>,
    free: u64,
    head: u64,
    /// By the number of the slot.
    abandoned: Box<[bool]>,
    /// An incomplete slot that later ones wait for, and since when.
    waits: Option<(u64, u64)>,
}

impl<'a> Publisher<'a> {
    /// Of a ring that is new, or whose reader has read all.
    pub fn new(area: SlotArea<'a>) -> Publisher<'a> {
        // Relaxed: nobody else stores it.
        let head = area.head.load(Ordering::Relaxed);
        let abandoned = vec![false; area.data.len() * 8 / area.slot_bytes].into();
        Publisher { area, free: head, head, abandoned, waits: None }
    }

    /// Makes readable what is complete, and gives back what was read: everything before `tail`,
    /// where the reader stands. To be called before each look at the ring. Allocates nothing.
    pub fn turn(&mut self, tail: u64, now_ns: u64) {
        self.give_back(tail);
        let slot_bytes = self.area.slot_bytes as u64;
        // Relaxed: each header tells whether its record is complete. Whatever the program writes
        // here, it is so many slots, and no more than one round.
        let reserved = self.area.reserved.load(Ordering::Relaxed);
        let most = self.free.wrapping_add(self.area.size_bytes()).wrapping_sub(self.head);
        let ahead = reserved.wrapping_sub(self.head).min(most) / slot_bytes * slot_bytes;
        let end = self.head.wrapping_add(ahead);
        while self.head != end {
            // Acquire: pairs with the Release in `OpenSlot::complete`.
            let header = self.area.slot(self.head)[0].load(Ordering::Acquire);
            if header == 0 && !self.abandons(end, now_ns) {
                break;
            }
            self.passes(header);
            self.head = self.head.wrapping_add(slot_bytes);
        }
        // Release: pairs with the Acquire in `Reader::begin`.
        self.area.head.store(self.head, Ordering::Release);
    }

    fn give_back(&mut self, tail: u64) {
        let slot_bytes = self.area.slot_bytes as u64;
        let read = tail.wrapping_sub(self.free).min(self.head.wrapping_sub(self.free));
        let until = self.free.wrapping_add(read / slot_bytes * slot_bytes);
        if until == self.free {
            return;
        }
        while self.free != until {
            if !self.abandoned[self.number(self.free)] {
                // Relaxed: published by `free`.
                self.area.slot(self.free)[0].store(0, Ordering::Relaxed);
            }
            self.free = self.free.wrapping_add(slot_bytes);
        }
        // Release: pairs with the Acquire in `SlotWriter::reserve`.
        self.area.free.store(self.free, Ordering::Release);
    }

    /// Whether the incomplete slot at `head` is abandoned now; `false`: it is waited for.
    fn abandons(&mut self, end: u64, now_ns: u64) -> bool {
        let (at, since) = *self.waits.get_or_insert((self.head, now_ns));
        if at != self.head {
            self.waits = Some((self.head, now_ns));
            return false;
        }
        if now_ns.saturating_sub(since) < PATIENCE_NS || !self.is_written_after(end) {
            return false;
        }
        let header = &self.area.slot(self.head)[0];
        let dead = abandoned_header(self.area.slot_bytes);
        // Acquire: if it was completed meanwhile, as in `turn`.
        if header.compare_exchange(0, dead, Ordering::Acquire, Ordering::Acquire).is_ok() {
            let number = self.number(self.head);
            self.abandoned[number] = true;
            self.area.lost.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Whether a later slot is complete: if none is, all of the program may stand still.
    fn is_written_after(&self, end: u64) -> bool {
        let mut at = self.head.wrapping_add(self.area.slot_bytes as u64);
        while at != end {
            let header = self.area.slot(at)[0].load(Ordering::Relaxed);
            if header != 0 && !self.abandoned[self.number(at)] {
                return true;
            }
            at = at.wrapping_add(self.area.slot_bytes as u64);
        }
        false
    }

    /// The writer of an abandoned slot may have come back.
    fn passes(&mut self, header: u64) {
        let number = self.number(self.head);
        if header != 0 && header != abandoned_header(self.area.slot_bytes) && self.abandoned[number] {
            self.abandoned[number] = false;
            self.area.lost.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn number(&self, at: u64) -> usize {
        (at / self.area.slot_bytes as u64) as usize & (self.abandoned.len() - 1)
    }
}
