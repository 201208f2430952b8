//! System calls that a SIGKILL of this process does not interrupt.
//!
//! The kernel puts a uprobe's traps into memory, and takes them out, in the process that asks for
//! it. With a SIGKILL pending it cannot get at the memory, says "failed to unregister, leaking
//! uprobe" in its log, and leaves the traps in the observed programs for as long as these run: each
//! hit then costs a trap, for nobody. So a child of `vfork` makes such calls: it shares memory and
//! descriptors, and a signal to this process is none to it.
//!
//! ```text
//!   this thread   waits ..................................   goes on, or is killed
//!   child         |-- link_create, close, ... --|  ends     finishes in any case; descriptors that only it has are
//!                                                            closed at its end, where no signal counts
//! ```
//!
//! # Safety
//! As after `vfork(2)`: the child runs on a stack of its own, with this thread's thread-local
//! storage, while this thread waits. If this process is killed meanwhile, its other threads may
//! have died with locks held; so the body makes system calls and nothing else: no allocation, no
//! lock, no panic.
#![allow(unsafe_code, reason = "clone")]
use std::ffi::{c_int, c_void};

/// More than some system calls need, also where nothing is optimised.
const STACK_BYTES: usize = 128 << 10;

/// Runs `body` in a child of `vfork`; in this thread where no child can be made. Returns when it
/// has run. Blocks all signals of this thread meanwhile.
///
/// `body` must make system calls only: no allocation, no lock, no panic. Descriptors that it opens
/// are this process's.
pub(crate) fn in_vfork_child(mut body: impl FnMut()) {
    extern "C" fn start<F: FnMut()>(body: *mut c_void) -> c_int {
        // What is sent to all processes of this name, or of this group, is not for it.
        // SAFETY: a string that ends with a zero.
        unsafe { libc::prctl(libc::PR_SET_NAME, c"uprobes".as_ptr()) };
        // SAFETY: no arguments.
        unsafe { libc::setsid() };
        // SAFETY: the closure of in_vfork_child(), whose thread waits, or is gone and leaves its
        // memory to us.
        unsafe { (*body.cast::<F>())() };
        0
    }
    fn run<F: FnMut()>(body: &mut F) -> bool {
        let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let top = stack.as_mut_ptr_range().end;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
        // SAFETY: a stack of its own, which lives until the child has ended (CLONE_VFORK); the body
        // as start() needs it.
        let child = unsafe { libc::clone(start::<F>, top.cast(), flags, std::ptr::from_mut(body).cast()) };
        if child < 0 {
            return false;
        }
        // SAFETY: our child, which has ended: it is reaped. It sends no signal at its end, and is
        // waited for as such.
        while unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WCLONE) } < 0
            && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
        {}
        true
    }
    // The child inherits the mask: no signal that was sent to all of a group ends it.
    let _blocked = super::BlockedSignals::new();
    if !run(&mut body) {
        body();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// Checks that the body runs once, in another process, which is gone afterwards; that what it
    /// opens is open here; and that this thread's signals are as they were.
    #[test]
    fn descriptors_and_memory_are_shared() {
        let (mut runs, mut process, mut opened) = (0, 0, -1);
        let mask = || std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let blocked =
            |status: &str| status.lines().find(|line| line.starts_with("SigBlk")).map(str::to_owned);
        let before = blocked(&mask());
        in_vfork_child(|| {
            runs += 1;
            // SAFETY: no arguments.
            process = unsafe { libc::syscall(libc::SYS_getpid) };
            // SAFETY: a string that ends with a zero.
            opened = unsafe { libc::open(c"/proc/self/comm".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        });
        assert_eq!(runs, 1);
        assert_ne!(process, i64::from(std::process::id()));
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
        // SAFETY: opened above, and nobody else's.
        drop(unsafe { OwnedFd::from_raw_fd(opened) });
        assert_eq!(blocked(&mask()), before);
    }

    /// Checks that a call which has begun is finished when the process is killed meanwhile: a child
    /// of this test, whose body waits and then writes into a pipe.
    #[test]
    fn a_killed_process_finishes_the_call() {
        use std::io::Read as _;
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let number = std::os::fd::AsRawFd::as_raw_fd(&writer);
        // SAFETY: in the child only system calls are made, but for the stack's memory, which the
        // allocator gives to a child of a process with threads, too (glibc resets its locks).
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            in_vfork_child(|| {
                let pause = libc::timespec { tv_sec: 0, tv_nsec: 300_000_000 };
                // SAFETY: a byte that is there.
                let write = |text: &std::ffi::CStr| unsafe { libc::write(number, text.as_ptr().cast(), 1) };
                write(c"1");
                // SAFETY: a time that is there.
                unsafe { libc::nanosleep(&pause, std::ptr::null_mut()) };
                write(c"2");
            });
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) };
        }
        drop(writer);
        let mut byte = [0];
        reader.read_exact(&mut byte).expect("the body runs");
        // SAFETY: our child.
        unsafe { libc::kill(child, libc::SIGKILL) };
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(libc::WIFSIGNALED(status), "it was killed");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("a pipe");
        assert_eq!((&byte, &rest[..]), (b"1", &b"2"[..]));
    }
}
