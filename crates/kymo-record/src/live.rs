//! A recorder in a thread of its own, whose files stay in memory: the snapshots of a flight
//! recorder, or one complete recording after the other.
//!
//! ```text
//!   ask() ----> session (its thread) ----> rings are read ----> memory file ----> receiver
//!   stop() ---------^
//! ```
//!
//! A flight recorder records nothing twice and writes nothing: between two questions the kernel
//! overwrites the oldest samples in its rings. A complete recording is drained all the time, its
//! stacks are unwound meanwhile, and each question divides it. The memory files have no names, so
//! that none is left, whatever ends the process.
use crate::cpu_accounts::CpuAccounts;
use crate::cpu_time;
use crate::error::{PlanError, RecordError, system};
use crate::finish::Summary;
use crate::options::{LastSnapshot, Options, RecordingClock};
use crate::output::Output;
use crate::series::LiveSnapshot;
use crate::session::Session;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A recording that runs until it is stopped, or what it observes has ended.
#[derive(Debug)]
pub struct LiveRecorder {
    /// Asks for snapshots.
    asks: OwnedFd,
    /// Ends the session.
    stops: OwnedFd,
    /// Its other end is closed when the session has ended.
    ended: UnixStream,
    thread: Option<JoinHandle<Result<Summary, RecordError>>>,
}

impl LiveRecorder {
    /// Sets these options to what a live recorder needs: rings that keep the newest samples and
    /// hold about `reach`, a clock that the program can read, too, and no file.
    pub fn prepare(options: Options, reach: Duration) -> Options {
        Options {
            overwrite: true,
            ring_reach: Some(reach),
            last_snapshot: LastSnapshot::Dated,
            clock: Some(RecordingClock::Monotonic),
            // Snapshots have no place for names, and each would read all mapped files anew.
            asks_jvms: false,
            build_ids: false,
            compress: None,
            output: Output::Memory,
            ..options
        }
    }

    /// Sets these options to what a recording needs that is divided into files in memory: every
    /// sample is in one of them, and [`LiveSnapshot::coverage`] says nothing.
    pub fn prepare_complete(options: Options) -> Options {
        Options {
            overwrite: false,
            // Files in memory have no place for names.
            asks_jvms: false,
            compress: None,
            output: Output::Memory,
            ..options
        }
    }

    /// Starts a session whose options are [prepared](LiveRecorder::prepare), or
    /// [prepared to be complete](LiveRecorder::prepare_complete). Snapshots come as they are asked
    /// for, and one when the recording ends; then the receiver ends.
    ///
    /// # Errors
    /// No descriptor or no thread is left, or the session writes to a file.
    pub fn start(session: Session) -> Result<(LiveRecorder, Receiver<LiveSnapshot>), RecordError> {
        if session.plan().options.output != Output::Memory {
            return Err(PlanError::NotLive.into());
        }
        let number = || eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from);
        let action = "start a thread of the recorder";
        let make = || -> io::Result<_> {
            let (asks, stops) = (number()?, number()?);
            Ok((asks.try_clone()?, asks, stops.try_clone()?, stops, UnixStream::pair()?))
        };
        let (asked, asks, stop, stops, (ended, running)) = make().map_err(system(action))?;
        let (snapshots, taken) = channel();
        let (plan, command) = (session.plan(), session.command_pid());
        let is_comparable = plan.keeps_newest() && cpu_time::is_comparable_in_parts(plan);
        let accounts = is_comparable.then(|| CpuAccounts::begin(plan, command)).flatten();
        let session = session.on_snapshot(asked, move |mut snapshot| {
            snapshot.accounted = accounts.as_ref().and_then(CpuAccounts::so_far);
            // Nobody may want the last one.
            _ = snapshots.send(snapshot);
        });
        let run = move || {
            let _running = running;
            session.run(Some(stop.as_fd()))
        };
        let thread = std::thread::Builder::new().name("kymo-live".into()).spawn(run);
        let thread = Some(thread.map_err(system(action))?);
        Ok((LiveRecorder { asks, stops, ended, thread }, taken))
    }

    /// Asks for a snapshot. Those that are asked for before one is begun are one.
    pub fn ask(&self) {
        raise(&self.asks);
    }

    /// Can be read once the recording has ended.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Ends the recording, and waits for its end. What it came to.
    ///
    /// # Errors
    /// Those of [`Session::run`].
    pub fn stop(mut self) -> Result<Summary, RecordError> {
        raise(&self.stops);
        let Some(thread) = self.thread.take() else { return Err(panicked()) };
        thread.join().unwrap_or_else(|_| Err(panicked()))
    }
}

impl Drop for LiveRecorder {
    /// No thread, no event and no command outlives it.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            raise(&self.stops);
            let _ = thread.join();
        }
    }
}

fn panicked() -> RecordError {
    system("record")(io::Error::other("the recorder's thread panicked"))
}

fn raise(number: &OwnedFd) {
    // It fails only where the number would become too large, and then it can be read already.
    let _ = rustix::io::write(number, &1_u64.to_ne_bytes());
}
