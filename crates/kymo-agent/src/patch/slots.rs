//! Counters, one word for each CPU, which stubs raise without a lock and without a shared cache line.
//!
//! ```text
//!   table: [ base of CPU 0 | base of CPU 1 | ... ]        the stub:  cpu  = restartable sequence's CPU
//!                |               |                                   word = table[cpu] + 8 * slot
//!                v               v                                   *word += 1      (inside the sequence)
//!          CPU 0: [0|1|2|...]  CPU 1: [0|1|2|...]                    no base: nothing
//! ```
//!
//! A thread that loses its CPU between reading its number and the store begins again (a restartable sequence), so no hit is
//! lost and none counted twice.
//!
//! The words are in a file in memory, which a tracer maps as well: it reads them by itself, also when this process is gone. The table is this
//! process's own. A forked child finds it empty and counts nothing; or, if children are to count, finds it as it was and
//! counts in the same words: two processes are on one CPU one after the other, like two threads.
#![allow(unsafe_code)]
use super::os;
use crate::sys::memory_file;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Slots of all probes together. Only what is used takes memory.
const CAPACITY: u32 = 8 << 20;
/// Fewer are of no use.
const LEAST: u32 = 1 << 10;

/// The counters of this process, mapped for good.
#[derive(Debug)]
pub struct Slots {
    file: File,
    /// A page or more of this process alone.
    table: u64,
    table_bytes: usize,
    bases: Box<[u64]>,
    capacity: u32,
    next: AtomicU32,
    /// Whether there may be a child that counts here.
    shared: AtomicBool,
}

static SLOTS: Mutex<Option<&'static Slots>> = Mutex::new(None);

/// The counters, mapped at the first use.
pub(super) fn slots() -> io::Result<&'static Slots> {
    let mut current = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    match *current {
        Some(slots) => Ok(slots),
        None => Ok(current.insert(Slots::map()?)),
    }
}

/// The counters for a tracer that comes now, and whether children of this process are to count in them. Children of an earlier tracer's
/// time may still count in those that it had: then these are other ones.
pub(super) fn slots_for(children: bool) -> io::Result<&'static Slots> {
    let mut current = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed: only read and written under the lock.
    let slots = match *current {
        Some(slots) if !slots.shared.load(Ordering::Relaxed) => slots,
        _ => current.insert(Slots::map()?),
    };
    if children {
        os::keep_on_fork(slots.table, slots.table_bytes)?;
        slots.shared.store(true, Ordering::Relaxed);
    }
    Ok(slots)
}

impl Slots {
    fn map() -> io::Result<&'static Slots> {
        let cpus = os::possible_cpus();
        // A limit on the size of files holds for those in memory, too; who exceeds it gets a signal.
        let most = memory_file::longest() / (cpus as u64 * 8);
        let capacity = u64::from(CAPACITY).min(most) as u32 & !(LEAST - 1);
        if capacity < LEAST {
            return Err(io::Error::other(
                "the limit on the size of files (ulimit -f) leaves no room for them",
            ));
        }
        let stride = u64::from(capacity) * 8;
        let file = memory_file::create(c"kymo-counters")?;
        let file = File::from(memory_file::out_of_the_way(file.into()));
        file.set_len(stride * cpus as u64)?;
        memory_file::seal(&file)?;
        let base = os::shared(&file, stride * cpus as u64)?;
        // And one for a CPU that does not exist, which threads of ours are on: what they call is not counted.
        let table_bytes = ((cpus + 1) * 8).next_multiple_of(4096);
        let table = os::wide_zeros(table_bytes, true)?;
        let bases: Box<[u64]> = (0..cpus).map(|cpu| base + cpu as u64 * stride).collect();
        for (cpu, &base) in bases.iter().enumerate() {
            os::put_word(table + cpu as u64 * 8, base);
        }
        let (next, shared) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Box::leak(Box::new(Slots { file, table, table_bytes, bases, capacity, next, shared })))
    }

    /// The file, for a tracer to map: all slots of the first CPU, then those of the next. It never gets shorter.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// For how many CPUs there are slots.
    pub fn cpus(&self) -> u32 {
        self.bases.len() as u32
    }

    /// How many slots each CPU has.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Where a stub finds the table of bases.
    pub(super) fn table(&self) -> u64 {
        self.table
    }

    /// The first of `count` slots that nobody had; `None` if all are taken.
    pub(super) fn take(&self, count: u32) -> Option<u32> {
        let room = |next: u32| next.checked_add(count).filter(|&end| end <= self.capacity);
        // Relaxed: a ticket; the slots are zero since they were mapped.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not.
    pub(super) fn read(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.capacity);
        let word = |base: &u64| {
            let address = (base + u64::from(slot) * 8) as *const AtomicU64;
            // SAFETY: slot < capacity, so the word is in the CPU's part of a mapping that stays.
            let word = unsafe { &*address };
            // Relaxed: a count that grows; a stub's plain store of an aligned word is not torn.
            word.load(Ordering::Relaxed)
        };
        self.bases.iter().map(word).fold(0, u64::wrapping_add)
    }
}
