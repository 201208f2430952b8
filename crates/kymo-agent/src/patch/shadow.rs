//! Where functions really return to, kept aside for each thread while a probe's stub stands in the return address.
//!
//! ```text
//!   the thread's stack                    its shadow stack (4 KiB, in one region for all threads)
//!   |  ...            |                   |  sentinel: no room       |
//!   |  return address | = the stub        |  entry 2                 | <- top (a thread-local word)
//!   |  ...            |                   |  entry 1: where, whereto |
//!   |  return address | = the stub        |  bottom                  |
//! ```
//!
//! An entry is found by the address of the return slot ("where"), which is unique in the process: so it does not matter which thread
//! returns, or in which order. The order only makes it fast: a stub looks at the top first. This is how each departure from calls and
//! returns is survived:
//!
//! - **longjmp, exceptions**: entries of frames that are gone lie above the caller's. The next entry finds them on top, below its own
//!   stack pointer, and drops them: for good where their slots are overwritten, else on the same stack only, and not quite (`stale_frames.rs`).
//! - **coroutines, signal stacks**: an entry on another stack whose slot still holds the stub is left where it is.
//! - **a coroutine that returns on another thread**: its entry is searched in all shadow stacks.
//! - **recursion deeper than 64**, or entries that pile up: the call is counted, its return is not looked at.
//! - **fork**: the child has a copy of both stacks. **Thread exit**: shadow stacks of dead threads are found and taken again, first of all
//!   by a thread that has the dead one's stack, for what was left of that one has the same slots; but for those in which a coroutine's call is
//!   still waited for.
//! - **signals**: an entry is filled first and becomes the top then. Of a handler that interrupts that, the calls use the same entry as long as it is free,
//!   and lie above it from its key on, which the stub stores first. One that interrupts a return finds the entry free, and the top goes below it in any case.
//!   What a handler that does not come back has interrupted lies on top or above it, with a key that tells its slot: it goes as what longjmps leave. One that drops
//!   what the interrupted stub took for its caller leaves a free entry below that stub's, until it returns: then it is on top, and dropped.
//!
//! # Safety
//! What is unsafe here is memory of the region, which is mapped for good, and return slots of the calling thread's stack. The functions that stubs call run
//! anywhere, so they take no lock, allocate nothing and call no library.
#![allow(unsafe_code)]
use super::os;
use super::stale_frames::{self, Signals};
use crate::sys::fork;
use std::arch::{asm, global_asm};
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Calls of one thread whose returns are waited for at the same time, as in the kernel.
pub const DEPTH: usize = 64;
/// Shadow stacks: threads beyond that have no return probes.
const THREADS: usize = 32 << 10;
pub(super) const STACK_BYTES: usize = 4096;
/// A key that no slot has, and that does not count as alive: an entry above the top, or on top of one whose call returns just now.
pub(super) const FREE: u64 = 0;
/// A key that no slot has: the entry is done with, but not on top.
const HOLE: u64 = u64::MAX;
/// A key that no slot has, and that counts as alive: below the first entry, and behind the last.
pub(super) const END: u64 = 1 << 63;
/// Where in a thread's page the handler keeps what is the thread's (`slow_path.rs`), and how much it may be.
const OWN_AT: u64 = 3072;
pub(super) const OWN_BYTES: u64 = 512;
/// Ranges of code that stubs may be in.
const RANGES: usize = 1024;

/// One return that is waited for. Stubs know these offsets.
#[repr(C)]
pub(super) struct Entry {
    /// The complement of the address behind the return slot; while the entry is being filled that address itself.
    pub(super) key: AtomicU64,
    /// Where the function returns to.
    pub(super) origin: AtomicU64,
    /// The time stamp counter at the entry.
    pub(super) time: AtomicU64,
    /// Nothing: an entry begins at a multiple of its size.
    _rest: u64,
}

impl Entry {
    /// Becomes what another one is, with a key.
    pub(super) fn copy(&self, from: &Entry, key: u64) {
        // Relaxed, all: of one thread. The key last, for the handler of a signal.
        self.origin.store(from.origin.load(Ordering::Relaxed), Ordering::Relaxed);
        self.time.store(from.time.load(Ordering::Relaxed), Ordering::Relaxed);
        self.key.store(key, Ordering::Relaxed);
    }
}

