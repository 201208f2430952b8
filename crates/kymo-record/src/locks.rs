//! Contended locks in a recording: what adds up their waits, and how that gets into the file.
//!
//! The kernel's programs ([`FutexTracer`]) write one event, `bpf-output`. In the file there are
//! three, described as tracepoints, so that every reader can print their fields:
//!
//! ```text
//!  lock-wait  a thread has waited; period: its time, with that of waits which have no sample
//!  lock-wake  a thread has woken others: at a lock it has just unlocked it
//!  lock-sums  at the end, for each futex: waits, their time, and how many of which length
//!  lock-holds at the end, if holds are timed: of each lock and place that takes it
//! ```
use kymo_core::holds::HoldReport;
use kymo_data::EventSpec;
use kymo_perf::bpf::{BpfError, Follower, FutexKind, FutexOptions, FutexRecord, FutexSums, FutexTracer};
use kymo_perf::proc;

use crate::lock_holds;
use crate::options::RecordingClock;

use crate::user_rings::UserEvent;
use crate::waiting_stacks::WaitingStacks;
use crate::waits::{Completion, OwnSample, recording_time, specs_of};

/// Threads that have waited.
pub(crate) const WAIT: &str = "lock-wait";
/// Threads that have woken others.
const WAKE: &str = "lock-wake";
/// The sums.
const SUMS: &str = "lock-sums";

/// Numbers of descriptions, which no tracepoint of the kernel has, nor an event of a program's.
const KINDS: [u16; 3] = [59_004, 59_005, 59_006];
/// The number of wake-ups in their records; the kernel counts its events up from 1.
const WAKE_ID: u64 = 0x6b79_6d6c << 32;
const SUMS_ID: u64 = WAKE_ID + 1;

/// The number of the call in which threads wait.
#[cfg(target_arch = "x86_64")]
const FUTEX: i64 = 202;
#[cfg(not(target_arch = "x86_64"))]
const FUTEX: i64 = 98;
/// Operations that wait, without their flags.
const WAITING: [u64; 5] = [0, 6, 9, 11, 13];
const OPERATIONS: u64 = 0x7f;

/// The events, described.
pub(crate) fn events(holds: bool) -> Vec<UserEvent> {
    let formats = [FutexRecord::FORMAT, FutexRecord::FORMAT, FutexSums::FORMAT];
    let described = [(WAIT, KINDS[0], 0), (WAKE, KINDS[1], WAKE_ID), (SUMS, KINDS[2], SUMS_ID)];
    let mut formats = formats.into_iter();
    let event = |(name, kind, id): (&str, u16, u64)| UserEvent {
        name: name.to_owned(),
        system: "kymo".to_owned(),
        format: format!(
            "name: {}\nID: {kind}\n{}",
            name.replace('-', "_"),
            formats.next().unwrap_or_default()
        ),
        kind: kind.into(),
        id,
    };
    described.into_iter().map(event).chain(holds.then(lock_holds::event)).collect()
}

/// The events of the file, of the one that the kernel has.
pub(crate) fn specs(kernel: &EventSpec, holds: bool) -> Vec<EventSpec> {
    specs_of(kernel, events(holds))
}

/// How a sample is completed; `None`: the bytes are no record of a futex.
pub(crate) fn complete(raw: &[u8]) -> Option<Completion> {
    let record = FutexRecord::parse(raw)?;
    let (period, kind, id) = match record.kind {
        FutexKind::Wait | FutexKind::Unfinished => (record.told_ns, KINDS[0], None),
        FutexKind::Wake => (record.count, KINDS[1], Some(WAKE_ID)),
    };
    Some(Completion { period, kind, id, of: None, tid: record.tid, has_own_stack: false })
}

/// The tracer of a recording, and whose samples it writes.
#[derive(Debug)]
pub(crate) struct Locks {
    pub(crate) tracer: FutexTracer,
    pub(crate) event: usize,
}

impl Locks {
    pub(crate) fn start(
        event: usize,
        followed: Option<&Follower>,
        options: &FutexOptions,
    ) -> Result<Locks, BpfError> {
        Ok(Locks { tracer: FutexTracer::start(followed, options)?, event })
    }

    /// Enters the threads of these processes that wait already. To be called when the events take
    /// records.
    pub(crate) fn enter_existing(&self, processes: &[i32]) {
        for &pid in processes {
            for tid in proc::tasks(pid).unwrap_or_default() {
                let Some(call) = proc::waiting_call(pid, tid) else { continue };
                let [address, operation, ..] = call.arguments;
                if call.number == FUTEX && WAITING.contains(&(operation & OPERATIONS)) {
                    self.tracer.enter(pid, tid, operation as u32, address);
                }
            }
        }
    }

    /// Ends the tracing: the waits that have not ended, with their stacks, the sums, and how long
    /// locks were held. `specs`: the events of the file; `event`: the one that takes waits.
    pub(crate) fn end(
        &self,
        specs: &[EventSpec],
        event: usize,
        clock: Option<RecordingClock>,
        holds: &HoldReport,
    ) -> Vec<u8> {
        let (sums, waits, monotonic_ns) = self.tracer.end();
        let wait_spec = specs.get(event);
        let sums_spec = specs.iter().find(|spec| spec.ids == [SUMS_ID]);
        let (Some(wait_spec), Some(sums_spec)) = (wait_spec, sums_spec) else { return Vec::new() };
        let time_ns = recording_time(monotonic_ns, clock);
        let mut bytes = Vec::new();
        let process = |wait: &_| {
            let FutexRecord { pid, tid, .. } = *wait;
            (proc::process_of(tid).unwrap_or(pid), tid)
        };
        let mut stacks = WaitingStacks::of(waits.iter().map(process).collect(), None);
        for wait in waits {
            let (pid, tid) = process(&wait);
            let stack = stacks.stack_of(pid, tid);
            let is_this = stack.call.is_some_and(|call| call.arguments[0] == wait.address);
            let frames = if is_this { stack.frames } else { Vec::new() };
            let sample = OwnSample {
                kind: KINDS[0],
                pid,
                tid,
                time_ns,
                period: wait.told_ns,
                frames,
                ..OwnSample::default()
            };
            bytes.extend(sample.with(wait.to_raw(), wait_spec));
        }
        for of in sums {
            let (pid, period) = (of.pid, of.waits.total_ns);
            let sample = OwnSample { kind: KINDS[2], pid, tid: pid, time_ns, period, ..OwnSample::default() };
            bytes.extend(sample.with(of.to_raw(), sums_spec));
        }
        bytes.extend(lock_holds::samples(holds, specs, time_ns));
        bytes
    }

    /// What the user should know.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.tracer.uses_tracepoints() {
            remarks.push(
                "this kernel attaches no programs to its functions, but to tracepoints: while locks were observed, each system call of the machine took a little longer".into(),
            );
        }
        match self.tracer.lost() {
            0 => {}
            lost => remarks.push(format!(
                "{lost} records of waits found no room: the sums are complete, their stacks are missing; a larger -m helps"
            )),
        }
        match self.tracer.missed() {
            0 => {}
            missed => remarks.push(format!(
                "up to {missed} waits are missing: too many locks or waiting threads at once, or the kernel's programs were held up"
            )),
        }
        remarks
    }
}
