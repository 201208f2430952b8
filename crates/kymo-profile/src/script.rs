//! Samples one by one, in order of time, as `perf script` prints them.
//!
//! Order comes from rounds: a FINISHED_ROUND record says that every ring has been read since the
//! one before, so what is not newer than the newest record of the round before can be printed.
//! Memory holds two rounds, except for recordings without rounds (directories), which are held
//! whole.
use crate::dump::record_line;
use crate::load::{ReadPeriods, TimeSpans, collect_sideband};
use crate::order::in_order;
use crate::raw_frames::{Place, walk_words};
use crate::resolve::{Named, Resolver};
use crate::stat::{CountRecording, is_count_recording};
use crate::text::{WIDEST_COLUMN, shown};
use crate::timeline::{CommId, Module, ModuleKind, Moment, Timeline};
use crate::tracepoint::Tracepoints;
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder};
use kymo_data::{RawRecord, Record, Recording, Registers, Regs, Sample, abi};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::io::{self, Write};

mod convert;
mod fields;
mod filter;
mod python;
#[cfg(test)]
mod tests;

pub use convert::write_json;
use fields::of_event;
pub use fields::{Field, FieldError, FieldRule, FieldSet};
use filter::{each_count, passes};
pub use python::{PythonError, PythonRun, PythonScript, run_python};

/// What is printed of each sample.
#[derive(Debug, Clone)]
pub struct ScriptOptions {
    /// Samples of threads with these names only.
    pub comms: Option<Vec<String>>,
    /// Samples in these functions only.
    pub symbols: Option<Vec<String>>,
    /// Samples in these modules only.
    pub dsos: Option<Vec<String>>,
    /// Records other than samples that are printed, by type.
    pub records: Vec<u32>,
    /// How times are printed.
    pub times: TimeFormat,
    /// What changes the fields that suit each event, as perf chooses them.
    pub fields: Vec<FieldRule>,
    /// Call chains are printed (where recorded).
    pub callchains: bool,
    /// Inlined functions are frames of their own.
    pub inline: bool,
    /// Frames of a call chain at most.
    pub max_stack: usize,
    /// Only these CPUs.
    pub cpus: Option<rustc_hash::FxHashSet<u32>>,
    /// Only these processes.
    pub pids: Option<rustc_hash::FxHashSet<i32>>,
    /// Only these threads.
    pub tids: Option<rustc_hash::FxHashSet<i32>>,
    /// Only these spans of time.
    pub time: Option<TimeSpans>,
}

/// How times are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TimeFormat {
    /// In nanoseconds, not microseconds.
    pub nanoseconds: bool,
    /// Since when.
    pub since: TimeBase,
}

/// Since when times are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TimeBase {
    /// The start of the recording's clock.
    #[default]
    Clock,
    /// What is printed first.
    First,
    /// What is printed before.
    Previous,
}

impl ScriptOptions {
    /// All samples, with the usual fields.
    pub fn new() -> ScriptOptions {
        ScriptOptions {
            comms: None,
            symbols: None,
            dsos: None,
            records: Vec::new(),
            times: TimeFormat::default(),
            fields: Vec::new(),
            callchains: true,
            inline: true,
            max_stack: 127,
            cpus: None,
            pids: None,
            tids: None,
            time: None,
        }
    }
}

impl Default for ScriptOptions {
    fn default() -> ScriptOptions {
        ScriptOptions::new()
    }
}

