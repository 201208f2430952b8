//! Waits of threads in a recording: what traces them, and how its records get into the file.
//!
//! The kernel's programs ([`WaitTracer`]) write one event, `bpf-output`. In the file there are
//! three, described as tracepoints, so that every reader can print their fields:
//!
//! ```text
//!  offcpu-time     a thread runs again; period: its time off every CPU since its last sample
//!  offcpu-wakeup   a thread that waited long is woken: the sample and its stack are the waker's
//!  offcpu-stack    a thread begins to wait (before Linux 6.16): the stack of what follows
//! ```
use kymo_data::{Attr, EventSet, EventSpec, RawRecord, RecordHeader, Sample, abi};
use kymo_perf::bpf::{
    BpfError, Follower, PythonWalker, ThreadState, WaitKind, WaitOptions, WaitRecord, WaitTracer,
};
use kymo_perf::event_clock::EventClock;
use kymo_perf::proc;
use std::sync::Arc;

use crate::options::RecordingClock;
use crate::python::{PythonReader, PythonStacks};
use crate::targets::{Observed, TargetKind};
use crate::user_rings::UserEvent;
use crate::waiting_stacks::WaitingStacks;

/// What perf calls it.
pub(crate) const OFF_CPU: &str = "offcpu-time";
/// What wakes those that waited.
pub(crate) const WAKEUP: &str = "offcpu-wakeup";
/// Where those began to wait whose records have no stacks.
pub(crate) const STACK: &str = "offcpu-stack";

/// Numbers of descriptions, which no tracepoint of the kernel has, nor an event of a program's.
const KINDS: [u16; 3] = [59_001, 59_002, 59_003];
/// The number of wake-ups in their records; the kernel counts its events up from 1.
const WAKEUP_ID: u64 = 0x6b79_6d77 << 32;
const STACK_ID: u64 = WAKEUP_ID + 1;

/// The events, described.
pub(crate) fn events() -> [UserEvent; 3] {
    [(OFF_CPU, KINDS[0], 0), (WAKEUP, KINDS[1], WAKEUP_ID), (STACK, KINDS[2], STACK_ID)].map(
        |(name, kind, id)| UserEvent {
            name: name.to_owned(),
            system: "kymo".to_owned(),
            format: format!("name: {}\nID: {kind}\n{}", name.replace('-', "_"), WaitRecord::FORMAT),
            kind: kind.into(),
            id,
        },
    )
}

/// The events of the file, of the one that the kernel has.
pub(crate) fn specs(kernel: &EventSpec) -> Vec<EventSpec> {
    specs_of(kernel, events())
}

/// Events of the file like the one that the kernel has, the first of which takes its ids.
pub(crate) fn specs_of(kernel: &EventSpec, events: impl IntoIterator<Item = UserEvent>) -> Vec<EventSpec> {
    let spec = |event: UserEvent| EventSpec {
        attr: Attr { kind: abi::PERF_TYPE_TRACEPOINT, config: event.kind, ..kernel.attr.clone() },
        ids: if event.id == 0 { kernel.ids.clone() } else { vec![event.id] },
        name: event.name,
    };
    events.into_iter().map(spec).collect()
}

/// The tracer of a recording, and whose samples it writes.
#[derive(Debug)]
pub(crate) struct Waits {
    pub(crate) tracer: WaitTracer,
    pub(crate) event: usize,
}

impl Waits {
    pub(crate) fn start(
        event: usize,
        followed: Option<&Follower>,
        python: Option<&PythonWalker>,
        options: &WaitOptions,
    ) -> Result<Waits, BpfError> {
        Ok(Waits { tracer: WaitTracer::start(followed, python, options)?, event })
    }

    /// Time counts from now on. To be called when the events take records, before the threads that
    /// exist are listed: whoever is made from now on is entered by its maker.
    pub(crate) fn begin(&self) {
        self.tracer.begin();
    }

