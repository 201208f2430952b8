//! Gives threads their shadow stacks, and those of ended threads to others.
//!
//! # Safety
//! The region is mapped for good before it is known, and a system call asks whether a thread lives.
#![allow(unsafe_code)]
use super::page::{self, HOLE, ShadowStack, THREADS, process_id, thread_id, thread_pointer};
use super::return_slot::{holds_stub, mapping_begin, slot_of};
use crate::patch::layout::{DEPTH, FREE, STACK_BYTES, ShadowRegion};
use crate::patch::mapping::Mapping;
use crate::patch::runtime::stale_frames;
use crate::sys::{fork, raw, restriction};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first page of stale frames; 0 before there is one.
static STALE: AtomicU64 = AtomicU64::new(0);
/// The process that mapped the region.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Maps the region, once.
pub(crate) fn region() -> io::Result<ShadowRegion> {
    let begin = match page::base() {
        Some(begin) => begin,
        None => {
            let bytes = u64::from(THREADS) * STACK_BYTES as u64;
            let begin = Mapping::zeros(bytes)?.address();
            // Relaxed: only called under the patcher's lock; and for those who see the base, before
            // it.
            STALE.store(stale_frames::map(begin, bytes)?, Ordering::Relaxed);
            PROCESS.store(std::process::id(), Ordering::Relaxed);
            // SAFETY: mapped just now.
            unsafe { page::set_base(begin) };
            begin
        }
    };
    Ok(ShadowRegion { begin, stale: STALE.load(Ordering::Relaxed), count_at: page::taken_at() })
}

/// Takes a shadow stack for this thread.
pub(super) fn claim() -> Option<ShadowStack> {
    page::base()?;
    // Nothing below but system calls.
    if restriction::is_on() {
        return None;
    }
    let (own, pid) = (thread_id(), process_id());
    // Relaxed: written once.
    let is_ours = pid == u64::from(PROCESS.load(Ordering::Relaxed));
    // A child of vfork has its parent's thread-local words: it would take a page for that thread,
    // under a number that ends first, and a third thread would take it from the living.
    if !is_ours && !fork::is_child() {
        return None;
    }
    let taken = page::taken();
    let taken_over = take_over(own, taken);
    if taken_over.is_some() {
        return taken_over;
    }
    // The dead are looked for when the number of stacks would reach the next power of two; a forked
    // child knows nobody's number.
    if taken >= 32 && taken.is_power_of_two() && is_ours {
        let found = take_of_dead(own, pid, taken);
        if found.is_some() {
            return found;
        }
    }
    let stack = page::take_new()?;
    stack.owner().store(own, Ordering::Relaxed);
    stack.thread_stack().store(thread_pointer(), Ordering::Relaxed);
    clear(stack);
    Some(stack)
}

/// Takes the shadow stack of a thread that had this thread's stack, and has ended. What it left
/// would be taken for this one's by an unwinder. There may be several: of each but the last
/// something was awaited when the next one came.
fn take_over(own: u64, taken: u32) -> Option<ShadowStack> {
    let pointer = thread_pointer();
    let mut taken_over = None;
    let mut at = 0;
    while let (true, Some(stack)) = (at < taken, page::stack(at)) {
        at += 1;
        // Relaxed: the exchange below decides.
        let tid = stack.owner().load(Ordering::Relaxed);
        if stack.thread_stack().load(Ordering::Relaxed) != pointer {
            continue;
        }
        forget_former(stack);
        // Acquire: what the dead thread wrote is before our clearing.
        if taken_over.is_none()
            && !is_awaited(stack)
            && stack.owner().compare_exchange(tid, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            clear(stack);
            taken_over = Some(stack);
        } else {
            // Calls of coroutines are left to whoever goes on with them. If another thread has
            // taken the page by now, the word is its own.
            _ = stack.thread_stack().compare_exchange(pointer, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    taken_over
}

/// Takes the shadow stack of any thread that has ended.
fn take_of_dead(own: u64, pid: u64, taken: u32) -> Option<ShadowStack> {
    let mut at = 0;
    while let (true, Some(stack)) = (at < taken, page::stack(at)) {
        at += 1;
        // Relaxed: the exchange below decides.
        let tid = stack.owner().load(Ordering::Relaxed);
        // SAFETY: three numbers; signal 0 is none.
        let lives =
            || unsafe { raw::call(libc::SYS_tgkill, [pid, tid, 0, 0, 0, 0]) } != -i64::from(libc::ESRCH);
        let free = tid != 0 && !lives() && !is_awaited(stack);
        // Acquire: what the dead thread wrote is before our clearing.
        if free && stack.owner().compare_exchange(tid, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            stack.thread_stack().store(thread_pointer(), Ordering::Relaxed);
            clear(stack);
            return Some(stack);
        }
    }
    None
}

/// Whether a call of a stack's dead thread may still return: one of a coroutine, which another
/// thread goes on with.
fn is_awaited(stack: ShadowStack) -> bool {
    let mut at = 1;
    while at <= DEPTH as u64 {
        // Relaxed: its thread is dead, and who returns for it makes a hole.
        let key = stack.entry(at).key.load(Ordering::Relaxed);
        if key != FREE && key != HOLE && holds_stub(slot_of(key)) {
            return true;
        }
        at += 1;
    }
    false
}

/// Makes holes of a dead thread's calls on the stack that is this thread's now; calls of
/// coroutines, elsewhere, stay. This thread has no calls in that page, so whatever lies on its
/// stack is the dead one's: also above the frame that runs now, where the next call may have the
/// same slot.
fn forget_former(stack: ShadowStack) {
    stale_frames::clear(stack);
    let end = thread_pointer();
    let mut begin = 0;
    let mut at = 1;
    while at <= DEPTH as u64 {
        let found = stack.entry(at);
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

fn clear(stack: ShadowStack) {
    let here = 0_u8;
    stack.near().store(&raw const here as u64, Ordering::Relaxed);
    stale_frames::clear(stack);
    // The slow path of the thread that had it before is not running any more; its reader handle
    // goes over.
    stack.clear_slow_path();
    stack.clear_held();
    stack.clear_entries();
}
