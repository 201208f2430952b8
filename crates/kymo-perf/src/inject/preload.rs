//! The agent in a command that is started anew: its dynamic linker loads the library, and one end of a socket is inherited.
use super::client::Client;
use super::refusal::Refusal;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// What a command needs to come up with the agent in it.
///
/// Set [`Preload::environment`] in the command, start it, then call [`Preload::connect`]. The agent takes the variables out of its own
/// environment, so that what the command starts does not have it.
#[derive(Debug)]
pub struct Preload {
    ours: OwnedFd,
    its: OwnedFd,
    library: OsString,
}

impl Preload {
    /// Makes the socket. Until [`Preload::connect`], everything that this process starts inherits one end.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn new(library: &Path) -> Result<Preload, Refusal> {
        let failed = |error: rustix::io::Errno| Refusal::Failed {
            step: "making a pair of sockets",
            error: error.into(),
        };
        let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
        fcntl_setfd(&its, FdFlags::empty()).map_err(failed)?;
        Ok(Preload { ours, its, library: library.as_os_str().to_owned() })
    }

    /// Variables to set. A library that the caller preloads already stays.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut preload = self.library.clone();
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        [("LD_PRELOAD", preload), ("KYMO_AGENT_FD", self.its.as_raw_fd().to_string().into())]
    }

    /// Opens the conversation, after the command was started.
    ///
    /// # Errors
    /// [`Refusal::NotLoaded`] if the agent does not answer: the command is linked statically, or setuid, or has ended.
    pub fn connect(self) -> Result<Client, Refusal> {
        drop(self.its);
        Client::new(self.ours, None).hello(false)
    }
}