    /// Enters the threads that are there already, those of these processes or the command's.
    /// `by_thread`: only the threads that are named.
    pub(crate) fn enter_existing(&self, observed: &Observed, processes: &[i32], by_thread: bool) {
        if observed.kind == TargetKind::Command {
            observed.tasks.iter().for_each(|&pid| _ = self.tracer.enter(pid, pid, ThreadState::Held));
            return;
        }
        if by_thread {
            for &tid in &observed.tasks {
                self.enter(proc::process_of(tid).unwrap_or(tid), tid);
            }
            return;
        }
        for &pid in processes {
            proc::tasks(pid).unwrap_or_default().into_iter().for_each(|tid| self.enter(pid, tid));
        }
    }

    fn enter(&self, pid: i32, tid: i32) {
        let state = match proc::state(pid, tid) {
            Some('R') => ThreadState::Ready,
            Some('Z' | 'X') | None => return,
            Some(_) => ThreadState::Blocked,
        };
        self.tracer.enter(pid, tid, state);
    }

    /// Ends the tracing: the records of what was not told yet, as samples with the stacks of those
    /// that still wait. `python`: what Python's functions are called, if they are walked.
    pub(crate) fn end(
        &self,
        spec: &EventSpec,
        clock: Option<RecordingClock>,
        python: Option<PythonStacks>,
    ) -> Vec<u8> {
        let (mut left, now) = self.tracer.end();
        let now_ns = recording_time(now, clock);
        left.sort_unstable_by_key(|(record, _)| (record.pid, record.tid));
        let waits = |record: &WaitRecord| record.task_state != 0 && record.blocked_ns > 0;
        let waiting = left.iter().map(|(record, _)| record).filter(|record| waits(record));
        let python = python.map(|stacks| PythonReader::new(stacks, now_ns));
        let mut stacks = WaitingStacks::of(waiting.map(|record| (record.pid, record.tid)).collect(), python);
        let end = |(mut record, until): (WaitRecord, u64)| {
            let stack =
                if waits(&record) { stacks.stack_of(record.pid, record.tid) } else { Default::default() };
            if let Some(call) = stack.call {
                let [first, second, ..] = call.arguments;
                (record.syscall, record.arguments, record.files) =
                    (call.number, [first, second], stack.files);
            }
            let sample = OwnSample {
                kind: KINDS[0],
                pid: record.pid,
                tid: record.tid,
                // 0: the recording's clock could not be asked.
                time_ns: if now_ns == 0 { 0 } else { now_ns.wrapping_sub(now.wrapping_sub(until)) },
                period: record.off_cpu_ns(),
                frames: stack.frames,
                kernel: stack.kernel,
            };
            [stack.names, sample.with(record.to_raw(), spec)].concat()
        };
        left.into_iter().flat_map(end).collect()
    }

    /// What the user should know.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if !self.tracer.has_stacks() {
            remarks.push(
                "before Linux 6.16 a wait has a stack only if the thread's wait before was long, too: times and wakers are complete".into(),
            );
        }
        match self.tracer.lost() {
            0 => {}
            lost => remarks.push(format!(
                "{lost} records of waits found no room: their times came with later ones, their stacks did not; a larger -m or --min helps"
            )),
        }
        // What they cost is seen in the report only.
        tracing::debug!(switches = self.tracer.unseen(), "left out by the kernel");
        match self.tracer.missed() {
            0 => {}
            missed => remarks.push(format!("the time of {missed} threads is not divided: too many at once")),
        }
        remarks
    }
}

/// What a sample that the recorder writes itself tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnSample {
    /// The number of the description.
    pub(crate) kind: u16,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) time_ns: u64,
    pub(crate) period: u64,
    /// Of the stack in the program what is known, innermost first.
    pub(crate) frames: Vec<u64>,
    /// The same of the stack in the kernel.
    pub(crate) kernel: Vec<u64>,
}

