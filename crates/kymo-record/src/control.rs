//! Commands to a recording that runs: lines on a pipe, each acknowledged when it is done.
//!
//! ```text
//!  controller                                    kymo record
//!  "enable\n"  ---- descriptor or fifo ---->  Lines (bounded) -> Command -> events
//!       "ack\n" <--- descriptor or fifo ----  when it is done
//! ```
//!
//! The commands are those of `perf record --control`. The other side may write anything: lines
//! are bounded, and unknown commands are reported and ignored. When the other side closes the pipe,
//! the recording goes on without it. Nothing here waits for the other side.
mod execute;
#[cfg(test)]
mod tests;

pub(crate) use execute::{Execution, execute};

use kymo_perf::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, open};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Bytes of a line that are looked at; no command and no event's name is longer.
const LINE_BYTES: usize = 512;
/// How many lines without a command are repeated in words: the pipe must not fill the terminal.
const COMPLAINTS: u32 = 10;
/// The answer to each command. (perf 6.1 sends a zero byte after it.)
const ACK: &[u8] = b"ack\n";

/// Where commands come from and acknowledgements go to, as written on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSpec {
    /// Descriptors that were passed to this process.
    Descriptors {
        /// The number to read commands from.
        commands: i32,
        /// The number to write acknowledgements to.
        acks: Option<i32>,
    },
    /// Named pipes that exist.
    Fifos {
        /// The path to read commands from.
        commands: PathBuf,
        /// The path to write acknowledgements to.
        acks: Option<PathBuf>,
    },
}

impl ControlSpec {
    /// Reads `fd:CTL[,ACK]` or `fifo:PATH[,PATH]`.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn parse(text: &str) -> Result<ControlSpec, String> {
        let pair = |rest: &str| {
            let (commands, acks) = rest.split_once(',').map_or((rest, None), |(c, a)| (c, Some(a)));
            (commands.to_owned(), acks.map(str::to_owned))
        };
        if let Some(rest) = text.strip_prefix("fd:") {
            let number = |text: String| text.parse::<i32>().ok().filter(|&number| number >= 0);
            let (commands, acks) = pair(rest);
            let acks = acks.map(|acks| number(acks).ok_or(())).transpose();
            return match (number(commands), acks) {
                (Some(commands), Ok(acks)) => Ok(ControlSpec::Descriptors { commands, acks }),
                _ => Err("expected numbers of descriptors: fd:CTL or fd:CTL,ACK".into()),
            };
        }
        if let Some(rest) = text.strip_prefix("fifo:") {
            let (commands, acks) = pair(rest);
            if !commands.is_empty() && acks.as_deref() != Some("") {
                return Ok(ControlSpec::Fifos { commands: commands.into(), acks: acks.map(PathBuf::from) });
            }
        }
        Err("expected fd:CTL[,ACK] or fifo:PATH[,PATH]".into())
    }

    /// Opens both ends. To be called before anything else is opened, see [`sys::inherited`].
    ///
    /// # Errors
    /// [`ControlError`] names the end and what is wrong with it.
    pub fn open(&self) -> Result<ControlChannel, ControlError> {
        let (commands, acks) = match self {
            ControlSpec::Descriptors { commands, acks } => {
                (passed(*commands, false)?, acks.map(|number| passed(number, true)).transpose()?)
            }
            ControlSpec::Fifos { commands, acks } => (fifo(commands)?, acks.as_ref().map(fifo).transpose()?),
        };
        Ok(ControlChannel {
            commands: Some(commands),
            acks,
            lines: Lines::default(),
            waiting: VecDeque::new(),
            complaints: 0,
            say: Box::new(|_| {}),
        })
    }
}

/// Why there is no control channel.
#[derive(Debug, thiserror::Error)]
#[error("--control: {end}: {reason}")]
pub struct ControlError {
    /// The descriptor or path.
    end: String,
    /// What is wrong, and what to do.
    reason: String,
}

