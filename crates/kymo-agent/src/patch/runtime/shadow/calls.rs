//! What stubs call at entries and returns that are not simply the top of the shadow stack.
//!
//! # Safety
//! Return slots of the calling thread's stack, by the stubs' word; and system calls.
#![allow(unsafe_code)]
use super::claim::claim;
use super::page::{self, END, EntryAt, HOLE, set_top, thread_id, top};
use super::return_slot::{holds_stub, is_claim, is_stub, slot_of};
use crate::patch::layout::{ENTRY_BYTES, FREE, ReturnTarget, STACK_BYTES};
use crate::patch::runtime::stale_frames::{self, SignalStack};
use crate::sys::raw::call;
use std::sync::atomic::{AtomicU64, Ordering};

static MISSED: AtomicU64 = AtomicU64::new(0);

/// How many returns of this process's calls were not looked at, because more than
/// [`DEPTH`](crate::patch::DEPTH) calls of a thread were waited for.
pub fn missed() -> u64 {
    // Relaxed: a count.
    MISSED.load(Ordering::Relaxed)
}

/// Gives this thread a shadow stack, for the sake of its number in it; the number. Called by stubs
/// that find none.
pub(crate) extern "C" fn adopt() -> u64 {
    if top().stack().is_none()
        && let Some(stack) = claim()
    {
        set_top(stack.bottom());
    }
    thread_id()
}

/// This thread's number, and the slow path's part of its shadow stack; null if it has none. Takes
/// one for it if need be.
pub(crate) fn own() -> (u32, *mut u8) {
    let found = || {
        let stack = top().stack()?;
        // Relaxed: written by this thread.
        Some((stack.owner().load(Ordering::Relaxed) as u32, stack.slow_path()))
    };
    match found() {
        Some(own) => own,
        None => {
            let tid = adopt() as u32;
            match found() {
                Some((_, part)) => (tid, part),
                None => (tid, std::ptr::null_mut()),
            }
        }
    }
}

/// The entry for the call whose return slot is at `slot`, which the stub fills and makes the top; 0
/// if its return will not be looked at. Called by stubs when the top is not simply an alive caller
/// with a free entry above.
///
/// # Safety
/// `slot` is a word of this thread's stack: the calling stub stands at a function's entry.
pub(crate) unsafe extern "C" fn enter(slot: u64) -> u64 {
    let mut at = top();
    let stack = match at.stack() {
        Some(stack) => stack,
        None => {
            let Some(stack) = claim() else { return miss() };
            at = stack.bottom();
            stack
        }
    };
    // SAFETY: the caller's.
    let origin = unsafe { (slot as *const u64).read_unaligned() };
    // What lies above the top is of calls whose stubs were interrupted in the midst: to go on below
    // us, or left for good.
    while !matches!(at.above().key.load(Ordering::Relaxed), FREE | END) {
        at = at.above();
    }
    let above = at.above().key.load(Ordering::Relaxed);
    let its = at.key.load(Ordering::Relaxed);
    if above == END && its > END && its != HOLE && slot_of(its) > slot {
        // As deep as can be, by calls that are alive: at once, for there may be thousands of them.
        return miss();
    }
    let signals = SignalStack::now(stack);
    while !at.is_bottom() {
        // Relaxed: written by this thread, or set to HOLE by one that returned for it.
        let its = at.key.load(Ordering::Relaxed);
        let its_slot = slot_of(its);
        // The first one that is gone.
        let gone = match its {
            // A landing that was interrupted when it had freed its entry sets the top below that
            // itself.
            HOLE | FREE => Some(at),
            _ if its_slot == slot => (is_claim(its) || !is_stub(origin)).then_some(at),
            _ if its_slot > slot && (signals.hold(slot) || !signals.hold(its_slot)) => None,
            _ if !holds_stub(its_slot) => Some(at),
            _ => set_aside(at, its, signals, slot),
        };
        let Some(gone) = gone else { break };
        while at >= gone {
            at.key.store(FREE, Ordering::Relaxed);
            at = at.below();
            set_top(at);
        }
    }
    let mut new = at.above();
    // A signal stack may lie above the thread's own, whose calls would take what a handler has left
    // there for their callers. So each of its entries has a hole above it, with which all calls
    // come here.
    if signals.hold(slot) && !at.is_bottom() && signals.hold(slot_of(at.key.load(Ordering::Relaxed))) {
        guard(new);
        if new.key.load(Ordering::Relaxed) == HOLE {
            new = new.above();
        }
    }
    if new.key.load(Ordering::Relaxed) == END {
        return miss();
    }
    if signals.hold(slot) {
        guard(new.above());
        signals.remember(stack);
    }
    new.address()
}

