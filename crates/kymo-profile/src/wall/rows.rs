//! Reads the rows of a recording with waits: what a thread did since its row before, who woke whom,
//! and where threads ran.
use super::calls::{CallHit, says_of_calls};
use super::wait_row::{BlockedCall, PlaceWaits, WaitRow, WakeupRow};
use crate::chains::{ChainId, Chains};
use crate::load::{CpuSwitch, LoadOptions, Parallelism, add_untold};
use crate::timeline::{CommId, Moment, Timeline};
use crate::unwind_samples::recorded_chain;
use kymo_data::tracing_data::{self, Field, Format, Value};
use kymo_data::{RawRecord, ReadError, ReadSummary, Recording, Sample, abi};

/// What kymo and perf call the event of threads that waited.
pub const OFF_CPU: &str = "offcpu-time";
/// What kymo calls the event of those that begin to wait, where their rows have no stacks.
pub const STACK: &str = "offcpu-stack";
/// What kymo calls the event of those that woke them.
pub const WAKEUP: &str = "offcpu-wakeup";

/// A sample of a thread while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunSample {
    pub(super) thread: (i32, i32),
    pub(super) time_ns: u64,
    pub(super) comm: CommId,
    pub(super) chain: ChainId,
    pub(super) period: u64,
    /// `u32::MAX` if not recorded.
    pub(super) cpu: u32,
}

/// A switch of a thread, of recordings that have nothing else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    time_ns: u64,
    position: u64,
    thread: (i32, i32),
    comm: CommId,
    cpu: Option<u32>,
    /// No record tells it: another thread came on the CPU.
    is_untold: bool,
    is_out: bool,
    is_preempted: bool,
}

impl Switch {
    /// `how`: whether the thread leaves its CPU, and whether it is preempted.
    pub(super) fn new(
        (time_ns, position): (u64, u64),
        thread: (i32, i32),
        comm: CommId,
        cpu: Option<u32>,
        (is_out, is_preempted): (bool, bool),
    ) -> Switch {
        Switch { time_ns, position, thread, comm, cpu, is_untold: false, is_out, is_preempted }
    }

    fn on_cpu(&self) -> Option<CpuSwitch> {
        let Switch { time_ns, position, thread: (_, tid), is_out, .. } = *self;
        self.cpu.map(|cpu| CpuSwitch { cpu, time_ns, position, tid, is_out })
    }
}

/// All rows of a recording.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The events of waits and of samples of running threads, as the recording numbers them.
    pub(super) events: (u32, u32),
    pub(super) chains: Chains,
    /// In order of time.
    pub(super) waits: Vec<WaitRow>,
    /// In order of time.
    pub(super) wakeups: Vec<WakeupRow>,
    /// Of the first clock or counter that was sampled, in the order of threads and time.
    pub(super) runs: Vec<RunSample>,
    pub(super) switches: Vec<Switch>,
    /// Where threads began to wait: thread, ns, stack.
    pub(super) begun: Vec<(i32, u64, ChainId)>,
    /// Calls that were asked for.
    pub(super) hits: Vec<CallHit>,
    /// Samples that cannot be read.
    pub(super) damaged: u64,
}

/// Where the fields are, by the recording's own description.
struct WaitFields {
    /// In the order of [`NAMES`].
    all: [Field; 14],
    /// What older recordings do not have.
    operation: Option<Field>,
    short_longest_ns: Option<Field>,
    place: Option<Field>,
    files: Option<Field>,
    /// Of the places of short waits, each in the order of [`PLACE_NAMES`].
    places: [Option<[Field; 6]>; 3],
}

const PLACE_NAMES: [&str; 6] = ["call", "place", "blocked_ns", "waits", "longest_ns", "runnable_ns"];

/// The kind of a row at the end of a thread, or of the recording.
const END: u64 = 2;
/// What a thread waits for, by its files and signals.
const FOR_WORK: u64 = 1;
const FOR_ANSWERS: u64 = 2;

/// What lies between the two clock readings of a wait's beginning at most, ns: the clocks of CPUs
/// may differ.
const MOST_APART_NS: u64 = 500_000;

const NAMES: [&str; 14] = [
    "kind",
    "task_state",
    "tid",
    "pid",
    "waker",
    "blocked_ns",
    "runnable_ns",
    "run_ns",
    "short_blocked_ns",
    "short_runnable_ns",
    "short_waits",
    "short_preemptions",
    "syscall",
    "argument_0",
];

