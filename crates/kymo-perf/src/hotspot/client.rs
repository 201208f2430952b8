//! The attach socket: one command, one answer.
//!
//! ```text
//!  request   "1" 0 "jcmd" 0 COMMAND 0 0 0          (version, verb, three arguments)
//!  answer    "0\n" text   or   "N\n" text of an exception, until the machine closes
//! ```

use super::{HotspotError, failed, wait};
use crate::proc::TmpFolder;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Connects to the machine's socket, and makes sure that it is the machine that listens there.
pub(super) fn connect(
    tmp: &TmpFolder,
    name: &str,
    pid: i32,
    deadline: Instant,
) -> Result<OwnedFd, HotspotError> {
    // By descriptor: the name may have become a link since it was looked at.
    let place = tmp.reference(name).map_err(failed("find its attach socket"))?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let address = address.map_err(|error| failed("name its attach socket")(error.into()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|error| failed("make a socket")(error.into()))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            // Its queue of connections is full.
            Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::AGAIN) => return Err(HotspotError::Slow),
            Err(error) => return Err(failed("connect to its attach socket")(error.into())),
        }
    }
    let peer = sockopt::socket_peercred(&socket);
    let peer = peer.map_err(|error| failed("ask who listens at its attach socket")(error.into()))?;
    if peer.pid.as_raw_pid() != pid {
        return Err(HotspotError::Refused("another process listens at its attach socket".into()));
    }
    Ok(socket)
}

/// A command on its way to the machine, and its answer on the way back.
#[derive(Debug)]
pub(super) struct AttachCommand {
    socket: OwnedFd,
    unsent: Vec<u8>,
    answer: Vec<u8>,
    most: usize,
}

impl AttachCommand {
    /// A command of whose answer so many bytes are kept. Nothing is sent yet.
    pub(super) fn new(socket: OwnedFd, command: &str, most: usize) -> AttachCommand {
        let unsent = ["1\0jcmd\0", command, "\0\0\0"].concat().into_bytes();
        AttachCommand { socket, unsent, answer: Vec::new(), most }
    }

    /// Waits until the machine has carried the command out: what it has answered.
    ///
    /// # Errors
    /// After [`HotspotError::Slow`] another call goes on with the same command.
    pub(super) fn finish(&mut self, deadline: Instant) -> Result<String, HotspotError> {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::AGAIN) => wait(&self.socket, PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(failed("send it a command")(error.into())),
            }
        }
        let mut piece = [0; 4096];
        while self.answer.len() < self.most {
            match rustix::io::read(&self.socket, &mut piece) {
                Ok(0) => break,
                Ok(got) => self.answer.extend_from_slice(&piece[..got]),
                Err(Errno::AGAIN) => wait(&self.socket, PollFlags::IN, deadline)?,
                Err(Errno::INTR) => {}
                // It ended while it was at work.
                Err(Errno::CONNRESET) => return Err(HotspotError::Gone),
                Err(error) => return Err(failed("read its answer")(error.into())),
            }
        }
        judge(&self.answer)
    }
}

fn judge(answer: &[u8]) -> Result<String, HotspotError> {
    let text = String::from_utf8_lossy(answer);
    match text.split_once('\n') {
        Some(("0", answer)) => Ok(answer.to_owned()),
        Some((_, text)) if text.contains("Unknown diagnostic command") => Err(HotspotError::TooOld),
        _ if answer.is_empty() => Err(HotspotError::Gone),
        // The text of an exception; a hostile one is shown escaped and short.
        _ => {
            let said: String = text.trim().chars().take(80).collect();
            Err(HotspotError::Refused(format!("it answered {said:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the answers of machines, old ones, and others.
    #[test]
    fn answers() {
        assert!(judge(b"0\n").is_ok());
        assert!(judge(b"0\nCommand executed successfully\n").is_ok());
        let old = b"1\njava.lang.IllegalArgumentException: Unknown diagnostic command\n";
        assert!(matches!(judge(old), Err(HotspotError::TooOld)));
        assert!(matches!(judge(b""), Err(HotspotError::Gone)));
        let error = judge(&[b"101\n\x1b[2J", &[b'x'; 500][..]].concat()).unwrap_err().to_string();
        assert!(error.starts_with("it answered \"101\\n\\u{1b}") && error.len() < 150, "{error}");
    }
}
