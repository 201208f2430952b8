//! Names of generated code, kept in the recording.
//!
//! The names that just-in-time compilers give are in files in /tmp, or in a virtual machine that
//! has to be asked; both are gone when the recording is read, or on another machine. So they are
//! copied while it runs.
//!
//! ```text
//!  writer: mappings --CodeTap--> [watch] --> worker: visits processes, reads and asks
//!                                               | records (kymo_data::CodeNames)
//!  writer <------------- forwarder <------------'
//! ```
//! A process is visited soon after it maps memory for code, then at growing intervals, and once
//! more at the end of the recording: code goes away, and so do processes.
//!
//! # Invariants
//! - **N1** No stage of the recording waits for the worker: what it does in other processes'
//!   folders may take for ever. At the end the forwarder waits for it until a deadline.
//! - **N2** Memory and time that a process costs are bounded, whatever it writes.
//! - **N3** Each line is written once, unless code is replaced and comes back.

mod lines;
mod process;
mod tap;
mod worker;

pub(crate) use tap::CodeTap;

use crate::channel::Sender;
use crate::shared::Message;
use kymo_profile::runtimes::Runtime;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use worker::Worker;

/// So long the end of a recording waits for the last names.
const LAST_VISITS: Duration = Duration::from_secs(3);
/// Records that wait for the forwarder.
const QUEUED: usize = 16;
/// How often the forwarder looks whether the worker is stuck. Its report wakes the forwarder.
const FORWARD_INTERVAL: Duration = Duration::from_secs(1);

/// What makes a process worth a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum CodeSource {
    /// It runs code in memory that belongs to no file.
    Memory,
    /// It writes a jitdump.
    Dump,
    /// It is a HotSpot virtual machine.
    Hotspot,
}

#[derive(Debug, Default)]
struct WatchState {
    news: Vec<(i32, CodeSource)>,
    ends: Option<Instant>,
}

/// What the writer tells the worker.
#[derive(Debug, Default)]
pub(crate) struct CodeWatch {
    state: Mutex<WatchState>,
    changed: Condvar,
}

/// What the worker has to say in the end.
#[derive(Debug, Default)]
pub(crate) struct CodeReport {
    /// Sentences for the user.
    remarks: Vec<String>,
    /// Processes that told no names.
    nameless: Vec<Nameless>,
}

/// A process whose generated code has no names.
#[derive(Debug)]
struct Nameless {
    pid: i32,
    /// The name of its program's file.
    program: String,
    runtime: &'static Runtime,
}

impl CodeReport {
    /// What the user should know; `tap`: who has how many samples in generated code.
    pub(crate) fn remarks(self, tap: Option<&CodeTap>, samples: u64) -> Vec<String> {
        let mut remarks = self.remarks;
        let mut by_runtime: Vec<(Nameless, u64, usize)> = Vec::new();
        for process in self.nameless {
            let count = tap.map_or(0, |tap| tap.samples_of(process.pid));
            match by_runtime.iter_mut().find(|known| std::ptr::eq(known.0.runtime, process.runtime)) {
                Some(known) => {
                    known.1 += count;
                    known.2 += usize::from(count > 0);
                }
                None => by_runtime.push((process, count, 1)),
            }
        }
        for (Nameless { pid, program, runtime }, count, processes) in by_runtime {
            // One in a hundred is worth a sentence.
            if count == 0 || count.saturating_mul(100) < samples {
                continue;
            }
            let more = if processes > 1 { format!(" and {} more", processes - 1) } else { String::new() };
            let program = program.escape_debug();
            let share = 100 * count / samples.max(1);
            remarks.push(format!(
                "{count} samples ({share} %) lie in code that {program} ({pid}{more}) made without names: {}",
                runtime.advice
            ));
        }
        remarks
    }
}

enum FromWorker {
    Records(Vec<u8>),
    Report(CodeReport),
}

impl CodeWatch {
    fn add(&self, pid: i32, source: CodeSource) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).news.push((pid, source));
        self.changed.notify_one();
    }

    /// Ends the visits, the last of which begin now.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ends = Some(Instant::now() + LAST_VISITS);
        self.changed.notify_one();
    }

    /// The deadline of the last visits, once the recording has ended.
    fn ends(&self) -> Option<Instant> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ends
    }

    /// Waits until this time, until there are news, or until the end.
    fn wait(&self, until: Option<Instant>) -> (Vec<(i32, CodeSource)>, Option<Instant>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.news.is_empty() && state.ends.is_none() {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        (std::mem::take(&mut state.news), state.ends)
    }
}

/// Collects names in a thread of its own, and forwards them to the writer in the calling one, until
/// the recording has ended.
pub(crate) fn forward(
    watch: &Arc<CodeWatch>,
    clock: Option<i32>,
    asks_machines: bool,
    out: &mut Sender<Message>,
) -> CodeReport {
    // The worker's thread comes with the first process that it is for. Most recordings have none.
    let (news, ends) = watch.wait(None);
    let failed = |why: String| CodeReport { remarks: vec![why], nameless: Vec::new() };
    if news.is_empty() || ends.is_some() && news.is_empty() {
        return CodeReport::default();
    }
    let (send, received) = sync_channel(QUEUED);
    let theirs = Arc::clone(watch);
    let work = move || {
        let Some(mut worker) = Worker::new(clock, asks_machines) else {
            let why = "names of generated code are not kept: no event is permitted that tells the time";
            let _ = send.send(FromWorker::Report(failed(why.to_owned())));
            return;
        };
        let mut emit = |records| send.send(FromWorker::Records(records)).is_ok();
        worker.run(&theirs, news, &mut emit);
        let _ = send.send(FromWorker::Report(worker.report()));
    };
    // Not joined: see N1.
    if let Err(error) = std::thread::Builder::new().spawn(work) {
        return failed(format!("names of generated code are not kept: failed to start a thread: {error}"));
    }
    receive(&received, watch, out)
}

fn receive(received: &Receiver<FromWorker>, watch: &CodeWatch, out: &mut Sender<Message>) -> CodeReport {
    loop {
        match received.recv_timeout(FORWARD_INTERVAL) {
            Ok(FromWorker::Records(records)) => out.send_blocking(Message::Note(records)),
            Ok(FromWorker::Report(report)) => return report,
            Err(RecvTimeoutError::Disconnected) => return CodeReport::default(),
            Err(RecvTimeoutError::Timeout) => {
                if watch.ends().is_some_and(|ends| Instant::now() > ends + Duration::from_secs(1)) {
                    let why = "names of generated code may be missing: reading them took too long at the end";
                    return CodeReport { remarks: vec![why.to_owned()], nameless: Vec::new() };
                }
            }
        }
    }
}