fn passed(number: i32, writes: bool) -> Result<OwnedFd, ControlError> {
    let fail = |reason: String| ControlError { end: format!("descriptor {number}"), reason };
    let copy = sys::inherited(number).map_err(|error| match error.raw_os_error() {
        Some(errno) if errno == Errno::BADF.raw_os_error() => {
            fail("is not open; the program that starts kymo must pass it on (in a shell: `exec 9<>FIFO`, then fd:9)".into())
        }
        _ => fail(error.to_string()),
    })?;
    let access = fcntl_getfl(&copy).map_err(|errno| fail(errno.to_string()))? & OFlags::RWMODE;
    let fits = access == OFlags::RDWR || access == if writes { OFlags::WRONLY } else { OFlags::RDONLY };
    if !fits {
        let (is, must) = if writes { ("reading", "writing") } else { ("writing", "reading") };
        return Err(fail(format!(
            "is open for {is} only, and must be open for {must}; are the two in the right order?"
        )));
    }
    // A description of our own can be non-blocking without making the other side's so.
    let pipe = fstat(&copy).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    let flags = if writes { OFlags::WRONLY } else { OFlags::RDONLY } | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let again = pipe.then(|| open(format!("/proc/self/fd/{}", copy.as_raw_fd()), flags, Mode::empty()));
    Ok(again.and_then(Result::ok).unwrap_or(copy))
}

fn fifo(path: &PathBuf) -> Result<OwnedFd, ControlError> {
    let fail = |reason: String| ControlError { end: path.display().to_string(), reason };
    // Open for both, so that it opens without anyone at the other end and never ends when one
    // writer goes.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let fd = open(path, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => fail("is not there; make it: `mkfifo PATH`".into()),
        Errno::LOOP => fail("is a symbolic link; name the pipe itself".into()),
        errno => fail(io::Error::from(errno).to_string()),
    })?;
    let stat = fstat(&fd).map_err(|errno| fail(io::Error::from(errno).to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Err(fail("is no named pipe; make one: `mkfifo PATH`".into()));
    }
    // Whoever may write to it ends the recording when they like.
    if ![0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid) {
        let user = stat.st_uid;
        return Err(fail(format!("belongs to user {user}; make one of your own, or pass it on: fd:N")));
    }
    Ok(fd)
}

/// What `evlist` shows beside the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    Names,
    /// All of the attr (`-v`).
    Attrs,
    /// Groups (`-g`).
    Groups,
    /// Frequency or period (`-F`).
    Rates,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Events on: all, or those of this name.
    Enable(Option<String>),
    /// Events off.
    Disable(Option<String>),
    /// Is anyone there?
    Ping,
    /// End the recording.
    Stop,
    /// Write out what the rings keep, or begin another file.
    Snapshot,
    /// List the events.
    Evlist(Detail),
}

impl Command {
    /// The command of a line, or what is wrong with it.
    pub(crate) fn parse(line: &[u8]) -> Result<Command, String> {
        let text = std::str::from_utf8(line).map_err(|_| "a command that is no text".to_owned())?;
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).map_or((text, ""), |(w, r)| (w, r.trim()));
        let name = (!rest.is_empty()).then(|| rest.to_owned());
        match (word, rest) {
            ("enable", _) => Ok(Command::Enable(name)),
            ("disable", _) => Ok(Command::Disable(name)),
            ("ping", "") => Ok(Command::Ping),
            ("stop", "") => Ok(Command::Stop),
            ("snapshot", "") => Ok(Command::Snapshot),
            ("evlist", "") => Ok(Command::Evlist(Detail::Names)),
            ("evlist", "-v") => Ok(Command::Evlist(Detail::Attrs)),
            ("evlist", "-g") => Ok(Command::Evlist(Detail::Groups)),
            ("evlist", "-F") => Ok(Command::Evlist(Detail::Rates)),
            _ => Err(format!(
                "unknown command \"{}\"; there are enable [EVENT], disable [EVENT], ping, stop, snapshot, evlist [-v|-g|-F]",
                text.escape_debug()
            )),
        }
    }
}

/// Bytes to lines, however they arrive; a line that is too long is dropped.
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    too_long: bool,
}

impl Lines {
    /// The lines that these bytes complete; `None` stands for one that was too long. A zero byte
    /// ends a line, too, as for perf.
    fn push(&mut self, bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut done = Vec::new();
        for &byte in bytes {
            if byte == b'\n' || byte == 0 {
                done.extend(self.end());
            } else if self.line.len() < LINE_BYTES {
                self.line.push(byte);
            } else {
                self.too_long = true;
            }
        }
        done
    }

