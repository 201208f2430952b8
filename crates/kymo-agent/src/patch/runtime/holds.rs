//! What stubs call when a lock was taken, and when one is given back: the thread's list of what it
//! holds, and the table of all holds ([`kymo_core::holds`]).
//!
//! ```text
//!   pthread_mutex_lock returns 0 --> acquired: the lock, the time, the place into the list
//!   pthread_mutex_unlock begins  --> released: the lock out of the list, its hold into the table
//!   pthread_cond_wait begins     --> released;   returns --> acquired
//! ```
//! The time of a hold begins last in `acquired` and ends first in `released`, so that of all this
//! nothing is in it. A lock is added before others can have it.
//!
//! # Safety
//! Memory that `begin` is given stays mapped. A stub's frame is there while it calls.
#![allow(unsafe_code)]
use super::shadow::page::{self, thread_pointer};
use crate::patch::layout::LandingFrame;
use crate::sys::raw;
use kymo_core::holds::{
    Acquired, HELD_WORDS, HeldLocks, HoldCount, HoldKind, HoldRole, HoldTable, Released, TABLE_BYTES,
};
use std::arch::x86_64::_rdtsc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Where holds are added up, and how.
#[derive(Debug)]
pub(crate) struct Observation {
    /// The table's address.
    pub(crate) table: u64,
    /// A word that a forked child finds empty.
    pub(crate) own: &'static AtomicU64,
    /// Nanoseconds of a tick of the time stamp counter, times 2^32.
    pub(crate) tick: u64,
    /// From the thread pointer to the number of the thread's CPU.
    pub(crate) cpu_at: isize,
    /// The number that a thread of ours finds there.
    pub(crate) no_cpu: u32,
    /// Forked children add, too.
    pub(crate) children: bool,
}

/// The same for those that are hit.
struct Current {
    /// 0: none.
    table: AtomicU64,
    own: AtomicPtr<AtomicU64>,
    tick: AtomicU64,
    cpu_at: AtomicI64,
    no_cpu: AtomicU32,
    children: AtomicBool,
    /// Its number.
    number: AtomicU64,
}

static CURRENT: Current = Current {
    table: AtomicU64::new(0),
    own: AtomicPtr::new(std::ptr::null_mut()),
    tick: AtomicU64::new(0),
    cpu_at: AtomicI64::new(0),
    no_cpu: AtomicU32::new(0),
    children: AtomicBool::new(false),
    number: AtomicU64::new(0),
};

/// Holds are added up from now on.
pub(crate) fn begin(observation: Observation) {
    let Observation { table, own, tick, cpu_at, no_cpu, children } = observation;
    // Relaxed, all but the last one: read by those who have seen that.
    own.store(std::process::id().into(), Ordering::Relaxed);
    CURRENT.own.store(std::ptr::from_ref(own).cast_mut(), Ordering::Relaxed);
    CURRENT.tick.store(tick, Ordering::Relaxed);
    CURRENT.cpu_at.store(cpu_at as i64, Ordering::Relaxed);
    CURRENT.no_cpu.store(no_cpu, Ordering::Relaxed);
    CURRENT.children.store(children, Ordering::Relaxed);
    CURRENT.number.fetch_add(1, Ordering::Relaxed);
    // Release: pairs with the Acquire in current().
    CURRENT.table.store(table, Ordering::Release);
}

/// No more.
pub(crate) fn end() {
    // Relaxed: who does not see it adds where nobody reads.
    CURRENT.table.store(0, Ordering::Relaxed);
}

/// The table and this process's number; `None` where nothing is to be added.
#[inline]
fn current() -> Option<(HoldTable<'static>, u32)> {
    // Acquire: pairs with the Release in begin().
    let table = CURRENT.table.load(Ordering::Acquire);
    if table == 0 {
        return None;
    }
    let cpu = thread_pointer().wrapping_add_signed(CURRENT.cpu_at.load(Ordering::Relaxed)) as *const u32;
    // SAFETY: this thread's area for restartable sequences, as the C library says.
    if unsafe { cpu.read_volatile() } == CURRENT.no_cpu.load(Ordering::Relaxed) {
        // A thread of ours.
        return None;
    }
    // SAFETY: the word of begin(), which stays.
    let own = unsafe { &*CURRENT.own.load(Ordering::Relaxed) };
    let mut process = own.load(Ordering::Relaxed) as u32;
    if process == 0 {
        if !CURRENT.children.load(Ordering::Relaxed) {
            return None;
        }
        process = raw::process();
        own.store(process.into(), Ordering::Relaxed);
    }
    // SAFETY: mapped for good, and an atomic to all.
    let words = unsafe { std::slice::from_raw_parts(table as *const AtomicU64, (TABLE_BYTES / 8) as usize) };
    Some((HoldTable::new(words)?, process))
}

