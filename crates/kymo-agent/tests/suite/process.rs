//! Forking, for tests of what a child sees, and the kernel's clocks.
#![allow(unsafe_code)]
use std::time::Duration;

/// What a clock shows.
pub(crate) fn cpu(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a timespec, which is ours.
    let done = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(done, 0, "the thread is gone");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The kernel's number of the calling thread.
pub(crate) fn own_thread() -> i32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::gettid() }
}

/// Runs `what` in a forked child, which ends with its result; panics if that is not 0. The child does nothing else, no destructor either.
pub(crate) fn in_child(what: impl FnOnce() -> i32) {
    // SAFETY: called where this process has no other thread that could hold a lock of the allocator.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let status = what();
        // SAFETY: ends the process.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: our own child, our own variable.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child ended with {status:#x}");
}
