//! The scheduler's events of a recording, in order of time.
use super::decode::Decoder;
use super::event::{
    OutState, SchedEvent, SchedEventKind, SwitchedIn, SwitchedOut, TaskIds, TaskName, WakeupStep,
};
use crate::order::Rounds;
use crate::timeline::Moment;
use kymo_data::tracing_data::{self, TracingData};
use kymo_data::{Problem, RawRecord, ReadError, Record, Recording, abi};

/// Which events a recording has, and so what can be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedSources {
    /// Switches are samples of `sched:sched_switch`.
    pub switch_samples: bool,
    /// Switches are SWITCH records (`--switch-events`). Where there are samples, too, those count.
    pub switch_records: bool,
    /// Wake-ups are recorded: `sched_waking` or `sched_wakeup`.
    pub wakeups: bool,
    /// `sched_waking` is among them: `sched_wakeup` then tells no wake-up for a second time.
    pub waking: bool,
    /// New tasks are woken up for the first time: `sched_wakeup_new`.
    pub new_tasks: bool,
    /// `sched_migrate_task`.
    pub migrations: bool,
    /// The kernel's own account of run times: `sched_stat_runtime`.
    pub runtimes: bool,
    /// Samples of switches have call chains.
    pub chains: bool,
}

impl SchedSources {
    /// What this recording has.
    pub fn of(recording: &Recording) -> SchedSources {
        let formats = formats(recording);
        let mut sources = SchedSources::default();
        for event in &recording.events.list {
            const NEEDED: u64 = abi::ATTR_FLAG_CONTEXT_SWITCH | abi::ATTR_FLAG_SAMPLE_ID_ALL;
            sources.switch_records |= event.attr.flags & NEEDED == NEEDED;
            match Decoder::of(event, &formats) {
                Some(Decoder::Switch(_)) => {
                    sources.switch_samples = true;
                    sources.chains |= event.attr.sample_type & abi::PERF_SAMPLE_CALLCHAIN != 0;
                }
                Some(Decoder::Wakeup { step: WakeupStep::New, .. }) => sources.new_tasks = true,
                Some(Decoder::Wakeup { step, .. }) => {
                    sources.wakeups = true;
                    sources.waking |= step == WakeupStep::Waking;
                }
                Some(Decoder::Migrate { .. }) => sources.migrations = true,
                Some(Decoder::Runtime { .. }) => sources.runtimes = true,
                Some(Decoder::Fork { .. } | Decoder::Exit { .. }) | None => {}
            }
        }
        sources
    }

    /// Whether there are switches at all.
    pub fn has_switches(self) -> bool {
        self.switch_samples || self.switch_records
    }

    /// What cannot be known of this recording, one sentence each.
    pub fn gaps(self) -> Vec<&'static str> {
        let mut gaps = Vec::new();
        if self.has_switches() && !self.switch_samples {
            gaps.push(
                "the recording has switch records only: who woke a task up, and whether a task slept or waited \
                 for a device, is not in them; record with `kymo record -a -e 'sched:*'` for that",
            );
        } else if self.has_switches() && !self.wakeups {
            gaps.push(
                "the recording has no wake-ups: a delay is known only after a preemption; \
                 add -e sched:sched_waking to the recording",
            );
        }
        gaps
    }
}

/// The formats of the recording's tracepoints; none where it has none.
fn formats(recording: &Recording) -> TracingData {
    let blob = recording.features.tracing_data.as_deref();
    blob.and_then(|blob| tracing_data::parse(blob).ok()).unwrap_or_default()
}

/// What was read, and what was wrong with it.
#[derive(Clone, Debug, Default)]
pub struct SchedSummary {
    /// Events delivered.
    pub events: u64,
    /// Samples and records that end before their fields do, or name a CPU that no machine has.
    pub malformed: u64,
    /// Events older than the one before.
    pub unordered: u64,
    /// Records that the recorder lost.
    pub lost_records: u64,
    /// LOST records.
    pub lost_chunks: u64,
    /// Damage among the records.
    pub problems: Vec<Problem>,
}

impl SchedSummary {
    /// What is wrong with the events, one sentence each; [`problems`](Self::problems) come besides.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.lost_records > 0 {
            remarks.push(format!(
                "{} records were lost in {} places: times that reach over one are not counted",
                self.lost_records, self.lost_chunks
            ));
        }
        if self.malformed > 0 {
            remarks.push(format!(
                "{} events of the scheduler are cut off or name a CPU from {CPUS_MAX} on: they are left out",
                self.malformed
            ));
        }
        if self.unordered > 0 {
            remarks.push(format!(
                "{} events are older than the one before them: times between them are not counted",
                self.unordered
            ));
        }
        remarks
    }
}