/// This thread's list, unless what uses it was interrupted for this hit.
struct OwnList {
    words: &'static [AtomicU64; HELD_WORDS],
    before: u64,
}

impl OwnList {
    #[inline]
    fn enter(at: u64) -> Option<OwnList> {
        /// More than the use of a list takes of a stack.
        const OWN_STACK_BYTES: u64 = 4096;
        let words = page::top().stack()?.held();
        // Relaxed: this thread's own.
        let before = words[0].load(Ordering::Relaxed);
        if before > at && before - at < OWN_STACK_BYTES {
            return None;
        }
        words[0].store(at, Ordering::Relaxed);
        Some(OwnList { words, before: if before > at { 0 } else { before } })
    }

    #[inline]
    fn list(&self) -> HeldLocks<'static> {
        // Relaxed: whoever has seen the table has seen its number.
        HeldLocks::of(self.words, CURRENT.number.load(Ordering::Relaxed))
    }

    #[inline]
    fn leave(self) {
        self.words[0].store(self.before, Ordering::Relaxed);
    }
}

#[inline]
fn now() -> u64 {
    // SAFETY: an instruction that every x86-64 processor has.
    unsafe { _rdtsc() }
}

/// Whether a mutex that its thread has taken again may be: glibc keeps the kind there.
fn is_recursive_mutex(lock: u64) -> bool {
    const KIND_AT: u64 = 16;
    const KIND_MASK: u32 = 3;
    const RECURSIVE: u32 = 1;
    // SAFETY: a mutex that this thread has just taken, of 40 bytes.
    let kind = unsafe { (lock.wrapping_add(KIND_AT) as *const u32).read_volatile() };
    kind & KIND_MASK == RECURSIVE
}

/// Called by landings of functions that take locks.
///
/// # Safety
/// `frame` is a landing's, filled.
pub(crate) unsafe extern "C" fn acquired(frame: *const LandingFrame, role: u64) -> u64 {
    const OWNER_DIED: u32 = libc::EOWNERDEAD as u32;
    // SAFETY: the caller's.
    let frame = unsafe { &*frame };
    let Some((table, _)) = current() else { return 0 };
    let kind = match HoldRole::of(role as u8) {
        Some(HoldRole::Acquire(kind)) if matches!(frame.result as u32, 0 | OWNER_DIED) => kind,
        // However its wait has ended.
        Some(HoldRole::Wait) => HoldKind::Mutex,
        _ => return 0,
    };
    let Some(own) = OwnList::enter(std::ptr::from_ref(frame) as u64) else {
        table.count(HoldCount::Missed);
        return 0;
    };
    let lock = frame.kept;
    // Of locks for reading and writing no thread takes the same one twice but for reading.
    let is_recursive = || kind == HoldKind::Read || (kind == HoldKind::Mutex && is_recursive_mutex(lock));
    match own.list().acquire(lock, kind, frame.origin, now(), is_recursive) {
        Acquired::Begun | Acquired::Again => {}
        Acquired::Restarted => table.count(HoldCount::Unended),
        Acquired::NoRoom => table.count(HoldCount::Missed),
    }
    own.leave();
    0
}

/// Called by stubs of functions that give locks back. `wholly`: whatever the depth.
pub(crate) extern "C" fn released(lock: u64, wholly: u64) -> u64 {
    let until = now();
    let Some((table, process)) = current() else { return 0 };
    let here = 0_u8;
    let Some(own) = OwnList::enter(&raw const here as u64) else {
        table.count(HoldCount::Unknown);
        return 0;
    };
    match own.list().release(lock, wholly != 0) {
        Released::Ended { kind, place, since } => {
            // Counters of two CPUs may differ by some ticks.
            let ticks = until.saturating_sub(since);
            let tick = CURRENT.tick.load(Ordering::Relaxed);
            let ns = ((u128::from(ticks) * u128::from(tick)) >> 32) as u64;
            table.add(process, kind, lock, place, ns);
        }
        Released::Again => {}
        Released::Unknown => table.count(HoldCount::Unknown),
    }
    own.leave();
    0
}