pub(super) const ENTRY_BYTES: i32 = 32;
pub(super) const ORIGIN_AT: i32 = 8;
pub(super) const TIME_AT: i32 = 16;
/// From a shadow stack's bottom to its thread's number, 0 in the one that all threads begin with.
pub(super) const OWNER_AT: i32 = (DEPTH as i32 + 2) * ENTRY_BYTES + ORIGIN_AT;
const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES as usize && (DEPTH + 2) * 32 + 32 <= STACK_BYTES);

// A word for each thread at a fixed distance from its thread pointer, which stubs read without a call. It begins with the address of a
// shadow stack without room, which has two ENDs and no owner.
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

static BASE: AtomicU64 = AtomicU64::new(0);
static ASIDE: AtomicU64 = AtomicU64::new(0);
/// Shadow stacks that were ever taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);
static PROCESS: AtomicU32 = AtomicU32::new(0);
static MISSED: AtomicU64 = AtomicU64::new(0);
static RANGE_COUNT: AtomicU32 = AtomicU32::new(0);
static RANGE_LIST: [[AtomicU64; 2]; RANGES] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; RANGES];

/// From the thread pointer to the word that points to the top entry.
pub(super) fn top_offset() -> isize {
    kymo_shadow_offset()
}

/// Returns that were not looked at because a thread's shadow stack was full.
pub(super) fn missed() -> u64 {
    // Relaxed: a count.
    MISSED.load(Ordering::Relaxed)
}

/// Where unwinders find entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    /// The first shadow stack.
    pub(super) begin: u64,
    /// What is set aside of it (`stale_frames.rs`).
    pub(super) aside: u64,
    /// Where the number of shadow stacks is, 4 bytes.
    pub(super) count_at: u64,
}

/// Maps the region, once.
pub(super) fn region() -> io::Result<Region> {
    // Relaxed: only called under the patcher's lock.
    let mut base = BASE.load(Ordering::Relaxed);
    if base == 0 {
        base = os::wide_zeros(THREADS * STACK_BYTES, false)?;
        ASIDE.store(stale_frames::region(base, THREADS * STACK_BYTES)?, Ordering::Relaxed);
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // Release: pairs with the Acquire in claim().
        BASE.store(base, Ordering::Release);
    }
    let aside = ASIDE.load(Ordering::Relaxed);
    Ok(Region { begin: base, aside, count_at: TAKEN.as_ptr() as u64 })
}

/// Tells what is code of stubs, so that a return slot which still holds it is known.
pub(super) fn add_range(begin: u64, end: u64) -> bool {
    // Relaxed: only called under the patcher's lock.
    let at = RANGE_COUNT.load(Ordering::Relaxed) as usize;
    let Some(range) = RANGE_LIST.get(at) else { return false };
    range[0].store(begin, Ordering::Relaxed);
    range[1].store(end, Ordering::Relaxed);
    // Release: pairs with the Acquire in is_stub().
    RANGE_COUNT.store(at as u32 + 1, Ordering::Release);
    true
}

fn is_stub(address: u64) -> bool {
    // Acquire: pairs with the Release in add_range().
    let count = RANGE_COUNT.load(Ordering::Acquire) as usize;
    let mut at = 0;
    while at < count && at < RANGES {
        let range = &RANGE_LIST[at];
        // Relaxed: written before the count.
        if address >= range[0].load(Ordering::Relaxed) && address < range[1].load(Ordering::Relaxed) {
            return true;
        }
        at += 1;
    }
    false
}

pub(super) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the ABI keeps the thread pointer in its own first word.
    unsafe { asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

fn top() -> *mut u64 {
    thread_pointer().wrapping_add_signed(kymo_shadow_offset() as i64) as *mut u64
}

/// One entry of a shadow stack.
pub(super) fn entry(address: u64) -> &'static Entry {
    // SAFETY: the addresses that this file makes are of entries in the region or of kymo_shadow_none, mapped for good and made of atomics.
    unsafe { &*(address as *const Entry) }
}

/// A system call with four numbers, without the C library, whose functions may be probed.
pub(super) fn system(number: i64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    let result;
    // SAFETY: the callers pass numbers and addresses of locals; the kernel checks the others.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            in("r9") f, out("rcx") _, out("r11") _, options(nostack));
    };
    result
}

