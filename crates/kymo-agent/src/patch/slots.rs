//! Counters, one word for each CPU, which stubs raise without a lock and without a shared cache line.
//!
//! ```text
//!   table: [ base of CPU 0 | base of CPU 1 | ... ]        the stub:  cpu  = restartable sequence's CPU
//!                |               |                                   word = table[cpu] + 8 * slot
//!                v               v                                   *word += 1      (inside the sequence)
//!          CPU 0: [0|1|2|...]  CPU 1: [0|1|2|...]
//! ```
//!
//! A thread that loses its CPU between reading its number and the store begins again (a restartable sequence), so no hit is
//! lost and none counted twice. A forked child begins with zeros.
#![allow(unsafe_code)]
use super::os;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Slots of all probes together. Only what is used takes memory.
const CAPACITY: u32 = 8 << 20;
const BYTES_PER_CPU: usize = CAPACITY as usize * 8;

/// The counters of this process.
#[derive(Debug)]
pub(super) struct Slots {
    bases: Box<[u64]>,
    next: AtomicU32,
}

/// The counters, mapped at the first use.
pub(super) fn slots() -> io::Result<&'static Slots> {
    static SLOTS: OnceLock<Option<Slots>> = OnceLock::new();
    let out = || io::Error::other("there is no address space for the probes' counters");
    SLOTS.get_or_init(|| Slots::map().ok()).as_ref().ok_or_else(out)
}

impl Slots {
    fn map() -> io::Result<Slots> {
        let cpus = os::possible_cpus();
        let base = os::wide_zeros(cpus * BYTES_PER_CPU, true)?;
        let bases = (0..cpus).map(|cpu| base + (cpu * BYTES_PER_CPU) as u64).collect();
        Ok(Slots { bases, next: AtomicU32::new(0) })
    }

    /// Where a stub finds the table of bases.
    pub(super) fn table(&self) -> u64 {
        self.bases.as_ptr() as u64
    }

    /// The first of `count` slots that nobody had; `None` if all are taken.
    pub(super) fn take(&self, count: u32) -> Option<u32> {
        let room = |next: u32| next.checked_add(count).filter(|&end| end <= CAPACITY);
        // Relaxed: a ticket; the slots are zero since they were mapped.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not.
    pub(super) fn read(&self, slot: u32) -> u64 {
        debug_assert!(slot < CAPACITY);
        let word = |base: &u64| {
            let address = (base + u64::from(slot) * 8) as *const AtomicU64;
            // SAFETY: slot < CAPACITY, so the word is in the CPU's part of a mapping that stays.
            let word = unsafe { &*address };
            // Relaxed: a count that grows; a stub's plain store of an aligned word is not torn.
            word.load(Ordering::Relaxed)
        };
        self.bases.iter().map(word).fold(0, u64::wrapping_add)
    }
}
