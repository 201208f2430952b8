//! A child process that is waited for, but not for ever: whatever happens to a recorder, the benchmark ends.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How soon an interruption is seen that came while nobody was looking.
const LOOK: Duration = Duration::from_millis(200);
/// So many bytes of what a child says are read: its own words, or one line of figures.
const MOST_WORDS: u64 = 64 << 10;

/// What a child came to.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a child in a process group of its own until it ends; the group is killed if that takes longer than `patience`, or when
/// `interrupted` turns true.
pub(super) fn run(
    command: &mut Command,
    what: &str,
    patience: Duration,
    interrupted: &AtomicBool,
) -> anyhow::Result<Ended> {
    // Files, not pipes: nobody has to read while the child runs, and nobody waits for whoever else holds the other end.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0);
    let mut child = command.spawn().with_context(|| format!("failed to start {what}"))?;
    let pid = Pid::from_child(&child);
    let ended = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => wait(&fd, patience, interrupted),
        Err(errno) => Err(anyhow::Error::new(errno).context(format!("failed to watch {what}"))),
    };
    if !matches!(ended, Ok(true)) {
        // The child is not reaped yet, so the number is still its own.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait().with_context(|| format!("failed to wait for {what}"))?;
    let (stdout, stderr) = (text(&mut out)?, text(&mut err)?);
    if !ended? {
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        bail!(
            "{what} did not end within {:.0} s and was killed; it said: {}",
            patience.as_secs_f64(),
            if stderr.trim().is_empty() { "nothing" } else { stderr.trim() }
        );
    }
    Ok(Ended { status, stdout, stderr })
}

/// Whether the process ended in time.
fn wait(fd: &impl std::os::fd::AsFd, patience: Duration, interrupted: &AtomicBool) -> anyhow::Result<bool> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Relaxed: a flag that a signal sets, nothing else.
        if left.is_zero() || interrupted.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let nap = left.min(LOOK);
        let timeout = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
        match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(anyhow::Error::new(errno).context("failed to wait for a child")),
        }
    }
}

fn text(file: &mut File) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(MOST_WORDS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::run;

    /// Checks that a child that ends is told with its status and words.
    #[test]
    fn ends() {
        let never = AtomicBool::new(false);
        let mut command = Command::new("sh");
        let ended = run(
            command.args(["-c", "echo out; echo err >&2; exit 3"]),
            "a shell",
            Duration::from_secs(60),
            &never,
        );
        let ended = ended.expect("it ends");
        assert_eq!((ended.status.code(), &*ended.stdout, &*ended.stderr), (Some(3), "out\n", "err\n"));
    }

    /// Checks that a child that does not end is killed together with what it started, and that both reasons are said.
    #[test]
    fn does_not_end() {
        for (patience, flag, words) in [(50, false, "did not end within"), (60_000, true, "interrupted")] {
            let mut command = Command::new("sh");
            let said = run(
                command.args(["-c", "sleep 1000 & sleep 1000"]),
                "a shell",
                Duration::from_millis(patience),
                &AtomicBool::new(flag),
            );
            let said = said.map(|_| ()).expect_err("it was killed").to_string();
            assert!(said.contains(words), "{said}");
        }
    }

    /// Checks that a program that is not there is said by what it was to be.
    #[test]
    fn not_there() {
        let never = AtomicBool::new(false);
        let said = run(&mut Command::new("/nonexistent/program"), "the load", Duration::from_secs(1), &never);
        assert!(
            said.map(|_| ()).expect_err("no such program").to_string().contains("failed to start the load")
        );
    }
}
