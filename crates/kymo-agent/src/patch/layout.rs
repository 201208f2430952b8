//! Registers, offsets and frames that emitted code and the functions that it calls both know. The
//! code has these numbers in its bytes, so one side alone cannot change them.

/// Registers of a hit's frame, by the processor's numbers.
pub(crate) const REGISTER_COUNT: usize = 16;
/// The number of the stack pointer.
pub(crate) const STACK_POINTER: u8 = 4;

/// What a stub keeps for the slow path, at its stack pointer. Room for an event follows.
#[repr(C)]
pub(crate) struct SlowPathFrame {
    /// By their numbers.
    pub(crate) registers: [u64; REGISTER_COUNT],
    pub(crate) flags: u64,
    /// The stub's own.
    pub(crate) verdict: u64,
}

pub(crate) const FLAGS_AT: i32 = 128;
pub(crate) const VERDICT_AT: i32 = 136;
pub(crate) const BUFFER_AT: i32 = 144;
const _: () = assert!(size_of::<SlowPathFrame>() == BUFFER_AT as usize);

/// A verdict: the slow path could not look at the hit.
pub(crate) const MISSED: u64 = u64::MAX;
/// Verdicts from this one on are the bytes of an event to be written.
pub(crate) const LEAST_EVENT: u32 = 2;

/// What a landing keeps at its stack pointer while its function's return is looked at.
#[repr(C)]
pub(crate) struct LandingFrame {
    /// What the function returns.
    pub(crate) result: u64,
    _registers: [u64; 2],
    /// Where it returns to.
    pub(crate) origin: u64,
    /// What its entry has kept for it: a time, or an argument.
    pub(crate) kept: u64,
    _flags: u64,
}

pub(crate) const ORIGIN_KEPT: i32 = 24;
pub(crate) const TIME_KEPT: i32 = 32;
const _: () = assert!(std::mem::offset_of!(LandingFrame, origin) == ORIGIN_KEPT as usize);
const _: () = assert!(std::mem::offset_of!(LandingFrame, kept) == TIME_KEPT as usize);

/// What a stub gets back for a return: see `runtime/shadow/calls.rs`.
#[repr(C)]
pub(crate) struct ReturnTarget {
    pub(crate) origin: u64,
    pub(crate) time: u64,
}

/// Calls of one thread whose returns are waited for at the same time, as in the kernel.
pub const DEPTH: usize = 64;
/// A shadow stack: entries, then its own words.
pub(crate) const STACK_BYTES: usize = 4096;
/// An entry of a shadow stack, and where in it are its parts behind the key.
pub(crate) const ENTRY_BYTES: i32 = 32;
pub(crate) const ORIGIN_AT: i32 = 8;
pub(crate) const TIME_AT: i32 = 16;
/// From a shadow stack's bottom to its thread's number, 0 in the one that all threads begin with.
pub(crate) const OWNER_AT: i32 = (DEPTH as i32 + 2) * ENTRY_BYTES + ORIGIN_AT;
/// From a shadow stack's bottom to the word that tells where its first call was.
pub(crate) const NEAR_AT: u16 = (DEPTH as u16 + 2) * ENTRY_BYTES as u16;
/// A key that no slot has, and that does not count as alive: an entry above the top, or on top of
/// one whose call returns just now.
pub(crate) const FREE: u64 = 0;
/// Entries of a page of stale frames, between the first and the last, which have the page's own
/// words.
pub(crate) const STALE_ENTRIES: u64 = STACK_BYTES as u64 / ENTRY_BYTES as u64 - 2;

/// Where unwinders find entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowRegion {
    /// The first shadow stack.
    pub(crate) begin: u64,
    /// The first page of stale frames (`runtime/stale_frames.rs`).
    pub(crate) stale: u64,
    /// Where the number of shadow stacks is, 4 bytes.
    pub(crate) count_at: u64,
}

/// Where a ring's page has its counters, as `struct perf_event_mmap_page` has them.
pub(crate) const HEAD_AT: i32 = 1024;
pub(crate) const TAIL_AT: i32 = 1032;
/// Where nothing of the kernel's is: how many events did not fit, of all probes.
pub(crate) const LOST_AT: i32 = 2048;
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Where raw data begins in a record.
pub(crate) const RAW_AT: i32 = 60;

/// The header of a record of so many bytes.
pub(crate) fn record_header(bytes: u32) -> u64 {
    /// PERF_RECORD_SAMPLE, of code in user space.
    const KIND: u64 = 9;
    const USER: u64 = 2;
    KIND | USER << 32 | u64::from(bytes) << 48
}
