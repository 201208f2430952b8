//! Fetches files of a build by debuginfod's client (`debuginfod-find`), for users who configured
//! it: symbols, programs and source files.
//!
//! Only the build id travels, as hexadecimal digits, and the path of a source file, to the servers
//! in this process's own `DEBUGINFOD_URLS`; without that variable nothing is fetched. A program
//! that comes is checked by its build id; all are read as any other file, on the account of what
//! files may cost.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

/// How long a file may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// How long all files together may take.
const DEADLINE_OF_ALL: Duration = Duration::from_secs(180);
/// How often it is looked whether the client has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest path that is read of the client.
const LONGEST_PATH: usize = 4096;

/// The client, and what it may still cost.
#[derive(Debug)]
pub struct Debuginfod {
    program: PathBuf,
    /// Called with a sentence before the first file is fetched.
    announce: fn(&str),
    is_announced: AtomicBool,
    /// How long one file may take.
    deadline: Duration,
    /// One file at a time, until no time is left.
    left: Mutex<Duration>,
}

/// What is fetched of a build.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BuildFile<'a> {
    /// The file with the symbols.
    DebugInfo,
    /// The program or library itself.
    Executable,
    /// A source file, by the absolute path that debug information has.
    Source(&'a Path),
}

impl Debuginfod {
    /// The client, if servers are configured. `announce` shows a sentence to the user.
    pub fn configured(announce: fn(&str)) -> Option<Debuginfod> {
        let servers = std::env::var_os("DEBUGINFOD_URLS")?;
        if servers.as_bytes().iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let path = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&path)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join("debuginfod-find"))
            .find(|program| program.is_file())?;
        Some(Debuginfod {
            program,
            announce,
            is_announced: AtomicBool::new(false),
            deadline: DEADLINE,
            left: Mutex::new(DEADLINE_OF_ALL),
        })
    }

    /// A file of this build id, if a server has it. `module`: for the sentence.
    ///
    /// # Errors
    /// Why that is not known, in words.
    pub(crate) fn fetch(
        &self,
        wanted: BuildFile<'_>,
        build_id: &[u8],
        module: &Path,
    ) -> Result<Option<PathBuf>, String> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.is_zero() {
            return Err("debuginfod has taken too long for other files, and is not asked again".into());
        }
        // Counts, and publishes nothing.
        if !self.is_announced.swap(true, Ordering::Relaxed) {
            (self.announce)(&format!(
                "fetching symbols from the servers in DEBUGINFOD_URLS, first those of {} (--no-debuginfod: do not)",
                module.display()
            ));
        }
        let begun = Instant::now();
        let fetched = self.run(wanted, build_id, self.deadline.min(*left));
        // Servers that did not answer for one file would be waited for once more for each other
        // file.
        *left = match fetched {
            Err(_) => Duration::ZERO,
            Ok(_) => left.saturating_sub(begun.elapsed()),
        };
        fetched
    }

    fn run(
        &self,
        wanted: BuildFile<'_>,
        build_id: &[u8],
        deadline: Duration,
    ) -> Result<Option<PathBuf>, String> {
        let digits: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut client = Command::new(&self.program);
        match wanted {
            BuildFile::DebugInfo => client.args(["debuginfo", &digits]),
            BuildFile::Executable => client.args(["executable", &digits]),
            BuildFile::Source(path) => client.args(["source", &digits]).arg(path),
        };
        client.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = client.spawn().map_err(|error| format!("{}: {error}", self.program.display()))?;
        let is_successful = ended(&mut client, deadline)?;
        let mut line = [0; LONGEST_PATH];
        let read = client.stdout.take().and_then(|mut output| {
            // What it has said is there; a process that it left might keep the pipe open.
            rustix::fs::fcntl_setfl(&output, OFlags::NONBLOCK).ok()?;
            output.read(&mut line).ok()
        });
        let path = Path::new(OsStr::from_bytes(line[..read.unwrap_or(0)].trim_ascii_end()));
        Ok((is_successful && path.is_absolute()).then(|| path.to_owned()))
    }
}

/// Whether the client ends successfully; it is ended when it takes too long.
fn ended(client: &mut Child, deadline: Duration) -> Result<bool, String> {
    let begun = Instant::now();
    loop {
        match client.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if begun.elapsed() < deadline => std::thread::sleep(POLL_INTERVAL),
            other => {
                let _ = client.kill();
                let _ = client.wait();
                return Err(match other {
                    Err(error) => format!("debuginfod-find: {error}"),
                    _ => format!("debuginfod-find did not end within {} s", deadline.as_secs()),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Checks that a client that does not end is asked once: the first file waits for its deadline,
    /// and no other file starts the client again.
    #[test]
    fn a_client_that_hangs_is_asked_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, asked) = (folder.path().join("debuginfod-find"), folder.path().join("asked"));
        let script = format!("#!/bin/sh\necho \"$@\" >>{}\nexec sleep 600\n", asked.display());
        std::fs::write(&program, script).expect("a file");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("our file");
        let client = Debuginfod {
            program,
            announce: |_| {},
            is_announced: AtomicBool::new(false),
            deadline: Duration::from_millis(500),
            left: Mutex::new(DEADLINE_OF_ALL),
        };
        let fetch = |id: u8| client.fetch(BuildFile::DebugInfo, &[id; 20], Path::new("/bin/x"));
        let first = fetch(1).expect_err("it does not end");
        assert!(first.contains("did not end"), "{first}");
        let second = fetch(2).expect_err("it is not asked");
        assert!(second.contains("not asked again"), "{second}");
        let questions = std::fs::read_to_string(&asked).unwrap_or_default();
        assert!(questions.lines().count() <= 1, "{questions}");
    }
}
