//! SIGTRAP: its handler, the siginfo that comes with it, and chaining to the handler before.
#![allow(unsafe_code)]
use super::lock;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The beginning of `siginfo_t` as the kernel fills it for a fault, on 64 bits.
#[repr(C)]
struct Raw {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    address: u64,
    data: u64,
    kind: u32,
    flags: u32,
}

/// What a SIGTRAP of a perf event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trap {
    /// The event's `sig_data`.
    pub(crate) data: u64,
    /// Where the event was aimed when the access happened.
    pub(crate) address: u64,
    /// Whether it was delivered at the access. Otherwise the signal was blocked then.
    pub(crate) synchronous: bool,
}

/// What came with a signal, if it came from a breakpoint event.
///
/// # Safety
/// As the kernel gave it to a handler with `SA_SIGINFO`.
pub(crate) unsafe fn trap(info: *const libc::siginfo_t) -> Option<Trap> {
    const TRAP_PERF: i32 = 6;
    const BREAKPOINT: u32 = 5;
    const ASYNCHRONOUS: u32 = 1;
    // SAFETY: the kernel's structure is larger than this, and aligned.
    let raw = unsafe { &*info.cast::<Raw>() };
    (raw.code == TRAP_PERF && raw.kind == BREAKPOINT).then_some(Trap {
        data: raw.data,
        address: raw.address,
        synchronous: raw.flags & ASYNCHRONOUS == 0,
    })
}

/// Where the thread goes on.
///
/// # Safety
/// As the kernel gave it to a handler with `SA_SIGINFO`.
pub(crate) unsafe fn instruction(context: *const c_void) -> u64 {
    // SAFETY: what the third argument of such a handler is.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = context;
        0
    }
}

/// The value of 1, 2, 4 or 8 bytes of this process; `None` if nothing is there. Through the kernel:
/// a watchpoint does not see it, and memory that somebody unmaps meanwhile is no fault. Safe in a
/// signal handler.
pub(crate) fn peek(address: u64, len_bytes: usize) -> Option<u64> {
    let mut bytes = [0u8; 8];
    let len = len_bytes.min(bytes.len());
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
    let there = libc::iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: len };
    // SAFETY: no arguments, no failure.
    let process = unsafe { libc::getpid() };
    // SAFETY: writes at most the bytes that are ours; the other address is checked by the kernel.
    let read = unsafe { libc::process_vm_readv(process, &here, 1, &there, 1, 0) };
    (read == len as isize).then(|| u64::from_ne_bytes(bytes) << (64 - 8 * len) >> (64 - 8 * len))
}

pub(crate) fn keeping_errno(body: impl FnOnce()) {
    // SAFETY: no arguments; a pointer to this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    body();
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

/// Who gets what is not for watches: who handled SIGTRAP when ours was last installed, and when it
/// first was. Read by signal handlers, so what they pointed to once is never freed.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
static FIRST: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Held by who changes the handler of SIGTRAP.
static CHANGING: Mutex<()> = Mutex::new(());

/// Has `handler` handle SIGTRAP. The one before is kept, for what is not of watches.
pub(crate) fn install(handler: Handler) -> io::Result<()> {
    let _one = lock(&CHANGING);
    let now = action(libc::SIGTRAP, None)?;
    if now.sa_sigaction == handler as usize {
        return Ok(());
    }
    // Before ours is there: it may be called at once.
    put_behind_watches(now);
    let mut ours = now;
    ours.sa_sigaction = handler as usize;
    // Not on the alternate stack: those of Rust's threads are too small for a handler that is
    // interrupted by itself. Not deferred: what a handler itself accesses is known by it
    // (watch/nesting.rs), not kept for later.
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
    // SAFETY: writes the mask of ours.
    unsafe { libc::sigemptyset(&mut ours.sa_mask) };
    action(libc::SIGTRAP, Some(&ours)).map(drop)
}

/// Makes this the one who gets what is not for watches. By who has [`CHANGING`].
fn put_behind_watches(action: libc::sigaction) {
    let action = Box::into_raw(Box::new(action));
    // Release, twice: pairs with the Acquire of hand_on().
    let _ = FIRST.compare_exchange(std::ptr::null_mut(), action, Ordering::Release, Ordering::Relaxed);
    BEFORE.store(action, Ordering::Release);
}

/// What the process did at a signal; from now on `new`, if given, whose handler stays for good.
pub(crate) fn action(signal: c_int, new: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: writes the structure, and reads the other one, if there is one.
    let done =
        unsafe { libc::sigaction(signal, new.map_or(std::ptr::null(), |new| new), before.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just written; zeroes are valid, too.
    Ok(unsafe { before.assume_init() })
}

/// Hands a signal that is not ours to who handled it before, as the kernel would have. `again`:
/// that one has handed it back, because he thinks that we were there before him; then to who was
/// there before both.
///
/// # Safety
/// With the arguments of the handler that [`install`] installed.
pub(crate) unsafe fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, again: bool) {
    // Acquire: pairs with the Release of put_behind_watches().
    let before = if again { &FIRST } else { &BEFORE }.load(Ordering::Acquire);
    if before.is_null() {
        return default(signal);
    }
    // SAFETY: published whole, never freed.
    let before = unsafe { &*before };
    // SAFETY: the kernel's structure.
    let from_kernel = unsafe { (*info).si_code } > 0;
    match before.sa_sigaction {
        // What the kernel raises at an instruction is not ignored: it ends the process.
        libc::SIG_DFL => default(signal),
        libc::SIG_IGN if from_kernel => default(signal),
        libc::SIG_IGN => {}
        handler => {
            let mut mask = before.sa_mask;
            if before.sa_flags & libc::SA_NODEFER == 0 {
                // SAFETY: a mask that is ours.
                unsafe { libc::sigaddset(&mut mask, signal) };
            }
            let mut outside = mask;
            // SAFETY: reads one mask, writes the other.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &mask, &mut outside) };
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: installed with SA_SIGINFO by whoever installed it: it has this signature.
                let handler: Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            } else {
                // SAFETY: installed without SA_SIGINFO: it has this signature.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
            // SAFETY: reads the mask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &outside, std::ptr::null_mut()) };
        }
    }
}

/// What happens to a process without a handler: it ends by this signal.
fn default(signal: c_int) {
    // SAFETY: no handler is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    // Not deferred in ours, so it comes at once.
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(signal) };
}
