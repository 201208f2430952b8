//! Calls that were left by a longjmp or an exception, as it seems, though their return slots still
//! hold the stub.
//!
//! A call whose return slot lies below another one's on the same stack is over, and so is one on
//! the signal stack when the thread is on its own again. Where they are on two other stacks, it is
//! not: a coroutine goes on. The stacks that are known are the thread's own and its signal stack;
//! but a program may have placed a coroutine's in the middle of its own. So what is left is not
//! forgotten but set aside, where `leave` (`shadow/calls.rs`) and unwinders (`codegen/unwind.rs`)
//! look last, until its slot holds something else.
//!
//! ```text
//!   shadow stack (4 KiB)                 aside (4 KiB, at the same place of another region)
//!   |  entry 3: slot 7e40, left |  -->   |  entry 1: slot 7e40    |
//!   |  entry 2: slot 7e80, left |  -->   |  entry 2: slot 7e80    |
//!   |  entry 1: slot 7f00       |        |  used, own stack       |
//! ```
//!
//! - **A1** What is set aside still returns to where it was called from.
//! - **A2** Of one slot it has the last call only: each new one proves that those before were left.
//!   But calls that share a slot by tail calls stay together.
//! - **A3** Nothing is set aside that a handler of a signal may have interrupted: that has its slot
//!   above the handler's, or on another known stack.
//! - **A4** Where there is no room, the entry stays where it was: then returns are missed sooner,
//!   none goes astray.
//!
//! # Safety
//! As in `shadow.rs`: what is unsafe are atomics in memory that is mapped for good, and system
//! calls with addresses of locals.
#![allow(unsafe_code)]
use super::shadow::page::{EntryAt, ShadowEntry, ShadowStack, process_id, thread_id, thread_pointer};
use super::shadow::return_slot::{holds_stub, mapping_begin, slot_of};
use crate::patch::layout::{ENTRY_BYTES, FREE, STACK_BYTES, STALE_ENTRIES};
use crate::patch::mapping::Mapping;
use crate::patch::os;
use crate::sys::raw;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// A page that is full is tidied up when it was found so as often.
const TIDY_INTERVAL: u64 = 64;

/// From a shadow stack to its page.
static DISTANCE: AtomicU64 = AtomicU64::new(0);
/// Where the main thread's stack ends; 0: not known.
static MAIN_END: AtomicU64 = AtomicU64::new(0);
/// So far below that nothing else is mapped: the kernel keeps twice as much free at least.
const MAIN_BYTES: u64 = 64 << 20;

/// What a page begins with.
#[repr(C)]
struct PageHeader {
    /// The last entry that was ever used.
    used: AtomicU64,
    /// The thread's own stack; 0: not looked for yet.
    begin: AtomicU64,
    end: AtomicU64,
    /// The return slot of the call that is at it just now, or was when it was left; 0: none.
    busy: AtomicU64,
}
const _: () = assert!(size_of::<PageHeader>() == ENTRY_BYTES as usize);

/// Maps the region for as many bytes of shadow stacks, which begin at `base`; its begin.
pub(crate) fn map(base: u64, bytes: u64) -> io::Result<u64> {
    let stale = Mapping::zeros(bytes)?.address();
    // The field behind the name, which may contain anything, that says where the first stack began.
    let stat = os::text("/proc/self/stat").unwrap_or_default();
    let end = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(25));
    MAIN_END.store(end.and_then(|end| end.parse().ok()).unwrap_or(0), Ordering::Relaxed);
    // Relaxed: who has a shadow stack has seen what was stored before the region of these was.
    DISTANCE.store(stale.wrapping_sub(base), Ordering::Relaxed);
    Ok(stale)
}

fn page(of: ShadowStack) -> u64 {
    of.address().wrapping_add(DISTANCE.load(Ordering::Relaxed))
}

fn header(of: ShadowStack) -> &'static PageHeader {
    // SAFETY: a shadow stack's page, mapped for good and zeroed, made of atomics.
    unsafe { &*(page(of) as *const PageHeader) }
}

fn entry(of: ShadowStack, at: u64) -> &'static ShadowEntry {
    // SAFETY: inside of the page, wherever that is in it.
    unsafe { &*((page(of) + at * ENTRY_BYTES as u64 % STACK_BYTES as u64) as *const ShadowEntry) }
}

/// Of this thread, as all below: relaxed is enough but where said.
fn used(stack: ShadowStack) -> u64 {
    header(stack).used.load(Ordering::Relaxed).min(STALE_ENTRIES)
}

/// Forgets all: the thread is dead, and so are the stacks that it had, or the page is another
/// thread's now.
pub(crate) fn clear(stack: ShadowStack) {
    let (header, last) = (header(stack), entry(stack, STALE_ENTRIES + 1));
    let mut at = used(stack);
    while at > 0 {
        entry(stack, at).key.store(FREE, Ordering::Relaxed);
        at -= 1;
    }
    zero(&header.used);
    zero(&header.busy);
    zero(&header.end);
    zero(&last.key);
}

/// A page that nothing was written to takes no room.
fn zero(word: &AtomicU64) {
    if word.load(Ordering::Relaxed) != 0 {
        word.store(0, Ordering::Relaxed);
    }
}

/// The last entry with this key.
pub(crate) fn find(stack: ShadowStack, key: u64) -> Option<&'static ShadowEntry> {
    let mut at = used(stack);
    while at > 0 {
        let found = entry(stack, at);
        if found.key.load(Ordering::Relaxed) == key {
            return Some(found);
        }
        at -= 1;
    }
    None
}