/// CPUs that a recording may name, as many as a kernel can be built for: nothing is allocated for
/// others.
pub const CPUS_MAX: u32 = 1 << 13;

/// Reads all events in order of time. `each` gets the event, and with `samples` the sample that a
/// switch was read from.
///
/// Memory holds the events of two rounds of the recorder, and all of a recording without rounds
/// (a directory).
///
/// # Errors
/// When the recording cannot be read at all, and those of `each`.
pub fn read_events<E: From<ReadError>>(
    recording: &Recording,
    samples: bool,
    mut each: impl FnMut(&SchedEvent, Option<&RawRecord<'_>>) -> Result<(), E>,
) -> Result<SchedSummary, E> {
    let mut reader = Reader::new(recording);
    let mut rounds: Rounds<Waiting> = Rounds::new();
    let (mut last_ns, mut delivered, mut unordered) = (0, 0_u64, 0_u64);
    let mut deliver = |moment: Moment, waiting: &Waiting| {
        // What the recorder made up has time 0, wherever it is.
        if moment.time_ns > 0 {
            unordered += u64::from(moment.time_ns < last_ns);
            last_ns = moment.time_ns;
        }
        delivered += 1;
        let (header, body) = match &waiting.sample {
            Some((header, body)) => (*header, body),
            None => return each(&waiting.event, None),
        };
        each(&waiting.event, Some(&RawRecord { header, body, position: moment.position }))
    };
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        if record.header.kind == abi::PERF_RECORD_FINISHED_ROUND {
            rounds.finish_round(&mut deliver)?;
        } else if let Some(event) = reader.event(&record) {
            let keeps = samples && matches!(event.kind, SchedEventKind::Switch { .. });
            let sample = keeps.then(|| (record.header, record.body.into()));
            rounds.push(
                Moment { time_ns: event.time_ns, position: record.position },
                Waiting { event, sample },
            );
        }
    }
    rounds.finish(&mut deliver)?;
    let mut summary = reader.summary;
    summary.lost_records = summary.lost_records.max(reader.lost_samples);
    summary.problems = records.problems().to_vec();
    (summary.events, summary.unordered) = (delivered, unordered);
    Ok(summary)
}

/// An event whose time has not come.
struct Waiting {
    event: SchedEvent,
    sample: Option<(kymo_data::RecordHeader, Box<[u8]>)>,
}

/// Turns records into events.
struct Reader<'a> {
    recording: &'a Recording,
    /// By event.
    decoders: Vec<Option<Decoder>>,
    /// SWITCH records count: there are no samples of switches.
    switch_records: bool,
    /// What LOST_SAMPLES count: what LOST records count, and what was lost after the last of them.
    lost_samples: u64,
    summary: SchedSummary,
}