/// Why printing stopped.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The recording could not be read.
    #[error(transparent)]
    Read(#[from] kymo_data::ReadError),
    /// A field was asked for that the samples of an event do not have.
    #[error("samples of '{event}' have no {field}: record with {option}")]
    NotRecorded {
        /// The event.
        event: String,
        /// The field.
        field: &'static str,
        /// The option of `record` that records it.
        option: &'static str,
    },
    /// The script could not be run.
    #[error(transparent)]
    Python(#[from] PythonError),
    /// The text could not be written.
    #[error("failed to write the samples")]
    Write(#[from] io::Error),
}

/// What was printed.
#[derive(Debug, Default)]
pub struct Printed {
    /// Samples that passed the filters.
    pub samples: u64,
    /// Damage among the records.
    pub problems: Vec<kymo_data::Problem>,
}

/// Prints all samples of a recording.
///
/// # Errors
/// When the recording cannot be read at all, or `out` cannot be written.
pub fn write(
    recording: &Recording,
    options: &ScriptOptions,
    store: &SymbolStore,
    out: &mut dyn Write,
) -> Result<Printed, ScriptError> {
    if is_count_recording(recording) {
        CountRecording::read(recording)?.write_lines(recording, out)?;
        return Ok(Printed::default());
    }
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, counts, reads) = collect_sideband(recording, workers, store.options(), &|_, _| {})?;
    let unwinder = StackUnwinder::new(&timeline, recording, store.options());
    let mut printer = Printer::new(recording, &timeline, &reads, options, store, &unwinder);

    check_recorded(recording, &options.fields)?;
    let wanted = |kind| kind == abi::PERF_RECORD_SAMPLE || options.records.contains(&kind);
    let mut problems = counts.short.problems();
    problems.extend(in_order(recording, wanted, |record| -> Result<(), ScriptError> {
        match record.header.kind {
            abi::PERF_RECORD_SAMPLE => printer.print(record, out)?,
            _ => printer.record(record, out)?,
        }
        Ok(())
    })?);
    Ok(Printed { samples: printer.printed, problems })
}

/// Refuses fields by name that an event's samples do not have.
fn check_recorded(recording: &Recording, rules: &[FieldRule]) -> Result<(), ScriptError> {
    const NEEDS: [(Field, u64, &str, &str); 4] = [
        (Field::PhysAddr, abi::PERF_SAMPLE_PHYS_ADDR, "physical addresses", "--phys-data"),
        (Field::Cgroup, abi::PERF_SAMPLE_CGROUP, "cgroups", "--all-cgroups"),
        (Field::InterruptRegisters, abi::PERF_SAMPLE_REGS_INTR, "registers", "--intr-regs"),
        (Field::UserRegisters, abi::PERF_SAMPLE_REGS_USER, "registers of programs", "--user-regs"),
    ];
    for (field, bit, name, option) in NEEDS {
        let lacks = |event: &&kymo_data::Event| event.attr.sample_type & bit == 0;
        if rules.iter().any(|rule| rule.names(field))
            && let Some(event) = recording.events.list.iter().find(lacks)
        {
            return Err(ScriptError::NotRecorded { event: event.name.clone(), field: name, option });
        }
    }
    Ok(())
}

struct Printer<'a> {
    recording: &'a Recording,
    timeline: &'a Timeline,
    reads: &'a ReadPeriods,
    options: &'a ScriptOptions,
    resolver: Resolver<'a>,
    unwinder: ThreadUnwinder<'a>,
    tracepoints: Option<Tracepoints>,
    /// Width of the longest event name.
    name_width: usize,
    any_chains: bool,
    /// The fields of each event.
    fields: Vec<FieldSet>,
    /// Names of registers, where the recorded machine is known.
    registers: Option<Registers>,
    /// Paths of cgroups by their ids, as far as they were read.
    cgroups: FxHashMap<u64, String>,
    /// The time that others are counted from.
    base_ns: Option<u64>,
    /// Text of each place that was printed before, by event.
    frames: FxHashMap<(u32, Place), String>,
    scratch: Vec<u8>,
    printed: u64,
}

