//! Programs that restrict their own system calls (seccomp) while kymo is in them.
//!
//! ```text
//!   prctl, syscall as the program calls them     here
//!     call *GOT  --------------------------->    is a filter about to be put on?
//!                                                  no: the C library's function, nothing else
//!                                                  yes: hits make no system calls from now on
//!                                                       on all threads (TSYNC): the agent's thread
//!                                                       removes its probes and ends, before
//!                                                the C library's function
//! ```
//! A filter that is put on all threads would hold for the agent's thread, too, which would end the
//! program by its next call: by an answer to the tracer, or when the tracer ends. The words by
//! which modules find the two functions are exchanged, as for signals (`patch::each_word`).
//!
//! # Limits
//! A filter that is put on by a system call instruction outside of the C library is not seen, nor
//! one by a library that was loaded after the probes. The tracer, and whoever guards its end of the
//! conversation, see it in /proc, and this thread is not woken up any more.
//!
//! # Safety
//! Words of loaded modules are exchanged for functions that keep all registers and the stack, and
//! go on in the function that was called.
#![allow(unsafe_code)]
use crate::patch::{self, GotOutcome};
use crate::sys::{clock, fork, lock, restriction};
use std::arch::naked_asm;
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the tracer hears of each probe that goes for this.
pub(super) const REASON: &str = "the program has restricted its own system calls (seccomp), so its probes were removed and later hits are not counted; --engine kernel counts them";

/// The agent's thread ends as soon as its engine has removed what it can, which takes no longer.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The functions of the C library.
static PRCTL: AtomicU64 = AtomicU64::new(0);
static SYSCALL: AtomicU64 = AtomicU64::new(0);

/// The conversation that is under way: its socket, and its thread.
static CONVERSATION: Mutex<Option<(i32, i32)>> = Mutex::new(None);
/// The program asked for its end.
static WITHDRAWN: AtomicBool = AtomicBool::new(false);
/// Words that were exchanged, and what they held.
static EXCHANGED: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

/// A function that looks at its arguments and goes on in another one, with everything as it came.
macro_rules! look_before {
    ($name:ident, $look:ident, $next:ident) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "push rdi",
                "push rdi",
                "call {look}",
                "pop rdi",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop rcx",
                "pop r8",
                "pop r9",
                "pop rax",
                "pop rbp",
                "mov r11, qword ptr [rip + {next}]",
                "jmp r11",
                look = sym $look,
                next = sym $next,
            )
        }
    };
}

look_before!(prctl, look_at_prctl, PRCTL);
look_before!(syscall, look_at_syscall, SYSCALL);

extern "C" fn look_at_prctl(option: i32) {
    if option == libc::PR_SET_SECCOMP {
        before_filter(false);
    }
}

extern "C" fn look_at_syscall(number: i64, first: u64, second: u64) {
    /// `SECCOMP_SET_MODE_FILTER`, `SECCOMP_FILTER_FLAG_TSYNC`.
    const SET_FILTER: u64 = 1;
    const ALL_THREADS: u64 = 1;
    match number {
        libc::SYS_prctl => look_at_prctl(first as i32),
        libc::SYS_seccomp if first <= SET_FILTER => {
            before_filter(first == SET_FILTER && second & ALL_THREADS != 0);
        }
        _ => {}
    }
}