/// The thread's signal stack, or the last one that it had and made calls on.
#[derive(Clone, Copy)]
pub(crate) struct SignalStack {
    begin: u64,
    /// 0: there is none.
    bytes: u64,
}

/// `stack_t`. Not an array, which the C library's memset would fill, without optimisation.
#[repr(C)]
struct Alternative {
    begin: u64,
    flags: u64,
    bytes: u64,
}

impl SignalStack {
    pub(crate) fn now(stack: ShadowStack) -> SignalStack {
        let mut found = Alternative { begin: 0, flags: 0, bytes: 0 };
        // SAFETY: the kernel writes into our own variable.
        let got = unsafe { raw::call(libc::SYS_sigaltstack, [0, &raw mut found as u64, 0, 0, 0, 0]) };
        // SAFETY: our own variable, which the kernel may have written.
        let Alternative { begin, flags, bytes } = unsafe { (&raw const found).read_volatile() };
        if got == 0 && flags as u32 & libc::SS_DISABLE as u32 == 0 {
            return SignalStack { begin, bytes };
        }
        let last = entry(stack, STALE_ENTRIES + 1);
        SignalStack { begin: last.origin.load(Ordering::Relaxed), bytes: last.key.load(Ordering::Relaxed) }
    }

    pub(crate) fn remember(self, stack: ShadowStack) {
        let last = entry(stack, STALE_ENTRIES + 1);
        last.origin.store(self.begin, Ordering::Relaxed);
        last.key.store(self.bytes, Ordering::Relaxed);
    }

    pub(crate) fn hold(self, slot: u64) -> bool {
        slot.wrapping_sub(self.begin) < self.bytes
    }
}

/// Whether a call whose slot still holds the stub has been left, as far as another one, whose slot
/// is `now`, can know.
pub(crate) fn is_left(stack: ShadowStack, signals: SignalStack, slot: u64, now: u64) -> bool {
    if signals.hold(now) {
        return signals.hold(slot) && slot < now;
    }
    let header = header(stack);
    if header.end.load(Ordering::Relaxed) == 0 {
        let (begin, end) = own_stack();
        header.begin.store(begin, Ordering::Relaxed);
        header.end.store(end, Ordering::Relaxed);
    }
    let (begin, end) = (header.begin.load(Ordering::Relaxed), header.end.load(Ordering::Relaxed));
    // Whoever is on the thread's own stack is in no handler on the signal stack.
    now >= begin && now < end && (signals.hold(slot) || (slot >= begin && slot < now))
}

/// This thread's own stack.
fn own_stack() -> (u64, u64) {
    let main = MAIN_END.load(Ordering::Relaxed);
    let is_main = thread_id() == process_id();
    if is_main && main > MAIN_BYTES {
        return (main - MAIN_BYTES, main);
    }
    let end = thread_pointer();
    (mapping_begin(end), end)
}

/// Sets the calls with this key aside, `count` entries of the shadow stack from the one at `first`
/// on, for a call whose slot is `now`. Whether there was room.
///
/// A handler of a signal may come at any moment and drop these entries: then they have another key,
/// and are not set aside.
pub(crate) fn put(
    stack: ShadowStack,
    signals: SignalStack,
    (first, count, key): (EntryAt, u64, u64),
    now: u64,
) -> bool {
    let header = header(stack);
    let busy = header.busy.load(Ordering::Relaxed);
    // By a call that this one has interrupted, unless that was left: it lies below, or was in a
    // handler.
    if busy != 0 && !is_left(stack, signals, busy, now + 1) {
        return false;
    }
    header.busy.store(now, Ordering::Relaxed);
    forget(stack, key);
    let mut place = place_for(stack, count);
    // Not each time: it looks at all slots.
    if place == 0 && times_full(stack).fetch_add(1, Ordering::Relaxed).is_multiple_of(TIDY_INTERVAL) {
        tidy(stack);
        place = place_for(stack, count);
    }
    let mut done = 0;
    let mut from = first;
    while place != 0 && done < count && from.key.load(Ordering::Relaxed) == key {
        entry(stack, place + done).copy(&from, key);
        from = from.above();
        done += 1;
    }
    header.busy.store(0, Ordering::Relaxed);
    place != 0 && done == count
}

/// Frees all entries with this key. Each is looked at once: a handler of a signal that changes the
/// page meanwhile must not keep this going.
fn forget(stack: ShadowStack, key: u64) {
    let mut at = used(stack);
    while at > 0 {
        let found = entry(stack, at);
        if found.key.load(Ordering::Relaxed) == key {
            found.key.store(FREE, Ordering::Relaxed);
        }
        at -= 1;
    }
}

/// Free entries one behind the other, from now on among the used ones; 0: there are none.
fn place_for(stack: ShadowStack, count: u64) -> u64 {
    let (mut at, mut free) = (1, 0);
    while at <= STALE_ENTRIES {
        let is_free = entry(stack, at).key.load(Ordering::Relaxed) == FREE;
        free = if is_free { free + 1 } else { 0 };
        if free == count {
            if at > used(stack) {
                header(stack).used.store(at, Ordering::Relaxed);
            }
            return at + 1 - count;
        }
        at += 1;
    }
    0
}

/// How often the page was found full.
fn times_full(stack: ShadowStack) -> &'static AtomicU64 {
    &entry(stack, STALE_ENTRIES + 1).time
}

/// Forgets what is over for sure.
fn tidy(stack: ShadowStack) {
    let mut at = 1;
    while at <= STALE_ENTRIES {
        let found = entry(stack, at);
        let key = found.key.load(Ordering::Relaxed);
        if key != FREE && !holds_stub(slot_of(key)) {
            found.key.store(FREE, Ordering::Relaxed);
        }
        at += 1;
    }
}