impl<'a> Printer<'a> {
    fn new(
        recording: &'a Recording,
        timeline: &'a Timeline,
        reads: &'a ReadPeriods,
        options: &'a ScriptOptions,
        store: &'a SymbolStore,
        unwinder: &'a StackUnwinder<'a>,
    ) -> Printer<'a> {
        let events = &recording.events.list;
        let has_chain = |e: &&kymo_data::Event| e.attr.sample_type & abi::PERF_SAMPLE_CALLCHAIN != 0;
        let tracepoint_chains =
            events.iter().filter(has_chain).any(|e| e.attr.kind == abi::PERF_TYPE_TRACEPOINT);
        Printer {
            recording,
            timeline,
            reads,
            options,
            resolver: Resolver::new(timeline, store),
            unwinder: unwinder.thread(),
            tracepoints: Tracepoints::of(recording),
            name_width: events.iter().map(|e| e.name.len()).max().unwrap_or(0).min(WIDEST_COLUMN),
            any_chains: events.iter().any(|e| has_chain(&e)),
            fields: events.iter().map(|e| of_event(e, &options.fields, tracepoint_chains)).collect(),
            registers: recording.features.arch.as_deref().and_then(Registers::of),
            cgroups: cgroups(recording),
            base_ns: None,
            frames: FxHashMap::default(),
            scratch: Vec::new(),
            printed: 0,
        }
    }

    fn print(&mut self, record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
        let events = &self.recording.events;
        let Some(event) = events.event_of(record) else { return Ok(()) };
        let Ok(sample) = events.list[event].layout.parse(record.header.misc, record.body) else {
            return Ok(());
        };
        if !passes(self.options, self.timeline, &self.resolver, record, &sample) {
            return Ok(());
        }
        self.printed += 1;
        let (recording, reads) = (self.recording, self.reads);
        each_count(recording, reads, record, &sample, event, |event, period| {
            self.sample(record, &sample, event, period, out)
        })
    }

    fn sample(
        &mut self,
        record: &RawRecord<'_>,
        sample: &Sample<'_>,
        event: usize,
        period: u64,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let of = &self.recording.events.list[event];
        let tracepoint = of.attr.kind == abi::PERF_TYPE_TRACEPOINT;
        let chains = self.options.callchains && of.attr.sample_type & abi::PERF_SAMPLE_CALLCHAIN != 0;
        let fields = self.fields[event];
        let has = |field| fields.has(field);
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let view = self.timeline.thread(pid, tid, Moment::new(sample.time, record.position));
        let aligned = !(self.any_chains && chains && has(Field::Ip));
        let ids = (sample.pid.map(|_| (pid, tid)), sample.cpu, sample.time);
        self.head(view.comm, aligned, ids, record.header, fields, out)?;
        if has(Field::Period) {
            write!(out, "{period:>10} ")?;
        }
        if has(Field::Event) {
            write!(out, "{:>1$}: ", shown(&of.name), self.name_width)?;
        }
        if let (true, Some(raw)) = (has(Field::Trace) && tracepoint, sample.raw)
            && let Some(tracepoints) = &mut self.tracepoints
            && let Some(text) = tracepoints.text(of.attr.config, raw, &self.resolver)
        {
            write!(out, "{}", shown(&text))?;
        }
        if let Some(addr) = sample.addr.filter(|_| has(Field::Addr)) {
            write!(out, "{addr:>16x} ")?;
        }
        if has(Field::Ip) {
            self.addresses(record, sample, event, view.maps, chains, out)?;
        }
        for (field, of) in
            [(Field::InterruptRegisters, sample.intr_regs), (Field::UserRegisters, sample.user_regs)]
        {
            if let Some(of) = of.filter(|_| has(field)) {
                write!(out, " ABI:{} {}", of.abi, registers_text(self.registers, &of))?;
            }
        }
        if let Some(address) = sample.phys_addr.filter(|_| has(Field::PhysAddr)) {
            write!(out, "{address:>16x}")?;
        }
        if let Some(id) = sample.cgroup.filter(|_| has(Field::Cgroup)) {
            let path = self.cgroups.get(&id).map_or("unknown", |path| path);
            write!(out, " {}", shown(path))?;
        }
        writeln!(out)
    }

    /// What a line begins with: thread, CPU, mode and time.
    fn head(
        &mut self,
        comm: CommId,
        aligned: bool,
        (ids, cpu, time): (Option<(i32, i32)>, Option<u32>, Option<u64>),
        header: kymo_data::RecordHeader,
        fields: FieldSet,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let has = |field| fields.has(field);
        if has(Field::Comm) {
            let comm = self.timeline.comm(comm);
            let comm = shown(&comm);
            let width = if aligned { 16 } else { 0 };
            write!(out, "{comm:>width$} ")?;
        }
        let (pid, tid) = ids.unwrap_or((-1, -1));
        match (has(Field::Pid), has(Field::Tid)) {
            (true, true) => write!(out, "{pid:>5}/{tid:<5} ")?,
            (true, false) => write!(out, "{pid:>5} ")?,
            (false, true) => write!(out, "{tid:>5} ")?,
            (false, false) => {}
        }
        if let Some(cpu) = cpu.filter(|_| has(Field::Cpu)) {
            write!(out, "[{cpu:03}] ")?;
        }
        if has(Field::Misc) {
            write!(out, "{:<5} ", misc_letters(header))?;
        }
        if let Some(time) = time.filter(|_| has(Field::Time)) {
            let time = self.shifted(time);
            let (seconds, part) = (time / 1_000_000_000, time % 1_000_000_000);
            match self.options.times.nanoseconds {
                true => write!(out, "{seconds:>5}.{part:09}: ")?,
                false => write!(out, "{seconds:>5}.{:06}: ", part / 1000)?,
            }
        }
        Ok(())
    }

    /// A time since what it is counted from.
    fn shifted(&mut self, time: u64) -> u64 {
        self.base_ns = self.base_ns.filter(|base| *base != 0);
        let base = match self.options.times.since {
            TimeBase::Clock => 0,
            // As perf: what the recorder made up has time 0, and is no base.
            TimeBase::First => *self.base_ns.get_or_insert(time),
            TimeBase::Previous => self.base_ns.replace(time).unwrap_or(time),
        };
        time.saturating_sub(base)
    }

    /// A record that is no sample, with the fields of the first event.
    fn record(&mut self, record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
        if record.header.kind == abi::PERF_RECORD_FINISHED_ROUND {
            return writeln!(out, "{}", record_line(record));
        }
        let id = self.recording.events.sample_id(record);
        // What the recorder made up names the task in the record itself.
        let (pid, tid) = match record.parse() {
            Ok(Record::Comm(comm)) => (comm.pid, comm.tid),
            Ok(Record::Fork(task) | Record::Exit(task)) => (task.pid, task.tid),
            Ok(Record::Mmap(map)) if map.pid >= 0 => (map.pid, map.tid),
            Ok(Record::Mmap(_)) => (0, 0),
            _ if record.header.kind == abi::PERF_RECORD_NAMESPACES => {
                let word = |at: usize| record.body.get(at..).and_then(|rest| rest.first_chunk::<4>());
                let id = |at| word(at).map_or(0, |bytes| i32::from_le_bytes(*bytes));
                (id(0), id(4))
            }
            _ => (id.pid.unwrap_or(0), id.tid.unwrap_or(0)),
        };
        let view = self.timeline.thread(pid, tid, Moment::new(id.time, record.position));
        let options = self.options;
        // As perf: names choose samples, not the records beside them.
        if options.cpus.as_ref().is_some_and(|cpus| id.cpu.is_none_or(|cpu| !cpus.contains(&cpu))) {
            return Ok(());
        }
        let fields = self.fields.first().copied().unwrap_or_default();
        let chains = self.options.callchains && self.any_chains;
        let ids = (id.pid.zip(id.tid), id.cpu, id.time);
        self.head(view.comm, !chains, ids, record.header, fields, out)?;
        writeln!(out, "{}", record_line(record))
    }

    fn addresses(
        &mut self,
        record: &RawRecord<'_>,
        sample: &Sample<'_>,
        event: usize,
        maps: u32,
        chains: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if chains && sample.callchain.is_some() {
            writeln!(out)?;
            let mut scratch = std::mem::take(&mut self.scratch);
            let attr = &self.recording.events.list[event].attr;
            let chain = self.unwinder.chain(attr, sample, maps, &mut scratch);
            let mut done = Ok(());
            walk_words(chain, self.options.max_stack, |frame| {
                if done.is_ok() {
                    done = out.write_all(self.frame(event, Place::new(maps, frame)).as_bytes());
                }
            });
            self.scratch = scratch;
            return done;
        }
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let ip = sample.ip.unwrap_or(0);
        let place = Place::exact(maps, mode, ip);
        let named = self.resolver.named(place, false);
        write!(out, " {ip:>16x}")?;
        let mut text = String::new();
        self.describe(&mut text, (&named, place), self.fields[event]);
        if self.fields[event].has(Field::SrcLine) {
            text.push_str("\n  ");
            text.push_str(&shown(&self.resolver.source_line(place)));
        }
        out.write_all(text.as_bytes())
    }

    /// The lines of a call chain's address, inlined functions first.
    fn frame(&mut self, event: usize, place: Place) -> &str {
        let key = (event as u32, place);
        if !self.frames.contains_key(&key) {
            use std::fmt::Write;
            let (fields, ip) = (self.fields[event], place.ip);
            let named = self.resolver.named(place, self.options.inline);
            let mut text = String::new();
            // The address that was sampled, as perf prints it since 6.8; perf 6.1 prints those of
            // programs as in their files.
            for inlined in &named.inlined {
                // SANITY: writing to a String cannot fail.
                write!(text, "\t{ip:>16x}").expect("writing to a string");
                if fields.has(Field::Sym) {
                    write!(text, " {}", shown(inlined)).expect("writing to a string");
                }
                // As perf: it stands where the module does.
                text.push_str(" (inlined)\n");
            }
            write!(text, "\t{ip:>16x}").expect("writing to a string");
            self.describe(&mut text, (&named, place), fields);
            text.push('\n');
            if fields.has(Field::SrcLine) && named.module.is_some() {
                let line = self.resolver.source_line(place);
                writeln!(text, "  {}", shown(&line)).expect("writing to a string");
            }
            self.frames.insert(key, text);
        }
        &self.frames[&key]
    }

    /// ` symbol+0xoffset (module)`.
    fn describe(&self, text: &mut String, (named, place): (&Named, Place), fields: FieldSet) {
        use std::fmt::Write;
        let has = |field| fields.has(field);
        if has(Field::Sym) {
            match &named.symbol {
                Some((start, _, name)) if has(Field::SymOff) => {
                    // SANITY: writing to a String cannot fail.
                    let offset = named.recorded_address(place).saturating_sub(*start);
                    write!(text, " {}+{offset:#x}", shown(name)).expect("writing to a string");
                }
                Some((_, _, name)) => {
                    text.push(' ');
                    text.push_str(&shown(name));
                }
                None => text.push_str(" [unknown]"),
            }
        }
        if has(Field::Dso) {
            let module = match named.module {
                Some(id) => match (module_label(self.timeline.modules.get(id)), named.line) {
                    (path, Some(line)) => format!("{path}:{line}").into(),
                    (label, None) => label,
                },
                None => "[unknown]".into(),
            };
            write!(text, " ({})", shown(&module)).expect("writing to a string");
        }
    }
}

