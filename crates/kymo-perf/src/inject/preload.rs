//! The agent in a command that is started anew, and in everything that it executes: the dynamic linker of each program loads the library, and the
//! library knocks here before the program's first instruction.
//!
//! ```text
//!   kymo                               a program, before its main function
//!   environment: LD_PRELOAD, where to knock
//!   [`Preload::accept`]      <------   connects, says the password
//!   [`Arrival::enter`]       <----->   the conversation begins
//!   probes                   <----->
//!   [`Client::go`]           ------>   runs
//! ```
//! A program that is let in by nobody (kymo is gone, or does not want it) runs at once; one that is held for longer than ten seconds, then.
//!
//! The socket has no name in any file system, so programs in other mount namespaces find it, and a name that is 128 random bits. As such names can be
//! listed by anyone, whoever knocks must also say a password, which only the environment has, and belong to the same user, unless that is root.
use super::client::Client;
use super::refusal::Refusal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Programs that may wait to be let in.
const QUEUE: i32 = 128;
/// Who has knocked says the password at once.
const PASSWORD_WITHIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
const VARIABLE: &str = "KYMO_AGENT_AT";

/// What a command needs to come up with the agent in it, and where it knocks.
#[derive(Debug)]
pub struct Preload {
    listener: OwnedFd,
    name: String,
    password: String,
    library: OsString,
    tick: Option<u64>,
}

/// A program that waits before its first instruction.
#[derive(Debug)]
pub struct Arrival {
    socket: OwnedFd,
    process: OwnedFd,
    pid: i32,
}

/// So many random bits as text.
fn random() -> std::io::Result<String> {
    let mut bits = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bits)?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Preload {
    /// Makes the socket.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(library: &Path) -> Result<Preload, Refusal> {
        const STEP: &str = "making a socket for programs that start";
        let failed = |error: rustix::io::Errno| Refusal::Failed { step: STEP, error: error.into() };
        let text = || random().map_err(Refusal::failed(STEP));
        let (name, password) = (format!("kymo-{}", text()?), text()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        bind(&listener, &address).map_err(failed)?;
        listen(&listener, QUEUE).map_err(failed)?;
        Ok(Preload { listener, name, password, library: library.as_os_str().to_owned(), tick: None })
    }

    /// With what one tick of the processor's counter is, in nanoseconds times 2^32: so that not each program has to measure it.
    pub fn with_tick(self, tick: u64) -> Preload {
        Preload { tick: Some(tick), ..self }
    }

    /// Variables to set. A library that the caller preloads already stays.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut preload = self.library.clone();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let tick = self.tick.map(|tick| format!(".{tick}")).unwrap_or_default();
        [("LD_PRELOAD", preload), (VARIABLE, format!("{}.{}{tick}", self.name, self.password).into())]
    }

    /// Becomes readable when somebody knocks.
    pub fn door(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Who has knocked; `None` if nobody has, or somebody without the password. Blocks for a second at most.
    pub fn accept(&self) -> Option<Arrival> {
        let socket = accept_with(&self.listener, SocketFlags::CLOEXEC).ok()?;
        let peer = socket_peercred(&socket).ok()?;
        let us = geteuid();
        if !us.is_root() && peer.uid != us {
            return None;
        }
        let mut said = [0; 64];
        let mut ends = [PollFd::new(&socket, PollFlags::IN)];
        if poll(&mut ends, Some(&PASSWORD_WITHIN)) != Ok(1) {
            return None;
        }
        let (bytes, _) = recv(&socket, &mut said[..], RecvFlags::DONTWAIT).ok()?;
        if said[..bytes] != *self.password.as_bytes() {
            return None;
        }
        let process = pidfd_open(peer.pid, PidfdFlags::empty()).ok()?;
        Some(Arrival { socket, process, pid: Pid::as_raw(Some(peer.pid)) })
    }
}

impl Arrival {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Opens the conversation; `children`: processes that it forks count in the same counters. Without this it runs on by itself.
    ///
    /// # Errors
    /// [`Refusal::NotLoaded`] if it is no agent that answers.
    pub fn enter(self, children: bool) -> Result<Client, Refusal> {
        Client::new(self.socket, Some(self.process)).hello(children)
    }
}
