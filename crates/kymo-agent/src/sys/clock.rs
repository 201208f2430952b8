//! Clocks.
#![allow(unsafe_code)]

/// Nanoseconds of `CLOCK_MONOTONIC`: without a system call, tens of nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Nanoseconds of CPU time of the calling thread: a system call.
pub(crate) fn own_cpu_ns() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Nanoseconds of CPU time of a thread of this process; `None` if it has ended.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    // How the kernel numbers the CPU clocks of threads: the complement of the id, "per thread" (4),
    // "as scheduled" (2).
    read(!tid << 3 | 4 | 2)
}

fn read(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a timespec, which is ours.
    let done = unsafe { libc::clock_gettime(clock, &mut time) };
    (done == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

pub(crate) fn own_tid() -> i32 {
    // A system call, because the C library has a function for it only since glibc 2.30.
    // SAFETY: no arguments, no failure.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Gives the CPU away for a moment, by sleeping as short as one can.
pub(crate) fn nap() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1 };
    // SAFETY: reads a timespec, which is ours; the rest is not asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}
