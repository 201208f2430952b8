//! What is watched: a process that runs, or a command that is held at its first instruction until
//! everything is armed.
use anyhow::{Context, bail};
use kymo_perf::proc;
use kymo_perf::watch::{CommandAtEntry, hold_at_entry};
use kymo_perf::workload::{Exit, Workload};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is watched.
#[allow(missing_docs, reason = "fields that need words have them at their variant")]
pub enum Target {
    /// Processes that run; each of `ends` becomes readable when one of them ends.
    Running { pids: Vec<i32>, ends: Vec<OwnedFd> },
    /// A command of ours, which waits for its start or runs. `held` keeps it at its first
    /// instruction, until everything is armed.
    Command { workload: Workload, held: Option<CommandAtEntry> },
}

/// The command, by its first word, could not be executed.
#[derive(Debug)]
#[allow(missing_docs, reason = "the command, and why")]
pub struct NotStarted {
    pub command: String,
    pub source: io::Error,
}

/// The process of `-p`.
pub fn running(pids: &[i32]) -> anyhow::Result<Target> {
    let (mut known, mut ends) = (Vec::new(), Vec::new());
    for &id in pids {
        let gone = || format!("there is no process {id}: it may have ended; `ps -e` lists those that run");
        // A thread's id stands for its process: all its threads are watched.
        let pid = proc::process_of(id).with_context(gone)?;
        let number = Pid::from_raw(pid).with_context(gone)?;
        ends.push(pidfd_open(number, PidfdFlags::empty()).with_context(gone)?);
        known.push(pid);
    }
    Ok(Target::Running { pids: known, ends })
}

/// The command, executed and held.
pub fn command(words: &[OsString]) -> anyhow::Result<Result<Target, NotStarted>> {
    let mut workload = Workload::prepare(words).context("failed to start a process for the command")?;
    match hold_at_entry(&mut workload) {
        Ok(held) => Ok(Ok(Target::Command { workload, held: Some(held) })),
        Err(source) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            let command = words[0].to_string_lossy().into_owned();
            if source.raw_os_error() == Some(rustix::io::Errno::PERM.raw_os_error()) {
                bail!(
                    "failed to hold {command} at its first instruction: {source}; permit tracing, or start it first and watch it with -p"
                );
            }
            Ok(Err(NotStarted { command, source }))
        }
        Err(source) => {
            bail!("failed to hold {} at its first instruction: {source}", words[0].to_string_lossy())
        }
    }
}

impl Target {
    /// The processes' ids.
    pub fn pids(&self) -> Vec<i32> {
        match self {
            Target::Running { pids, .. } => pids.clone(),
            Target::Command { workload, .. } => vec![workload.pid()],
        }
    }

    /// Everything is armed.
    pub fn release(&mut self) {
        if let Target::Command { held, .. } = self {
            *held = None;
        }
    }

    /// Become readable when they end.
    pub fn ends(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Target::Running { ends, .. } => ends.iter().map(AsFd::as_fd).collect(),
            Target::Command { workload, .. } => vec![workload.ended_fd()],
        }
    }

    /// Whether all have ended.
    pub fn has_ended(&mut self) -> bool {
        match self {
            Target::Running { ends, .. } => {
                ends.retain(|end| {
                    let mut fds = [rustix::event::PollFd::new(end, rustix::event::PollFlags::IN)];
                    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                    rustix::event::poll(&mut fds, Some(&now)).unwrap_or(0) == 0
                });
                ends.is_empty()
            }
            Target::Command { workload, .. } => !matches!(workload.try_wait(), Ok(None)),
        }
    }

    /// Stops them, or lets them go on.
    pub fn signal(&self, signal: Signal) {
        self.pids().into_iter().for_each(|pid| self::signal(pid, signal));
    }

    /// Nothing is watched: a command that was to be is ended before it does anything.
    pub fn abort(self) {
        if let Target::Command { mut workload, held } = self {
            workload.signal(Signal::KILL.as_raw());
            drop(held);
            let _ = workload.wait();
        }
    }

    /// Ends the command, if there is one and it runs; how it ended.
    pub fn end(self, terminate: bool) -> Option<Exit> {
        match self {
            Target::Running { .. } => None,
            Target::Command { mut workload, held } => {
                drop(held);
                if terminate && matches!(workload.try_wait(), Ok(None)) {
                    workload.signal(Signal::TERM.as_raw());
                }
                workload.wait().ok()
            }
        }
    }
}

/// Sends a signal to a process, which may have ended.
pub fn signal(pid: i32, signal: Signal) {
    let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
}
