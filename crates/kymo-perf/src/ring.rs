//! A ring buffer that the kernel fills, mapped into this process.
//!
//! # Safety
//! The risk is a view that outlives the mapping or is longer than it: views borrow the [`Ring`],
//! which unmaps on drop, and their lengths are those of the mapping, not those that the shared page
//! claims. The memory is changed by the kernel at any time, so it is seen only as atomics.
#![allow(unsafe_code, reason = "views of memory that the kernel changes")]
use kymo_core::ring::slots::{FREE_AT, LOST_AT, RESERVED_AT, SlotArea};
use kymo_core::ring::{Area, AtomicU64, backward};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

/// Where the control page holds the producer's counter, in bytes.
const HEAD_AT: usize = 1024;
/// Where the control page holds the reader's counter.
const TAIL_AT: usize = 1032;

/// What a ring does when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// It drops new records until the reader has made room.
    #[default]
    Oldest,
    /// It overwrites the oldest records, and has no reader that makes room: for events with
    /// `write_backward`.
    Newest,
}

/// The mapped ring of one event: a control page and a power of two of data pages. Unmapped on drop.
#[derive(Debug)]
pub struct Ring {
    keeps: Keeps,
    base: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
    /// Of the slots that many writers write; `None`: there is one writer.
    slot_bytes: Option<usize>,
}

