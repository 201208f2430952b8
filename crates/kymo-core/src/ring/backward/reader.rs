//! The reader: copies the newest records out while the producer goes on.
use super::super::HEADER_BYTES;
use super::Area;
use crate::sync::{Ordering, fence};
use std::fmt;

/// The producer's counter makes no sense: it is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unaligned {
    /// The counter as it was read.
    pub head: u64,
}

impl fmt::Display for Unaligned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the ring is corrupt: its head {:#x} is no multiple of 8", self.head)
    }
}

impl std::error::Error for Unaligned {}

/// What a look at a ring gave. All sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Whole records at the beginning of what was copied, the newest first.
    pub records_bytes: usize,
    /// What came behind them and was overwritten while it was copied, or before: the rest of the
    /// oldest record.
    pub overwritten_bytes: usize,
    /// What came behind them because a record has an impossible size.
    pub corrupt_bytes: usize,
    /// Whether the ring has overwritten anything since it was made. If not, the window holds
    /// everything.
    pub wrapped: bool,
}

/// A reader of a ring that keeps the newest. There may be any number of them.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    area: Area<'a>,
}

impl<'a> Reader<'a> {
    /// A reader of this ring.
    pub fn new(area: Area<'a>) -> Reader<'a> {
        Reader { area }
    }

    /// The size of the ring's data in bytes: as much as a window can be long.
    pub fn size_bytes(&self) -> usize {
        self.area.size_bytes()
    }

    /// Copies what the ring holds now to the beginning of `out`, the newest record first. Does not
    /// block, and does not stop the producer; the module says when the oldest records can be
    /// trusted.
    ///
    /// # Errors
    /// [`Unaligned`] if head makes no sense; `out` is as it was then.
    ///
    /// # Panics
    /// If `out` is shorter than the ring.
    pub fn window(&self, out: &mut [u8]) -> Result<Window, Unaligned> {
        self.window_with(out, || {})
    }

    /// As [`Reader::window`]; `between` is called before each word: what an interrupt may do.
    pub(super) fn window_with(&self, out: &mut [u8], mut between: impl FnMut()) -> Result<Window, Unaligned> {
        let size = self.area.size_bytes();
        assert!(out.len() >= size, "{} bytes for a ring of {size}", out.len());
        // Relaxed, then a fence: the memory may be mapped for reading only, where no other load is
        // sure to work.
        let head = self.area.head.load(Ordering::Relaxed);
        // Acquire: pairs with the Release of head in `Writer::push`; what lies above head is
        // complete (B1).
        fence(Ordering::Acquire);
        if !head.is_multiple_of(8) {
            return Err(Unaligned { head });
        }
        // Head began at 0 and only goes down.
        let written = head.wrapping_neg();
        let filled = usize::try_from(written).unwrap_or(usize::MAX).min(size);
        let mut at = head;
        for bytes in out[..filled].chunks_exact_mut(8) {
            between();
            // Relaxed: after the fence behind head; what is newer than that is found out below.
            bytes.copy_from_slice(&self.area.word(at).load(Ordering::Relaxed).to_ne_bytes());
            at = at.wrapping_add(8);
        }
        between();
        // Acquire: if a word above was of a record that came since, the head of the record before
        // that one is seen below (B2).
        fence(Ordering::Acquire);
        // Relaxed: ordered by the fence.
        let later = self.area.head.load(Ordering::Relaxed);
        // A head that went up is a lie, and nothing can be said about the data: the difference is
        // larger than every ring.
        let since = usize::try_from(head.wrapping_sub(later)).unwrap_or(usize::MAX);
        let intact = filled.min(size.saturating_sub(since));
        let records_bytes = whole_records_bytes(&out[..intact]);
        // Unless the next record goes over the end of what is intact, it is nonsense.
        let size_at = |at: usize| usize::from(u16::from_le_bytes([out[at + 6], out[at + 7]]));
        let wrapped = written > size as u64 || since > size - filled;
        let header_intact = records_bytes + HEADER_BYTES <= intact;
        let corrupt = header_intact && {
            let next = size_at(records_bytes);
            next < HEADER_BYTES || !next.is_multiple_of(8) || !wrapped
        };
        let rest = filled - records_bytes;
        let (corrupt_bytes, overwritten_bytes) = if corrupt { (rest, 0) } else { (0, rest) };
        Ok(Window { records_bytes, overwritten_bytes, corrupt_bytes, wrapped })
    }
}

/// How many bytes at the beginning are whole records.
fn whole_records_bytes(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&[low, high]) = bytes.get(at + 6..at + HEADER_BYTES) {
        let size = usize::from(u16::from_le_bytes([low, high]));
        if size < HEADER_BYTES || !size.is_multiple_of(8) || size > bytes.len() - at {
            break;
        }
        at += size;
    }
    at
}
