//! The table of tasks of another process: found, asked for, read, and not trusted.
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kymo_agent::table::{self, Frame, Header};
use rustix::fs::{Mode, OFlags};

/// How long a program may take to answer.
const TABLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between looks whether it has.
const LOOK: Duration = Duration::from_millis(1);

/// A table, which stays readable after its process has ended.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    /// Where to ask.
    requests: PathBuf,
    pid: i32,
}

/// What a look into a process found.
pub(super) enum TaskTable {
    Table(Source),
    /// It has none, so far.
    Nothing,
    /// What it has belongs to the process that it was forked from.
    Inherited(u32),
}

/// Looks for the table of a process.
pub(super) fn find(pid: i32) -> anyhow::Result<TaskTable> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let entries = std::fs::read_dir(&folder).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("there is no process {pid}"),
        ErrorKind::PermissionDenied => {
            anyhow::anyhow!("process {pid} may not be looked into: run kymo as its user, or as root")
        }
        _ => anyhow::anyhow!("{}: {error}", folder.display()),
    })?;
    let mut found = TaskTable::Nothing;
    for entry in entries.flatten() {
        // What goes away while we look was not it.
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        if !link.to_string_lossy().starts_with(table::LINK) {
            continue;
        }
        // Not to wait, should it be a pipe that somebody named so.
        let Ok(fd) = rustix::fs::open(
            entry.path(),
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        ) else {
            continue;
        };
        let file = File::from(fd);
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let header = header(&file).with_context(|| format!("process {pid}"))?;
        if own_number(pid).is_some_and(|own| own != header.pid) {
            found = TaskTable::Inherited(header.pid);
            continue;
        }
        let requests = folder.join(header.request_fd.to_string());
        return Ok(TaskTable::Table(Source { file, requests, pid }));
    }
    Ok(found)
}

/// The number of a process as it sees itself, in its own container.
fn own_number(pid: i32) -> Option<u32> {
    let status = kymo_perf::proc::text(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().next_back()?.parse().ok()
}

fn header(file: &File) -> anyhow::Result<Header> {
    let mut bytes = [0; table::HEADER_BYTES];
    let read = file.read_at(&mut bytes, 0)?;
    Ok(table::header(&bytes[..read])?)
}

impl Source {
    /// Asks for the numbers of now, and waits for them.
    pub(super) fn ask(&self) -> anyhow::Result<Frame> {
        let pid = self.pid;
        let before = self.number()?;
        self.request().with_context(|| format!("process {pid} cannot be asked for its tasks"))?;
        let start = Instant::now();
        while self.number()? <= before {
            if start.elapsed() > TABLE_TIMEOUT {
                bail!(
                    "process {pid} did not tell its tasks within {} s; it may be stopped, or have ended",
                    TABLE_TIMEOUT.as_secs()
                );
            }
            std::thread::sleep(LOOK);
        }
        let frame = self.newest()?;
        frame.with_context(|| format!("process {pid} took its tasks back"))
    }

    /// The newest numbers that were told; `None`: none were.
    pub(super) fn newest(&self) -> anyhow::Result<Option<Frame>> {
        let start = Instant::now();
        loop {
            let Some(place) = header(&self.file)?.newest else { return Ok(None) };
            let bytes = self.bytes(place.offset, place.bytes)?;
            if table::checked(&place, &bytes) {
                return Ok(Some(table::frame(&bytes)?));
            }
            // Overtaken by a newer one; a program that does so for seconds does it on purpose.
            if start.elapsed() > TABLE_TIMEOUT {
                bail!("process {} tells of its tasks what changes while it is read", self.pid);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn number(&self) -> anyhow::Result<u64> {
        Ok(header(&self.file)?.newest.map_or(0, |place| place.number))
    }

    /// As many bytes as there are, of those that are said to be.
    fn bytes(&self, mut offset: u64, claimed: u64) -> anyhow::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 1 << 16];
        while (bytes.len() as u64) < claimed {
            let wanted = (claimed - bytes.len() as u64).min(chunk.len() as u64) as usize;
            let read = self.file.read_at(&mut chunk[..wanted], offset)?;
            if read == 0 {
                break;
            }
            bytes.extend(&chunk[..read]);
            offset += read as u64;
        }
        Ok(bytes)
    }

    fn request(&self) -> anyhow::Result<()> {
        // The number of the descriptor is the program's word: only a pipe is written to.
        let link = std::fs::read_link(&self.requests)?;
        if !is_pipe_link(&link) {
            bail!(
                "what its table names as the place to ask is {}",
                kymo_profile::text::shown(&link.to_string_lossy())
            );
        }
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = File::from(rustix::fs::open(&self.requests, flags, Mode::empty())?);
        if !pipe.metadata()?.file_type().is_fifo() {
            bail!("what its table names as the place to ask is no pipe");
        }
        match rustix::io::write(&pipe, b"?") {
            // Full of questions: one more changes nothing.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_pipe_link(link: &Path) -> bool {
    link.to_string_lossy().starts_with("pipe:[")
}
