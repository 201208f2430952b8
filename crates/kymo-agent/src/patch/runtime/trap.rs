//! The handler of traps, for threads that run into a patch while it is put in place.
//!
//! A thread that executes the [`TRAP`] at a site's begin, or at one of the instructions that the
//! jump is about to replace, is sent to the stub or to the moved copy of that instruction. Traps
//! that are not ours go to whoever handled them before.
//!
//! # Safety
//! Everything here runs in a signal handler of any thread at any moment: it takes no lock,
//! allocates nothing, and calls nothing of any library, for those functions may be the ones that
//! are being patched.
#![allow(unsafe_code)]
use super::frames;
use crate::sys::{raw, restriction};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The instruction that stands where a jump is about to be: `UDB`, one byte that every processor
/// refuses in 64-bit mode (Intel SDM, volume 2, "UDB"). Not `int3`: where the kernel has a uprobe
/// at this place of the file, for whichever process, it takes an `int3` for its own, executes the
/// instruction of the file, and the thread goes on inside of the jump.
pub(crate) const TRAP: u8 = 0xd6;
/// What a thread gets that executes it.
pub(crate) const SIGNAL: c_int = libc::SIGILL;
/// The same as a bit of the kernel's sets of signals.
pub(crate) const SIGNAL_BIT: u64 = 1 << (SIGNAL - 1);

/// Where a thread goes that stands at an address of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Detour {
    /// The address of a site, or of an instruction inside a site's bytes.
    pub(crate) from: u64,
    /// In the stub; 0: the patch is gone, the instruction at `from` is the program's again.
    pub(crate) to: u64,
    /// Whether `from` is inside a site: then a thread that merely stands there moves, too.
    pub(crate) interior: bool,
}

/// All detours, sorted; null before the first.
static DETOURS: AtomicPtr<Vec<Detour>> = AtomicPtr::new(ptr::null_mut());
/// Handlers that may be reading a table of detours.
static READERS: AtomicUsize = AtomicUsize::new(0);
/// The current round of questions (the upper half), and how many threads have answered it: in one
/// word, so that a late answer to an earlier round cannot count for a round that begins meanwhile.
static ANSWERS: AtomicU64 = AtomicU64::new(0);
/// Threads that are changing the handler of traps, and may not have seen that traps come to us.
static CHANGING: AtomicU64 = AtomicU64::new(0);

/// Does what changes the handler of traps, in a thread of the program.
pub(crate) fn changing<T>(change: impl FnOnce() -> T) -> T {
    // SeqCst: pairs with is_changing(): who passes by us is seen there, or sees that traps come to
    // us.
    CHANGING.fetch_add(1, Ordering::SeqCst);
    let done = change();
    CHANGING.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Whether a thread does that just now.
pub(crate) fn is_changing() -> bool {
    // SeqCst: see changing().
    CHANGING.load(Ordering::SeqCst) > 0
}

/// A handler of [`SIGNAL`] that the program installed, and that is behind ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProgramHandler {
    pub(crate) handler: usize,
    pub(crate) flags: c_int,
    /// The signals that it blocks.
    pub(crate) mask: u64,
}

/// The last of them, in turn: who reads one is done long before its place is taken again.
struct HandlerSlot {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}
const PLACES: usize = 64;
static BEHIND: [HandlerSlot; PLACES] = [const {
    HandlerSlot { handler: AtomicUsize::new(0), flags: AtomicI32::new(0), mask: AtomicU64::new(0) }
}; PLACES];
/// Places that were taken, and the last one that is filled; 0: none was.
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Has the program's handler behind ours. Safe in a signal's handler.
pub(crate) fn set_program_handler(action: ProgramHandler) {
    // Relaxed: a ticket.
    let place = BEGUN.fetch_add(1, Ordering::Relaxed);
    let of = &BEHIND[place % PLACES];
    of.handler.store(action.handler, Ordering::Relaxed);
    of.flags.store(action.flags, Ordering::Relaxed);
    of.mask.store(action.mask, Ordering::Relaxed);
    // Release: pairs with the Acquire in behind(): who finds the place finds what is in it.
    FILLED.fetch_max(place + 1, Ordering::Release);
}

/// The program's handler; `None` before the first `install`. Safe in a signal's handler.
pub(crate) fn program_handler() -> Option<ProgramHandler> {
    loop {
        // Acquire: pairs with the Release in put_behind().
        let filled = FILLED.load(Ordering::Acquire);
        let of = &BEHIND[filled.checked_sub(1)? % PLACES];
        let action = ProgramHandler {
            handler: of.handler.load(Ordering::Relaxed),
            flags: of.flags.load(Ordering::Relaxed),
            mask: of.mask.load(Ordering::Relaxed),
        };
        // Acquire, before the look: what was read is from before any place was taken again.
        std::sync::atomic::fence(Ordering::Acquire);
        if BEGUN.load(Ordering::Relaxed) - filled < PLACES - 1 {
            return Some(action);
        }
    }
}