/// What a line calls a module: its path, or the name in brackets.
fn module_label(module: &Module) -> Cow<'_, str> {
    match module.kind {
        ModuleKind::Jit { pid } => format!("/tmp/perf-{pid}.map").into(),
        ModuleKind::KernelModule => (&*module.short_name).into(),
        _ => String::from_utf8_lossy(&module.path),
    }
}

/// `   AX:0x1    BX:0x2 `, as perf prints registers.
fn registers_text(names: Option<Registers>, registers: &Regs<'_>) -> String {
    let mut text = String::new();
    for number in 0..64 {
        if let Some(value) = registers.get(number) {
            let name = names.and_then(|names| names.name(number as usize)).unwrap_or("unknown");
            text.push_str(&format!("{name:>5}:{value:#x} "));
        }
    }
    text
}

/// Letters for where a record was made, as perf has them.
fn misc_letters(header: kymo_data::RecordHeader) -> String {
    let misc = header.misc;
    let mut letters = match misc & abi::PERF_RECORD_MISC_CPUMODE_MASK {
        1 => "K",
        2 => "U",
        3 => "H",
        4 => "G",
        5 => "g",
        _ => "",
    }
    .to_owned();
    let more = match header.kind {
        abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2 if misc & 1 << 13 != 0 => "M",
        abi::PERF_RECORD_COMM if misc & abi::PERF_RECORD_MISC_COMM_EXEC != 0 => "E",
        abi::PERF_RECORD_SWITCH | abi::PERF_RECORD_SWITCH_CPU_WIDE
            if misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0 =>
        {
            if misc & abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0 { "Sp" } else { "S" }
        }
        _ => "",
    };
    letters.push_str(more);
    letters
}

/// Paths of the cgroups that the recording names; nothing is read where no sample has one.
fn cgroups(recording: &Recording) -> FxHashMap<u64, String> {
    let mut found = FxHashMap::default();
    if recording.events.list.iter().all(|e| e.attr.sample_type & abi::PERF_SAMPLE_CGROUP == 0) {
        return found;
    }
    let mut records = recording.records();
    while let Ok(Some(record)) = records.next_record() {
        if let Ok(Record::Cgroup { id, path }) = record.parse() {
            found.insert(id, String::from_utf8_lossy(path).into_owned());
        }
    }
    found
}