impl WaitFields {
    fn of(format: &Format) -> Option<WaitFields> {
        let fields = NAMES.map(|name| format.field(name).cloned());
        if fields.iter().any(Option::is_none) {
            return None;
        }
        Some(WaitFields {
            all: fields.map(|field| field.expect("all are there")),
            operation: format.field("argument_1").cloned(),
            short_longest_ns: format.field("short_longest_ns").cloned(),
            place: format.field("place").cloned(),
            files: format.field("files").cloned(),
            places: std::array::from_fn(|number| {
                let fields = PLACE_NAMES.map(|name| format.field(&format!("{name}_{number}")).cloned());
                fields.iter().all(Option::is_some).then(|| fields.map(|field| field.expect("it is there")))
            }),
        })
    }

    /// The short waits of a record at its places; `None`: it does not tell them.
    fn places(&self, raw: &[u8]) -> Option<[PlaceWaits; 3]> {
        let mut places = [PlaceWaits::default(); 3];
        for (place, fields) in places.iter_mut().zip(&self.places) {
            let mut words = [0; 6];
            for (word, field) in words.iter_mut().zip(fields.as_ref()?) {
                *word = number_in(field, raw)?;
            }
            let [call, number, blocked_ns, waits, longest_ns, runnable_ns] = words;
            // One with neither is where no call could be read.
            let is_known = waits > 0 && (call, number) != (0, 0);
            if is_known {
                let call = call.checked_sub(1).map(u64::cast_signed);
                let place_number = Some(number).filter(|number| *number != 0);
                let longest_ns = Some(longest_ns);
                *place = PlaceWaits { blocked_ns, waits, longest_ns, call, place: place_number, runnable_ns };
            }
        }
        Some(places)
    }

    /// The numbers of a record, in the order of the names.
    fn read(&self, raw: &[u8]) -> Option<[u64; 14]> {
        let mut numbers = [0; 14];
        for (number, field) in numbers.iter_mut().zip(&self.all) {
            *number = number_in(field, raw)?;
        }
        Some(numbers)
    }
}

fn number_in(field: &Field, raw: &[u8]) -> Option<u64> {
    match field.value(raw)? {
        Value::Unsigned(value) => Some(value),
        Value::Signed(value) => Some(value.cast_unsigned()),
        Value::Text(_) | Value::Bytes(_) => None,
    }
}

/// Which event of a recording is which.
struct Events {
    off_cpu: Option<(usize, WaitFields)>,
    wakeup: Option<(usize, WaitFields)>,
    stack: Option<usize>,
    /// What samples where threads run.
    clock: Option<usize>,
    /// Those of calls that were asked for, and whether they return.
    calls: Vec<(usize, bool)>,
}

impl Events {
    fn of(recording: &Recording, calls_of: Option<&str>) -> Events {
        let blob = recording.features.tracing_data.as_deref();
        let data = blob.and_then(|blob| tracing_data::parse(blob).ok());
        let find = |name: &str| {
            let at = recording.events.list.iter().position(|event| event.name == name)?;
            let format = data.as_ref()?.format(recording.events.list[at].attr.config)?;
            Some((at, WaitFields::of(format)?))
        };
        let samples = |event: &kymo_data::Event| {
            let (kind, config) = (event.attr.kind, event.attr.config);
            let counts_time = kind == abi::PERF_TYPE_HARDWARE
                || kind == abi::PERF_TYPE_RAW
                || kind == abi::PERF_TYPE_SOFTWARE && config <= abi::PERF_COUNT_SW_TASK_CLOCK;
            counts_time && event.attr.sample_period != 0
        };
        let clock = recording.events.list.iter().position(samples);
        Events {
            off_cpu: find(OFF_CPU),
            wakeup: find(WAKEUP),
            stack: recording.events.list.iter().position(|event| event.name == STACK),
            clock,
            calls: (recording.events.list.iter().enumerate())
                .filter_map(|(at, event)| Some((at, says_of_calls(&event.name, calls_of?)?)))
                .collect(),
        }
    }
}

/// Whether an event of this name is one of waits.
pub fn is_of_waits(event: &str) -> bool {
    [OFF_CPU, WAKEUP, STACK].contains(&event)
}

/// How much a recording tells of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitDetail {
    /// How long, for what and who ended them (`kymo record --wall`).
    All,
    /// How long: it has context switches only.
    Switches,
    /// Nothing.
    Nothing,
}

/// How much this recording tells.
pub fn wait_detail(recording: &Recording) -> WaitDetail {
    match Events::of(recording, None).off_cpu {
        Some(_) => WaitDetail::All,
        None if Parallelism::is_recorded(recording) => WaitDetail::Switches,
        None => WaitDetail::Nothing,
    }
}

