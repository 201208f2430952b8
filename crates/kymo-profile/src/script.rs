//! Samples one by one, in order of time, as `perf script` prints them.
//!
//! Order comes from rounds: a FINISHED_ROUND record says that every ring has been read since the
//! one before, so what is not newer than the newest record of the round before can be printed.
//! Memory holds two rounds, except for recordings without rounds (directories), which are held
//! whole.
use crate::load::{ReadPeriods, TimeSpans, collect_sideband, counts_by_reading};
use crate::resolve::{Resolver, walk_words};
use crate::text::{WIDEST_COLUMN, shown};
use crate::timeline::{ModuleKind, Moment, Timeline};
use crate::tracepoint::Tracepoints;
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder};
use kymo_data::{RawRecord, Recording, Sample, abi};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::io::{self, Write};

#[cfg(test)]
mod tests;

/// A part of a sample's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// Name of the thread.
    Comm,
    /// Process id.
    Pid,
    /// Thread id.
    Tid,
    /// CPU.
    Cpu,
    /// Time, seconds.
    Time,
    /// Period.
    Period,
    /// Name of the event.
    Event,
    /// A tracepoint's own fields.
    Trace,
    /// Data address.
    Addr,
    /// Instruction pointer, or the call chain.
    Ip,
    /// Symbols with the addresses.
    Sym,
    /// Offsets with the symbols.
    SymOff,
    /// Modules with the addresses.
    Dso,
}

/// A word that is no field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown field '{0}': the fields are comm, pid, tid, cpu, time, period, event, trace, addr, ip, sym, symoff and dso"
)]
pub struct UnknownField(pub String);

impl std::str::FromStr for Field {
    type Err = UnknownField;

    fn from_str(word: &str) -> Result<Field, UnknownField> {
        Ok(match word.trim() {
            "comm" => Field::Comm,
            "pid" => Field::Pid,
            "tid" => Field::Tid,
            "cpu" => Field::Cpu,
            "time" => Field::Time,
            "period" => Field::Period,
            "event" => Field::Event,
            "trace" => Field::Trace,
            "addr" => Field::Addr,
            "ip" => Field::Ip,
            "sym" => Field::Sym,
            "symoff" => Field::SymOff,
            "dso" => Field::Dso,
            other => return Err(UnknownField(other.to_string())),
        })
    }
}

/// What is printed of each sample.
#[derive(Debug, Clone)]
pub struct ScriptOptions {
    /// The fields; `None` for those that suit each event, as perf chooses them.
    pub fields: Option<Vec<Field>>,
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

/// Why printing stopped.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The recording could not be read.
    #[error(transparent)]
    Read(#[from] kymo_data::ReadError),
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
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, _, reads) = collect_sideband(recording, workers, store.options(), &|_, _| {})?;
    let unwinder = StackUnwinder::new(&timeline);
    let mut printer = Printer::new(recording, &timeline, &reads, options, store, &unwinder);

