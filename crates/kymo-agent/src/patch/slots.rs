//! Counters, one word for each CPU, which stubs raise without a lock and without a shared cache
//! line.
//!
//! ```text
//!   table: [ base of CPU 0 | base of CPU 1 | ... ]     the stub:  cpu  = restartable sequence's CPU
//!                |               |                                word = table[cpu] + 8 * slot
//!                v               v                                *word += 1   (inside the sequence)
//!          CPU 0: [0|1|2|...]  CPU 1: [0|1|2|...]                 no base: nothing
//! ```
//!
//! A thread that loses its CPU between reading its number and the store begins again (a restartable
//! sequence), so no hit is lost and none counted twice.
//!
//! Without a tracer the words are memory of this process. A tracer maps its own file over them,
//! reads them by itself, also after this process has ended, and takes the memory with it when it
//! leaves. The table is this process's own. A forked child finds it empty and counts nothing; or,
//! if children are to count, finds it as it was and counts in the same words: two processes are on
//! one CPU one after the other, like two threads.
//!
//! # Safety
//! Addresses that are given up: those of slots that were never taken. A base of the table is a part
//! of this module's, or 0.
#![allow(unsafe_code)]
use crate::patch::mapping::Mapping;
use crate::patch::os;
use crate::sys::lock;
use crate::sys::memory_file;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Slots of all probes together. Only what is used takes memory.
pub(crate) const CAPACITY: u32 = 8 << 20;
/// Slots of one page: files are mapped by pages.
pub(crate) const PAGE_SLOTS: u32 = 512;

/// The counters of this process. Their addresses stay for good: stubs hold them.
#[derive(Debug)]
pub(crate) struct Slots {
    /// A page or more of this process alone.
    table: Mapping,
    /// The first address of each CPU's slots, of which the first `mapped` have addresses.
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
pub(crate) fn slots() -> io::Result<&'static Slots> {
    let mut current = lock(&SLOTS);
    match *current {
        Some(slots) => Ok(slots),
        None => {
            let slots = current.insert(Slots::map(CAPACITY)?);
            slots.parts(0, CAPACITY).for_each(Mapping::zero);
            slots.limit.store(CAPACITY, Ordering::Relaxed);
            Ok(*slots)
        }
    }
}

/// CPUs that a tracer's file must have slots for, and the most slots of each that can be used.
pub(crate) fn sizes() -> (u32, u32) {
    (os::possible_cpus() as u32, CAPACITY)
}

/// Counts in a tracer's file from now on, with so many slots of each CPU. `children`: what this
/// process forks from now on counts there, too. To be called while no probe is attached: those that
/// were count in what they had.
///
/// # Errors
/// Where the file is not as it was said to be, or memory or address space are short.
pub(crate) fn share(file: &File, cpus: u32, slots: u32, children: bool) -> io::Result<()> {
    if cpus != sizes().0 || slots == 0 || slots > CAPACITY || !slots.is_multiple_of(PAGE_SLOTS) {
        return Err(io::Error::other("the tracer's counters have impossible sizes"));
    }
    memory_file::check(file, u64::from(cpus) * u64::from(slots) * 8)?;
    let mut current = lock(&SLOTS);
    let shared = match *current {
        Some(existing) if existing.resize(slots)? => existing,
        // Somebody else's mapping is where the slots would have to grow.
        _ => current.insert(Slots::map(slots)?),
    };
    shared.share(file, slots, children)
}

/// Gives the tracer's memory back. Stubs that are left, or that a thread is in, count for nobody.
pub(crate) fn release() {
    let current = lock(&SLOTS);
    if let Some(slots) = *current {
        slots.release();
    }
}