/// Reads the rows that the filter leaves.
pub(super) fn read(
    recording: &Recording,
    timeline: &Timeline,
    (filter, calls_of): (&LoadOptions, Option<&str>),
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(Rows, ReadSummary), ReadError> {
    let events = Events::of(recording, calls_of);
    let each = |rows: &mut Rows, chunk: &kymo_data::Chunk| {
        for record in chunk.records().flatten() {
            match record.header.kind {
                abi::PERF_RECORD_SAMPLE => rows.sample(recording, (timeline, filter), &events, &record),
                abi::PERF_RECORD_SWITCH | abi::PERF_RECORD_SWITCH_CPU_WIDE if events.off_cpu.is_none() => {
                    rows.switch(recording, timeline, &record);
                }
                _ => {}
            }
        }
    };
    let (parts, summary) = recording.read_parallel(filter.workers, Rows::default, each, progress)?;
    let mut rows = Rows::default();
    parts.into_iter().for_each(|part| rows.absorb(part));
    let index = |at: Option<usize>| at.unwrap_or(0) as u32;
    rows.events = (index(events.off_cpu.as_ref().map(|(at, _)| *at)), index(events.clock));
    rows.replay_switches(filter);
    rows.join_stacks();
    rows.waits.sort_unstable_by_key(|row| (row.time_ns, row.thread, row.total_ns()));
    rows.runs.sort_unstable_by_key(|run| (run.thread, run.time_ns, run.chain));
    rows.wakeups.sort_unstable_by_key(|row| (row.time_ns, row.woken, row.waker));
    Ok((rows, summary))
}

impl Rows {
    fn sample(
        &mut self,
        recording: &Recording,
        (timeline, filter): (&Timeline, &LoadOptions),
        events: &Events,
        record: &RawRecord<'_>,
    ) {
        let list = &recording.events.list;
        let Some(event) = recording.events.event_of(record) else { return };
        let mut sample = Sample::default();
        if list[event].layout.parse_into(record.header.misc, record.body, &mut sample).is_err() {
            self.damaged += 1;
            return;
        }
        let fields = [&events.off_cpu, &events.wakeup].map(|of| of.as_ref().filter(|(at, _)| *at == event));
        let call = events.calls.iter().find(|(at, _)| *at == event);
        let is_other = ![events.clock, events.stack].contains(&Some(event)) && call.is_none();
        if fields.iter().all(Option::is_none) && is_other {
            return;
        }
        let pid = sample.pid.unwrap_or(-1);
        let (tid, time_ns) = (sample.tid.unwrap_or(pid), sample.time.unwrap_or(0));
        if filter.excludes(pid, tid, time_ns) {
            return;
        }
        if let Some(&(_, returns)) = call {
            self.hits.push(CallHit { thread: (pid, tid), time_ns, position: record.position, returns });
            return;
        }
        let view = timeline.thread(pid, tid, Moment::new(sample.time, record.position));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let words = recorded_chain(&list[event].attr, &sample);
        let chain = self.chains.intern(view.maps, mode, sample.ip.unwrap_or(0), words);
        if events.stack == Some(event) {
            self.begun.push((tid, time_ns, chain));
            return;
        }
        let cpu = sample.cpu.unwrap_or(u32::MAX);
        let [off_cpu, wakeup] = fields;
        let Some((_, fields)) = off_cpu.or(wakeup) else {
            let period = sample.period.unwrap_or(list[event].attr.sample_period);
            self.runs.push(RunSample { thread: (pid, tid), time_ns, comm: view.comm, chain, period, cpu });
            return;
        };
        let raw = sample.raw.unwrap_or(&[]);
        let Some(numbers) = fields.read(raw) else {
            self.damaged += 1;
            return;
        };
        let optional = |field: &Option<Field>| field.as_ref().and_then(|field| number_in(field, raw));
        let [kind, task_state, woken, _, waker, blocked_ns, runnable_ns, run_ns, rest @ ..] = numbers;
        let [short_blocked_ns, short_runnable_ns, short_waits, short_preemptions, syscall, argument] = rest;
        let (syscall, task_state) = (syscall.cast_signed(), task_state as u32);
        // Outside of a call there are no arguments.
        let operation = optional(&fields.operation).filter(|_| syscall >= 0).unwrap_or(0) as u32;
        let place = optional(&fields.place).filter(|place| *place != 0);
        if wakeup.is_some() {
            // Older recordings have neither: their call is 0, as is their place.
            let call = place.map(|place| BlockedCall { syscall, argument, operation, place });
            let (waker, woken) = ((pid, tid), woken as i32);
            self.wakeups.push(WakeupRow { time_ns, waker, chain, woken, blocked_ns, task_state, call });
            return;
        }
        let mut row = WaitRow {
            time_ns,
            thread: (pid, tid),
            comm: view.comm,
            chain,
            cpu,
            task_state,
            waker: waker as i32,
            blocked_ns,
            runnable_ns,
            run_ns,
            short_blocked_ns,
            short_runnable_ns,
            short_waits,
            short_preemptions,
            is_end: kind == END,
            for_work: match optional(&fields.files) {
                Some(FOR_WORK) => Some(true),
                Some(FOR_ANSWERS) => Some(false),
                _ => None,
            },
            syscall,
            argument,
            operation,
            short_longest_ns: optional(&fields.short_longest_ns),
            short_call: None,
            short_mixed_ns: short_blocked_ns,
            place,
            short_place: None,
            other_places: Default::default(),
        };
        if let Some(places) = fields.places(raw) {
            row.divide_short_waits(places);
        }
        self.waits.push(row);
    }

    fn switch(&mut self, recording: &Recording, timeline: &Timeline, record: &RawRecord<'_>) {
        let id = recording.events.sample_id(record);
        // Without the last switch of a thread that has ended, told as -1.
        let (Some(pid), Some(tid @ 0..), Some(time_ns)) = (id.pid, id.tid, id.time) else { return };
        let view = timeline.thread(pid, tid, Moment::new(id.time, record.position));
        let is = |bit: u16| record.header.misc & bit != 0;
        let how = (is(abi::PERF_RECORD_MISC_SWITCH_OUT), is(abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT));
        let moment = (time_ns, record.position);
        self.switches.push(Switch::new(moment, (pid, tid), view.comm, id.cpu, how));
    }

    /// Rows of switches: blocked or preempted from a switch out to the next one in, which has no
    /// stack and no waker.
    pub(super) fn replay_switches(&mut self, filter: &LoadOptions) {
        // Whoever comes on a CPU ends the time of the one before, also if nobody asks for it.
        add_untold(&mut self.switches, Switch::on_cpu, |arrival, next| Switch {
            thread: arrival.thread,
            comm: arrival.comm,
            is_untold: true,
            is_out: true,
            is_preempted: false,
            ..*next
        });
        self.switches.retain(|switch| {
            let (pid, tid) = switch.thread;
            tid > 0 && !filter.excludes(pid, tid, switch.time_ns)
        });
        self.switches.sort_unstable_by_key(|switch| (switch.thread, switch.time_ns, switch.position));
        let nowhere = self.chains.intern(0, abi::PERF_RECORD_MISC_USER as u8, 0, &[][..]);
        for of_thread in self.switches.chunk_by(|one, next| one.thread == next.thread) {
            let (mut since, mut run_ns, mut out, mut on) = (None, 0, None, None);
            for switch in of_thread {
                // It has moved on, which was told.
                if switch.is_untold && (switch.cpu != on || since.is_none()) {
                    continue;
                }
                if switch.is_out {
                    run_ns = since.take().map_or(0, |since| switch.time_ns - since);
                    out = Some(switch);
                    continue;
                }
                (since, on) = (since.or(Some(switch.time_ns)), switch.cpu);
                let Some(left) = out.take() else { continue };
                let off_ns = switch.time_ns - left.time_ns;
                let preempted = left.is_preempted;
                self.waits.push(WaitRow {
                    task_state: u32::from(!preempted),
                    blocked_ns: if preempted { 0 } else { off_ns },
                    runnable_ns: if preempted { off_ns } else { 0 },
                    run_ns,
                    cpu: switch.cpu.unwrap_or(u32::MAX),
                    ..WaitRow::nothing(switch.time_ns, switch.thread, switch.comm, nowhere)
                });
            }
        }
    }

    /// Gives waits the stacks that were written when they began.
    fn join_stacks(&mut self) {
        self.begun.sort_unstable();
        for row in self.waits.iter_mut().filter(|row| !row.is_end) {
            let begun_ns = row.time_ns.saturating_sub(row.runnable_ns).saturating_sub(row.blocked_ns);
            let tid = row.thread.1;
            let after = self.begun.partition_point(|(of, time, _)| (*of, *time) < (tid, begun_ns));
            let near = [after.checked_sub(1), Some(after)].into_iter().flatten();
            let near = near.filter_map(|at| self.begun.get(at)).filter(|(of, ..)| *of == tid);
            let nearest = near.min_by_key(|(_, time, _)| time.abs_diff(begun_ns));
            if let Some(&(_, _, chain)) =
                nearest.filter(|(_, time, _)| time.abs_diff(begun_ns) <= MOST_APART_NS)
            {
                row.chain = chain;
            }
        }
    }

    fn absorb(&mut self, other: Rows) {
        let ids = self.chains.absorb(&other.chains);
        let ours = |chain: ChainId| ids[chain as usize];
        self.waits.extend(other.waits.into_iter().map(|row| WaitRow { chain: ours(row.chain), ..row }));
        self.wakeups.extend(other.wakeups.into_iter().map(|row| WakeupRow { chain: ours(row.chain), ..row }));
        self.runs.extend(other.runs.into_iter().map(|run| RunSample { chain: ours(run.chain), ..run }));
        self.switches.extend(other.switches);
        self.begun.extend(other.begun.into_iter().map(|(tid, time, chain)| (tid, time, ours(chain))));
        self.hits.extend(other.hits);
        self.damaged += other.damaged;
    }
}
