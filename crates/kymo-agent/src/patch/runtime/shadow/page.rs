//! Shadow stacks and their entries, in memory that is mapped for good, and this thread's word that
//! points to its top entry.
//!
//! # Safety
//! An [`EntryAt`] is an address inside of a shadow stack: of the region, or of the empty one that
//! all threads begin with. Both are mapped for good, zeroed or initialised, and atomics to all that
//! use them.
#![allow(unsafe_code)]
use crate::patch::layout::{DEPTH, ENTRY_BYTES, FREE, NEAR_AT, ORIGIN_AT, OWNER_AT, STACK_BYTES, TIME_AT};
use crate::sys::raw;
use kymo_core::holds::HELD_WORDS;
use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Shadow stacks: threads beyond that have no return probes.
pub(crate) const THREADS: u32 = 32 << 10;
/// A key that no slot has: the entry is done with, but not on top.
pub(crate) const HOLE: u64 = u64::MAX;
/// A key that no slot has, and that counts as alive: below the first entry, and behind the last.
pub(crate) const END: u64 = 1 << 63;
/// The entry of a shadow stack whose words are the stack's own: where its first call was, its
/// thread, the end of that thread's stack.
const OWN_WORDS: u64 = DEPTH as u64 + 2;
/// Where in a shadow stack the slow path keeps what is the thread's, and how much it may be.
const SLOW_PATH_AT: u64 = 3072;
pub(crate) const SLOW_PATH_BYTES: u64 = 512;
/// Where in a shadow stack the locks are that its thread holds. At the begin of what would be an
/// entry is no word that could be a key: the complement of an address.
const HELD_AT: u64 = (OWN_WORDS + 1) * ENTRY;
const _: () = assert!(HELD_AT + HELD_WORDS as u64 * 8 <= SLOW_PATH_AT);

const BYTES: u64 = STACK_BYTES as u64;
const ENTRY: u64 = ENTRY_BYTES as u64;

/// One return that is waited for. Stubs know these offsets.
#[repr(C)]
pub(crate) struct ShadowEntry {
    /// The complement of the address behind the return slot; while the entry is being filled that
    /// address itself.
    pub(crate) key: AtomicU64,
    /// Where the function returns to.
    pub(crate) origin: AtomicU64,
    /// The time stamp counter at the entry.
    pub(crate) time: AtomicU64,
    /// Nothing: an entry begins at a multiple of its size.
    _rest: u64,
}

const _: () =
    assert!(size_of::<ShadowEntry>() == ENTRY_BYTES as usize && (DEPTH + 2) * 32 + 32 <= STACK_BYTES);
const _: () = assert!(offset_of!(ShadowEntry, origin) == ORIGIN_AT as usize);
const _: () = assert!(offset_of!(ShadowEntry, time) == TIME_AT as usize);
const _: () = assert!(OWNER_AT as u64 == OWN_WORDS * ENTRY + ORIGIN_AT as u64);
const _: () = assert!(NEAR_AT as u64 == OWN_WORDS * ENTRY);

impl ShadowEntry {
    /// Becomes what another one is, with a key.
    pub(crate) fn copy(&self, from: &ShadowEntry, key: u64) {
        // Relaxed, all: of one thread. The key last, for the handler of a signal.
        self.origin.store(from.origin.load(Ordering::Relaxed), Ordering::Relaxed);
        self.time.store(from.time.load(Ordering::Relaxed), Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
    }
}

/// Where an entry is, in a shadow stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryAt(u64);

impl EntryAt {
    /// As stubs know it.
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// The entry above this one, or below it: of the same stack, whose last one is below the first.
    pub(crate) fn above(self) -> EntryAt {
        EntryAt(self.0 & !(BYTES - 1) | (self.0 + ENTRY) & (BYTES - 1))
    }

    pub(crate) fn below(self) -> EntryAt {
        EntryAt(self.0 & !(BYTES - 1) | self.0.wrapping_sub(ENTRY) & (BYTES - 1))
    }

    pub(crate) fn is_bottom(self) -> bool {
        self.0.is_multiple_of(BYTES)
    }

    /// Its shadow stack; `None` if that is the empty one, which is no thread's.
    pub(crate) fn stack(self) -> Option<ShadowStack> {
        let stack = ShadowStack(self.0 & !(BYTES - 1));
        // Relaxed: written by this thread.
        (stack.owner().load(Ordering::Relaxed) != 0).then_some(stack)
    }
}

impl Deref for EntryAt {
    type Target = ShadowEntry;

    fn deref(&self) -> &ShadowEntry {
        // SAFETY: see the module.
        unsafe { &*(self.0 as *const ShadowEntry) }
    }
}

/// A shadow stack of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShadowStack(u64);

impl ShadowStack {
    pub(crate) fn bottom(self) -> EntryAt {
        EntryAt(self.0)
    }

    /// The address of the bottom.
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// One of its entries, from the bottom on.
    pub(crate) fn entry(self, at: u64) -> EntryAt {
        EntryAt(self.0 + at * ENTRY % BYTES)
    }

    /// The word that tells where its first call was, so that unwinders look there first for what is
    /// near.
    pub(crate) fn near(self) -> &'static AtomicU64 {
        &self.own_words().key
    }

