//! A socket option that rustix does not have yet.
#![allow(unsafe_code, reason = "a system call with numbers")]
pub(crate) mod helper;

use std::os::fd::{AsRawFd, OwnedFd};

/// Has the kernel refuse packets with descriptors to whoever sends them to this socket (Linux
/// 6.16). Before that they are dropped when the
/// packet is taken, which costs no more than what closing them costs.
pub(crate) fn refuse_descriptors(socket: &OwnedFd) {
    /// Of asm-generic/socket.h.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let no: libc::c_int = 0;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: a descriptor that is open, and a number of ours with its length; an option that the
    // kernel does not know is an error.
    unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const no).cast(), length)
    };
}
