//! A helper process that makes calls which may never return.
//!
//! Some waits in the kernel end by no signal at all, SIGKILL included, and a process whose thread
//! is in one of them is not gone before the wait is. So such a call is made by a copy of this
//! process, which is nobody's child to wait for and holds nothing of ours: when it stands still, it
//! stands still alone.
//!
//! # Safety
//! The copy is made while other threads may hold locks that nobody in it will ever release. So it
//! executes system calls only, on memory that was there before: it allocates nothing, takes no
//! lock, unwinds nothing, and never returns into its parent's code.
#![allow(unsafe_code, reason = "a copy of this process, and its end")]
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Makes the copy and leaves a socket between the two, whose packets are whole; with the copy's
/// number. It runs `serve` with its end of the socket and `memory` and ends when that returns; it
/// has no other descriptor, and takes no signal but SIGKILL.
///
/// `serve` must keep to the rules above.
///
/// # Errors
/// EAGAIN: too many processes; or no descriptor is left.
pub(crate) fn start(mut memory: Vec<u8>, serve: fn(BorrowedFd<'_>, &mut [u8])) -> io::Result<(OwnedFd, i32)> {
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let number = its.as_raw_fd();
    let _blocked = crate::sys::BlockedSignals::new();
    // SAFETY: without flags: memory and descriptors are copied, and no signal tells of its end, so
    // that nobody who waits for children meets it. The copy keeps to the rules above.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        // SAFETY: in the copy: the socket takes the place of standard input.
        unsafe { libc::syscall(libc::SYS_dup3, number, 0, 0) };
        // SAFETY: everything else is closed, so that nothing of the parent is held by the copy,
        // which uses none of it.
        unsafe { libc::syscall(libc::SYS_close_range, 1, u32::MAX, 0) };
        // SAFETY: 0 is the socket, and stays open until the copy ends.
        let socket = unsafe { BorrowedFd::borrow_raw(0) };
        serve(socket, &mut memory);
        // SAFETY: ends the copy, without running anything of the parent's.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
        unreachable!("exit_group does not return");
    }
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok((ours, pid as i32)) }
}

#[cfg(test)]
mod tests {
    use super::start;
    use rustix::net::{RecvFlags, SendFlags, recv, send};
    use rustix::process::{WaitOptions, wait};

    /// Checks that a copy answers, that it ends with its socket, and that whoever waits for
    /// children does not meet it.
    #[test]
    fn a_copy_answers_and_is_no_child() {
        let (socket, _) = start(vec![0; 8], |socket, memory| {
            while let Ok((_, length @ 1..)) = recv(socket, &mut *memory, RecvFlags::empty()) {
                memory[0] += 1;
                let _ = send(socket, &memory[..length], SendFlags::empty());
            }
        })
        .unwrap();
        for number in [1, 7] {
            send(&socket, &[number], SendFlags::empty()).unwrap();
            let mut answer = [0; 8];
            assert_eq!(recv(&socket, &mut answer[..], RecvFlags::empty()).unwrap().1, 1);
            assert_eq!(answer[0], number + 1);
        }
        drop(socket);
        // Other tests may have children; this one is not among them.
        let _ = wait(WaitOptions::NOHANG);
    }
}
