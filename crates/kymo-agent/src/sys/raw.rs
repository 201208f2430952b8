//! System calls without the C library: where its functions may be half-written, or their locks held
//! by a thread that stands still.
//!
//! # Safety
//! The instruction itself; what the callers pass is theirs.
#![allow(unsafe_code)]
use std::arch::asm;
use std::ffi::CStr;
use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Makes a system call: what the kernel answers, a negative error number among that.
///
/// # Safety
/// As of the system call.
pub(crate) unsafe fn call(number: libc::c_long, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = args;
    let result;
    // SAFETY: the caller's; the kernel changes no other register.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            in("r9") f, out("rcx") _, out("r11") _, options(nostack));
    };
    result
}

/// Makes a system call that takes nothing. Not by [`call`]: unoptimised builds fill an array of
/// zeroes by the C library's memset.
///
/// # Safety
/// As of the system call.
unsafe fn call_plain(number: libc::c_long) -> i64 {
    let result;
    // SAFETY: the caller's; the kernel changes no other register.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, out("rcx") _, out("r11") _, options(nostack));
    };
    result
}

fn result(answer: i64) -> io::Result<usize> {
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(answer as usize) }
}

pub(crate) fn read_at(file: i32, into: &mut [u8], at: u64) -> io::Result<usize> {
    // SAFETY: the bytes are ours to write.
    result(unsafe {
        call(libc::SYS_pread64, [file as u64, into.as_mut_ptr() as u64, into.len() as u64, at, 0, 0])
    })
}

pub(crate) fn write_at(file: i32, bytes: &[u8], at: u64) -> io::Result<usize> {
    // SAFETY: the bytes are read.
    result(unsafe {
        call(libc::SYS_pwrite64, [file as u64, bytes.as_ptr() as u64, bytes.len() as u64, at, 0, 0])
    })
}

/// Reads the beginning of a file of /proc in one go: how many bytes; 0 if it cannot be read.
pub(crate) fn text(path: &CStr, into: &mut [u8]) -> usize {
    let access = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    // SAFETY: a text that ends with a zero, and numbers.
    let file =
        unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as u64, path.as_ptr() as u64, access, 0, 0, 0]) };
    let Ok(file) = result(file) else { return 0 };
    let (begin, most) = (into.as_mut_ptr() as u64, into.len() as u64);
    // SAFETY: the bytes are ours to write.
    let got = result(unsafe { call(libc::SYS_read, [file as u64, begin, most, 0, 0, 0]) });
    close(file as i32);
    got.unwrap_or(0).min(into.len())
}

/// Copies memory of this process; what is not there is not copied, and is no fault. How many bytes
/// that were.
pub(crate) fn peek(at: u64, into: &mut [u8]) -> usize {
    let here = [into.as_mut_ptr() as u64, into.len() as u64];
    let there = [at, into.len() as u64];
    let pid = u64::from(process());
    let (here, there) = (here.as_ptr() as u64, there.as_ptr() as u64);
    // SAFETY: the bytes are ours to write; the other address is checked by the kernel.
    result(unsafe { call(libc::SYS_process_vm_readv, [pid, here, 1, there, 1, 0]) }).unwrap_or(0)
}

/// Writes memory of this process that is writable; the rest is refused, and is no fault.
pub(crate) fn poke(at: u64, bytes: &[u8]) -> io::Result<()> {
    let here = [bytes.as_ptr() as u64, bytes.len() as u64];
    let there = [at, bytes.len() as u64];
    let pid = u64::from(process());
    let (here, there) = (here.as_ptr() as u64, there.as_ptr() as u64);
    // SAFETY: the bytes are read; the other address is checked by the kernel, and the caller's to
    // write.
    let written = result(unsafe { call(libc::SYS_process_vm_writev, [pid, here, 1, there, 1, 0]) })?;
    if written == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// `recvmsg`, again if a signal ends it: how many bytes, and the first descriptor that came with
/// them.
pub(crate) fn receive_with(socket: i32, into: &mut [u8]) -> io::Result<(usize, Option<i32>)> {
    /// Of a control message: its length, its kind, a descriptor.
    const DESCRIPTOR_BYTES: u64 = 20;
    const PASSES_DESCRIPTORS: u64 = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
    loop {
        let mut control = [0_u64; 3];
        let part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // `struct msghdr`: no address; one part; the control message; no flags.
        let mut message =
            [0, 0, (&raw const part) as u64, 1, control.as_mut_ptr() as u64, size_of_val(&control) as u64, 0];
        let flags = libc::MSG_CMSG_CLOEXEC as u64;
        // SAFETY: the bytes and the control message are ours to write, and as long as said.
        let answer =
            unsafe { call(libc::SYS_recvmsg, [socket as u64, message.as_mut_ptr() as u64, flags, 0, 0, 0]) };
        if answer == -i64::from(libc::EINTR) {
            continue;
        }
        let passed = message[5] >= DESCRIPTOR_BYTES
            && control[0] >= DESCRIPTOR_BYTES
            && control[1] == PASSES_DESCRIPTORS;
        return Ok((result(answer)?, passed.then_some(control[2] as i32)));
    }
}

pub(crate) fn close(file: i32) {
    // SAFETY: the caller's own descriptor; nobody else knows its number.
    _ = unsafe { call(libc::SYS_close, [file as u64, 0, 0, 0, 0, 0]) };
}

/// `send`, without a signal if nobody is there.
pub(crate) fn send(socket: i32, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL as u64;
    // SAFETY: the bytes are read.
    result(unsafe {
        call(libc::SYS_sendto, [socket as u64, bytes.as_ptr() as u64, bytes.len() as u64, flags, 0, 0])
    })
}

/// Sleeps as long as the word has this value and nobody wakes it, and no longer than so.
pub(crate) fn wait_while(word: &AtomicU32, value: u32, at_most: Duration) {
    let limit = libc::timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos() as _ };
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
    let (word, limit) = (word.as_ptr() as u64, (&raw const limit) as u64);
    // SAFETY: a word and a time that live as long as the call, which only reads them.
    _ = unsafe { call(libc::SYS_futex, [word, operation, u64::from(value), limit, 0, 0]) };
}

/// Wakes whoever sleeps by [`wait_while`].
pub(crate) fn wake(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u64;
    // SAFETY: an address and numbers.
    _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as u64, operation, 1, 0, 0, 0]) };
}

pub(crate) fn thread() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { call_plain(libc::SYS_gettid) as u32 }
}

pub(crate) fn process() -> u32 {
    // SAFETY: no arguments, no failure.
    unsafe { call_plain(libc::SYS_getpid) as u32 }
}

/// Whether the other end of a socket or a pipe is there.
pub(crate) fn is_connected(socket: i32) -> bool {
    let mut end = libc::pollfd { fd: socket, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry that is ours; it does not wait.
    let found = unsafe { call(libc::SYS_poll, [(&raw mut end) as u64, 1, 0, 0, 0, 0]) };
    found == 0
}
