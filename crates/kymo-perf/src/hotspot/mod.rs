//! Asking a running HotSpot virtual machine for the names of its compiled code.
//!
//! *You give it* a process; *it gives you* the text of the perf map that the machine writes at the
//! command `Compiler.perfmap`, or the reason why it was not asked.
//!
//! ```text
//!  kymo                                         JVM
//!   | socket /tmp/.java_pidN there? --yes-------> connect
//!   | no: make /tmp/.attach_pidN
//!   |     SIGQUIT -----------------------------> Signal Dispatcher sees the file, opens the socket
//!   | connect, SO_PEERCRED, "jcmd Compiler.perfmap"
//!   |                                            writes /tmp/perf-N.map, answers
//!   | read the map, remove it
//! ```
//! N is the process's number in its own PID namespace, and /tmp the one of its mount namespace.
//!
//! # Invariants
//! - **H1** SIGQUIT is sent only if the process catches it by HotSpot's own thread and will find
//!   the file (see [`check`]): otherwise it would die, or print all its stacks.
//! - **H2** The file is removed only when it has served, or the process is gone. A machine that
//!   stands still would otherwise print its stacks when it goes on.
//! - **H3** A map that was there before is neither written to nor removed.
//! - **H4** A machine that was asked writes its map, however late: the request is kept until it has
//!   answered, and what it may still write is told ([`Hotspot::left_behind`]).
//! - **H5** No wait without a deadline, no link followed, no reply believed.

mod check;
mod client;

use crate::proc::{InnerIdentity, TmpFolder, read_from};
use check::SignalTarget;
use client::AttachCommand;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use std::io;
use std::time::{Duration, Instant};

/// Larger maps are cut here: real ones have a few MB.
const LARGEST_MAP: u64 = 128 << 20;
/// What is read of an answer: of one that says whether it worked, and of one with stacks.
const ANSWER_BYTES: usize = 64 << 10;
const DUMP_BYTES: usize = 64 << 20;
/// How often it is looked whether the socket is there.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why there are no names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum HotspotError {
    #[error("it is still starting")]
    Starting,
    #[error("it has ended")]
    Gone,
    #[error("{0}")]
    Refused(String),
    #[error("it has no command Compiler.perfmap, which came with JDK 17")]
    TooOld,
    #[error("it did not answer in time")]
    Slow,
    #[error("failed to {action}: {source}")]
    System { action: &'static str, source: io::Error },
}

