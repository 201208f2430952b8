//! Holds the process's threads when the agent asks for it, and writes its code where only a tracer
//! may.
use super::super::code_writes::CodeWriter;
use super::super::hold::{HeldThreads, PatchSites, is_stopped, thread_named};
use super::super::lease::Lease;
use super::super::target::TargetProcess;
use super::patience::Patience;
use super::{ANSWER_TIMEOUT, Client, ProtocolError, WRITING, broken};
use kymo_core::probe::wire::{self, Command, Reply};
use rustix::net::{Shutdown, shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How threads were held.
#[derive(Debug, Default)]
pub(super) struct Holding {
    pub(super) stopped: Duration,
    pub(super) failed: Option<String>,
    /// Who has written code for the agent, if anybody.
    pub(super) writer: Option<CodeWriter>,
}

impl Client {
    /// Holds the threads while the agent writes.
    pub(super) fn hold(&self, said: &wire::PatchSites, patience: &mut Patience) -> Result<(), ProtocolError> {
        let failed = |error: io::Error| format!("its memory cannot be read: {error}");
        let mut stopped = Duration::ZERO;
        let mut hold = || -> Result<(HeldThreads, i32, &TargetProcess, PatchSites), String> {
            let (target, process) = self.traceable()?;
            let one = thread_named(target.pid, said.thread).ok_or("its writing thread is not found")?;
            let places = PatchSites::read(target, said).map_err(failed)?;
            let tried = HeldThreads::all_but(target, process, one, &places);
            stopped = tried.stopped;
            Ok((tried.held?, one, target, places))
        };
        let held = hold();
        let (mut held, one, target, places) = match held {
            Ok(held) => held,
            Err(reason) => {
                self.note(stopped, Some(reason.clone()));
                patience.renew(WRITING);
                return self.say(&Command::NotHeld { reason }, patience);
            }
        };
        // All wait for this one thread now: neither should it wait behind other programs. Only root
        // may, and only for a process that might by itself.
        let writer = rustix::process::Pid::from_raw(one).filter(|_| target.is_of_root());
        let nice = rustix::process::getpriority_process(writer).unwrap_or(0);
        if writer.is_some() {
            _ = rustix::process::setpriority_process(writer, -20);
        }
        let writer_of_code = held.write(target, &places);
        self.note_writer(writer_of_code);
        let begun = Instant::now();
        // Where that cannot be, the end of the whole conversation tells the agent.
        let lease = Lease::new().ok();
        let said = match &lease {
            Some(lease) => lease.say_held(&self.socket).map_err(broken),
            None => self.say(&Command::Held, &mut Patience::strict(WRITING)),
        };
        let written = said.and_then(|()| {
            loop {
                match self.hear_within(&mut Patience::strict(WRITING)) {
                    Ok(Reply::Written) => return Ok(()),
                    Ok(_) => return Err(ProtocolError::Unexpected),
                    // Somebody has stopped the process: the thread will write when it is continued,
                    // and until then nobody wants to run. When it is continued later than that, it
                    // finds the conversation closed and writes nothing more.
                    Err(ProtocolError::Silent) if is_stopped(one) && begun.elapsed() < ANSWER_TIMEOUT => {}
                    Err(error) => return Err(error),
                }
            }
        });
        if written.is_err() {
            // It must not write any more.
            _ = shutdown(&self.socket, Shutdown::Both);
        }
        self.note(stopped + held.release(), None);
        if writer.is_some() {
            _ = rustix::process::setpriority_process(writer, nice);
        }
        written
    }

    /// The process, if its threads may be held. One that was started with the agent in it is looked
    /// at when that is first of use: most write their own code.
    fn traceable(&self) -> Result<(&TargetProcess, &OwnedFd), String> {
        let process = self.process.as_ref().ok_or("nobody said that its threads would be held")?;
        if self.target.get().is_none() {
            let pid = self.pid.ok_or("nobody said that its threads would be held")?;
            let target = TargetProcess::look_to_hold(pid).map_err(|refusal| refusal.to_string())?;
            _ = self.target.set(target);
        }
        let target = self.target.get().ok_or("nobody said that its threads would be held")?;
        Ok((target, process))
    }

    fn note_writer(&self, writer: CodeWriter) {
        let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        if writer != CodeWriter::Agent {
            holding.writer = Some(writer);
        }
    }

    fn note(&self, stopped: Duration, failed: Option<String>) {
        let mut holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        holding.stopped += stopped;
        if failed.is_some() {
            holding.failed = failed;
        }
    }

    /// What became of the holding since it was asked last.
    pub(super) fn take_holding(&self) -> Holding {
        std::mem::take(&mut *self.holding.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