impl OwnSample {
    /// The sample of an event with this record. The fields are those of [`crate::attr::waits`].
    pub(crate) fn with(&self, mut raw: Vec<u8>, spec: &EventSpec) -> Vec<u8> {
        let bits = spec.attr.sample_type;
        label(&mut raw, self.kind, self.tid);
        let id = spec.ids.first().copied().unwrap_or(0);
        let task = u64::from(self.pid.cast_unsigned()) | u64::from(self.tid.cast_unsigned()) << 32;
        let parts =
            [(abi::PERF_CONTEXT_KERNEL, &self.kernel), (abi::PERF_CONTEXT_USER, &self.frames)].into_iter();
        let chain: Vec<u64> = (parts.filter(|(_, frames)| !frames.is_empty()))
            .flat_map(|(mark, frames)| [mark].into_iter().chain(frames.iter().copied()))
            .collect();
        let fields = [
            (abi::PERF_SAMPLE_IDENTIFIER, id),
            (abi::PERF_SAMPLE_IP, self.frames.first().copied().unwrap_or(0)),
            (abi::PERF_SAMPLE_TID, task),
            (abi::PERF_SAMPLE_TIME, self.time_ns),
            (abi::PERF_SAMPLE_CPU, 0),
            (abi::PERF_SAMPLE_PERIOD, self.period),
            (abi::PERF_SAMPLE_CALLCHAIN, chain.len() as u64),
        ];
        let mut body: Vec<u8> = Vec::new();
        for (_, word) in fields.iter().filter(|(bit, _)| bits & bit != 0) {
            body.extend(word.to_le_bytes());
        }
        if bits & abi::PERF_SAMPLE_CALLCHAIN != 0 {
            body.extend(chain.iter().flat_map(|word| word.to_le_bytes()));
        }
        body.extend((raw.len() as u32).to_le_bytes());
        body.extend(raw);
        // No registers; no cgroup.
        for field in [abi::PERF_SAMPLE_REGS_USER, abi::PERF_SAMPLE_CGROUP] {
            body.extend(0_u64.to_le_bytes().iter().filter(|_| bits & field != 0));
        }
        let header = u64::from(abi::PERF_RECORD_SAMPLE)
            | u64::from(abi::PERF_RECORD_MISC_USER) << 32
            | (8 + body.len() as u64) << 48;
        [header.to_le_bytes().to_vec(), body].concat()
    }
}

/// The moment of CLOCK_MONOTONIC by the recording's clock; 0 if that cannot be told.
pub(crate) fn recording_time(monotonic_ns: u64, clock: Option<RecordingClock>) -> u64 {
    let mut clock = EventClock::new(clock.map(RecordingClock::id));
    let pair = clock.as_mut().and_then(EventClock::now);
    pair.map_or(0, |pair| pair.recording_ns.wrapping_sub(pair.monotonic_ns).wrapping_add(monotonic_ns))
}

/// The bytes that all tracepoints begin with.
fn label(raw: &mut [u8], kind: u16, tid: i32) {
    if let Some(place) = raw.first_chunk_mut::<8>() {
        *place = [0; 8];
        place[..2].copy_from_slice(&kind.to_le_bytes());
        place[4..].copy_from_slice(&tid.to_le_bytes());
    }
}

/// What a completed sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitSample {
    /// A wait, with the stack of the thread that waited.
    Wait,
    /// A wait, with the stack of another thread: it must not stay.
    OfOther,
    /// A sample of another event, which has this id in the file.
    Renamed(u64),
}

/// How a sample is completed, by its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(crate) period: u64,
    /// The number of the description.
    pub(crate) kind: u16,
    /// The id of the file's event, if it is not that of the kernel's.
    pub(crate) id: Option<u64>,
    /// Process and thread that the sample is about, if the kernel's may be of another.
    pub(crate) of: Option<(i32, i32)>,
    /// The thread that the record tells of.
    pub(crate) tid: i32,
    /// The stack is to be that thread's.
    pub(crate) has_own_stack: bool,
}

/// How a sample of a wait is completed; `None`: the bytes are no record of one.
pub(crate) fn complete(raw: &[u8]) -> Option<Completion> {
    let wait = WaitRecord::parse(raw)?;
    let (period, number, id) = match wait.kind {
        WaitKind::Wait | WaitKind::End => (wait.off_cpu_ns(), 0, None),
        WaitKind::Wakeup => (1, 1, Some(WAKEUP_ID)),
        WaitKind::Stack => (1, 2, Some(STACK_ID)),
    };
    Some(Completion {
        period,
        kind: KINDS[number],
        id,
        of: id.is_none().then_some((wait.pid, wait.tid)),
        tid: wait.tid,
        has_own_stack: wait.kind == WaitKind::Wait,
    })
}

