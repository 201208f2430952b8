//! Which write errors are retried and for how long, and the message when a write fails for good.
use super::silence;
use crate::channel::timespec;
use kymo_data::WriteAt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

/// Waits between tries where the disk is full or broken: space may be freed at any moment, but the
/// rings fill meanwhile.
const WAITS: [Duration; 3] = [millis(2), millis(20), millis(80)];
/// So often a write that was only interrupted, or should come again, is tried without any progress.
const INTERRUPTIONS: u32 = 1000;

/// Tests have no time for it.
const fn millis(count: u64) -> Duration {
    if cfg!(test) { Duration::ZERO } else { Duration::from_millis(count) }
}

/// The failure of a write, with the place.
#[derive(Debug)]
struct FailedAt {
    offset: u64,
    source: io::Error,
}

impl fmt::Display for FailedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at offset {}: {}", self.offset, self.source)
    }
}

impl std::error::Error for FailedAt {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Adds the place to an error that has none yet.
pub(super) fn at(offset: u64, error: io::Error) -> io::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<FailedAt>()) {
        return error;
    }
    io::Error::new(error.kind(), FailedAt { offset, source: error })
}

/// Why writing ended early. What came before is in the file.
#[derive(Debug)]
pub struct WriteError {
    /// Where in the recording, in bytes from its start, if that is known.
    pub offset: Option<u64>,
    /// What the operating system said.
    pub source: io::Error,
}

impl From<io::Error> for WriteError {
    fn from(error: io::Error) -> WriteError {
        match error.downcast::<FailedAt>() {
            Ok(failed) => WriteError { offset: Some(failed.offset), source: failed.source },
            Err(source) => WriteError { offset: None, source },
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.offset {
            Some(offset) => write!(f, "at offset {offset}: {}", self.source),
            None => write!(f, "{}", self.source),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl WriteError {
    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        match self.source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOSPC) => {
                "free some space, or use -z, --max-size or --switch-max-files, or -o in another folder"
            }
            Some(Errno::DQUOT) => "free some of your quota, or use -z, --max-size, or -o in another folder",
            Some(Errno::FBIG) => {
                "files may not be larger here: see `ulimit -f`, or use -z, --max-size or --switch-output"
            }
            Some(Errno::IO) => "the disk may be broken: see `dmesg`; use -o on another one",
            Some(Errno::PIPE) => "whoever read the pipe has gone",
            _ => "use -o in another folder",
        }
    }
}

/// How long and how often one piece may still be retried.
#[derive(Debug, Default)]
pub(super) struct RetryBudget {
    interruptions: u32,
    refusals: usize,
}

impl RetryBudget {
    /// Waits as long as the error deserves; false if it is final.
    pub(super) fn bears(&mut self, error: &io::Error) -> bool {
        let errno = error.raw_os_error().map(Errno::from_raw_os_error);
        if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) {
            self.interruptions += 1;
            if self.interruptions > INTERRUPTIONS {
                return false;
            }
            if error.kind() == ErrorKind::WouldBlock {
                sleep(millis(1));
            }
            return true;
        }
        let passes = matches!(errno, Some(Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::NOMEM));
        let Some(&wait) = WAITS.get(self.refusals).filter(|_| passes) else { return false };
        self.refusals += 1;
        sleep(wait);
        true
    }

    /// Something was written: later trouble is new trouble.
    pub(super) fn progress(&mut self) {
        *self = RetryBudget::default();
    }
}

/// A place for bytes that can also be made shorter.
pub(crate) trait Truncate: WriteAt {
    /// Gives everything from `len_bytes` on back to the disk.
    fn cut(&self, len_bytes: u64) -> io::Result<()>;

    /// Reads back what was written from `offset` on.
    fn read_back(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Truncate for File {
    fn cut(&self, len_bytes: u64) -> io::Result<()> {
        self.set_len(len_bytes)
    }

    fn read_back(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buf, offset)
    }
}

/// Writes, and retries what can pass.
#[derive(Debug)]
pub(crate) struct Retrying<W>(pub(crate) W);

impl<W: WriteAt> Retrying<W> {
    /// Writes all, or says how much was written before it failed for good.
    pub(super) fn write_as_far(&self, bytes: &[u8], offset: u64) -> (usize, io::Result<()>) {
        let (mut done, mut budget) = (0, RetryBudget::default());
        while let Some(rest) = bytes.get(done..)
            && !rest.is_empty()
        {
            let place = offset + done as u64;
            silence::begins();
            let written = self.0.write_at(rest, place);
            silence::answered();
            match written {
                Ok(0) => return (done, Err(at(place, ErrorKind::WriteZero.into()))),
                Ok(count) => {
                    done += count.min(rest.len());
                    budget.progress();
                }
                Err(error) if budget.bears(&error) => {}
                Err(error) => return (done, Err(at(place, error))),
            }
        }
        (done, Ok(()))
    }
}

impl<W: WriteAt> WriteAt for Retrying<W> {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let (done, result) = self.write_as_far(buf, offset);
        result.map(|()| done)
    }
}

/// How long a reader is waited for that takes nothing after the recording was told to end.
const READER_TIMEOUT: Duration = Duration::from_secs(5);
/// What a pipe takes at once when it is ready at all (`PIPE_BUF`).
const ATOMIC_BYTES: usize = 4096;

/// A pipe that is waited for as long as it takes, until the recording is told to end: then a reader
/// that takes nothing is given up.
#[derive(Debug)]
pub(crate) struct Stream {
    file: File,
    /// Can be read once the recording is to end.
    until: Option<OwnedFd>,
    /// So much is written at once without blocking.
    most_bytes: usize,
}

impl Stream {
    /// A descriptor of our own, which does not block.
    pub(crate) fn new(file: File, until: Option<BorrowedFd<'_>>) -> Stream {
        let until = until.and_then(|fd| fd.try_clone_to_owned().ok());
        Stream { file, until, most_bytes: usize::MAX }
    }

    /// A descriptor that other processes have, too, and that must not change for them: a pipe is
    /// opened once more. Where that is not permitted, only so much is written as there is room for.
    pub(crate) fn passed(fd: OwnedFd, until: Option<BorrowedFd<'_>>) -> Stream {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let kind = fstat(&fd).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let own = (kind == Ok(FileType::Fifo))
            .then(|| openat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()).ok())
            .flatten();
        let is_file = kind == Ok(FileType::RegularFile);
        let most_bytes = if own.is_some() || is_file { usize::MAX } else { ATOMIC_BYTES };
        Stream { most_bytes, ..Stream::new(File::from(own.unwrap_or(fd)), until) }
    }

    /// Waits until there is room.
    fn wait(&self) -> io::Result<()> {
        let mut is_ending = false;
        loop {
            let mut fds = vec![PollFd::new(&self.file, PollFlags::OUT)];
            if !is_ending && let Some(until) = &self.until {
                fds.push(PollFd::new(until, PollFlags::IN));
            }
            let timeout = is_ending.then(|| timespec(READER_TIMEOUT));
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => {
                    let sentence = "its reader took nothing for 5 s after the recording was stopped";
                    return Err(io::Error::new(ErrorKind::TimedOut, sentence));
                }
                Ok(_) if !fds[0].revents().is_empty() => return Ok(()),
                Ok(_) => is_ending = true,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let buf = &buf[..buf.len().min(self.most_bytes)];
        loop {
            if self.most_bytes < usize::MAX {
                self.wait()?;
            }
            match self.file.write(buf) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait()?,
                result => return result,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
