//! Handing a descriptor to the process at the other end of a socket.
#![allow(unsafe_code)]
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
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

/// Sends a packet that the file goes with. The file stays open here, too.
pub(crate) fn send_with(socket: &UnixDatagram, packet: &[u8], file: &File) -> io::Result<()> {
    let mut passed = Passed {
        length: 20,
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
