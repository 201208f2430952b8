//! A command that is stopped before its first instruction.
//!
//! ```text
//!   forked, waits for its start ... executes its program --> stops: mapped and written --> let go
//!   ^ seized here                                            ^ the kernel's event of exec
//! ```
//! All of it is done by one thread of ours, which traces. When that ends, the command runs on as it
//! is.
use super::super::connection::Door;
use super::super::hijacked_thread::HijackedThread;
use super::super::hold::HeldThreads;
use super::super::refusal::EnterError;
use super::super::target::TargetProcess;
use super::region::{Prepared, RegionSizes, RemoteRegion, StubOwner};
use super::write::{PatchOutcome, SitePatch, held_already};
use super::{RemoteProcess, RemoteTarget};
use crate::sys::ptrace::{EXECUTED, PtraceStop, Traced};
use std::io;
use std::time::{Duration, Instant};

/// How often it is looked whether waiting is over.
const LOOK: Duration = Duration::from_millis(50);
const STOPS: Duration = Duration::from_secs(5);

/// Waits for a command to execute its program.
#[derive(Debug)]
pub struct CommandTracer(Traced);

impl CommandTracer {
    /// Takes the process that waits for its start. The calling thread traces it.
    ///
    /// # Errors
    /// Why that is not permitted.
    pub fn seize(pid: i32) -> Result<CommandTracer, EnterError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(EnterError::Machine);
        }
        let failed = EnterError::failed("tracing the command");
        let mut traced = Traced::seize(pid).map_err(&failed)?;
        traced.interrupt().map_err(&failed)?;
        let stop = traced.wait(STOPS).map_err(&failed)?;
        if stop == PtraceStop::Gone {
            return Err(EnterError::Gone);
        }
        traced.stop_at_exec().map_err(&failed)?;
        traced.go(if let PtraceStop::Signal(signal) = stop { signal } else { 0 }).map_err(failed)?;
        Ok(CommandTracer(traced))
    }

    /// Waits until the command stands before the first instruction of its program, as long as
    /// `waits` says so.
    ///
    /// # Errors
    /// Why it does not; then it runs on.
    pub fn until_executed(self, waits: &dyn Fn() -> bool) -> Result<CommandStop, EnterError> {
        let mut traced = self.0;
        let failed = EnterError::failed("waiting for the command's program");
        loop {
            match traced.wait(LOOK) {
                Ok(PtraceStop::Event(EXECUTED)) => break,
                Ok(PtraceStop::Gone) => return Err(EnterError::Gone),
                Ok(PtraceStop::Signal(signal)) => traced.go(signal).map_err(&failed)?,
                Ok(_) => traced.go(0).map_err(&failed)?,
                Err(error) if error.kind() == io::ErrorKind::TimedOut && waits() => {}
                Err(error) => return Err(failed(error)),
            }
        }
        // From within the system call to the program's first instruction.
        traced.interrupt().map_err(&failed)?;
        traced.go(0).map_err(&failed)?;
        let until = Instant::now() + STOPS;
        loop {
            match traced.wait(until.saturating_duration_since(Instant::now())).map_err(&failed)? {
                PtraceStop::Interrupted => break,
                PtraceStop::Gone => return Err(EnterError::Gone),
                PtraceStop::Signal(signal) => traced.go(signal).map_err(&failed)?,
                _ => traced.go(0).map_err(&failed)?,
            }
        }
        let target = TargetProcess::look_traced(traced.tid())?;
        Ok(CommandStop { target, traced: Some(traced) })
    }
}

/// A command that stands before its first instruction, until this is dropped.
#[derive(Debug)]
pub struct CommandStop {
    target: TargetProcess,
    /// Until something fails in the middle.
    traced: Option<Traced>,
}

impl CommandStop {
    /// Lets it run; the process, for what comes later.
    ///
    /// # Errors
    /// That it is gone.
    pub fn release(mut self) -> Result<RemoteProcess, EnterError> {
        let process = RemoteProcess::of_traced(self.target.pid);
        if let Some(traced) = self.traced.take() {
            // One that is gone need not go on.
            _ = traced.release(0);
        }
        process
    }
}

impl RemoteTarget for CommandStop {
    fn pid(&self) -> i32 {
        self.target.pid
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.target.read_some(address, bytes)
    }

    fn maps(&self) -> io::Result<Vec<u8>> {
        self.target.maps()
    }

    fn map(&mut self, places: &[u64], sizes: RegionSizes) -> Result<RemoteRegion, EnterError> {
        let prepared = Prepared::new(sizes)?;
        let door = Door::open(self.target.pid)?;
        let traced = self.traced.take().ok_or(EnterError::Gone)?;
        let mut thread = HijackedThread::of_stopped(&self.target, traced)?;
        let mapped = prepared.map(door, &mut thread, self.target.pid, places);
        self.traced = Some(thread.put_back()?);
        mapped
    }

    fn write(&mut self, patches: &[SitePatch]) -> Result<PatchOutcome, String> {
        let traced = self.traced.take().ok_or("it is gone")?;
        let held = HeldThreads::of_stopped(traced);
        // Nothing has run in it that a signal could have interrupted.
        let written = held_already(&self.target, &held, patches, &[0]);
        self.traced = held.into_stopped();
        Ok(written)
    }

    fn owner_at(&self, address: u64) -> Result<StubOwner, String> {
        StubOwner::at(&self.target, address)
    }
}