    /// The word that names its thread: behind the sentinel, where no key is.
    pub(crate) fn owner(self) -> &'static AtomicU64 {
        &self.own_words().origin
    }

    /// The word that names its thread's stack: the thread pointer lies at its end.
    pub(crate) fn thread_stack(self) -> &'static AtomicU64 {
        &self.own_words().time
    }

    fn own_words(self) -> &'static ShadowEntry {
        // SAFETY: an entry of it; see the module.
        unsafe { &*((self.0 + OWN_WORDS * ENTRY) as *const ShadowEntry) }
    }

    /// The slow path's part of it.
    pub(crate) fn slow_path(self) -> *mut u8 {
        (self.0 + SLOW_PATH_AT) as *mut u8
    }

    /// Says that no thread has written its part.
    pub(crate) fn clear_slow_path(self) {
        self.entry(SLOW_PATH_AT / ENTRY).key.store(0, Ordering::Relaxed);
    }

    /// The locks that its thread holds.
    pub(crate) fn held(self) -> &'static [AtomicU64; HELD_WORDS] {
        // SAFETY: in the shadow stack, behind its entries and before the slow path's part.
        unsafe { &*((self.0 + HELD_AT) as *const [AtomicU64; HELD_WORDS]) }
    }

    /// Says that its thread holds none.
    pub(crate) fn clear_held(self) {
        // The first words: whether it is used, how many there are, of which observation.
        for word in self.held().iter().take(3) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Has an END below and above free entries.
    pub(crate) fn clear_entries(self) {
        let mut at = 0;
        while at < DEPTH as u64 + 2 {
            let inside = at > 0 && at <= DEPTH as u64;
            // Relaxed: other threads only look for keys of slots, which these are not.
            self.entry(at).key.store(if inside { FREE } else { END }, Ordering::Relaxed);
            at += 1;
        }
    }
}

/// The region's first address; 0 before there is one.
static BASE: AtomicU64 = AtomicU64::new(0);
/// Shadow stacks that were ever taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Where the region is, once it is mapped.
pub(crate) fn base() -> Option<u64> {
    // Acquire: pairs with the Release in set_base().
    let base = BASE.load(Ordering::Acquire);
    (base != 0).then_some(base)
}

/// Tells where the region is.
///
/// # Safety
/// [`THREADS`] shadow stacks of zeroes are mapped there for good, for nothing else.
pub(crate) unsafe fn set_base(base: u64) {
    // Release: pairs with the Acquire in base().
    BASE.store(base, Ordering::Release);
}

/// How many shadow stacks were ever taken. They lie at the region's begin.
pub(crate) fn taken() -> u32 {
    // Relaxed: a hint; owners are taken by exchange.
    TAKEN.load(Ordering::Relaxed)
}

/// Where unwinders find that number.
pub(crate) fn taken_at() -> u64 {
    TAKEN.as_ptr() as u64
}

/// One of the shadow stacks, by its number.
pub(crate) fn stack(number: u32) -> Option<ShadowStack> {
    match base() {
        Some(base) if number < THREADS => Some(ShadowStack(base + u64::from(number) * BYTES)),
        _ => None,
    }
}

/// One that nobody had.
pub(crate) fn take_new() -> Option<ShadowStack> {
    // Relaxed: a ticket. It stays where it is at the end of the region.
    let take = |taken: u32| (taken < THREADS).then_some(taken + 1);
    let ticket = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    stack(ticket)
}

// A word for each thread at a fixed distance from its thread pointer, which stubs read without a
// call. It begins with the address of a shadow stack without room, which has two ENDs and no owner.
global_asm!(
    ".pushsection .data.kymo_shadow_none, \"aw\", @progbits",
    ".p2align 12",
    "kymo_shadow_none:",
    ".quad 0x8000000000000000, 0, 0, 0",
    ".quad 0x8000000000000000, 0, 0, 0",
    ".zero 4032",
    ".popsection",
    ".pushsection .tdata.kymo_shadow_top, \"awT\", @progbits",
    ".p2align 3",
    ".type kymo_shadow_top, @object",
    ".size kymo_shadow_top, 8",
    "kymo_shadow_top: .quad kymo_shadow_none",
    ".popsection",
    ".pushsection .text.kymo_shadow_offset, \"ax\", @progbits",
    ".globl kymo_shadow_offset",
    ".hidden kymo_shadow_offset",
    ".type kymo_shadow_offset, @function",
    "kymo_shadow_offset:",
    "mov rax, qword ptr [rip + kymo_shadow_top@GOTTPOFF]",
    "ret",
    ".size kymo_shadow_offset, . - kymo_shadow_offset",
    ".popsection",
);

unsafe extern "C" {
    safe fn kymo_shadow_offset() -> isize;
}

/// From the thread pointer to the word that points to the top entry.
pub(crate) fn top_offset() -> isize {
    kymo_shadow_offset()
}

pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the ABI keeps the thread pointer in its own first word.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

fn top_word() -> *mut u64 {
    thread_pointer().wrapping_add_signed(kymo_shadow_offset() as i64) as *mut u64
}

/// This thread's top entry.
#[inline]
pub(crate) fn top() -> EntryAt {
    // SAFETY: this thread's word, in which stubs and set_top() put addresses of entries only.
    EntryAt(unsafe { top_word().read_volatile() })
}

pub(crate) fn set_top(at: EntryAt) {
    // SAFETY: this thread's word.
    unsafe { top_word().write_volatile(at.0) };
}

/// The kernel's number of this thread, without the C library.
pub(crate) fn thread_id() -> u64 {
    u64::from(raw::thread())
}

/// Likewise of this process.
pub(crate) fn process_id() -> u64 {
    u64::from(raw::process())
}