/// A filter is about to be put on the calling thread, or on all.
fn before_filter(all: bool) {
    // Where there is one already, it may forbid what would have to be done.
    let is_first = restriction::begin();
    // A child of vfork shares the words, and none of its filters is for this process.
    if !is_first || !all || fork::is_child() || fork::is_guest() {
        return;
    }
    let conversation = lock(&CONVERSATION);
    let Some((socket, thread)) = *conversation else { return };
    // Relaxed: the thread reads it after its socket has ended.
    WITHDRAWN.store(true, Ordering::Relaxed);
    // SAFETY: numbers; the socket is open as long as it is named there.
    unsafe { libc::shutdown(socket, libc::SHUT_RD) };
    drop(conversation);
    let path = format!("/proc/self/task/{thread}");
    let until = Instant::now() + END_TIMEOUT;
    while std::fs::exists(&path).unwrap_or(false) && Instant::now() < until {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The calling thread converses on this socket until [`end`].
pub(super) fn begin(socket: i32) {
    WITHDRAWN.store(false, Ordering::Relaxed);
    restriction::forget();
    *lock(&CONVERSATION) = Some((socket, clock::own_tid()));
}

/// Before the socket is closed.
pub(super) fn end() {
    *lock(&CONVERSATION) = None;
}

/// Whether the conversation ends because the program is about to restrict its system calls.
pub(super) fn is_withdrawn() -> bool {
    WITHDRAWN.load(Ordering::Relaxed)
}

/// Whether a filter may forbid what a handler of signals does or ends with: then no thread is sent
/// one, and no trap is written. A filter that nobody saw coming is known by what the kernel says of
/// the threads.
pub(super) fn forbids_handlers() -> bool {
    !is_withdrawn() && (restriction::is_on() || patch::is_another_filtered())
}

fn instead_of(name: &[u8]) -> Option<u64> {
    match name {
        b"prctl" => Some(prctl as *const () as u64),
        b"syscall" => Some(syscall as *const () as u64),
        _ => None,
    }
}

/// From now on filters are seen before they are there, where modules that are loaded now ask for
/// them.
pub(super) fn watch() {
    // Relaxed: the words below are exchanged after it, by a store that releases.
    PRCTL.store(libc::prctl as *const () as u64, Ordering::Relaxed);
    SYSCALL.store(libc::syscall as *const () as u64, Ordering::Relaxed);
    fork::know_own();
    let mut exchanged = lock(&EXCHANGED);
    patch::each_word(instead_of, &mut |word| {
        let before = word.leads_to();
        if before != word.function && patch::exchange(word, word.function) == GotOutcome::Done {
            exchanged.push((word.address(), before));
        }
    });
}

/// Puts all words back that still hold what [`watch`] put there.
pub(super) fn release() {
    let mut exchanged = lock(&EXCHANGED);
    let mut before: HashMap<u64, u64> = exchanged.drain(..).collect();
    if before.is_empty() {
        return;
    }
    patch::each_word(instead_of, &mut |word| {
        if word.leads_to() == word.function
            && let Some(before) = before.remove(&word.address())
        {
            patch::exchange(word, before);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::raw;

    /// Checks that arguments arrive in the functions that were called, results come back, and only
    /// what puts a filter on is taken for that.
    #[test]
    fn calls_go_on() {
        watch();
        type Syscall = unsafe extern "C" fn(i64, ...) -> i64;
        type Prctl = unsafe extern "C" fn(i32, ...) -> i32;
        // SAFETY: it is entered as the function in whose place it is.
        let call: Syscall = unsafe { std::mem::transmute(syscall as *const ()) };
        // SAFETY: likewise.
        let control: Prctl = unsafe { std::mem::transmute(prctl as *const ()) };
        // SAFETY: a number.
        assert_eq!(unsafe { call(libc::SYS_getpid) }, i64::from(raw::process()));
        let mut name = [0_u8; 16];
        // SAFETY: two texts of 16 bytes.
        let named = unsafe { control(libc::PR_SET_NAME, c"looked-at".as_ptr()) };
        // SAFETY: 16 bytes that are ours.
        let read = unsafe { control(libc::PR_GET_NAME, name.as_mut_ptr()) };
        assert_eq!((named, read, &name[..9]), (0, 0, &b"looked-at"[..]));
        // SAFETY: asks for a number.
        assert_eq!(unsafe { control(libc::PR_GET_SECCOMP) }, 0);
        assert!(!restriction::is_on());
        look_at_syscall(libc::SYS_seccomp, 2, 0);
        assert!(!restriction::is_on(), "asks what there is");
        look_at_syscall(libc::SYS_seccomp, 1, 0);
        assert!(restriction::is_on());
        restriction::forget();
        release();
    }
}
