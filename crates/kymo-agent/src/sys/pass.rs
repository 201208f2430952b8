//! Packets that a descriptor comes with.
//!
//! # Safety
//! Structures of the kernel whose pointers lead to locals; a descriptor that it gives is new.
#![allow(unsafe_code)]
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

/// A control message with one descriptor: `struct cmsghdr`, the number, and the rest of a word.
#[repr(C)]
struct Passed {
    length: usize,
    level: i32,
    kind: i32,
    descriptor: i32,
    rest: i32,
}

/// Receives a packet, and the descriptor that comes with it. More than one descriptor is dropped by
/// the kernel: there is no room for them.
pub(crate) fn receive_with(socket: &UnixDatagram, packet: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut passed = Passed { length: 0, level: 0, kind: 0, descriptor: -1, rest: -1 };
    let mut part = libc::iovec { iov_base: packet.as_mut_ptr().cast(), iov_len: packet.len() };
    // SAFETY: plain numbers and pointers, for which 0 is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut passed).cast();
    // Room for one number: with the rest of a word there would be room for two.
    message.msg_controllen = ONE_BYTES;
    // SAFETY: what it points to is above.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let Ok(bytes) = usize::try_from(received) else { return Err(io::Error::last_os_error()) };
    // SAFETY: ours, and the kernel has written it.
    let passed = unsafe { (&raw const passed).read_volatile() };
    let is_one = message.msg_controllen >= ONE_BYTES
        && (passed.length, passed.level, passed.kind) == (ONE_BYTES, libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // SAFETY: new and nobody else's.
    Ok((bytes, is_one.then(|| unsafe { OwnedFd::from_raw_fd(passed.descriptor) })))
}

/// `CMSG_LEN` of one descriptor.
const ONE_BYTES: usize = 20;

/// Sends a packet that the file goes with. The file stays open here, too.
#[cfg(test)]
pub(crate) fn send_with(socket: &UnixDatagram, packet: &[u8], file: &std::fs::File) -> io::Result<()> {
    let mut passed = Passed {
        length: ONE_BYTES,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptor: file.as_raw_fd(),
        rest: 0,
    };
    let mut part = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
    // SAFETY: plain numbers and pointers, for which 0 is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut passed).cast();
    message.msg_controllen = size_of::<Passed>();
    loop {
        // SAFETY: what it points to is above; the packet is only read.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
