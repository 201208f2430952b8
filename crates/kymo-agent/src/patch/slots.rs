//! Counters, one word for each CPU, which stubs raise without a lock and without a shared cache
//! line.
//!
//! ```text
//!   table: [ base of CPU 0 | base of CPU 1 | ... ]        the stub:  cpu  = restartable sequence's
//! CPU
//!                |               |                                   word = table[cpu] + 8 * slot
//!                v               v                                   *word += 1      (inside the
//! sequence)
//!          CPU 0: [0|1|2|...]  CPU 1: [0|1|2|...]                    no base: nothing
//! ```
//!
//! A thread that loses its CPU between reading its number and the store begins again (a restartable
//! sequence), so no hit is
//! lost and none counted twice.
//!
//! Without a tracer the words are memory of this process. A tracer maps its own file over them,
//! reads
//! them by itself, also after this process has ended, and takes the memory with it when it leaves.
//! The
//! table is this process's own. A forked child finds it empty and counts nothing; or, if children
//! are
//! to count, finds it as it was and counts in the same words: two processes are on one CPU one
//! after
//! the other, like two threads.
#![allow(unsafe_code)]
use super::os;
use crate::sys::memory_file;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Slots of all probes together. Only what is used takes memory.
pub(super) const CAPACITY: u32 = 8 << 20;
/// Slots of one page: files are mapped by pages.
const PAGE_SLOTS: u32 = 512;

/// The counters of this process. Their addresses stay for good: stubs hold them.
#[derive(Debug)]
pub(super) struct Slots {
    /// A page or more of this process alone.
    table: u64,
    table_bytes: usize,
    bases: Box<[u64]>,
    /// Slots of each CPU that have addresses now.
    mapped: AtomicU32,
    /// The first that is not to be taken: where the tracer's file ends.
    limit: AtomicU32,
    next: AtomicU32,
    /// A tracer's file is mapped.
    shared: AtomicBool,
    /// Grows with each memory that is mapped there: nothing has been counted in a new one.
    memory: AtomicU64,
}

static SLOTS: Mutex<Option<&'static Slots>> = Mutex::new(None);

/// The counters, mapped at the first use.
pub(super) fn slots() -> io::Result<&'static Slots> {
    let mut current = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    match *current {
        Some(slots) => Ok(slots),
        None => {
            let slots = current.insert(Slots::map(CAPACITY)?);
            slots.bases.iter().for_each(|&base| os::zeros_over(base, u64::from(CAPACITY) * 8));
            slots.limit.store(CAPACITY, Ordering::Relaxed);
            Ok(*slots)
        }
    }
}

/// CPUs that a tracer's file must have slots for.
pub(super) fn cpus() -> u32 {
    os::possible_cpus() as u32
}

/// Counts in a tracer's file from now on, with so many slots of each CPU. `children`: what this
/// process
/// forks from now on counts there, too.
pub(super) fn share(file: &File, cpus: u32, slots: u32, children: bool) -> io::Result<()> {
    if cpus != self::cpus() || slots == 0 || slots > CAPACITY || !slots.is_multiple_of(PAGE_SLOTS) {
        return Err(io::Error::other("the tracer's counters have impossible sizes"));
    }
    memory_file::check(file, u64::from(cpus) * u64::from(slots) * 8)?;
    let mut current = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = match *current {
        Some(existing) if existing.resize(slots)? => existing,
        // Somebody else's mapping is where the slots would have to grow.
        _ => current.insert(Slots::map(slots)?),
    };
    shared.share(file, slots, children)
}

/// Gives the tracer's memory back. Stubs that are left, or that a thread is in, count for nobody.
pub(super) fn release() {
    let current = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(slots) = *current {
        slots.release();
    }
}