// SAFETY: the mapping belongs to no thread, and everything in it is reached through atomics.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Maps the ring of an event (or any file that is as long) for reading by its one consumer.
    ///
    /// # Errors
    /// EINVAL if `data_pages` is no power of two; otherwise what `mmap(2)` says.
    pub fn map(fd: BorrowedFd<'_>, data_pages: usize) -> io::Result<Ring> {
        Ring::map_as(fd, data_pages, Keeps::Oldest)
    }

    /// Maps one of several rings in a file, from this offset on, for reading by its one consumer.
    /// The file must be as long as that, and stay so.
    ///
    /// # Errors
    /// As [`Ring::map`].
    pub(crate) fn map_part(fd: BorrowedFd<'_>, offset: u64, data_pages: usize) -> io::Result<Ring> {
        Ring::map_at(fd, offset, data_pages, Keeps::Oldest)
    }

    /// The same, for records of one size that many writers write: a power of two, no more than a
    /// page.
    ///
    /// # Errors
    /// As [`Ring::map`].
    pub(crate) fn map_slots(
        fd: BorrowedFd<'_>,
        offset: u64,
        data_pages: usize,
        slot_bytes: usize,
    ) -> io::Result<Ring> {
        let fits = slot_bytes.is_power_of_two() && (16..=rustix::param::page_size()).contains(&slot_bytes);
        if !fits {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut ring = Ring::map_at(fd, offset, data_pages, Keeps::Oldest)?;
        ring.slot_bytes = Some(slot_bytes);
        Ok(ring)
    }

    /// Maps the ring of an event, of the given kind. The event must fit: the kernel writes a ring
    /// downward that keeps the newest.
    ///
    /// # Errors
    /// As [`Ring::map`].
    pub(crate) fn map_as(fd: BorrowedFd<'_>, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        Ring::map_at(fd, 0, data_pages, keeps)
    }

    fn map_at(fd: BorrowedFd<'_>, offset: u64, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        let page_bytes = rustix::param::page_size();
        let data_bytes = data_pages.checked_mul(page_bytes).filter(|_| data_pages.is_power_of_two());
        let Some(data_bytes) = data_bytes.filter(|&bytes| bytes < isize::MAX as usize / 2) else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        let prot = match keeps {
            Keeps::Oldest => ProtFlags::READ | ProtFlags::WRITE,
            // By this the kernel knows that nobody will make room.
            Keeps::Newest => ProtFlags::READ,
        };
        let flags = MapFlags::SHARED;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), page_bytes + data_bytes, prot, flags, fd, offset) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Ring { keeps, base, page_bytes, data_bytes, slot_bytes: None })
    }

    /// The size of the data in bytes.
    pub fn size_bytes(&self) -> usize {
        self.data_bytes
    }

    /// What it does when it is full.
    pub fn keeps(&self) -> Keeps {
        self.keeps
    }

    /// The ring's two counters and its data, for a [`kymo_core::ring::Reader`].
    ///
    /// # Panics
    /// If it keeps the newest records: who makes room in it would write to memory that is only
    /// read.
    pub fn area(&self) -> Area<'_> {
        assert_eq!(self.keeps, Keeps::Oldest, "nobody makes room in this ring");
        Area::new(self.head(), self.control(TAIL_AT), self.data())
            .expect("a power of two of pages is a power of two of words")
    }

    /// The counter and the data of a ring that keeps the newest records, for a
    /// [`backward::Reader`].
    ///
    /// # Panics
    /// If it keeps the oldest.
    pub fn backward_area(&self) -> backward::Area<'_> {
        assert_eq!(self.keeps, Keeps::Newest, "this ring is written upward");
        backward::Area::new(self.head(), self.data())
            .expect("a power of two of pages is a power of two of words")
    }

    /// How the processor's time stamp counter becomes a time of the event,
    /// `zero_ns + (ticks * tick >> 32)`, as `(tick, zero_ns)`; `None` where the kernel does not
    /// say, or not in these terms. For rings of the kernel's.
    pub(crate) fn tick_and_zero(&self) -> Option<(u64, u64)> {
        /// Of `struct perf_event_mmap_page`: a count of changes in the upper half, what is valid, a
        /// shift and a factor, the time of tick 0.
        const LOCK_AT: usize = 8;
        const CAPABILITIES_AT: usize = 40;
        const SHIFT_AT: usize = 48;
        const ZERO_AT: usize = 64;
        const HAS_ZERO: u64 = 1 << 4;
        // Acquire: the kernel raises the count before and behind its changes.
        let word = |at: usize| self.control(at).load(std::sync::atomic::Ordering::Acquire);
        for _ in 0..100 {
            let lock = word(LOCK_AT) as u32;
            let (valid, factors, zero) = (word(CAPABILITIES_AT), word(SHIFT_AT), word(ZERO_AT));
            if lock.is_multiple_of(2) && word(LOCK_AT) as u32 == lock {
                let (shift, factor) = ((factors >> 16) as u16, factors >> 32);
                return (valid & HAS_ZERO != 0 && shift <= 32).then(|| (factor << (32 - shift), zero));
            }
        }
        None
    }

    /// How many records did not fit, as the writers of a `map_part` or of slots count them; of
    /// slots with those that are not complete.
    pub fn lost(&self) -> u64 {
        // Relaxed: a count.
        let count = || self.control(LOST_AT).load(std::sync::atomic::Ordering::Relaxed);
        self.slots().map_or_else(count, |slots| slots.lost())
    }

    /// The slots, if many writers write it.
    pub fn slots(&self) -> Option<SlotArea<'_>> {
        let (reserved, free, lost) =
            (self.control(RESERVED_AT), self.control(FREE_AT), self.control(LOST_AT));
        let slot_bytes = self.slot_bytes?;
        Some(SlotArea { reserved, free, head: self.head(), lost, data: self.data(), slot_bytes })
    }

    /// A word of the control page, at less than 4096 and a multiple of 8.
    fn control(&self, at: usize) -> &AtomicU64 {
        // SAFETY: within the control page, which is at least 4096 bytes long.
        let words = unsafe { self.words(at, 1) };
        &words[0]
    }

    fn head(&self) -> &AtomicU64 {
        self.control(HEAD_AT)
    }

    fn data(&self) -> &[AtomicU64] {
        // SAFETY: the data begins one page after the base and is data_bytes long (map);
        // page-aligned, so aligned for u64.
        unsafe { self.words(self.page_bytes, self.data_bytes / 8) }
    }

    /// # Safety
    /// `at + 8 * count` must lie within the mapping and `at` must be a multiple of 8.
    unsafe fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        // SAFETY: the caller's promise keeps the offset within the mapping.
        let start = unsafe { self.base.add(at) };
        // SAFETY: mapped readable until drop, and writable for those that store; any bit pattern is
        // a u64; only seen as atomics, and what is mapped for reading only is loaded with Relaxed,
        // 8 bytes at a time, which needs no more than that.
        unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), count) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: our own mapping; all views borrowed self and are gone.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.page_bytes + self.data_bytes) };
        debug_assert!(result.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::{Keeps, Ring};
    use kymo_core::ring::backward;
    use kymo_core::ring::{Reader, Writer};
    use rustix::param::page_size;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Checks that a record written through one mapping is read through another of the same file,
    /// and that a bad page count is refused.
    #[test]
    fn two_mappings_of_a_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 * page_size() as u64).unwrap();
        let (producer, consumer) = (Ring::map(file.as_fd(), 4).unwrap(), Ring::map(file.as_fd(), 4).unwrap());
        assert_eq!(Ring::map(file.as_fd(), 3).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let mut record = [7u8; 16];
        record[6..8].copy_from_slice(&16u16.to_le_bytes());
        Writer::new(producer.area()).push(&record, 0, &[]).unwrap();
        let mut reader = Reader::new(consumer.area());
        let span = reader.begin().unwrap();
        let mut out = [0; 16];
        span.copy_to(&mut out);
        reader.release(span, 16);
        assert_eq!(out, record);
        assert_eq!(Reader::new(producer.area()).position(), 16, "the tail is in the file");
    }

    /// Checks that a ring that keeps the newest is read through a mapping that cannot be written,
    /// and that each kind refuses the other's reader.
    #[test]
    fn a_ring_that_is_only_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * page_size() as u64).unwrap();
        let ring = Ring::map_as(file.as_fd(), 2, Keeps::Newest).unwrap();
        // The producer writes to the file: 16 bytes below the end of the ring, then its head, 16
        // bytes below 0.
        let mut record = [7u8; 16];
        record[6..8].copy_from_slice(&16u16.to_le_bytes());
        file.write_all_at(&record, 3 * page_size() as u64 - 16).unwrap();
        file.write_all_at(&16u64.wrapping_neg().to_le_bytes(), super::HEAD_AT as u64).unwrap();
        let mut out = vec![0; ring.size_bytes()];
        let window = backward::Reader::new(ring.backward_area()).window(&mut out).unwrap();
        assert_eq!((window.records_bytes, &out[..16]), (16, &record[..]));
        assert!(std::panic::catch_unwind(|| ring.area()).is_err());
        let upward = Ring::map(file.as_fd(), 2).unwrap();
        assert!(std::panic::catch_unwind(|| upward.backward_area()).is_err());
    }
}
