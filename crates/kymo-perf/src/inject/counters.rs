//! What the probes in a program have counted: memory that the agent shares with us, read without asking anybody, also when the program has ended.
//!
//! The memory is the program's, so nothing of it is believed: it is a file in memory that cannot get shorter (so reading never faults), its length
//! is what was said, and its words are just numbers.
//!
//! # Safety
//! The risk is a view longer than the mapping, or a mapping behind which the file ends: lengths are checked once, and the file is sealed.
#![allow(unsafe_code, reason = "a view of memory that another process changes")]
use super::refusal::Refusal;
use rustix::fs::{SealFlags, SeekFrom, fcntl_get_seals, fstat, fstatfs, seek};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::OwnedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// More slots than an agent makes.
const MOST_SLOTS: u32 = 1 << 24;
/// Of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
const WORD_BYTES: u64 = 8;
/// Whether there is anything is known for so many slots together.
const PAGE_SLOTS: u32 = 4096 / WORD_BYTES as u32;

/// The counters of one process and, if they are to count there, of its forked children.
#[derive(Debug)]
pub(super) struct Counters {
    file: OwnedFd,
    base: NonNull<AtomicU64>,
    cpus: u32,
    slots: u32,
}

// SAFETY: the mapping belongs to no thread, and everything in it is reached through atomics.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

/// Which pages have been written: others are not read, for that would make the kernel take memory for them.
pub(super) struct Written {
    pages: Vec<u64>,
    per_cpu: usize,
}

impl Written {
    fn has(&self, cpu: usize, slot: u32) -> bool {
        let page = cpu * self.per_cpu + (slot / PAGE_SLOTS) as usize;
        self.pages.get(page / 64).is_some_and(|word| word & 1 << (page % 64) != 0)
    }
}

impl Counters {
    /// Maps what came with the agent's first word. `most_cpus`: that this machine can have.
    pub(super) fn map(file: OwnedFd, cpus: u32, most_cpus: u32, slots: u32) -> Result<Counters, Refusal> {
        let not = |why: &str| Refusal::NotLoaded { why: format!("the agent's counters are none: {why}") };
        let failed =
            |error: rustix::io::Errno| Refusal::Failed { step: "mapping the counters", error: error.into() };
        let whole_pages = slots > 0 && slots.is_multiple_of(PAGE_SLOTS);
        if !(1..=most_cpus).contains(&cpus) || !whole_pages || slots > MOST_SLOTS {
            return Err(not("their number is out of bounds"));
        }
        // At most 2^43.
        let bytes = u64::from(cpus) * u64::from(slots) * WORD_BYTES;
        if fstatfs(&file).map_err(failed)?.f_type as i64 != TMPFS {
            return Err(not("they are not in memory"));
        }
        if !fcntl_get_seals(&file).map_err(failed)?.contains(SealFlags::SHRINK) {
            return Err(not("their memory could go away"));
        }
        if fstat(&file).map_err(failed)?.st_size as u64 != bytes {
            return Err(not("their memory has another size"));
        }
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), bytes as usize, ProtFlags::READ, flags, &file, 0) };
        let base = NonNull::new(base.map_err(failed)?.cast()).ok_or_else(|| not("they have no address"))?;
        Ok(Counters { file, base, cpus, slots })
    }

    /// Whether there is such a slot.
    pub(super) fn has(&self, first: u32, count: u32) -> bool {
        first.checked_add(count).is_some_and(|end| end <= self.slots)
    }

    /// What has been written until now of the slots below `end`.
    pub(super) fn written(&self, end: u32) -> Written {
        let per_cpu = end.min(self.slots).div_ceil(PAGE_SLOTS) as usize;
        let mut pages = vec![0_u64; (per_cpu * self.cpus as usize).div_ceil(64)];
        let page_bytes = u64::from(PAGE_SLOTS) * WORD_BYTES;
        for cpu in 0..self.cpus as usize {
            let begin = cpu as u64 * u64::from(self.slots) * WORD_BYTES;
            let end = begin + per_cpu as u64 * page_bytes;
            let mut at = begin;
            // Each turn goes on by a page at least, whatever the program does to the file meanwhile.
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
        Written { pages, per_cpu }
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not. 0 where there is no such slot.
    pub(super) fn sum(&self, slot: u32, written: &Written) -> u64 {
        if slot >= self.slots {
            return 0;
        }
        let cpus = (0..self.cpus as usize).filter(|&cpu| written.has(cpu, slot));
        let word = |cpu: usize| {
            let at = cpu * self.slots as usize + slot as usize;
            // SAFETY: cpu < cpus and slot < slots, so the word is inside the mapping.
            let word = unsafe { self.base.add(at) };
            // SAFETY: mapped as long as self, aligned, and never faulting: the file is sealed. Whoever writes it writes atomically or gets
            // any number.
            let word = unsafe { word.as_ref() };
            // Relaxed: a count that grows; nothing else is read by it.
            word.load(Ordering::Relaxed)
        };
        cpus.map(word).fold(0, u64::wrapping_add)
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        let bytes = u64::from(self.cpus) * u64::from(self.slots) * WORD_BYTES;
        // SAFETY: our own mapping, whose views do not outlive us.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create("counters", MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    /// Checks that slots are added up over the CPUs, whatever was written where, that what was never written takes no memory when it is read,
    /// and that a slot beyond the end is 0.
    #[test]
    fn sums() {
        let file = memory(3 * 4096 * 8, SealFlags::SHRINK);
        let writer = File::from(file.try_clone().unwrap());
        let put = |cpu: u64, slot: u64, value: u64| {
            writer.write_all_at(&value.to_le_bytes(), (cpu * 4096 + slot) * 8).unwrap();
        };
        let counters = Counters::map(file, 3, 3, 4096).unwrap();
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

    /// Checks that memory which is shorter than said, could get shorter, is no memory, or is said to be larger than any, is refused.
    #[test]
    fn no_counters() {
        let right = || memory(2 * 512 * 8, SealFlags::SHRINK);
        assert!(Counters::map(right(), 2, 2, 512).is_ok());
        for (cpus, slots) in [
            (1, 512),
            (2, 1024),
            (0, 512),
            (2, 0),
            (2, 511),
            (u32::MAX, 512),
            (2, u32::MAX),
            (1 << 16, 1 << 24),
        ] {
            assert!(Counters::map(right(), cpus, 1 << 16, slots).is_err(), "{cpus} {slots}");
        }
        // More than the machine has.
        assert!(Counters::map(right(), 2, 1, 512).is_err());
        assert!(Counters::map(memory(2 * 512 * 8, SealFlags::GROW), 2, 2, 512).is_err());
        assert!(Counters::map(tempfile::tempfile().unwrap().into(), 2, 2, 512).is_err());
        assert!(Counters::map(File::open("/dev/zero").unwrap().into(), 2, 2, 512).is_err());
    }
}
