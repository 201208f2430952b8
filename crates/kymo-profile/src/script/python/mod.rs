//! Scripts in Python with the interface of `perf script -s`.
//!
//! ```text
//!  kymo                          python3 -c driver.py
//!  records, in order of time --> pickles through a pipe --> trace_begin, process_event,
//!  names, lines              <-> a socket for questions     SUBSYSTEM__EVENT, trace_end
//! ```
//!
//! The script runs in a process of its own: kymo needs no libpython, and a script that fails ends
//! alone. The pipe bounds what waits between both. kymo sends the objects that the functions get
//! ([`sample`]), and asks the driver first which functions there are.
mod child;
mod pickle;
mod sample;
mod tracepoint;

use super::ScriptOptions;
use super::filter::{each_count, passes};
use crate::load::collect_sideband;
use crate::order::in_order;
use crate::raw_frames::Place;
use crate::resolve::Resolver;
use crate::unwind_samples::StackUnwinder;
use child::{Announcement, ScriptChild};
pub use child::{PythonError, PythonScript};
use kymo_data::{RawRecord, Record, Recording, abi};
use kymo_symbols::SymbolStore;
use pickle::Pickle;
use sample::Objects;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use tracepoint::Formats;

/// How a script ended.
#[derive(Debug)]
pub struct PythonRun {
    /// Its process.
    pub status: ExitStatus,
    /// Damage among the records.
    pub problems: Vec<kymo_data::Problem>,
}

/// Why the events stopped before the recording's end.
enum Stop {
    Read(kymo_data::ReadError),
    Python(PythonError),
    /// The script has ended, or a signal came.
    Early,
}

impl From<kymo_data::ReadError> for Stop {
    fn from(error: kymo_data::ReadError) -> Stop {
        Stop::Read(error)
    }
}

impl From<PythonError> for Stop {
    fn from(error: PythonError) -> Stop {
        Stop::Python(error)
    }
}

/// Runs a script over the samples that pass the filters; those after `stopped` turns true are left
/// out.
///
/// # Errors
/// When the recording cannot be read at all, or the script cannot be run. A script that fails is no
/// error: its status tells.
pub fn run_python(
    recording: &Recording,
    options: &ScriptOptions,
    store: &SymbolStore,
    script: &PythonScript,
    stopped: &dyn Fn() -> bool,
) -> Result<PythonRun, super::ScriptError> {
    let mut child = ScriptChild::start(script)?;
    let Some(announced) = child.announcement()? else {
        return Ok(PythonRun { status: child.finish()?, problems: Vec::new() });
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, _, reads) = collect_sideband(recording, workers, store.options(), &|_, _| {})?;
    let unwinder = StackUnwinder::new(&timeline, recording, store.options());
    let resolver = Resolver::new(&timeline, store);
    let questions = child.questions().map_err(PythonError::Talk)?;
    std::thread::scope(|scope| {
        scope.spawn(|| answer(questions, &resolver));
        let mut feeder = Feeder {
            recording,
            objects: Objects::new(recording, &timeline, &resolver, options, unwinder.thread()),
            formats: Formats::of(recording),
            announced,
            child,
        };
        let wanted = |kind| kind == abi::PERF_RECORD_SAMPLE || feeder.announced.takes(kind);
        // The borrow of `feeder` ends before it sends.
        let kinds: Vec<u32> = RECORDS.iter().map(|(kind, _)| *kind).filter(|kind| wanted(*kind)).collect();
        let wanted = |kind| kind == abi::PERF_RECORD_SAMPLE || kinds.contains(&kind);
        let fed = in_order(recording, wanted, |record| {
            if stopped() {
                return Err(Stop::Early);
            }
            if record.header.kind != abi::PERF_RECORD_SAMPLE {
                return feeder.record(record);
            }
            let events = &recording.events;
            let Some(event) = events.event_of(record) else { return Ok(()) };
            let layout = &events.list[event].layout;
            let Ok(sample) = layout.parse(record.header.misc, record.body) else { return Ok(()) };
            if !passes(options, &timeline, &resolver, record, &sample) {
                return Ok(());
            }
            each_count(recording, &reads, record, &sample, event, |event, period| {
                feeder.sample(record, &sample, event, period)
            })
        });
        let problems = match fed {
            Ok(problems) => problems,
            Err(Stop::Early) => Vec::new(),
            Err(Stop::Read(error)) => return Err(error.into()),
            Err(Stop::Python(error)) => return Err(error.into()),
        };
        Ok(PythonRun { status: feeder.child.finish()?, problems })
    })
}

/// Records other than samples that scripts have functions for.
const RECORDS: [(u32, &str); 4] = [
    (abi::PERF_RECORD_SWITCH, "context_switch"),
    (abi::PERF_RECORD_SWITCH_CPU_WIDE, "context_switch"),
    (abi::PERF_RECORD_THROTTLE, "throttle"),
    (abi::PERF_RECORD_UNTHROTTLE, "unthrottle"),
];

impl Announcement {
    fn takes(&self, kind: u32) -> bool {
        RECORDS.iter().any(|(of, name)| *of == kind && self.handlers.contains_key(*name))
    }
}

struct Feeder<'a> {
    recording: &'a Recording,
    objects: Objects<'a>,
    formats: Formats,
    announced: Announcement,
    child: ScriptChild,
}