impl ProgramHandler {
    pub(crate) fn of(action: &libc::sigaction) -> ProgramHandler {
        let mask: *const u64 = (&raw const action.sa_mask).cast();
        // SAFETY: the first word of a set are the signals that there are.
        let mask = unsafe { mask.read() };
        ProgramHandler { handler: action.sa_sigaction, flags: action.sa_flags, mask }
    }

    pub(crate) fn action(self) -> libc::sigaction {
        // SAFETY: all zeros are a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = self.handler;
        action.sa_flags = self.flags;
        let mask: *mut u64 = (&raw mut action.sa_mask).cast();
        // SAFETY: as above.
        unsafe { mask.write(self.mask) };
        action
    }
}

/// Tables that were replaced and that a handler may still read.
#[derive(Debug, Default)]
pub(crate) struct Retired(Vec<*mut Vec<Detour>>);

// SAFETY: the pointers are of boxes that nobody else frees.
unsafe impl Send for Retired {}

/// Makes `detours` (sorted) the ones that traps follow.
pub(crate) fn publish(detours: Vec<Detour>, retired: &mut Retired) {
    debug_assert!(detours.is_sorted());
    let table = Box::into_raw(Box::new(detours));
    // SeqCst: with the SeqCst of READERS in find(): either the handler sees the new table, or we
    // see the handler.
    let old = DETOURS.swap(table, Ordering::SeqCst);
    if !old.is_null() {
        retired.0.push(old);
    }
    // SeqCst: as above.
    if READERS.load(Ordering::SeqCst) == 0 {
        for table in retired.0.drain(..) {
            // SAFETY: from Box::into_raw above, replaced before; a handler that begins now finds a
            // newer one.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}

fn find(from: u64) -> Option<Detour> {
    // SeqCst: see publish().
    READERS.fetch_add(1, Ordering::SeqCst);
    // SeqCst: see publish().
    let table = DETOURS.load(Ordering::SeqCst);
    let mut found = None;
    if !table.is_null() {
        // SAFETY: published whole; not freed while READERS counts us.
        let table: &[Detour] = unsafe { &*table };
        // By hand, so that nothing is called.
        let (mut low, mut high) = (0, table.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if table[middle].from < from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low < table.len() && table[low].from == from {
            found = Some(table[low]);
        }
    }
    // SeqCst: see publish().
    READERS.fetch_sub(1, Ordering::SeqCst);
    found
}

pub(crate) extern "C" fn on_trap(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// Such an instruction comes with this code; a `kill` with another. (`ILL_ILLOPN` of the
    /// kernel.)
    const ILLEGAL_OPERAND: c_int = 2;
    let ucontext: *mut libc::ucontext_t = context.cast();
    // SAFETY: the kernel gives a valid context to a handler with SA_SIGINFO.
    let ip = unsafe { &mut (*ucontext).uc_mcontext.gregs[libc::REG_RIP as usize] };
    // SAFETY: likewise its siginfo_t.
    let code = unsafe { (*info).si_code };
    if code == ILLEGAL_OPERAND {
        let at = *ip as u64;
        if let Some(detour) = find(at) {
            if detour.to != 0 {
                *ip = detour.to as i64;
                return;
            }
            // SAFETY: the thread has just executed the byte there.
            let byte = unsafe { (at as *const u8).read_volatile() };
            if byte != TRAP {
                // The patch went away between the trap and here: what is there now is executed.
                return;
            }
        }
    }
    hand_on(signal, info, context);
}

/// A trap that is not ours: what would have happened without us.
#[cold]
fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// A word of the context that the kernel leaves to nobody, and does not read; the signals that
    /// were blocked.
    const UNUSED_AT: usize = 288;
    const MASK_AT: usize = 296;
    /// Marks a trap that was handed on.
    const HANDED_ON: u64 = 0x6b79_6d6f_7472_6170;
    let Some(mut program_handler) = program_handler() else { return };
    let mark: *mut u64 = context.wrapping_byte_add(UNUSED_AT).cast();
    // SAFETY: inside the kernel's ucontext, which has 304 bytes before its extensions.
    let handed_on = unsafe { mark.read() } == HANDED_ON;
    if handed_on {
        // Who is behind us thinks that we were there before: then nobody was.
        program_handler = ProgramHandler { handler: libc::SIG_DFL, flags: 0, mask: 0 };
    }
    // SAFETY: as above.
    unsafe { mark.write(HANDED_ON) };
    match program_handler.handler {
        // A trap that a program ignores ends it all the same; one that was sent by `kill` does not.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: siginfo_t is valid in a handler.
            let sent = unsafe { (*info).si_code } <= 0;
            if program_handler.handler == libc::SIG_IGN && sent {
                return;
            }
            let action = ProgramHandler { handler: libc::SIG_DFL, flags: 0, mask: 0 }.action();
            // SAFETY: the default action.
            unsafe { libc::sigaction(signal, &action, ptr::null_mut()) };
            // Delivered as soon as the handler returns and the mask is the thread's again.
            // SAFETY: a number.
            unsafe { libc::raise(signal) };
        }
        handler => {
            let blocked: *const u64 = context.wrapping_byte_add(MASK_AT).cast();
            // SAFETY: inside the kernel's ucontext.
            let blocked = unsafe { blocked.read() };
            // What would be blocked in it, but traps: it may come to a site.
            let mask = (blocked | program_handler.mask) & !SIGNAL_BIT;
            let everything = crate::patch::os::set_mask(mask);
            if program_handler.flags & libc::SA_SIGINFO != 0 {
                // SAFETY: the program registered it with this type.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: the program registered it with this type.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
            crate::patch::os::set_mask(everything);
            // SAFETY: as above; the next signal may have its context in the same place.
            unsafe { mark.write(0) };
        }
    }
}

/// Of a thread's stack that are looked through: handlers need no more.
const MOST_STACK_BYTES: u64 = 256 << 10;

/// Where a thread goes on that merely stands at an address inside of a site.
pub(crate) fn interior(at: u64) -> Option<u64> {
    find(at).filter(|detour| detour.interior && detour.to != 0).map(|detour| detour.to)
}

pub(crate) extern "C" fn on_question(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: valid in a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    if code != libc::SI_QUEUE {
        return;
    }
    // SAFETY: valid in a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: a queued signal has a value.
    let round = unsafe { info.si_value() }.sival_ptr as usize;
    let ucontext: *mut libc::ucontext_t = context.cast();
    // SAFETY: valid in a handler with SA_SIGINFO.
    let ip = unsafe { &mut (*ucontext).uc_mcontext.gregs[libc::REG_RIP as usize] };
    if let Some(to) = interior(*ip as u64) {
        *ip = to as i64;
    }
    // SAFETY: valid in a handler with SA_SIGINFO.
    let pointer = unsafe { (*ucontext).uc_mcontext.gregs[libc::REG_RSP as usize] } as u64;
    let put = |at: u64, value: u64| {
        // SAFETY: a word of this thread's stack that was just read, in a context that the kernel
        // reads when a handler below returns.
        unsafe { (at as *mut u64).write_volatile(value) };
    };
    // Nothing is armed any more where system calls are restricted, so nobody is inside of a site.
    if !restriction::is_on() {
        frames::redirect(pointer, MOST_STACK_BYTES, raw::peek, put, interior);
    }
    answer(round);
}

/// Counts an answer to a round, unless another one has begun.
fn answer(round: usize) {
    // Acquire: pairs with the Release in new_round().
    let mut answers = ANSWERS.load(Ordering::Acquire);
    while answers >> 32 == round as u64 {
        // Release: pairs with the Acquire in answers(): this thread has moved.
        match ANSWERS.compare_exchange_weak(answers, answers + 1, Ordering::Release, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => answers = now,
        }
    }
}

/// Begins a round of questions: earlier answers that come late do not count. Its number.
pub(crate) fn new_round() -> usize {
    // Relaxed: only this function, under the patcher's lock, changes the upper half.
    let round = (ANSWERS.load(Ordering::Relaxed) >> 32).wrapping_add(1) & u64::from(u32::MAX);
    // Release: pairs with the Acquire in answer(): a thread that sees the round counts from 0.
    ANSWERS.store(round << 32, Ordering::Release);
    round as usize
}

/// How many threads have answered in this round.
pub(crate) fn answers() -> usize {
    // Acquire: pairs with the Release in answer().
    ANSWERS.load(Ordering::Acquire) as u32 as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an answer counts for its round alone: one that comes when the next round has
    /// begun does not.
    #[test]
    fn a_late_answer_does_not_count() {
        let first = new_round();
        answer(first);
        answer(first);
        assert_eq!(answers(), 2);
        let second = new_round();
        answer(first);
        assert_eq!(answers(), 0);
        answer(second);
        assert_eq!(answers(), 1);
    }
}