impl Slots {
    /// Addresses only: nothing can be counted before there is memory.
    fn map(slots: u32) -> io::Result<&'static Slots> {
        let cpus = os::possible_cpus();
        let stride = u64::from(slots) * 8;
        let base = os::reserve(stride * cpus as u64)?;
        // And one for a CPU that does not exist, which threads of ours are on: what they call is
        // not counted.
        let table_bytes = ((cpus + 1) * 8).next_multiple_of(4096);
        let table = os::wide_zeros(table_bytes, true)?;
        let bases: Box<[u64]> = (0..cpus).map(|cpu| base + cpu as u64 * stride).collect();
        for (cpu, &base) in bases.iter().enumerate() {
            os::put_word(table + cpu as u64 * 8, base);
        }
        let (mapped, limit, next) = (AtomicU32::new(slots), AtomicU32::new(0), AtomicU32::new(0));
        let (shared, memory) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Box::leak(Box::new(Slots { table, table_bytes, bases, mapped, limit, next, shared, memory })))
    }

    /// Has at least so many slots mapped; `false` if the addresses after those that are mapped are
    /// somebody else's by now.
    fn resize(&self, slots: u32) -> io::Result<bool> {
        // Relaxed, as in all of these: only read and written under the lock, but for `take`, which
        // needs no more than a number.
        let mapped = self.mapped.load(Ordering::Relaxed);
        if slots <= mapped {
            // What it has beyond that stays as it is, unused.
            return Ok(self.next.load(Ordering::Relaxed) <= slots);
        }
        let (from, bytes) = (u64::from(mapped) * 8, u64::from(slots - mapped) * 8);
        for (number, &base) in self.bases.iter().enumerate() {
            if !os::reserve_at(base + from, bytes)? {
                self.bases[..number].iter().for_each(|&base| os::unmap(base + from, bytes));
                return Ok(false);
            }
        }
        self.mapped.store(slots, Ordering::Relaxed);
        Ok(true)
    }

    fn share(&self, file: &File, slots: u32, children: bool) -> io::Result<()> {
        let stride = u64::from(slots) * 8;
        for (cpu, &base) in self.bases.iter().enumerate() {
            if let Err(error) = os::shared_at(base, file, cpu as u64 * stride, stride) {
                self.give_back();
                return Err(error);
            }
        }
        self.limit.store(slots, Ordering::Relaxed);
        self.shared.store(true, Ordering::Relaxed);
        self.memory.fetch_add(1, Ordering::Relaxed);
        os::on_fork(self.table, self.table_bytes, children)
    }

    fn release(&self) {
        if self.shared.swap(false, Ordering::Relaxed) {
            self.give_back();
        }
    }

    fn give_back(&self) {
        // A child that counts has its own mappings. One that is forked from now on does not count.
        _ = os::on_fork(self.table, self.table_bytes, false);
        let used = self.next.load(Ordering::Relaxed).next_multiple_of(PAGE_SLOTS);
        let mapped = self.mapped.load(Ordering::Relaxed);
        let (kept, rest) = (u64::from(used) * 8, u64::from(mapped.saturating_sub(used)) * 8);
        for &base in &self.bases {
            // Stubs may count in what has been taken; the rest nobody knows.
            os::zeros_over(base, kept);
            os::unmap(base + kept, rest);
        }
        self.mapped.store(used.min(mapped), Ordering::Relaxed);
        self.limit.store(0, Ordering::Relaxed);
    }

    /// Which memory it is: another number, another memory.
    pub(super) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Where a stub finds the table of bases.
    pub(super) fn table(&self) -> u64 {
        self.table
    }

    /// The first of `count` slots that nobody had; `None` if all are taken.
    pub(super) fn take(&self, count: u32) -> Option<u32> {
        let limit = self.limit.load(Ordering::Relaxed);
        let room = |next: u32| next.checked_add(count).filter(|&end| end <= limit);
        // Relaxed: a ticket; the slots are zero since they were mapped.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not.
    pub(super) fn read(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.next.load(Ordering::Relaxed));
        let word = |base: &u64| {
            let address = (base + u64::from(slot) * 8) as *const AtomicU64;
            // SAFETY: slots that were taken stay mapped, so the word is in the CPU's part.
            let word = unsafe { &*address };
            // Relaxed: a count that grows; a stub's plain store of an aligned word is not torn.
            word.load(Ordering::Relaxed)
        };
        self.bases.iter().map(word).fold(0, u64::wrapping_add)
    }
}
