//! The socket between tracer and agent. Descriptors are only passed to the agent, never accepted.
//!
//! ```text
//!   kymo                                       the borrowed thread
//!   listens at a random name    <------        socket, connect
//!   accepts whom the kernel says is the target
//!   sends the library, sealed   ------>        recvmsg
//! ```
//! Taking a descriptor of the target (pidfd_getfd, /proc/PID/fd, SCM_RIGHTS) would be a way to hang
//! kymo: other threads of the target can put any file at any number, closing it asks its file
//! system, and that may be a program which never answers.
use super::hijacked_thread::HijackedThread;
use super::refusal::EnterError;
use crate::sys::socket::refuse_descriptors;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, accept_with, bind, listen, sendmsg, socket_with,
};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

const QUEUE: i32 = 128;
/// Strangers that are sent away before it is given up: names of such sockets can be listed by
/// anyone.
const MOST_STRANGERS: usize = 10_000;

/// Where the target finds us.
pub(super) struct Door {
    listener: OwnedFd,
    name: String,
}

impl Door {
    /// Listens in the target's network namespace: there are such names by namespace.
    pub(super) fn open(pid: i32) -> Result<Door, EnterError> {
        let same = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        let its_path = format!("/proc/{pid}/ns/net");
        let failed = EnterError::failed("making a socket for the agent");
        let its = same(&its_path).map_err(&failed)?;
        if its == same("/proc/self/ns/net").map_err(&failed)? {
            return Door::here().map_err(failed);
        }
        // A thread of its own goes there: a namespace is a thread's.
        let there = || -> Result<Door, EnterError> {
            let file = File::open(&its_path).map_err(&failed)?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|_| {
                EnterError::NotPermitted(
                    "it has a network of its own (a container?), which only root may enter; run kymo as root",
                )
            })?;
            Door::here().map_err(EnterError::failed("making a socket for the agent"))
        };
        let died = || EnterError::Failed {
            step: "making a socket for the agent",
            error: io::Error::other("a thread of kymo died"),
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, there).map_err(&failed)?;
            thread.join().unwrap_or_else(|_| Err(died()))
        })
    }

    fn here() -> io::Result<Door> {
        let name = format!("kymo-{}", super::random()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        // Before anyone can connect: sockets that are accepted are as their listener.
        refuse_descriptors(&listener);
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&listener, QUEUE)?;
        Ok(Door { listener, name })
    }

    /// Has the borrowed thread connect: our end, and the number of its own.
    pub(super) fn connect(
        self,
        thread: &mut HijackedThread<'_>,
        pid: i32,
    ) -> Result<(OwnedFd, u64), EnterError> {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64;
        let domain = libc::AF_UNIX as u64;
        let its = thread.system_call("making a socket", libc::SYS_socket, [domain, kind, 0, 0, 0, 0])?;
        // A zero byte before it: a name that is in no file system.
        let mut address = (libc::AF_UNIX as u16).to_le_bytes().to_vec();
        address.push(0);
        address.extend(self.name.as_bytes());
        let at = thread.lend(&address)?;
        let connected = thread
            .system_call("connecting to kymo", libc::SYS_connect, [its, at, address.len() as u64, 0, 0, 0])
            .and_then(|_| self.accept(pid));
        match connected {
            Ok(ours) => Ok((ours, its)),
            Err(refusal) => {
                close(thread, its);
                Err(refusal)
            }
        }
    }

    /// The connection of this process, which has just been made. Whoever else connects is sent
    /// away.
    fn accept(&self, pid: i32) -> Result<OwnedFd, EnterError> {
        let failed = |error: Errno| EnterError::failed("accepting the agent's connection")(error.into());
        for _ in 0..MOST_STRANGERS {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                accepted => accepted.map_err(failed)?,
            };
            refuse_descriptors(&socket);
            if socket_peercred(&socket).is_ok_and(|peer| Pid::as_raw(Some(peer.pid)) == pid) {
                return Ok(socket);
            }
        }
        Err(failed(Errno::CONNREFUSED))
    }
}

/// Closes a descriptor of the target.
pub(super) fn close(thread: &mut HijackedThread<'_>, number: u64) {
    _ = thread.system_call("closing a descriptor", libc::SYS_close, [number, 0, 0, 0, 0, 0]);
}

/// Sends a packet with a file of ours.
pub(super) fn send_with(socket: &OwnedFd, packet: &[u8], file: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file];
    // SANITY: the space is that of one.
    control.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(packet)], &mut control, flags).map(|_| ())
}

/// Gives the borrowed thread a file of ours: its number there.
pub(super) fn give(
    thread: &mut HijackedThread<'_>,
    (ours, its): (&OwnedFd, u64),
    file: &OwnedFd,
) -> Result<u64, EnterError> {
    const STEP: &str = "giving it the agent";
    /// `struct msghdr`, `struct iovec`, `struct cmsghdr` with one number, and a byte.
    const IOVEC_AT: u64 = 56;
    const CONTROL_AT: u64 = IOVEC_AT + 16;
    const BYTE_AT: u64 = CONTROL_AT + 24;
    const ONE_BYTES: u64 = 20;
    send_with(ours, &[0], file.as_fd()).map_err(|error| EnterError::failed(STEP)(error.into()))?;
    let at = thread.lend(&[0; 128])?;
    let message = [0, 0, at + IOVEC_AT, 1, at + CONTROL_AT, ONE_BYTES, 0, at + BYTE_AT, 1];
    let bytes: Vec<u8> = message.iter().flat_map(|word: &u64| word.to_le_bytes()).chain([0; 32]).collect();
    thread.lend(&bytes)?;
    let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
    thread.system_call(STEP, libc::SYS_recvmsg, [its, at, flags, 0, 0, 0])?;
    let mut control = [0; ONE_BYTES as usize];
    thread.read(at + CONTROL_AT, &mut control)?;
    let mut expected = ONE_BYTES.to_le_bytes().to_vec();
    expected.extend([libc::SOL_SOCKET, libc::SCM_RIGHTS].iter().flat_map(|word| word.to_le_bytes()));
    let (head, number) = control.split_at(expected.len());
    let number = number.try_into().map_or(-1, i32::from_le_bytes);
    match u64::try_from(number) {
        Ok(number) if head == expected => Ok(number),
        _ => Err(EnterError::Failed { step: STEP, error: io::Error::other("it has no descriptor left") }),
    }
}
