//! Holds our end of a conversation when kymo is killed while a filter of system calls holds for the
//! agent's thread.
//!
//! ```text
//!   kymo  ------ conversation ------>  the agent's thread, which waits in recvmsg
//!     '-- socket --> guard, a copy of kymo, with a second descriptor of the conversation
//!                      kymo is gone: no filter  --> closes it: the agent removes its probes
//!                                    a filter   --> keeps it until the process ends
//! ```
//! The end of the conversation wakes the agent's thread, and its next system call could end the
//! program, by a filter that the program has put on all of its threads. Nobody but another process
//! can ask whether there is one. So what decides is not kymo, which may be killed at any moment.
//!
//! The filter is not suspended, as root could (`PTRACE_O_SUSPEND_SECCOMP`): a program that others
//! have got hold of would run without it.
//!
//! # Limits
//! Who kills the guard as well (its cgroup) wakes the thread. So does kymo's death when the filter
//! comes in the milliseconds in which the agent removes its probes.
use super::seccomp;
use crate::sys::socket::helper;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, pread};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The status of a thread, as far as it says whether there is a filter.
const STATUS_BYTES: usize = 8 << 10;
/// What it is given: the status of the agent's thread, its process, the conversation.
const FILES: usize = 3;

/// Our end of the socket to the guard. Its closing, by a kill of this process, too, is the question
/// whether the conversation may end.
#[derive(Debug)]
pub(super) struct SocketGuard {
    _socket: OwnedFd,
}

impl SocketGuard {
    /// Starts the guard of a conversation with this thread of a process.
    ///
    /// # Errors
    /// No process, or no descriptor, is left; or the thread is gone.
    pub(super) fn start(tid: i32, process: &OwnedFd, conversation: &OwnedFd) -> io::Result<SocketGuard> {
        let status = File::open(format!("/proc/{tid}/status"))?;
        let (socket, _) = helper::start(vec![0; STATUS_BYTES], serve)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: [BorrowedFd<'_>; FILES] = [status.as_fd(), process.as_fd(), conversation.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(SocketGuard { _socket: socket })
    }
}

/// What the guard does. System calls only: see [`helper`].
fn serve(socket: BorrowedFd<'_>, memory: &mut [u8]) {
    // Signals of kymo's terminal and of its group are not for it.
    _ = rustix::process::setsid();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(memory)], &mut control, RecvFlags::CMSG_CLOEXEC);
    if received.is_err() {
        return;
    }
    let mut files = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files).into_iter().flatten(),
        _ => None.into_iter().flatten(),
    });
    let (Some(status), Some(process), Some(_conversation)) = (files.next(), files.next(), files.next())
    else {
        return;
    };
    // Nothing is said there: this waits for kymo's end.
    while recv(socket, &mut *memory, RecvFlags::empty()) == Err(Errno::INTR) {}
    let bytes = pread(&status, &mut *memory, 0).unwrap_or(0);
    if !seccomp::is_restricted(&memory[..bytes]) {
        return;
    }
    while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::process::{Command, Stdio};

    /// Checks that the conversation with a thread without a filter ends when kymo does, and not
    /// before.
    #[test]
    fn ends_with_kymo() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let guard = SocketGuard::start(pid.as_raw_nonzero().get(), &process, &ours).unwrap();
        drop(ours);
        let ends = |within: rustix::event::Timespec| {
            let mut ends = [PollFd::new(&its, PollFlags::empty())];
            poll(&mut ends, Some(&within)) != Ok(0)
        };
        assert!(!ends(rustix::event::Timespec::default()), "kymo is there");
        drop(guard);
        assert!(ends(rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 }), "kymo is gone");
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