/// Counts a return that is not looked at.
fn miss() -> u64 {
    MISSED.fetch_add(1, Ordering::Relaxed);
    0
}

/// Makes a hole of a free entry.
fn guard(at: EntryAt) {
    if at.key.load(Ordering::Relaxed) == FREE {
        at.key.store(HOLE, Ordering::Relaxed);
    }
}

/// Takes the top call, `last`, out of its shadow stack, with those that share its slot, if it has
/// been left as far as a call at `slot` can know; the first of them, if it does not stay.
fn set_aside(last: EntryAt, key: u64, signals: SignalStack, slot: u64) -> Option<EntryAt> {
    let stack = last.stack()?;
    if !stale_frames::is_left(stack, signals, slot_of(key), slot) {
        return None;
    }
    let (mut first, mut count) = (last, 1);
    while first.below().key.load(Ordering::Relaxed) == key {
        first = first.below();
        count += 1;
    }
    // What was never filled is waited for by nobody.
    (is_claim(key) || stale_frames::put(stack, signals, (first, count, key), slot)).then_some(first)
}

/// Where the call returns whose return slot is at `slot`, when that is not simply the top entry.
/// Called by stubs.
///
/// # Safety
/// `slot` is a word of this thread's stack, and `target` a stub's room.
pub(crate) unsafe extern "C" fn leave(slot: u64, target: &mut ReturnTarget) {
    let key = !(slot + 8);
    let highest = top();
    let mut at = highest;
    let mut droppable = true;
    while !at.is_bottom() {
        let its = at.key.load(Ordering::Relaxed);
        if its == key {
            take(&at, target);
            if droppable {
                // Everything above is of frames that are gone.
                let mut above = highest;
                while above >= at {
                    above.key.store(FREE, Ordering::Relaxed);
                    above = above.below();
                    set_top(above);
                }
            } else {
                at.key.store(HOLE, Ordering::Relaxed);
            }
            return;
        }
        let its_slot = slot_of(its);
        droppable &= its == HOLE || its == FREE || (its_slot < slot && !holds_stub(its_slot));
        at = at.below();
    }
    if let Some(stack) = highest.stack()
        && let Some(found) = stale_frames::find(stack, key)
    {
        take(found, target);
        found.key.store(FREE, Ordering::Relaxed);
        return;
    }
    if !steal(key, target) {
        end_program();
    }
}

/// Gives a stub what an entry says.
fn take(from: &page::ShadowEntry, target: &mut ReturnTarget) {
    target.origin = from.origin.load(Ordering::Relaxed);
    target.time = from.time.load(Ordering::Relaxed);
}

/// No entry knows where to go on: setjmp-like functions are refused for that reason, so this is a
/// stack that was copied.
fn end_program() {
    const WORDS: &[u8] =
        b"kymo: a probed function returned on a stack that was copied; the program cannot go on: leave --engine shadow out\n";
    // SAFETY: bytes that are read.
    unsafe { call(libc::SYS_write, [2, WORDS.as_ptr() as u64, WORDS.len() as u64, 0, 0, 0]) };
    // SAFETY: two numbers.
    unsafe { call(libc::SYS_kill, [page::process_id(), libc::SIGABRT as u64, 0, 0, 0, 0]) };
    // SAFETY: a number.
    unsafe { call(libc::SYS_exit_group, [134, 0, 0, 0, 0, 0]) };
}

/// Takes an entry out of another thread's shadow stack: a coroutine began there and returns here.
fn steal(key: u64, target: &mut ReturnTarget) -> bool {
    // Of several entries for one place the last one is the call's.
    let mut number = page::taken();
    while number > 0 {
        number -= 1;
        let Some(stack) = page::stack(number) else { return false };
        let mut at = STACK_BYTES as u64 / ENTRY_BYTES as u64;
        while at > 0 {
            at -= 1;
            let found = stack.entry(at);
            // Acquire: stubs store the key last, and x86-64 keeps stores in order.
            if found.key.load(Ordering::Acquire) == key {
                take(&found, target);
                if found.key.compare_exchange(key, HOLE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                    return true;
                }
            }
        }
    }
    false
}
