//! Installs the handler of traps (SIGILL), and finds a real-time signal by which threads are asked
//! for their instruction pointer.
//!
//! # Safety
//! Actions and sets of signals that are ours, and handlers that stay for good.
#![allow(unsafe_code)]
use crate::patch::runtime::trap::{
    self, ProgramHandler, SIGNAL, on_question, on_trap, program_handler, set_program_handler,
};
use crate::sys::lock;
use crate::sys::signal;
use std::ffi::c_int;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signal by which threads are asked; 0 before the first question.
static QUESTION: AtomicI32 = AtomicI32::new(0);

fn handle(signal: c_int, handler: signal::Handler, flags: c_int) -> io::Result<()> {
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    // On the signal stack where a thread has one: its own may be a small one of a coroutine.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | flags;
    // SAFETY: our own set. No other handler runs meanwhile, so none finds a probe there.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    signal::action(signal, Some(&action)).map(drop)
}

fn current(signal: c_int) -> io::Result<libc::sigaction> {
    signal::action(signal, None)
}

/// Whether traps come to us.
pub(crate) fn is_in_front() -> bool {
    current(SIGNAL).is_ok_and(|now| now.sa_sigaction == on_trap as *const () as usize)
}

/// Held by who changes the handler of traps.
static ONE: Mutex<()> = Mutex::new(());

/// Handles traps, if that is not so already, with the program's handler behind ours. Where calls of
/// `sigaction` come to us already (`got_hooks.rs`), the program cannot take them away.
pub(crate) fn install() -> io::Result<()> {
    install_once()?;
    let mut looks = 0;
    while trap::is_changing() && looks < 1000 {
        std::thread::yield_now();
        looks += 1;
    }
    // Who had looked before ours was there, and has put his own since.
    install_once()
}

/// Has the program's handler in the place of ours. When it returns, no thread is about to find ours
/// missing: `asked` says whether every thread has been somewhere else since the last site was
/// restored.
pub(crate) fn uninstall(asked: impl FnOnce() -> bool) {
    let _one = lock(&ONE);
    let ours = on_trap as *const () as usize;
    let (Some(program_handler), Ok(now)) = (program_handler(), current(SIGNAL)) else { return };
    if now.sa_sigaction == ours && asked() {
        // The action that was there, or that the program has put there since.
        _ = signal::action(SIGNAL, Some(&program_handler.action()));
    }
}

fn install_once() -> io::Result<()> {
    let _one = lock(&ONE);
    let ours = on_trap as *const () as usize;
    let now = current(SIGNAL)?;
    if now.sa_sigaction == ours {
        return Ok(());
    }
    set_program_handler(ProgramHandler::of(&now));
    handle(SIGNAL, on_trap, 0)
}

/// The signal by which threads are asked where they stand: a real-time signal that the program does
/// not use.
pub(crate) fn question() -> io::Result<c_int> {
    // Relaxed: only this function, under the patcher's lock, sets it.
    let known = QUESTION.load(Ordering::Relaxed);
    let ours = on_question as *const () as usize;
    if known != 0 && current(known)?.sa_sigaction == ours {
        return Ok(known);
    }
    // Programs that take real-time signals count from the first up or from the last down: begin
    // between.
    let (first, last) = (libc::SIGRTMIN(), libc::SIGRTMAX());
    let middle = first + (last - first) / 2;
    for signal in (middle..=last).chain(first..middle) {
        if current(signal)?.sa_sigaction == libc::SIG_DFL {
            // Calls that wait go on by themselves where the kernel can do that.
            handle(signal, on_question, libc::SA_RESTART)?;
            QUESTION.store(signal, Ordering::Relaxed);
            return Ok(signal);
        }
    }
    Err(io::Error::other("the program uses all real-time signals"))
}
