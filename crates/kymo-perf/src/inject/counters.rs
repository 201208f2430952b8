//! The counters of probes, in memory that the agent shares with us: readable without the program's
//! help, also after its end.
//!
//! The file is ours and keeps its length (so reading never faults); what is in it is the program's
//! to write, so its words are just numbers.
//!
//! # Safety
//! The risk is a view longer than the mapping, or a mapping behind which the file ends: both are
//! made here with one length, and the file is sealed.
#![allow(unsafe_code, reason = "a view of memory that another process changes")]
use super::memory;
use rustix::fs::{SeekFrom, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most slots of a CPU.
const MOST_SLOTS: u32 = 8 << 20;
const WORD_BYTES: u64 = 8;
/// Whether there is anything is known for so many slots together.
const PAGE_SLOTS: u32 = 4096 / WORD_BYTES as u32;

/// The counters of one process and, if they are to count there, of its forked children.
#[derive(Debug)]
pub(super) struct SharedCounters {
    file: OwnedFd,
    base: NonNull<AtomicU64>,
    cpus: u32,
    slots: u32,
}

// SAFETY: the mapping belongs to no thread, and everything in it is reached through atomics.
unsafe impl Send for SharedCounters {}
// SAFETY: as above.
unsafe impl Sync for SharedCounters {}

/// Which pages have been written: others are not read, for that would make the kernel take memory
/// for them.
pub(super) struct DirtyPages {
    pages: Vec<u64>,
    per_cpu: usize,
}

impl DirtyPages {
    fn has(&self, cpu: usize, slot: u32) -> bool {
        let page = cpu * self.per_cpu + (slot / PAGE_SLOTS) as usize;
        self.pages.get(page / 64).is_some_and(|word| word & 1 << (page % 64) != 0)
    }
}

impl SharedCounters {
    /// Makes them, for as many CPUs as the agent says and this machine can have (`most_cpus`), and
    /// at most as many slots as the agent says.
    pub(super) fn create(cpus: u32, most_cpus: u32, most_slots: u32) -> io::Result<SharedCounters> {
        let slots = most_slots.min(MOST_SLOTS) / PAGE_SLOTS * PAGE_SLOTS;
        if !(1..=most_cpus).contains(&cpus) || slots == 0 {
            return Err(io::Error::other("their number is out of bounds"));
        }
        let bytes = u64::from(cpus) * u64::from(slots) * WORD_BYTES;
        let file = memory::create("kymo-counters", bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), bytes as usize, ProtFlags::READ, flags, &file, 0) };
        let base = NonNull::new(base?.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedCounters { file, base, cpus, slots })
    }

    /// The file, for CPUs and slots: what the agent is given.
    pub(super) fn parts(&self) -> (&OwnedFd, u32, u32) {
        (&self.file, self.cpus, self.slots)
    }

    /// Whether there is such a slot.
    pub(super) fn has(&self, first: u32, count: u32) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.slots)
    }

    /// What has been written until now of the slots below `end`.
    pub(super) fn written(&self, end: u32) -> DirtyPages {
        let per_cpu = end.min(self.slots).div_ceil(PAGE_SLOTS) as usize;
        let mut pages = vec![0_u64; (per_cpu * self.cpus as usize).div_ceil(64)];
        let page_bytes = u64::from(PAGE_SLOTS) * WORD_BYTES;
        for cpu in 0..self.cpus as usize {
            let begin = cpu as u64 * u64::from(self.slots) * WORD_BYTES;
            let end = begin + per_cpu as u64 * page_bytes;
            let mut at = begin;
            // Each turn goes on by a page at least, whatever the program does to the file
            // meanwhile.
            while at < end {
                let Ok(from) = seek(&self.file, SeekFrom::Data(at)) else { break };
                let from = from.max(at);
                let to =
                    seek(&self.file, SeekFrom::Hole(from)).unwrap_or(end).clamp(from + 1, end.max(from + 1));
                for page in (from.min(end) - begin) / page_bytes..(to.min(end) - begin).div_ceil(page_bytes) {
                    let page = cpu * per_cpu + page as usize;
                    // SANITY: page < per_cpu * cpus, for `to` was cut at `end`.
                    pages[page / 64] |= 1 << (page % 64);
                }
                at = to.next_multiple_of(page_bytes);
            }
        }
        DirtyPages { pages, per_cpu }
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not. 0 where there
    /// is no such slot.
    pub(super) fn sum(&self, slot: u32, written: &DirtyPages) -> u64 {
        if slot >= self.slots {
            return 0;
        }
        let cpus = (0..self.cpus as usize).filter(|&cpu| written.has(cpu, slot));
        let word = |cpu: usize| {
            let at = cpu * self.slots as usize + slot as usize;
            // SAFETY: cpu < cpus and slot < slots, so the word is inside the mapping.
            let word = unsafe { self.base.add(at) };
            // SAFETY: mapped as long as self, aligned, and never faulting: the file is sealed.
            // Whoever writes it writes atomically or gets any number.
            let word = unsafe { word.as_ref() };
            // Relaxed: a count that grows; nothing else is read by it.
            word.load(Ordering::Relaxed)
        };
        cpus.map(word).fold(0, u64::wrapping_add)
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        let bytes = u64::from(self.cpus) * u64::from(self.slots) * WORD_BYTES;
        // SAFETY: our own mapping, whose views do not outlive us.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Checks that slots are added up over the CPUs, whatever was written where, that what was
    /// never written takes no memory when it is read, and that a slot beyond the end is 0.
    #[test]
    fn sums() {
        let counters = SharedCounters::create(3, 3, 4096 + 5).unwrap();
        let writer = File::from(counters.file.try_clone().unwrap());
        let put = |cpu: u64, slot: u64, value: u64| {
            writer.write_all_at(&value.to_le_bytes(), (cpu * 4096 + slot) * 8).unwrap();
        };
        put(0, 5, 7);
        put(2, 5, 8);
        put(1, 4095, u64::MAX);
        put(2, 4095, 3);
        let blocks = || fstat(&counters.file).unwrap().st_blocks;
        let before = blocks();
        let written = counters.written(u32::MAX);
        let sum = |slot| counters.sum(slot, &written);
        assert_eq!((sum(5), sum(4095), sum(6), sum(2000), sum(4096), sum(u32::MAX)), (15, 2, 0, 0, 0, 0));
        assert_eq!(blocks(), before);
        // Only what was asked for is known.
        assert_eq!(counters.sum(4095, &counters.written(512)), 0);
        assert_eq!(counters.sum(5, &counters.written(6)), 15);
        assert!(counters.has(0, 4096) && !counters.has(1, 4096) && !counters.has(u32::MAX, 2));
    }

    /// Checks that the memory is made by what this machine can have, whatever the agent says, and
    /// cannot get shorter.
    #[test]
    fn sizes_that_the_agent_says() {
        for (cpus, slots) in [(0, 512), (3, 512), (u32::MAX, 512), (2, 0), (2, 511)] {
            assert!(SharedCounters::create(cpus, 2, slots).is_err(), "{cpus} {slots}");
        }
        let counters = SharedCounters::create(2, 2, u32::MAX).unwrap();
        assert_eq!(counters.slots, MOST_SLOTS);
        assert_eq!(fstat(&counters.file).unwrap().st_blocks, 0, "only what is used takes memory");
        assert!(fcntl_get_seals(&counters.file).unwrap().contains(SealFlags::SHRINK | SealFlags::SEAL));
    }
}
