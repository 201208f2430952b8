//! A watchpoint of one thread and of all that it makes, which sends SIGTRAP to the thread that hits
//! it.
#![allow(unsafe_code)]
use super::perf_event::{EXCLUDE_HV, EXCLUDE_KERNEL, EventAttr, open};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const BREAKPOINT: u32 = 5;
const DISABLED: u64 = 1;
const INHERIT: u64 = 1 << 1;
/// Inherited by threads, not by processes.
const INHERIT_THREAD: u64 = 1 << 35;
const REMOVE_ON_EXEC: u64 = 1 << 36;
const SIGTRAP: u64 = 1 << 37;

/// What is watched for, and what the signal brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aim {
    pub(crate) address: u64,
    pub(crate) len_bytes: u64,
    /// 1 read, 2 write, 4 execute.
    pub(crate) access: u32,
    pub(crate) signal_data: u64,
}

impl Aim {
    /// Nothing: an address that is never accessed, not armed. A signal that was under way when it
    /// was aimed at nothing brings the data that are there now, not those of its time: so also
    /// nothing has data that tell whose it is.
    pub(crate) const fn nothing(signal_data: u64) -> Aim {
        Aim { address: 0x1000, len_bytes: 8, access: 2, signal_data }
    }

    fn attr(self, inherited: bool) -> EventAttr {
        let always = DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC | SIGTRAP;
        let inherit = if inherited { INHERIT | INHERIT_THREAD } else { 0 };
        EventAttr {
            kind: BREAKPOINT,
            period: 1,
            flags: always | inherit,
            access: self.access,
            address: self.address,
            len_bytes: self.len_bytes,
            signal_data: self.signal_data,
            ..EventAttr::sized()
        }
    }
}

/// A slot of the processor that a thread has, with what it makes from then on. Released when this
/// is dropped.
#[derive(Debug)]
pub(crate) struct Watchpoint(OwnedFd);

impl Watchpoint {
    /// Takes a slot of a thread of this process, aimed at nothing.
    pub(crate) fn open(thread: i32) -> io::Result<Watchpoint> {
        open(thread, &Aim::nothing(0).attr(true)).map(Watchpoint)
    }

    /// Aims it anew and disarms it, in this thread and all that inherited it.
    pub(crate) fn aim(&self, aim: Aim) -> io::Result<()> {
        /// `_IOW('$', 11, struct perf_event_attr *)`.
        const MODIFY_ATTRIBUTES: libc::c_ulong = 0x4008_240b;
        let attr = aim.attr(true);
        // SAFETY: reads the attribute, which says its own size.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), MODIFY_ATTRIBUTES as _, &raw const attr) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Arms it, in this thread and all that inherited it. Where it is armed nothing happens.
    pub(crate) fn arm(&self) -> io::Result<()> {
        /// `_IO('$', 0)`.
        const ENABLE: libc::c_ulong = 0x2400;
        // SAFETY: a number, no pointer.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), ENABLE as _, 0) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Closes a forked child's copy of the descriptor alone: the events are the parent's.
    pub(crate) fn close_copy(&self) {
        // SAFETY: in a child, which never uses it again: nobody there owns another file of this
        // number before it is closed.
        unsafe { libc::close(self.0.as_raw_fd()) };
    }
}

/// How many slots this thread has left, at most `most`: takes them and gives them back.
pub(crate) fn free_slots(thread: i32, most: usize) -> io::Result<usize> {
    let mut taken = Vec::with_capacity(most);
    while taken.len() < most {
        match open(thread, &Aim::nothing(0).attr(false)) {
            Ok(slot) => taken.push(slot),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(taken.len())
}

/// Raises this process's limit of descriptors as far as it may; whether that is more.
pub(crate) fn raise_descriptors() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the limit, which is ours.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if read != 0 || limit.rlim_cur >= limit.rlim_max {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the limit.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) == 0 }
}

/// Calls `child` in every child that is forked from now on.
pub(crate) fn at_fork(child: extern "C" fn()) {
    /// C's own spelling of it: `None` before and in the parent.
    type Hook = Option<unsafe extern "C" fn()>;
    unsafe extern "C" {
        fn pthread_atfork(before: Hook, parent: Hook, child: Hook) -> libc::c_int;
    }
    // SAFETY: a function that lives as long as the process (the shared library is never unloaded,
    // see build.rs).
    unsafe { pthread_atfork(None, None, Some(child)) };
}