impl HotspotError {
    /// Whether another attempt later makes sense.
    pub fn is_passing(&self) -> bool {
        matches!(self, HotspotError::Starting | HotspotError::Slow)
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> HotspotError {
    move |source| match source.raw_os_error() {
        Some(libc::ESRCH) => HotspotError::Gone,
        _ => HotspotError::System { action, source },
    }
}

/// A virtual machine that may be asked, several times.
#[derive(Debug)]
pub struct Hotspot {
    pid: i32,
    inner: InnerIdentity,
    tmp: TmpFolder,
    /// The file that makes the machine open its socket is there, by us.
    waits_for_socket: bool,
    /// It was asked for its map and has not answered yet.
    map_request: Option<AttachCommand>,
}

impl Hotspot {
    /// Whether this mapped file says that a process is a HotSpot virtual machine.
    pub fn is_library(path: &[u8]) -> bool {
        path.ends_with(b"/libjvm.so")
    }

    /// Looks at a process; nothing of it is touched.
    ///
    /// # Errors
    /// If it is gone, or /proc does not show it to this user.
    pub fn find(pid: i32) -> Result<Hotspot, HotspotError> {
        let inner = InnerIdentity::of(pid).ok_or(HotspotError::Gone)?;
        let tmp = TmpFolder::of(pid).map_err(failed("open its folder /tmp"))?;
        Ok(Hotspot { pid, inner, tmp, waits_for_socket: false, map_request: None })
    }

    /// Where the machine writes its map, in its own /tmp.
    pub fn map_name(&self) -> String {
        format!("perf-{}.map", self.inner.pid)
    }

    fn socket_name(&self) -> String {
        format!(".java_pid{}", self.inner.pid)
    }

    fn trigger_name(&self) -> String {
        format!(".attach_pid{}", self.inner.pid)
    }

    /// Asks for the names of all code that is compiled now: lines of a perf map.
    ///
    /// # Errors
    /// [`HotspotError`]; the machine is then as it was, but for what [`Hotspot::left_behind`] says.
    /// After [`HotspotError::Slow`] the next call waits for the same answer.
    pub fn perf_map(&mut self, timeout: Duration) -> Result<Vec<u8>, HotspotError> {
        let deadline = Instant::now() + timeout;
        let mut request = match self.map_request.take() {
            Some(request) => request,
            None if self.tmp.has(&self.map_name()) => {
                let why = format!("its /tmp/{} was there before and would be overwritten", self.map_name());
                return Err(HotspotError::Refused(why));
            }
            None => self.request("Compiler.perfmap", ANSWER_BYTES, deadline)?,
        };
        let answered = request.finish(deadline);
        if matches!(answered, Err(HotspotError::Slow)) {
            self.map_request = Some(request);
            return Err(HotspotError::Slow);
        }
        let text = self.take_map();
        answered?;
        text.map_err(failed("read the map that it wrote"))
    }

    /// Whether it was asked for a map that it may still be writing.
    pub fn awaits_map(&self) -> bool {
        self.map_request.is_some()
    }

    /// Asks for the stacks of all Java threads, as `jstack` prints them. The machine stops its Java
    /// threads for that, as long as it takes to look at them.
    ///
    /// # Errors
    /// [`HotspotError`]; the machine is then as it was, but for what [`Hotspot::left_behind`] says.
    pub fn thread_dump(&mut self, timeout: Duration) -> Result<String, HotspotError> {
        let deadline = Instant::now() + timeout;
        self.request("Thread.print", DUMP_BYTES, deadline)?.finish(deadline)
    }

    fn request(
        &mut self,
        command: &str,
        most: usize,
        deadline: Instant,
    ) -> Result<AttachCommand, HotspotError> {
        if !self.has_socket() {
            self.open_socket(deadline)?;
        }
        self.remove_trigger();
        let socket = client::connect(&self.tmp, &self.socket_name(), self.pid, deadline)?;
        Ok(AttachCommand::new(socket, command, most))
    }

    /// The file that stays in the machine's /tmp: one that the machine has not seen yet, or the map
    /// that it was asked for and has not written yet.
    pub fn left_behind(&mut self) -> Option<String> {
        if self.has_socket() || check::is_gone(self.pid) {
            self.remove_trigger();
        }
        let name = match (self.waits_for_socket, &self.map_request) {
            (true, _) => self.trigger_name(),
            // One that has ended may have written the map half.
            (false, Some(_)) if self.tmp.has(&self.map_name()) || !check::is_gone(self.pid) => {
                self.map_name()
            }
            (false, _) => return None,
        };
        Some(format!("/tmp/{name}"))
    }

    /// Whether the machine's socket is there, and its own.
    fn has_socket(&self) -> bool {
        self.tmp.stat(&self.socket_name()).is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket
                && stat.st_uid == self.inner.uid
        })
    }

    /// Makes the machine open its socket.
    fn open_socket(&mut self, deadline: Instant) -> Result<(), HotspotError> {
        if !self.waits_for_socket {
            let candidate = SignalTarget::examine(self.pid, self.inner, &self.tmp)?;
            let trigger = self.trigger_name();
            (self.tmp.create_empty(&trigger, self.inner)).map_err(failed("make a file in its /tmp"))?;
            self.waits_for_socket = true;
            // Another one may have asked meanwhile; a second signal would print stacks.
            if self.has_socket() {
                return Ok(());
            }
            if let Err(error) = pidfd_send_signal(&candidate.pidfd, Signal::QUIT) {
                self.remove_trigger();
                return Err(failed("send it SIGQUIT")(error.into()));
            }
        }
        while !self.has_socket() {
            if check::is_gone(self.pid) {
                self.remove_trigger();
                return Err(HotspotError::Gone);
            }
            if Instant::now() >= deadline {
                return Err(HotspotError::Slow);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn remove_trigger(&mut self) {
        if std::mem::take(&mut self.waits_for_socket) {
            let _ = self.tmp.remove(&self.trigger_name());
        }
    }

    /// Reads the map and removes it.
    fn take_map(&self) -> io::Result<Vec<u8>> {
        let name = self.map_name();
        let mut file = self.tmp.open(&name, self.inner.uid)?;
        let text = read_from(&mut file, 0, LARGEST_MAP);
        let _ = self.tmp.remove_file(&name, &file);
        text
    }
}

impl Drop for Hotspot {
    fn drop(&mut self) {
        let _ = self.left_behind();
    }
}

/// Waits until one of these is so; an error of the deadline.
fn wait(fd: &impl std::os::fd::AsFd, flags: PollFlags, deadline: Instant) -> Result<(), HotspotError> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout =
        rustix::event::Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::new(fd, flags)], Some(&timeout)) {
        Ok(0) => Err(HotspotError::Slow),
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(failed("wait for its answer")(error.into())),
    }
}

#[cfg(test)]
mod tests;
