//! Visits processes when it is time, and makes records of what they say.

use super::process::{Process, Visit};
use super::{CodeReport, CodeSource, CodeWatch};
use kymo_data::{CodeNames, Mark};
use kymo_perf::event_clock::{ClockPair, EventClock};
use std::collections::BTreeMap;
use std::time::Instant;

/// The worker's thread is called so, and renames itself so to learn the time.
const THREAD_NAME: &std::ffi::CStr = c"code-names";
/// Remarks about single processes.
const MOST_REMARKS: usize = 5;

pub(super) struct Worker {
    clock: EventClock,
    asks_machines: bool,
    processes: BTreeMap<i32, Process>,
    report: CodeReport,
}

impl Worker {
    /// For events with this clock; `None` if the time cannot be told.
    pub(super) fn new(clock: Option<i32>, asks_machines: bool) -> Option<Worker> {
        let _ = rustix::thread::set_name(THREAD_NAME);
        let clock = EventClock::new(clock)?;
        Some(Worker { clock, asks_machines, processes: BTreeMap::new(), report: CodeReport::default() })
    }

    /// Until the recording ends, or `emit` says that nobody takes the records.
    pub(super) fn run(
        &mut self,
        watch: &CodeWatch,
        mut news: Vec<(i32, CodeSource)>,
        emit: &mut dyn FnMut(Vec<u8>) -> bool,
    ) {
        // Jitdump files, which readers find by themselves, have times of another clock.
        if !self.emit_clock(emit) {
            return;
        }
        loop {
            for (pid, source) in std::mem::take(&mut news) {
                let process = self.processes.entry(pid).or_insert_with(|| Process::new(pid));
                process.has(source, self.asks_machines);
            }
            let due = self.processes.values().map(|process| process.due).min();
            let (came, ends) = watch.wait(due);
            news = came;
            if ends.is_some() && !news.is_empty() {
                continue;
            }
            let now = Instant::now();
            let pids: Vec<i32> = (self.processes.iter())
                .filter(|(_, process)| ends.is_some() || process.due <= now)
                .map(|(pid, _)| *pid)
                .collect();
            for pid in pids {
                let is_late = ends.is_some_and(|ends| Instant::now() >= ends);
                if is_late || !self.visit(pid, ends, emit) {
                    return;
                }
            }
            if ends.is_some() {
                self.emit_clock(emit);
                return;
            }
        }
    }

    /// Visits one; `false` if nobody takes the records.
    fn visit(&mut self, pid: i32, ends: Option<Instant>, emit: &mut dyn FnMut(Vec<u8>) -> bool) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return true };
        let Visit { lines, ended } = process.visit(ends);
        let now = self.clock.now();
        let read_ns = now.map_or(process.read_ns, |now| now.recording_ns);
        let from_ns = std::mem::replace(&mut process.read_ns, read_ns);
        let goes_on = match now.filter(|_| !lines.is_empty()) {
            Some(now) => {
                let names = CodeNames { pid, from_ns, until_ns: now.recording_ns, text: lines };
                names.records().map_or(true, emit)
            }
            None => true,
        };
        if ended && let Some(mut process) = self.processes.remove(&pid) {
            self.take_leave(&mut process);
        }
        goes_on
    }

    /// Ties the recording's clock to the other one, now; `false` if nobody takes the record.
    fn emit_clock(&mut self, emit: &mut dyn FnMut(Vec<u8>) -> bool) -> bool {
        let Some(ClockPair { recording_ns, monotonic_ns }) = self.clock.now() else { return true };
        emit(Mark::Clock { recording_ns, monotonic_ns }.record())
    }

    /// What the user should know.
    pub(super) fn report(&mut self) -> CodeReport {
        for (_, mut process) in std::mem::take(&mut self.processes) {
            self.take_leave(&mut process);
        }
        let mut report = std::mem::take(&mut self.report);
        let more = report.remarks.len().saturating_sub(MOST_REMARKS);
        report.remarks.truncate(MOST_REMARKS);
        if more > 0 {
            report.remarks.push(format!("{more} more processes have no names for their generated code"));
        }
        report
    }

    /// Keeps what is to be said of a process that is not visited any more.
    fn take_leave(&mut self, process: &mut Process) {
        self.report.remarks.extend(process.remarks(self.asks_machines));
        self.report.nameless.extend(process.nameless());
    }
}