    // By moment, and those of one moment as they came.
    let mut waiting = BTreeMap::new();
    let (mut newest, mut safe, mut count) = (Moment::START, Moment::START, 0_u64);
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        match record.header.kind {
            abi::PERF_RECORD_SAMPLE => {
                let Some(event) = recording.events.event_of(&record) else { continue };
                let layout = &recording.events.list[event].layout;
                let Ok(sample) = layout.parse(record.header.misc, record.body) else { continue };
                if sample.time.is_none() {
                    printer.print(&record, out)?;
                    continue;
                }
                let moment = Moment::new(sample.time, record.position);
                newest = newest.max(moment);
                waiting.insert((moment, count), (record.header, record.body.to_vec()));
                count += 1;
            }
            abi::PERF_RECORD_FINISHED_ROUND => {
                while let Some(next) = waiting.first_entry()
                    && next.key().0.time_ns <= safe.time_ns
                {
                    let position = next.key().0.position;
                    let (header, body) = next.remove();
                    printer.print(&RawRecord { header, body: &body, position }, out)?;
                }
                safe = newest;
            }
            _ => {}
        }
    }
    for ((moment, _), (header, body)) in waiting {
        printer.print(&RawRecord { header, body: &body, position: moment.position }, out)?;
    }
    Ok(Printed { samples: printer.printed, problems: records.problems().to_vec() })
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
    /// Whether a tracepoint has call chains: then addresses are printed for all of them, as perf
    /// does.
    tracepoint_chains: bool,
    /// Text of each place that was printed before: address space, mode and address.
    frames: FxHashMap<(u32, u8, u64), String>,
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
            tracepoint_chains: events
                .iter()
                .filter(has_chain)
                .any(|e| e.attr.kind == abi::PERF_TYPE_TRACEPOINT),
            frames: FxHashMap::default(),
            scratch: Vec::new(),
            printed: 0,
        }
    }

    fn print(&mut self, record: &RawRecord<'_>, out: &mut dyn Write) -> io::Result<()> {
        let events = &self.recording.events;
        let Some(event) = events.event_of(record) else { return Ok(()) };
        let of = &events.list[event];
        let Ok(sample) = of.layout.parse(record.header.misc, record.body) else { return Ok(()) };
        if !self.wanted(&sample) {
            return Ok(());
        }
        self.printed += 1;
        match sample.read {
            Some(read) if counts_by_reading(of) => {
                for counter in read.counters() {
                    let id = counter.id.or(sample.id).unwrap_or(0);
                    let period = self.reads.period(record.position, id);
                    if period != 0
                        && let Some(member) = events.by_id(id)
                    {
                        self.sample(record, &sample, member, period, out)?;
                    }
                }
                Ok(())
            }
            _ => {
                let period = sample.period.unwrap_or(of.attr.sample_period);
                self.sample(record, &sample, event, period, out)
            }
        }
    }

    fn wanted(&self, sample: &Sample<'_>) -> bool {
        let options = self.options;
        let inside = |set: &Option<rustc_hash::FxHashSet<i32>>, id: Option<i32>| {
            set.as_ref().is_none_or(|s| id.is_some_and(|i| s.contains(&i)))
        };
        inside(&options.pids, sample.pid)
            && inside(&options.tids, sample.tid)
            && options.cpus.as_ref().is_none_or(|s| sample.cpu.is_some_and(|c| s.contains(&c)))
            && options.time.as_ref().is_none_or(|spans| sample.time.is_some_and(|time| spans.contains(time)))
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
        let default = |field| match field {
            Field::Pid | Field::Addr => false,
            Field::Period => !tracepoint,
            Field::Trace => tracepoint,
            Field::Ip => !tracepoint || self.tracepoint_chains,
            _ => true,
        };
        let has = |field| match &self.options.fields {
            Some(fields) => fields.contains(&field),
            None => default(field),
        };
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let view = self.timeline.thread(pid, tid, Moment::new(sample.time, record.position));
        if has(Field::Comm) {
            let comm = self.timeline.comm(view.comm);
            let comm = shown(&comm);
            if self.any_chains && chains && has(Field::Ip) {
                write!(out, "{comm} ")?;
            } else {
                write!(out, "{comm:>16} ")?;
            }
        }
        match (has(Field::Pid), has(Field::Tid)) {
            (true, true) => write!(out, "{pid:>5}/{tid:<5} ")?,
            (true, false) => write!(out, "{pid:>5} ")?,
            (false, true) => write!(out, "{tid:>5} ")?,
            (false, false) => {}
        }
        if let Some(cpu) = sample.cpu.filter(|_| has(Field::Cpu)) {
            write!(out, "[{cpu:03}] ")?;
        }
        if let Some(time) = sample.time.filter(|_| has(Field::Time)) {
            write!(out, "{:>5}.{:06}: ", time / 1_000_000_000, time % 1_000_000_000 / 1000)?;
        }
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
            self.addresses(record, sample, view.maps, chains, out)?;
        }
        writeln!(out)
    }

    fn addresses(
        &mut self,
        record: &RawRecord<'_>,
        sample: &Sample<'_>,
        maps: u32,
        chains: bool,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if chains && let Some(words) = sample.callchain {
            writeln!(out)?;
            let mut chain = std::mem::take(&mut self.scratch);
            chain.clear();
            match sample.user_stack {
                Some(stack) if !stack.is_empty() => self.unwinder.chain(sample, maps, stack, &mut chain),
                _ => chain.extend_from_slice(words.as_bytes()),
            }
            let mut done = Ok(());
            let words = chain.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
            walk_words(words, self.options.max_stack, |mode, ip| {
                if done.is_ok() {
                    done = out.write_all(self.frame(maps, mode, ip).as_bytes());
                }
            });
            self.scratch = chain;
            return done;
        }
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let ip = sample.ip.unwrap_or(0);
        let named = self.resolver.named(maps, mode, ip, false);
        write!(out, " {ip:>16x}")?;
        let mut text = String::new();
        self.describe(&mut text, &named);
        out.write_all(text.as_bytes())
    }

    /// The lines of a call chain's address, inlined functions first.
    fn frame(&mut self, maps: u32, mode: u8, ip: u64) -> &str {
        let key = (maps, mode, ip);
        if !self.frames.contains_key(&key) {
            use std::fmt::Write;
            let named = self.resolver.named(maps, mode, ip, self.options.inline);
            let mut text = String::new();
            // The address that was sampled, as perf prints it since 6.8; perf 6.1 prints those of
            // programs as in their files.
            for inlined in &named.inlined {
                // SANITY: writing to a String cannot fail.
                writeln!(text, "\t{ip:>16x} {} (inlined)", shown(inlined)).expect("writing to a string");
            }
            write!(text, "\t{ip:>16x}").expect("writing to a string");
            self.describe(&mut text, &named);
            text.push('\n');
            self.frames.insert(key, text);
        }
        &self.frames[&key]
    }

    /// ` symbol+0xoffset (module)`.
    fn describe(&self, text: &mut String, named: &crate::resolve::Named) {
        use std::fmt::Write;
        let has = |field| self.options.fields.as_ref().is_none_or(|f| f.contains(&field));
        if has(Field::Sym) {
            match &named.symbol {
                Some((start, _, name)) if has(Field::SymOff) => {
                    // SANITY: writing to a String cannot fail.
                    let offset = named.module_address - start;
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
                Some(id) => {
                    let module = self.timeline.modules.get(id);
                    match module.kind {
                        ModuleKind::Jit { pid } => format!("/tmp/perf-{pid}.map"),
                        ModuleKind::KernelModule => module.short_name.clone(),
                        _ => {
                            let path = String::from_utf8_lossy(&module.path);
                            named.line.map_or(path.to_string(), |line| format!("{path}:{line}"))
                        }
                    }
                }
                None => "[unknown]".to_string(),
            };
            write!(text, " ({})", shown(&module)).expect("writing to a string");
        }
    }
}