/// Whether a return slot, of any stack, still holds a stub. One that cannot be looked at (a filter of system calls) is taken for one that does.
pub(super) fn holds_stub(address: u64) -> bool {
    let mut word = 0_u64;
    let local = [&raw mut word as u64, 8];
    let remote = [address, 8];
    let pid = system(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u64;
    let (local, remote) = (local.as_ptr() as u64, remote.as_ptr() as u64);
    let got = system(libc::SYS_process_vm_readv, pid, local, 1, remote, 1, 0);
    // SAFETY: our own variable, which the kernel may have written.
    let word = unsafe { (&raw const word).read_volatile() };
    match got {
        8 => is_stub(word),
        error => error < 0 && error != -i64::from(libc::EFAULT),
    }
}

/// Takes a shadow stack for this thread; the address of its bottom.
fn claim() -> Option<u64> {
    // Acquire: pairs with the Release in region().
    let base = BASE.load(Ordering::Acquire);
    if base == 0 {
        return None;
    }
    let own = system(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as u64;
    let pid = system(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u64;
    // Relaxed: written once. A child of vfork has its parent's thread-local words: it would take a page for that thread, under a number that ends
    // first, and a third thread would take it from the living.
    if pid != u64::from(PROCESS.load(Ordering::Relaxed)) && !fork::is_child() {
        return None;
    }
    // Relaxed: a hint; owners are taken by exchange.
    let taken = TAKEN.load(Ordering::Relaxed);
    // A thread that had this thread's stack has ended. What it left would be taken for this one's by an unwinder. There may be several: of each but
    // the last something was awaited when the next one came.
    let pointer = thread_pointer();
    let mut taken_over = None;
    let mut at = 0;
    while at < taken {
        let bottom = base + u64::from(at) * STACK_BYTES as u64;
        let owner = owner(bottom);
        // Relaxed: the exchange below decides.
        let tid = owner.load(Ordering::Relaxed);
        if stack_of(bottom).load(Ordering::Relaxed) == pointer {
            forget_former(bottom);
            // Acquire: what the dead thread wrote is before our clearing.
            if taken_over.is_none()
                && !is_awaited(bottom)
                && owner.compare_exchange(tid, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                clear(bottom);
                taken_over = Some(bottom);
            } else {
                // Calls of coroutines are left to whoever goes on with them. If another thread has taken the page by now, the word is its own.
                _ = stack_of(bottom).compare_exchange(pointer, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        at += 1;
    }
    if taken_over.is_some() {
        return taken_over;
    }
    // The dead are looked for when the number of stacks would reach the next power of two; a forked child knows nobody's number.
    let search = taken >= 32 && taken.is_power_of_two() && pid == u64::from(PROCESS.load(Ordering::Relaxed));
    at = 0;
    while search && at < taken {
        let bottom = base + u64::from(at) * STACK_BYTES as u64;
        let owner = owner(bottom);
        // Relaxed: the exchange below decides.
        let tid = owner.load(Ordering::Relaxed);
        let dead = tid != 0 && system(libc::SYS_tgkill, pid, tid, 0, 0, 0, 0) == -i64::from(libc::ESRCH);
        let dead = dead && !is_awaited(bottom);
        // Acquire: what the dead thread wrote is before our clearing.
        if dead && owner.compare_exchange(tid, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            stack_of(bottom).store(pointer, Ordering::Relaxed);
            clear(bottom);
            return Some(bottom);
        }
        at += 1;
    }
    // Relaxed: a ticket. It stays where it is at the end of the region.
    let take = |taken: u32| (taken < THREADS as u32).then_some(taken + 1);
    let ticket = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
    let bottom = base + u64::from(ticket) * STACK_BYTES as u64;
    owner(bottom).store(own, Ordering::Relaxed);
    stack_of(bottom).store(pointer, Ordering::Relaxed);
    clear(bottom);
    Some(bottom)
}

/// The word that tells where a shadow stack's first call was, so that unwinders look there first for what is near.
fn near(bottom: u64) -> &'static AtomicU64 {
    &entry(bottom + (DEPTH as u64 + 2) * ENTRY_BYTES as u64).key
}

/// From a shadow stack's bottom to that word.
pub(super) const NEAR_AT: u16 = (DEPTH as u16 + 2) * ENTRY_BYTES as u16;

/// The word that names a shadow stack's stack: the thread pointer lies at its end.
fn stack_of(bottom: u64) -> &'static AtomicU64 {
    &entry(bottom + (DEPTH as u64 + 2) * ENTRY_BYTES as u64).time
}

/// Whether a call of a stack's dead thread may still return: one of a coroutine, which another thread goes on with.
fn is_awaited(bottom: u64) -> bool {
    let mut at = 1;
    while at <= DEPTH as u64 {
        // Relaxed: its thread is dead, and who returns for it makes a hole.
        let key = entry(bottom + at * ENTRY_BYTES as u64).key.load(Ordering::Relaxed);
        if key != FREE && key != HOLE && holds_stub(slot_of(key)) {
            return true;
        }
        at += 1;
    }
    false
}

/// Makes holes of a dead thread's calls on the stack that is this thread's now; calls of coroutines, elsewhere, stay. This thread has no calls in
/// that page, so whatever lies on its stack is the dead one's: also above the frame that runs now, where the next call may have the same slot.
fn forget_former(bottom: u64) {
    stale_frames::clear(bottom);
    let end = thread_pointer();
    let mut begin = 0;
    let mut at = 1;
    while at <= DEPTH as u64 {
        let found = entry(bottom + at * ENTRY_BYTES as u64);
        // Relaxed: its thread is dead.
        let key = found.key.load(Ordering::Relaxed);
        let slot = slot_of(key);
        at += 1;
        if key == FREE || key == HOLE || slot >= end {
            continue;
        }
        if begin == 0 {
            begin = mapping_begin(end);
        }
        if slot >= begin {
            _ = found.key.compare_exchange(key, HOLE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Where the mapping begins that holds an address; the address itself where that is not known. A thread's own data lie at the end of its stack.
pub(super) fn mapping_begin(held: u64) -> u64 {
    const PATH: &[u8] = b"/proc/self/maps\0";
    const CWD: u64 = libc::AT_FDCWD as u64;
    const PIECE: usize = 512;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    let file = system(libc::SYS_openat, CWD, PATH.as_ptr() as u64, flags, 0, 0, 0);
    if file < 0 {
        return held;
    }
    // The two numbers at a line's begin; then the rest of the line. Not in an array, and below not filled: that would be a call of the C library's
    // memset (without optimisation), which may be probed and come here again, and changes vector registers.
    let (mut first, mut second, mut which) = (0_u64, 0_u64, 0);
    let mut text = MaybeUninit::<[u8; PIECE]>::uninit();
    let mut begin = None;
    while begin.is_none() {
        let got = system(libc::SYS_read, file as u64, text.as_mut_ptr() as u64, PIECE as u64, 0, 0, 0);
        if got <= 0 {
            break;
        }
        let mut at = 0;
        while at < got as usize && at < PIECE && begin.is_none() {
            let byte = text.as_ptr().cast::<u8>().wrapping_add(at);
            // SAFETY: the kernel has written `got` bytes.
            let byte = unsafe { byte.read_volatile() };
            at += 1;
            let digit = match byte {
                b'0'..=b'9' => u64::from(byte - b'0'),
                b'a'..=b'f' => u64::from(byte - b'a') + 10,
                b'\n' => {
                    (first, second, which) = (0, 0, 0);
                    continue;
                }
                _ => {
                    which += 1;
                    if which == 2 && first <= held && held < second {
                        begin = Some(first);
                    }
                    continue;
                }
            };
            match which {
                0 => first = first << 4 | digit,
                1 => second = second << 4 | digit,
                _ => {}
            }
        }
    }
    system(libc::SYS_close, file as u64, 0, 0, 0, 0, 0);
    match begin {
        Some(begin) => begin,
        None => held,
    }
}

/// The word that names a stack's thread: behind the sentinel, where no key is.
fn owner(bottom: u64) -> &'static AtomicU64 {
    &entry(bottom + (DEPTH as u64 + 2) * ENTRY_BYTES as u64).origin
}

fn clear(bottom: u64) {
    let here = 0_u8;
    near(bottom).store(&raw const here as u64, Ordering::Relaxed);
    stale_frames::clear(bottom);
    // The handler of the thread that had it before is not running any more; its reader handle goes over.
    entry(bottom + OWN_AT).key.store(0, Ordering::Relaxed);
    let mut at = 0;
    while at < DEPTH as u64 + 2 {
        let entry = entry(bottom + at * ENTRY_BYTES as u64);
        let inside = at > 0 && at <= DEPTH as u64;
        // Relaxed: other threads only look for keys of slots, which these are not.
        entry.key.store(if inside { FREE } else { END }, Ordering::Relaxed);
        at += 1;
    }
}

fn is_bottom(address: u64) -> bool {
    address.is_multiple_of(STACK_BYTES as u64)
}

/// Whether an entry is of no thread's shadow stack: of the one that all begin with.
fn is_unassigned(at: u64) -> bool {
    // Relaxed: written by this thread.
    owner(at & !(STACK_BYTES as u64 - 1)).load(Ordering::Relaxed) == 0
}

/// The return slot of an entry with such a key, which is neither free nor a hole.
pub(super) fn slot_of(key: u64) -> u64 {
    let behind = if is_claim(key) { key } else { !key };
    behind.wrapping_sub(8)
}

/// Whether it is the key of an entry that is being filled, or never was: its call was left by a signal's handler in the midst of the stub.
fn is_claim(key: u64) -> bool {
    key != FREE && key < END
}

/// Gives this thread a shadow stack, for the sake of its number in it; the number. Called by stubs that find none.
pub(super) extern "C" fn adopt() -> u64 {
    let top = top();
    // SAFETY: this thread's word.
    let at = unsafe { top.read_volatile() };
    if is_unassigned(at)
        && let Some(bottom) = claim()
    {
        // SAFETY: this thread's word.
        unsafe { top.write_volatile(bottom) };
    }
    system(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as u64
}

/// This thread's number, and the handler's part of its page; null if it has none. Takes one for it if need be.
pub(super) fn own() -> (u32, u64) {
    // SAFETY: this thread's word.
    let at = unsafe { top().read_volatile() } & !(STACK_BYTES as u64 - 1);
    // Relaxed: written by this thread.
    let tid = owner(at).load(Ordering::Relaxed) as u32;
    if tid != 0 {
        return (tid, at + OWN_AT);
    }
    let tid = adopt() as u32;
    // SAFETY: as above.
    let at = unsafe { top().read_volatile() } & !(STACK_BYTES as u64 - 1);
    let taken = owner(at).load(Ordering::Relaxed) != 0;
    (tid, if taken { at + OWN_AT } else { 0 })
}

/// The entry for the call whose return slot is at `slot`, which the stub fills and makes the top; 0 if its return will not be looked at. Called by
/// stubs when the top is not simply an alive caller with a free entry above.
pub(super) extern "C" fn enter(slot: u64) -> u64 {
    let top = top();
    // SAFETY: this thread's word.
    let mut at = unsafe { top.read_volatile() };
    if is_unassigned(at) {
        let Some(bottom) = claim() else {
            MISSED.fetch_add(1, Ordering::Relaxed);
            return 0;
        };
        at = bottom;
    }
    // SAFETY: the stub that calls stands at a function's entry, where the stack pointer points to the return address.
    let origin = unsafe { (slot as *const u64).read_unaligned() };
    // What lies above the top is of calls whose stubs were interrupted in the midst: to go on below us, or left for good.
    while !matches!(entry(at + ENTRY_BYTES as u64).key.load(Ordering::Relaxed), FREE | END) {
        at += ENTRY_BYTES as u64;
    }
    let above = entry(at + ENTRY_BYTES as u64).key.load(Ordering::Relaxed);
    let its = entry(at).key.load(Ordering::Relaxed);
    if above == END && its > END && its != HOLE && slot_of(its) > slot {
        // As deep as can be, by calls that are alive: at once, for there may be thousands of them.
        MISSED.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    let signals = Signals::now(at & !(STACK_BYTES as u64 - 1));
    while !is_bottom(at) {
        // Relaxed: written by this thread, or set to HOLE by one that returned for it.
        let its = entry(at).key.load(Ordering::Relaxed);
        let its_slot = slot_of(its);
        // The first one that is gone; 0: none is.
        let gone = match its {
            // A landing that was interrupted when it had freed its entry sets the top below that itself.
            HOLE | FREE => at,
            _ if its_slot == slot => at * u64::from(is_claim(its) || !is_stub(origin)),
            _ if its_slot > slot && (signals.hold(slot) || !signals.hold(its_slot)) => 0,
            _ if !holds_stub(its_slot) => at,
            _ => set_aside(at, its, signals, slot),
        };
        if gone == 0 {
            break;
        }
        while at >= gone {
            entry(at).key.store(FREE, Ordering::Relaxed);
            at -= ENTRY_BYTES as u64;
            // SAFETY: this thread's word.
            unsafe { top.write_volatile(at) };
        }
    }
    let mut new = at + ENTRY_BYTES as u64;
    // A signal stack may lie above the thread's own, whose calls would take what a handler has left there for their callers. So each of its entries has a hole
    // above it, with which all calls come here.
    if signals.hold(slot) && !is_bottom(at) && signals.hold(slot_of(entry(at).key.load(Ordering::Relaxed))) {
        guard(new);
        new += ENTRY_BYTES as u64 * u64::from(entry(new).key.load(Ordering::Relaxed) == HOLE);
    }
    if entry(new).key.load(Ordering::Relaxed) == END {
        MISSED.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    if signals.hold(slot) {
        guard(new + ENTRY_BYTES as u64);
        signals.remember(at & !(STACK_BYTES as u64 - 1));
    }
    new
}

/// Makes a hole of a free entry.
fn guard(at: u64) {
    let found = entry(at);
    if found.key.load(Ordering::Relaxed) == FREE {
        found.key.store(HOLE, Ordering::Relaxed);
    }
}

/// Takes the top call, `last`, out of its shadow stack, with those that share its slot, if it has been left as far as a call at `slot` can know;
/// the first of them, 0 if it stays.
fn set_aside(last: u64, key: u64, signals: Signals, slot: u64) -> u64 {
    let bottom = last & !(STACK_BYTES as u64 - 1);
    if !stale_frames::is_left(bottom, signals, slot_of(key), slot) {
        return 0;
    }
    let (mut first, mut count) = (last, 1);
    while entry(first - ENTRY_BYTES as u64).key.load(Ordering::Relaxed) == key {
        first -= ENTRY_BYTES as u64;
        count += 1;
    }
    // What was never filled is waited for by nobody.
    if is_claim(key) || stale_frames::put(bottom, signals, (first, count), slot) { first } else { 0 }
}

/// What a stub gets back for a return.
#[repr(C)]
pub(super) struct ReturnTarget {
    origin: u64,
    time: u64,
}

/// Where the call returns whose return slot is at `slot`, when that is not simply the top entry.
pub(super) extern "C" fn leave(slot: u64, target: &mut ReturnTarget) {
    let key = !(slot + 8);
    let top = top();
    // SAFETY: this thread's word.
    let highest = unsafe { top.read_volatile() };
    let mut at = highest;
    let mut droppable = true;
    while !is_bottom(at) {
        let found = entry(at);
        let its = found.key.load(Ordering::Relaxed);
        if its == key {
            target.origin = found.origin.load(Ordering::Relaxed);
            target.time = found.time.load(Ordering::Relaxed);
            if droppable {
                // Everything above is of frames that are gone.
                let mut above = highest;
                while above >= at {
                    entry(above).key.store(FREE, Ordering::Relaxed);
                    above -= ENTRY_BYTES as u64;
                    // SAFETY: this thread's word.
                    unsafe { top.write_volatile(above) };
                }
            } else {
                found.key.store(HOLE, Ordering::Relaxed);
            }
            return;
        }
        let its_slot = slot_of(its);
        droppable &= its == HOLE || its == FREE || (its_slot < slot && !holds_stub(its_slot));
        at -= ENTRY_BYTES as u64;
    }
    let bottom = highest & !(STACK_BYTES as u64 - 1);
    if !is_unassigned(highest)
        && let Some(found) = stale_frames::find(bottom, key)
    {
        target.origin = found.origin.load(Ordering::Relaxed);
        target.time = found.time.load(Ordering::Relaxed);
        found.key.store(FREE, Ordering::Relaxed);
        return;
    }
    if !steal(key, target) {
        // Nobody knows where to go on: setjmp-like functions are refused for that reason, so this is a stack that was copied.
        const WORDS: &[u8] = b"kymo: a probed function returned on a stack that it was not called on; the program cannot go on\n";
        system(libc::SYS_write, 2, WORDS.as_ptr() as u64, WORDS.len() as u64, 0, 0, 0);
        let pid = system(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u64;
        system(libc::SYS_kill, pid, libc::SIGABRT as u64, 0, 0, 0, 0);
        system(libc::SYS_exit_group, 134, 0, 0, 0, 0, 0);
    }
}

/// Takes an entry out of another thread's shadow stack: a coroutine began there and returns here.
fn steal(key: u64, target: &mut ReturnTarget) -> bool {
    // Acquire: pairs with the Release in region().
    let base = BASE.load(Ordering::Acquire);
    let taken = u64::from(TAKEN.load(Ordering::Relaxed));
    // Of several entries for one place the last one is the call's.
    let mut at = base + taken * STACK_BYTES as u64;
    while at > base {
        at -= ENTRY_BYTES as u64;
        let found = entry(at);
        // Acquire: stubs store the key last, and x86-64 keeps stores in order.
        if found.key.load(Ordering::Acquire) == key {
            target.origin = found.origin.load(Ordering::Relaxed);
            target.time = found.time.load(Ordering::Relaxed);
            if found.key.compare_exchange(key, HOLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }
    false
}
