//! Reads the samples of a recording of stacks.
use super::StackFrame;
use crate::chains::{ChainId, Chains};
use crate::load::LoadOptions;
use crate::timeline::{CommId, Moment, Timeline};
use crate::unwind_samples::recorded_chain;
use kymo_data::tracing_data::{self, Field, Format, Value};
use kymo_data::{RawRecord, ReadError, ReadSummary, Recording, Sample, abi};
use serde::Serialize;

/// What kymo calls the event.
const THREAD_STACK: &str = "thread-stack";

/// How much of a thread's stack there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StackExtent {
    /// It reaches the function that the thread has begun in.
    Whole,
    /// Callers are missing.
    Cut,
    /// There is none.
    Missing,
}

/// A thread as it was recorded.
#[derive(Clone, Debug)]
pub(super) struct ThreadRow {
    pub(super) pid: i32,
    pub(super) tid: i32,
    /// Its number for itself.
    pub(super) own_tid: i32,
    pub(super) comm: CommId,
    pub(super) chain: ChainId,
    /// The version of the address space.
    pub(super) maps: u32,
    /// As `man 5 proc_pid_stat` has it.
    pub(super) state: char,
    pub(super) extent: StackExtent,
    /// Its system call, -1 outside of any, and the first two arguments.
    pub(super) call: i64,
    pub(super) arguments: [u64; 2],
    pub(super) off_cpu_ns: Option<u64>,
    /// The word at the address of the first argument, and the two behind it.
    pub(super) words: [u32; 3],
    pub(super) is_steady: bool,
    pub(super) object: String,
    /// The kernel's functions, innermost first.
    pub(super) kernel: Vec<String>,
    pub(super) reason: String,
    /// Frames of a runtime that names its own, innermost first.
    pub(super) managed: Vec<StackFrame>,
    /// The lock of the runtime that it waits for; empty: none.
    pub(super) monitor: String,
    /// The thread that has it, by its own number; 0 if that is not known.
    pub(super) holder: i32,
    /// The goroutine that is on it, or that it is.
    pub(super) goroutine: Option<u64>,
}

/// All threads of a recording.
#[derive(Debug, Default)]
pub(super) struct ThreadRows {
    pub(super) chains: Chains,
    /// By process and number.
    pub(super) threads: Vec<ThreadRow>,
}

/// In the place of a state: it is a goroutine that is on no thread.
pub(super) const GOROUTINE: char = 'g';
/// In the place of a state: the program was dumped.
pub(super) const DUMPED: char = 'c';

const NUMBERS: [&str; 13] = [
    "state",
    "stack",
    "call",
    "first",
    "second",
    "off_cpu_ns",
    "word0",
    "word1",
    "word2",
    "own_tid",
    "steady",
    "holder",
    "goroutine",
];
const TEXTS: [&str; 5] = ["object", "kernel", "reason", "managed", "monitor"];

/// The event, and its fields by the recording's own description.
struct StackEvent {
    event: usize,
    numbers: Vec<Field>,
    texts: Vec<Field>,
}

impl StackEvent {
    fn of(recording: &Recording) -> Option<StackEvent> {
        let data = tracing_data::parse(recording.features.tracing_data.as_deref()?).ok()?;
        let event = recording.events.list.iter().position(|event| event.name == THREAD_STACK)?;
        let format: &Format = data.format(recording.events.list[event].attr.config)?;
        let fields = |names: &[&str]| names.iter().map(|name| format.field(name).cloned()).collect();
        let (numbers, texts): (Option<Vec<Field>>, Option<Vec<Field>>) = (fields(&NUMBERS), fields(&TEXTS));
        Some(StackEvent { event, numbers: numbers?, texts: texts? })
    }

    fn numbers(&self, raw: &[u8]) -> Option<[i64; NUMBERS.len()]> {
        let mut found = [0; NUMBERS.len()];
        for (number, field) in found.iter_mut().zip(&self.numbers) {
            *number = match field.value(raw)? {
                Value::Unsigned(value) => value.cast_signed(),
                Value::Signed(value) => value,
                Value::Text(_) | Value::Bytes(_) => return None,
            };
        }
        Some(found)
    }