    /// Ends the line that has begun, if it is not empty.
    fn end(&mut self) -> Option<Option<Vec<u8>>> {
        let (line, too_long) = (std::mem::take(&mut self.line), std::mem::take(&mut self.too_long));
        (!line.trim_ascii().is_empty()).then_some((!too_long).then_some(line))
    }
}

/// What the channel has to say to the person.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Answer<'a> {
    /// Something was done, or could not be.
    Note(&'a str),
    /// A line of what `evlist` lists.
    Listing(&'a str),
}

/// An open control channel, to be given to [`Session::control`](crate::Session::control).
pub struct ControlChannel {
    /// `None` once the other side is gone.
    commands: Option<OwnedFd>,
    acks: Option<OwnedFd>,
    lines: Lines,
    /// Commands that have arrived and wait for those before them.
    waiting: VecDeque<Command>,
    complaints: u32,
    say: Box<dyn FnMut(Answer<'_>) + Send>,
}

impl fmt::Debug for ControlChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("commands", &self.commands)
            .field("acks", &self.acks)
            .finish_non_exhaustive()
    }
}

impl ControlChannel {
    /// Who hears what commands did; without it, nobody.
    #[must_use]
    pub fn on_answer(mut self, say: impl FnMut(Answer<'_>) + Send + 'static) -> ControlChannel {
        self.say = Box::new(say);
        self
    }

    /// What to poll for commands, as long as someone may send some.
    pub fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.commands.as_ref().map(AsFd::as_fd)
    }

    /// The commands that have arrived. Does not wait; at most one page of bytes is taken at a time.
    pub fn take(&mut self) -> Vec<Command> {
        self.read();
        self.waiting.drain(..).collect()
    }

    /// The next of the commands that were read.
    pub(crate) fn next(&mut self) -> Option<Command> {
        self.waiting.pop_front()
    }

    /// Reads commands that have arrived, unless earlier ones wait still. Does not wait; at most one
    /// page of bytes is taken at a time.
    pub(crate) fn read(&mut self) {
        if !self.waiting.is_empty() {
            return;
        }
        let Some(fd) = &self.commands else { return };
        if !is_ready(fd, PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        let mut bytes = [0; 4096];
        let lines: Vec<Option<Vec<u8>>> = match rustix::io::read(fd, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(count @ 1..) => self.lines.push(&bytes[..count]),
            Ok(0) => {
                self.commands = None;
                self.lines.end().into_iter().collect()
            }
            Err(errno) => {
                self.commands = None;
                self.note(&format!("failed to read commands: {errno}; the recording goes on without them"));
                Vec::new()
            }
        };
        let parsed = lines.into_iter().map(|line| match line {
            Some(line) => Command::parse(&line),
            None => Err(format!("a command of more than {LINE_BYTES} bytes")),
        });
        let (commands, wrong): (Vec<_>, Vec<_>) = parsed.partition(Result::is_ok);
        wrong.into_iter().filter_map(Result::err).for_each(|wrong| self.complain(&wrong));
        self.waiting.extend(commands.into_iter().flatten());
    }

    fn complain(&mut self, what: &str) {
        self.complaints = self.complaints.saturating_add(1);
        if self.complaints <= COMPLAINTS {
            self.note(&format!("ignored: {what}"));
        } else if self.complaints == COMPLAINTS + 1 {
            self.note("ignored: more of the same; further ones are not shown");
        }
    }

    /// Says that a command was done: to whoever sent it.
    pub fn ack(&mut self) {
        let Some(fd) = &self.acks else { return };
        let written =
            if is_ready(fd, PollFlags::OUT) { rustix::io::write(fd, ACK) } else { Err(Errno::AGAIN) };
        match written {
            Ok(_) => {}
            Err(Errno::AGAIN) => {
                self.complain("an acknowledgement, because the pipe is full and has no reader")
            }
            Err(errno) => {
                self.acks = None;
                self.note(&format!("failed to acknowledge: {errno}; later commands are not acknowledged"));
            }
        }
    }

    /// Words for the person.
    pub fn note(&mut self, text: &str) {
        (self.say)(Answer::Note(text));
    }

    /// A line of a listing.
    pub(crate) fn list(&mut self, line: &str) {
        (self.say)(Answer::Listing(line));
    }
}

/// Whether a read or write would return at once, also where the descriptor blocks.
fn is_ready(fd: &OwnedFd, wanted: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(fd, wanted)];
    poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) && !fds[0].revents().is_empty()
}