/// Turns the kernel's records into samples of the file's events, in place.
#[derive(Debug)]
pub(crate) struct WaitSamples {
    events: Arc<EventSet>,
    event: usize,
    ip_at: usize,
    tid_at: usize,
    period_at: usize,
    complete: fn(&[u8]) -> Option<Completion>,
}

impl WaitSamples {
    /// `events`: as the kernel writes them; `event`: which of them takes the records; `complete`:
    /// reads a record's bytes.
    pub(crate) fn new(
        events: Arc<EventSet>,
        event: usize,
        complete: fn(&[u8]) -> Option<Completion>,
    ) -> WaitSamples {
        let layout = events.list.get(event).map(|event| event.layout);
        let at = |field| layout.and_then(|layout| layout.field_offset(field)).unwrap_or(usize::MAX);
        let (tid_at, period_at) = (at(abi::PERF_SAMPLE_TID), at(abi::PERF_SAMPLE_PERIOD));
        WaitSamples { events, event, ip_at: at(abi::PERF_SAMPLE_IP), tid_at, period_at, complete }
    }

    /// Puts a sample of a wait where the program waits, not where the kernel does. `frame`: the
    /// innermost of the program's.
    pub(crate) fn locate(&self, record: &mut [u8], frame: Option<&u64>) {
        let Some(frame) = frame else { return };
        put(record, self.ip_at.saturating_add(8), &frame.to_le_bytes());
        if let Some(misc) = record.get_mut(4) {
            *misc = *misc & !(abi::PERF_RECORD_MISC_CPUMODE_MASK as u8) | abi::PERF_RECORD_MISC_USER as u8;
        }
    }

    /// Takes the stack out of a sample, which is another thread's: a chain of marks has no frames.
    pub(crate) fn clear_stack(&self, record: &mut [u8]) {
        put(record, self.ip_at.saturating_add(8), &[0; 8]);
        let layout = self.events.list.get(self.event).map(|event| event.layout);
        let Some(at) = layout.and_then(|layout| layout.callchain_offset()).map(|at| at + 8) else { return };
        let Some(count) = record.get(at..at + 8).and_then(|word| word.try_into().ok()) else { return };
        let words = usize::try_from(u64::from_le_bytes(count)).unwrap_or(0);
        for word in record[at + 8..].chunks_exact_mut(8).take(words) {
            word.copy_from_slice(&abi::PERF_CONTEXT_USER.to_le_bytes());
        }
    }

    /// Completes a sample, whose body this is; what is left to do when nobody looks for the
    /// kernel's event any more. `None`: it is none of these.
    pub(crate) fn complete(&self, header: RecordHeader, body: &mut [u8]) -> Option<WaitSample> {
        let record = RawRecord { header, body, position: 0 };
        if header.kind != abi::PERF_RECORD_SAMPLE || self.events.event_of(&record) != Some(self.event) {
            return None;
        }
        let mut sample = Sample::default();
        self.events.list[self.event].layout.parse_into(header.misc, body, &mut sample).ok()?;
        let (raw, tid) = (sample.raw?, sample.tid);
        let Completion { period, kind, id, of, tid: told, has_own_stack } = (self.complete)(raw)?;
        let raw_at = raw.as_ptr().addr() - body.as_ptr().addr();
        let is_of_other = tid != Some(told);
        if let Some((pid, tid)) = of.filter(|_| is_of_other) {
            // The kernel's sample is of the thread that left the CPU, or has no number for one that
            // ends.
            put(body, self.tid_at, &pid.to_le_bytes());
            put(body, self.tid_at + 4, &tid.to_le_bytes());
        }
        put(body, self.period_at, &period.to_le_bytes());
        label(&mut body[raw_at..], kind, tid.unwrap_or(told));
        if has_own_stack && is_of_other {
            return Some(WaitSample::OfOther);
        }
        Some(id.map_or(WaitSample::Wait, WaitSample::Renamed))
    }
}

fn put(body: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = body.get_mut(at..at.saturating_add(bytes.len())) {
        place.copy_from_slice(bytes);
    }
}