    fn text(&self, at: usize, raw: &[u8]) -> String {
        match self.texts[at].value(raw) {
            Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        }
    }
}

/// Frames from a text: function, file and line between tabs, frames between newlines.
fn managed(text: &str) -> Vec<StackFrame> {
    let frame = |line: &str| {
        let mut words = line.split('\t');
        let (function, file) = (words.next()?.to_owned(), words.next().unwrap_or_default());
        let line = words.next().and_then(|line| line.parse().ok());
        let module = Some(file.to_owned()).filter(|file| !file.is_empty());
        let place = line.map(|line| (file.into(), line));
        Some(StackFrame { function, module, place, inlined: false, is_generated: false })
    };
    text.lines().filter_map(frame).collect()
}

/// Whether a recording has stacks of threads.
pub(super) fn has_stacks(recording: &Recording) -> bool {
    StackEvent::of(recording).is_some()
}

/// Reads the threads.
pub(super) fn read(
    recording: &Recording,
    timeline: &Timeline,
    options: &LoadOptions,
) -> Result<(ThreadRows, ReadSummary), ReadError> {
    let Some(event) = StackEvent::of(recording) else { return Ok(Default::default()) };
    let each = |rows: &mut ThreadRows, chunk: &kymo_data::Chunk| {
        let samples = chunk.records().flatten();
        let samples = samples.filter(|record| record.header.kind == abi::PERF_RECORD_SAMPLE);
        samples.for_each(|record| _ = rows.sample(recording, timeline, &event, &record));
    };
    let (parts, summary) = recording.read_parallel(options.workers, ThreadRows::default, each, &|_, _| ())?;
    let mut rows = ThreadRows::default();
    for part in parts {
        let ids = rows.chains.absorb(&part.chains);
        let ours = |row: ThreadRow| ThreadRow { chain: ids[row.chain as usize], ..row };
        rows.threads.extend(part.threads.into_iter().map(ours));
    }
    rows.threads.sort_by_key(|row| (row.pid, row.tid, row.state == GOROUTINE, row.goroutine));
    Ok((rows, summary))
}

impl ThreadRows {
    fn sample(
        &mut self,
        recording: &Recording,
        timeline: &Timeline,
        event: &StackEvent,
        record: &RawRecord<'_>,
    ) -> Option<()> {
        if recording.events.event_of(record) != Some(event.event) {
            return None;
        }
        let recorded = &recording.events.list[event.event];
        let mut sample = Sample::default();
        recorded.layout.parse_into(record.header.misc, record.body, &mut sample).ok()?;
        let raw = sample.raw?;
        let numbers = event.numbers(raw)?;
        let [
            state,
            stack,
            call,
            first,
            second,
            off_cpu_ns,
            word0,
            word1,
            word2,
            own_tid,
            steady,
            holder,
            goroutine,
        ] = numbers;
        let pid = sample.pid?;
        let tid = sample.tid.unwrap_or(pid);
        // All of it is of one moment.
        let view = timeline.thread(pid, tid, Moment::new(None, u64::MAX));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let words = recorded_chain(&recorded.attr, &sample);
        let chain = self.chains.intern(view.maps, mode, sample.ip.unwrap_or(0), words);
        let kernel = event.text(1, raw);
        self.threads.push(ThreadRow {
            pid,
            tid,
            own_tid: own_tid as i32,
            comm: view.comm,
            chain,
            maps: view.maps,
            state: u32::try_from(state).ok().and_then(char::from_u32).unwrap_or('?'),
            extent: match stack {
                0 => StackExtent::Whole,
                1 => StackExtent::Cut,
                _ => StackExtent::Missing,
            },
            call,
            arguments: [first, second].map(i64::cast_unsigned),
            off_cpu_ns: u64::try_from(off_cpu_ns).ok(),
            words: [word0, word1, word2].map(|word| word as u32),
            is_steady: steady != 0,
            object: event.text(0, raw),
            kernel: kernel.split(';').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            reason: event.text(2, raw),
            managed: managed(&event.text(3, raw)),
            monitor: event.text(4, raw),
            holder: holder as i32,
            goroutine: Some(goroutine.cast_unsigned()).filter(|&goroutine| goroutine != 0),
        });
        Some(())
    }
}
