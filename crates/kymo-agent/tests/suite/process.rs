//! Forking, for tests of what a child sees, the kernel's clocks, and an allocator that counts
//! everything.
#![allow(unsafe_code)]
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;

pub(crate) struct Tally;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

// SAFETY: handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Tally {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the ones that are needed.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// What a clock shows.
pub(crate) fn cpu(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a timespec, which is ours.
    let done = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(done, 0, "the thread is gone");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) fn own_thread() -> i32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::gettid() }
}

/// Runs `what` in a forked child, which ends with its result; panics if that is not 0. The child
/// does nothing else, no destructor either.
pub(crate) fn in_child(what: impl FnOnce() -> i32) {
    // SAFETY: called where this process has no other thread that could hold a lock of the
    // allocator.
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

/// Runs `what` in a forked child, which must be ended by this signal.
pub(crate) fn ends_by(signal: i32, what: impl FnOnce()) {
    // SAFETY: called where this process has no other thread that could hold a lock of the
    // allocator.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        what();
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, our own variable.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((waited, status & 0x7f), (child, signal), "the child ended with {status:#x}");
}

pub(crate) fn blocking(signal: i32, what: impl FnOnce()) {
    // SAFETY: a mask of zeroes is an empty one.
    let mut mask: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a mask that is ours.
    unsafe { libc::sigaddset(&mut mask, signal) };
    // SAFETY: reads the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut()) };
    what();
    // SAFETY: reads the mask.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &mask, std::ptr::null_mut()) };
}

/// Blocks all signals in the calling thread that can be blocked.
pub(crate) fn block_all_signals() {
    // SAFETY: all zeros are a valid set.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: our own set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: only this thread's mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()) };
}

/// Runs `/bin/true` as posix_spawn does, so that it first opens this FIFO and waits for a writer.
pub(crate) fn run_behind_fifo(fifo: &std::ffi::CStr) {
    let (program, mut pid) = (c"/bin/true", 0);
    let arguments = [program.as_ptr().cast_mut(), std::ptr::null_mut()];
    let mut actions = std::mem::MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    // SAFETY: our own actions, which this initializes.
    assert_eq!(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) }, 0);
    // SAFETY: they are initialized, and copy the path.
    let added = unsafe {
        libc::posix_spawn_file_actions_addopen(actions.as_mut_ptr(), 0, fifo.as_ptr(), libc::O_RDONLY, 0)
    };
    assert_eq!(added, 0);
    // SAFETY: texts that end with 0, a list of them that ends with a null pointer, our own number.
    let spawned = unsafe {
        libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            actions.as_ptr(),
            std::ptr::null(),
            arguments.as_ptr(),
            [std::ptr::null_mut()].as_ptr(),
        )
    };
    // SAFETY: they are initialized, and not used after this.
    unsafe { libc::posix_spawn_file_actions_destroy(actions.as_mut_ptr()) };
    assert_eq!(spawned, 0);
    // SAFETY: our own child; its status is not asked for.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
}

/// Binds the calling thread to a CPU that it may use, the same for all that ask.
pub(crate) fn bind_to_one_cpu() {
    // SAFETY: all zeros are a valid set.
    let mut may: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: our own set.
    unsafe { libc::sched_getaffinity(0, size_of_val(&may), &mut may) };
    // SAFETY: our own set.
    let first = (0..libc::CPU_SETSIZE as usize).find(|&cpu| unsafe { libc::CPU_ISSET(cpu, &may) });
    // SAFETY: all zeros are a valid set.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: our own set, and a CPU's number.
    unsafe { libc::CPU_SET(first.expect("a CPU"), &mut one) };
    // SAFETY: only this thread.
    unsafe { libc::sched_setaffinity(0, size_of_val(&one), &one) };
}

/// Has the calling thread run only when its CPU has nothing else to do, or nearly so.
pub(crate) fn run_when_idle() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: only this thread, our own parameters.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &param) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

pub(crate) fn signal(tid: i32, signal: i32) {
    // SAFETY: numbers.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, signal) };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

/// A signal whose handler does nothing but end a system call.
pub(crate) fn quiet_signal() -> i32 {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: all zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    // SAFETY: an action that is ours.
    let done = unsafe { libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut()) };
    assert_eq!(done, 0);
    libc::SIGURG
}

/// A uprobe at a place of a file, for one process (`man 2 perf_event_open`, "dynamic PMU").
pub(crate) fn uprobe(
    file: &std::path::Path,
    offset: u64,
    pid: libc::pid_t,
) -> std::io::Result<std::fs::File> {
    const ATTR_BYTES: u64 = 112;
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let kind: u64 = kind.trim().parse().map_err(std::io::Error::other)?;
    let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())?;
    // The type and the size; at 56 and 64 `uprobe_path` and `probe_offset`.
    let mut attr = [0_u64; ATTR_BYTES as usize / 8];
    attr[0] = kind | ATTR_BYTES << 32;
    (attr[7], attr[8]) = (path.as_ptr() as u64, offset);
    // SAFETY: an attr of the size that it says, with a string that lives longer than the call.
    let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), pid, -1, -1, 0) };
    if opened < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(opened as i32) })
}