impl Feeder<'_> {
    fn send(&mut self, object: Pickle) -> Result<(), Stop> {
        if self.child.send(object)? { Ok(()) } else { Err(Stop::Early) }
    }

    fn sample(
        &mut self,
        record: &RawRecord<'_>,
        sample: &kymo_data::Sample<'_>,
        event: usize,
        period: u64,
    ) -> Result<(), Stop> {
        let of = &self.recording.events.list[event];
        let place = self.objects.place(record, sample);
        if of.attr.kind != abi::PERF_TYPE_TRACEPOINT {
            if !self.announced.handlers.contains_key("process_event") {
                return Ok(());
            }
            let chain = self.objects.chain(sample, event, place);
            let mut message = Pickle::new();
            message.tuple(|message| {
                message.text("sample");
                self.objects.sample(message, sample, event, period, place, &chain);
                place.put(message);
            });
            return self.send(message);
        }
        let Some(definition) = self.formats.definition(of.attr.config) else { return Ok(()) };
        if let Some(definition) = definition {
            self.send(definition)?;
        }
        let Some(raw) = sample.raw else { return Ok(()) };
        let Some(format) = self.formats.format(of.attr.config) else { return Ok(()) };
        let handlers = &self.announced.handlers;
        let values = tracepoint::fields(format).count();
        let with_sample = match (handlers.get(&tracepoint::handler(format)), handlers.get("trace_unhandled"))
        {
            (Some(parameters), _) => *parameters == 8 + values + 1,
            (None, Some(parameters)) => *parameters == 4,
            (None, None) => return Ok(()),
        };
        let chain = self.objects.chain(sample, event, place);
        let mut message = Pickle::new();
        message.tuple(|message| {
            message.text("tracepoint").text(&tracepoint::handler(format));
            let time = sample.time.unwrap_or(0);
            message.tuple(|common| {
                common.int(sample.cpu.map_or(-1, i64::from));
                common.int(time / 1_000_000_000).int(time % 1_000_000_000);
                common.int(tracepoint::common(format, raw, "common_pid"));
                common.text(&self.objects.comm(place));
            });
            message.append(&chain);
            message.tuple(|values| tracepoint::values(values, format, raw));
            place.put(message);
            match with_sample {
                true => self.objects.sample(message, sample, event, period, place, &chain),
                false => {
                    message.none();
                }
            }
            message.tuple(|common| {
                for name in ["common_preempt_count", "common_flags", "common_lock_depth"] {
                    common.int(tracepoint::common(format, raw, name));
                }
            });
        });
        self.send(message)
    }

    /// A record that is no sample.
    fn record(&mut self, record: &RawRecord<'_>) -> Result<(), Stop> {
        let kind = record.header.kind;
        let Some((_, name)) = RECORDS.iter().find(|(of, _)| *of == kind) else { return Ok(()) };
        let id = self.recording.events.sample_id(record);
        let (pid, tid) = (id.pid.unwrap_or(-1), id.tid.unwrap_or(-1));
        let cpu = id.cpu.map_or(-1, i64::from);
        let mut message = Pickle::new();
        message.tuple(|message| {
            message.text("call").text(name);
            if let Ok(Record::Throttle(at) | Record::Unthrottle(at)) = record.parse() {
                message.int(at.time).int(at.id).int(at.stream_id).int(cpu).int(pid).int(tid);
                return;
            }
            let word = |at: usize| {
                let bytes = record.body.get(at..).and_then(|rest| rest.first_chunk::<4>());
                bytes.map_or(-1, |bytes| i32::from_le_bytes(*bytes))
            };
            let other = match kind {
                abi::PERF_RECORD_SWITCH_CPU_WIDE => (word(0), word(4)),
                _ => (-1, -1),
            };
            let misc = record.header.misc;
            let out = misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0;
            let preempted = out && misc & abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0;
            message.int(id.time.unwrap_or(0)).int(cpu).int(pid).int(tid).int(other.0).int(other.1);
            // The host, and no guest with its CPU, in perf's numbers.
            message.int(-1).bool(out).bool(preempted).int(0).int(-1);
        });
        self.send(message)
    }
}

/// Answers the driver's questions until it ends: `line MAPS MODE IP` with `["FILE", LINE]` or
/// `null`.
fn answer(questions: UnixStream, resolver: &Resolver<'_>) {
    let Ok(mut answers) = questions.try_clone() else { return };
    let mut lines = BufReader::new(questions);
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut lines).take(200).read_line(&mut line) {
            Ok(length) if length > 0 => {}
            _ => return,
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = match words[..] {
            ["line", maps, mode, ip] => maps.parse().ok().zip(mode.parse().ok()).zip(ip.parse().ok()),
            _ => None,
        };
        // Any number is an address, but only some are an address space.
        let place = place.filter(|((maps, _), _)| resolver.has_space(*maps));
        let found = place.and_then(|((maps, mode), ip)| resolver.file_and_line(Place::exact(maps, mode, ip)));
        let found = found.as_ref().map(|(file, line)| (&**file, line));
        let Ok(mut text) = serde_json::to_string(&found) else { return };
        text.push('\n');
        if answers.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}