impl Reader<'_> {
    fn new(recording: &Recording) -> Reader<'_> {
        let formats = formats(recording);
        let decoders: Vec<Option<Decoder>> =
            recording.events.list.iter().map(|event| Decoder::of(event, &formats)).collect();
        let switch_records = !decoders.iter().flatten().any(|it| matches!(it, Decoder::Switch(_)));
        Reader { recording, decoders, switch_records, lost_samples: 0, summary: SchedSummary::default() }
    }

    fn event(&mut self, record: &RawRecord<'_>) -> Option<SchedEvent> {
        match record.header.kind {
            abi::PERF_RECORD_SAMPLE => self.of_sample(record),
            abi::PERF_RECORD_SWITCH | abi::PERF_RECORD_SWITCH_CPU_WIDE => {
                if self.switch_records {
                    self.of_switch_record(record)
                } else {
                    None
                }
            }
            abi::PERF_RECORD_COMM
            | abi::PERF_RECORD_FORK
            | abi::PERF_RECORD_EXIT
            | abi::PERF_RECORD_LOST
            | abi::PERF_RECORD_LOST_SAMPLES => self.of_side_band(record),
            _ => None,
        }
    }

    fn of_sample(&mut self, record: &RawRecord<'_>) -> Option<SchedEvent> {
        let events = &self.recording.events;
        let event = events.event_of(record)?;
        let decoder = self.decoders.get(event)?.as_ref()?;
        let sample = events.list.get(event)?.layout.parse(record.header.misc, record.body);
        let decoded = sample.ok().and_then(|sample| {
            let kind = decoder.decode(sample.raw?)?;
            let (pid, tid) = (sample.pid.unwrap_or(-1), sample.tid.unwrap_or(-1));
            let current = (pid >= 0 && tid >= 0).then_some(TaskIds { pid, tid });
            Some(SchedEvent { time_ns: sample.time?, cpu: sample.cpu, current, kind })
        });
        self.plausible(decoded)
    }

    /// Of the two records of a switch, that of the task that leaves the CPU tells both sides, if
    /// the whole CPU was recorded. Of single tasks there is one side.
    fn of_switch_record(&mut self, record: &RawRecord<'_>) -> Option<SchedEvent> {
        let out = record.header.misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0;
        let wide = record.header.kind == abi::PERF_RECORD_SWITCH_CPU_WIDE;
        if wide && !out {
            return None;
        }
        let id = self.recording.events.sample_id(record);
        let preempted = record.header.misc & abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0;
        let state = OutState { letter: if preempted { 'R' } else { '?' }, preempted };
        let word = |at: usize| {
            record
                .body
                .get(at..)
                .and_then(|rest| rest.first_chunk::<4>())
                .map(|word| i32::from_le_bytes(*word))
        };
        let (pid, tid) = (id.pid.unwrap_or(-1), id.tid.unwrap_or(-1));
        let name = TaskName::default();
        // A task that has ended has no numbers any more.
        let prev = (out && tid >= 0).then_some(SwitchedOut { tid, name, state, priority: -1 });
        let next = if wide {
            word(4).map(|tid| SwitchedIn { tid, pid: word(0), name, priority: -1 })
        } else {
            (!out && tid >= 0).then_some(SwitchedIn { tid, pid: Some(pid), name, priority: -1 })
        };
        let current = (pid >= 0 && tid >= 0).then_some(TaskIds { pid, tid });
        let kind = SchedEventKind::Switch { prev, next };
        let read = id.time.map(|time_ns| SchedEvent { time_ns, cpu: id.cpu, current, kind });
        self.plausible(read.filter(|_| !wide || word(4).is_some()))
    }

    fn of_side_band(&mut self, record: &RawRecord<'_>) -> Option<SchedEvent> {
        let id = self.recording.events.sample_id(record);
        let kind = match record.parse() {
            Ok(Record::Comm(comm)) => SchedEventKind::Name {
                ids: TaskIds { pid: comm.pid, tid: comm.tid },
                name: TaskName::new(comm.name),
            },
            Ok(Record::Fork(task)) => {
                SchedEventKind::Fork { tid: task.tid, pid: Some(task.pid), parent_tid: task.ptid }
            }
            Ok(Record::Exit(task)) => SchedEventKind::Exit { tid: task.tid },
            Ok(Record::Lost { lost, .. }) => {
                self.summary.lost_records = self.summary.lost_records.saturating_add(lost);
                self.summary.lost_chunks += 1;
                SchedEventKind::Lost { records: lost }
            }
            Ok(Record::LostSamples { lost }) => {
                self.lost_samples = self.lost_samples.saturating_add(lost);
                return None;
            }
            Ok(_) => return None,
            Err(_) => {
                self.summary.malformed += 1;
                return None;
            }
        };
        // What the recorder made up has no time.
        let time_ns = id.time.filter(|time| *time != u64::MAX).unwrap_or(0);
        let event = SchedEvent { time_ns, cpu: id.cpu, current: None, kind };
        self.plausible(Some(event))
    }

    /// Counts what could not be decoded, or names a CPU that nothing is allocated for.
    fn plausible(&mut self, event: Option<SchedEvent>) -> Option<SchedEvent> {
        let event = event.filter(|event| {
            let is_cpu = |cpu: u32| cpu < CPUS_MAX;
            event.cpu.is_none_or(is_cpu)
                && match event.kind {
                    SchedEventKind::Migrate { from_cpu, to_cpu, .. } => is_cpu(from_cpu) && is_cpu(to_cpu),
                    SchedEventKind::Wakeup { target_cpu, .. } => target_cpu.is_none_or(is_cpu),
                    _ => true,
                }
        });
        self.summary.malformed += u64::from(event.is_none());
        event
    }
}