impl Slots {
    /// Addresses only: nothing can be counted before there is memory.
    fn map(slots: u32) -> io::Result<&'static Slots> {
        let cpus = os::possible_cpus();
        let stride = u64::from(slots) * 8;
        let all = Mapping::reserve(stride * cpus as u64)?;
        // And one for a CPU that does not exist, which threads of ours are on: what they call is
        // not counted.
        let table = Mapping::zeros(((cpus as u64 + 1) * 8).next_multiple_of(4096))?;
        table.on_fork(false)?;
        let bases: Box<[u64]> =
            (0..cpus as u64).map(|cpu| all.part(cpu * stride, stride).address()).collect();
        for (cpu, &base) in (0..).zip(&bases) {
            // Relaxed: published by what makes stubs.
            table.word(cpu * 8).store(base, Ordering::Relaxed);
        }
        let (mapped, limit, next) = (AtomicU32::new(slots), AtomicU32::new(0), AtomicU32::new(0));
        let (shared, memory) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Box::leak(Box::new(Slots { table, bases, mapped, limit, next, shared, memory })))
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
        let mut reserved = Vec::new();
        for base in &self.bases {
            match Mapping::reserve_at(base + from, bytes)? {
                Some(part) => reserved.push(part),
                None => {
                    for part in reserved {
                        // SAFETY: reserved just now: nobody knows it.
                        unsafe { part.unmap() };
                    }
                    return Ok(false);
                }
            }
        }
        self.mapped.store(slots, Ordering::Relaxed);
        Ok(true)
    }

    fn share(&self, file: &File, slots: u32, children: bool) -> io::Result<()> {
        let stride = u64::from(slots) * 8;
        for (cpu, part) in (0..).zip(self.parts(0, slots)) {
            if let Err(error) = part.share(file, cpu * stride) {
                self.give_back();
                return Err(error);
            }
        }
        self.limit.store(slots, Ordering::Relaxed);
        self.shared.store(true, Ordering::Relaxed);
        self.memory.fetch_add(1, Ordering::Relaxed);
        self.table.on_fork(children)
    }

    fn release(&self) {
        if self.shared.swap(false, Ordering::Relaxed) {
            self.give_back();
        }
    }

    fn give_back(&self) {
        // A child that counts has its own mappings. One that is forked from now on does not count.
        _ = self.table.on_fork(false);
        let used = self.next.load(Ordering::Relaxed).next_multiple_of(PAGE_SLOTS);
        let mapped = self.mapped.load(Ordering::Relaxed);
        let kept = used.min(mapped);
        self.parts(0, kept).for_each(Mapping::zero);
        for part in self.parts(kept, mapped) {
            // SAFETY: stubs may count in slots that have been taken, which are below; the rest
            // nobody knows.
            unsafe { part.unmap() };
        }
        self.mapped.store(kept, Ordering::Relaxed);
        self.limit.store(0, Ordering::Relaxed);
    }

    /// The slots from `from` to `to` of each CPU. `to` must not be above `mapped`.
    fn parts(&self, from: u32, to: u32) -> impl Iterator<Item = Mapping> {
        let (from, to) = (u64::from(from) * 8, u64::from(to) * 8);
        debug_assert!(to <= u64::from(self.mapped.load(Ordering::Relaxed)) * 8);
        // SAFETY: the first `mapped` slots of each CPU have addresses of this module.
        self.bases.iter().map(move |base| unsafe { Mapping::assume(base + from, to - from) })
    }

    /// Which memory it is: another number, another memory.
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Where a stub finds the table of bases.
    pub(crate) fn table(&self) -> u64 {
        self.table.address()
    }

    /// The first of `count` slots that nobody had; `None` if all are taken.
    pub(crate) fn take(&self, count: u32) -> Option<u32> {
        let limit = self.limit.load(Ordering::Relaxed);
        let room = |next: u32| next.checked_add(count).filter(|&end| end <= limit);
        // Relaxed: a ticket; the slots are zero since they were mapped.
        self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()
    }

    /// The first of [`PAGE_SLOTS`] slots that nobody had and that fill a page; `None` if all are
    /// taken.
    pub(crate) fn take_page(&self) -> Option<u32> {
        let limit = self.limit.load(Ordering::Relaxed);
        let end = |next: u32| next.checked_next_multiple_of(PAGE_SLOTS)?.checked_add(PAGE_SLOTS);
        let room = |next: u32| end(next).filter(|&end| end <= limit);
        // Relaxed: as in `take`.
        let before = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        Some(before.next_multiple_of(PAGE_SLOTS))
    }

    /// The sum of a slot over all CPUs. Hits that happen meanwhile are in it or not.
    pub(crate) fn read(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.next.load(Ordering::Relaxed));
        // Relaxed: a count that grows; a stub's plain store of an aligned word is not torn.
        let words = self.parts(slot, slot + 1).map(|part| part.word(0).load(Ordering::Relaxed));
        words.fold(0, u64::wrapping_add)
    }

    /// Raises one CPU's word of a slot that was taken, as a stub does; its new value, 0 where
    /// nothing is counted. Anywhere, also in handlers of signals.
    pub(crate) fn raise(&self, cpu: u64, slot: u32) -> u64 {
        if cpu > self.bases.len() as u64 {
            return 0;
        }
        // Relaxed: as stubs read it.
        let base = self.table.word(cpu * 8).load(Ordering::Relaxed);
        if base == 0 {
            return 0;
        }
        // SAFETY: slots that were taken stay mapped, so the word is in the CPU's part.
        let word = unsafe { Mapping::assume(base + u64::from(slot) * 8, 8) }.word(0);
        // Relaxed: a count. With a lock, for this thread may be on another CPU by now.
        word.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
