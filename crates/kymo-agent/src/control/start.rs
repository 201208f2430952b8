//! How the thread comes to be: called by a tracer from outside, or by the dynamic linker in a preloaded library.
//!
//! # Safety
//! A descriptor that was handed over becomes ours. The environment is changed by the dynamic linker's call, before the program has threads.
#![allow(unsafe_code)]
#![expect(unreachable_pub, reason = "the tracer finds it by its name")]
use super::session;
use std::ffi::{c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

/// A conversation is under way (C1).
static BUSY: AtomicBool = AtomicBool::new(false);

const VARIABLE: &str = "KYMO_AGENT_FD";

/// Starts a conversation on a socket, which belongs to the agent from here on. 0, or -EBUSY with another tracer's conversation under
/// way, -EBADF if it is no descriptor, -EAGAIN without another thread.
#[unsafe(no_mangle)]
pub extern "C" fn kymo_agent_start(descriptor: c_int) -> c_int {
    catch_unwind(|| start(descriptor)).unwrap_or(-libc::EAGAIN)
}

fn start(descriptor: c_int) -> c_int {
    // SAFETY: asks for a flag, whatever the number.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return -libc::EBADF;
    }
    // SAFETY: open, as was just seen, and given to us by who calls.
    let socket = UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    // Acquire and Release: what the conversation before left is seen by this one.
    if BUSY.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return -libc::EBUSY;
    }
    let body = move || {
        hold_signals_back();
        // A panic is a fault of ours: the sites must go all the same, and they do when the engine is dropped.
        _ = catch_unwind(AssertUnwindSafe(|| converse(&socket)));
        BUSY.store(false, Ordering::Release);
    };
    match std::thread::Builder::new().name("kymo-agent".to_owned()).spawn(body) {
        Ok(_) => 0,
        Err(_) => {
            BUSY.store(false, Ordering::Release);
            -libc::EAGAIN
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn converse(socket: &UnixDatagram) {
    session::run(socket, &mut super::patching::Patching::default());
}

#[cfg(not(target_arch = "x86_64"))]
fn converse(socket: &UnixDatagram) {
    session::run(socket, &mut super::engine::Nothing);
}

/// Blocks all signals but those that a fault of this thread raises, of which a trap is one (C4).
fn hold_signals_back() {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills a set that is ours.
    unsafe { libc::sigfillset(&mut set) };
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: changes a set that is ours.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    // SAFETY: changes this thread's mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Called by the dynamic linker. Does nothing unless a tracer has left a socket for this program.
extern "C" fn loaded(_: c_int, _: *const *const c_void, _: *const *const c_void) {
    _ = catch_unwind(|| {
        let Some(socket) = std::env::var(VARIABLE).ok().and_then(|number| number.parse::<c_int>().ok())
        else {
            return;
        };
        // What this program starts has neither the library nor the socket.
        // SAFETY: constructors run before the program's own code; one that made threads before this is beyond help.
        unsafe { std::env::remove_var(VARIABLE) };
        let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let others = others.to_string_lossy().split([':', ' ']).skip(1).collect::<Vec<_>>().join(":");
        if others.is_empty() {
            // SAFETY: as above.
            unsafe { std::env::remove_var("LD_PRELOAD") };
        } else {
            // SAFETY: as above.
            unsafe { std::env::set_var("LD_PRELOAD", others) };
        }
        // SAFETY: sets a flag, whatever the number.
        if unsafe { libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC) } == 0 {
            kymo_agent_start(socket);
        }
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn(c_int, *const *const c_void, *const *const c_void) = loaded;

/// Two ends as a tracer makes them.
#[cfg(test)]
pub(super) fn pair() -> std::io::Result<(UnixDatagram, UnixDatagram)> {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers.
    let made = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    };
    if made != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: new and nobody else's.
    let own = |end: c_int| UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(end) });
    Ok((own(ends[0]), own(ends[1])))
}
