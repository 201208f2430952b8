//! The rows of a recording: every sample, or every span of wall time, is one.
use crate::error::DatasetError;
use crate::ids;
use crate::rows::{
    BuildRow, EventRow, FrameKind, FrameRow, HostRow, LocationRow, ON_CPU, ProcessRow, SampleValue,
};
use crate::schema::FIRST_OF_CONTENT;
use crate::schema::NO_SERVICE;
use crate::writer::{DatasetFile, DatasetWriter, EventNumber, LocationNumber, ProcessNumber, StackNumber};
use kymo_profile::export::{
    ExportSamples, FrameLocation, Function, FunctionKind, LocationLine, MappedFile, RowFilter, SampleRow,
};
use kymo_profile::load::{CgroupNames, ExtraId};
use kymo_profile::name_key;
use kymo_profile::timeline::ModuleKind;
use kymo_profile::wall::{SpanState, State};
use kymo_symbols::{SymbolOptions, code_bias};
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::path::Path;

mod sums;

pub use sums::SummedFiles;

/// The host of a recording that does not name one.
const NO_HOST: &str = "unknown";

/// What becomes of a recording.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordingOptions<'a> {
    /// What tells the host from all others: its id is made of it. Its name unless given.
    pub host_identity: Option<&'a str>,
    /// The service of all its samples; unless given each has its own, see
    /// [`ProcessRow::service_name`].
    pub service: Option<&'a str>,
    /// Functions of files with a build id are left out, for [`symbolize`](fn@crate::symbolize).
    pub without_symbols: bool,
}

/// A recording's rows on their way into a writer.
pub struct RecordingRows<'a> {
    samples: &'a ExportSamples<'a>,
    /// The time off the CPU, which comes after the samples.
    waits: Option<&'a ExportSamples<'a>>,
    filter: RowFilter,
    options: RecordingOptions<'a>,
    start_ns: i64,
    writer: DatasetWriter,
    locations: Vec<Option<LocationNumber>>,
    stacks: Vec<Option<StackNumber>>,
    /// By thread under the name that it had, and cgroup.
    processes: FxHashMap<(u32, ExtraId), ProcessNumber>,
    /// By process its cgroup, as samples say it.
    cgroups: FxHashMap<i32, &'a CgroupNames>,
    /// By event, state and waker.
    events: FxHashMap<(u32, u8, u32), EventNumber>,
}

impl<'a> RecordingRows<'a> {
    /// Of the samples of a recording. `symbols`: where the files of its build ids are looked for.
    pub fn new(
        samples: &'a ExportSamples<'a>,
        options: RecordingOptions<'a>,
        symbols: &SymbolOptions,
    ) -> RecordingRows<'a> {
        let (facts, start_ns) = (&samples.profile, start_ns(samples));
        let host = HostRow {
            host: if facts.host.is_empty() { NO_HOST.to_owned() } else { facts.host.clone() },
            kernel: facts.kernel.clone(),
            arch: facts.arch.clone(),
            cpus: facts.cpus_online.try_into().unwrap_or(0),
            rate_hz: samples.frequency_hz().unwrap_or(0) as f64,
            kymo_version: env!("CARGO_PKG_VERSION").to_owned(),
            first_seen_ns: start_ns,
        };
        let identity = options.host_identity.unwrap_or(&host.host).to_owned();
        let sequence = sequence(samples);
        let writer = DatasetWriter::of_identity(host, &identity, start_ns, sequence);
        let mut rows = RecordingRows {
            samples,
            waits: None,
            filter: RowFilter::All,
            options,
            start_ns,
            writer,
            locations: vec![None; samples.locations.list.len()],
            stacks: vec![None; samples.locations.stack_count() as usize],
            processes: FxHashMap::default(),
            cgroups: FxHashMap::default(),
            events: FxHashMap::default(),
        };
        rows.builds_of(samples, symbols);
        rows
    }

    /// Has the time off the CPU with its states and wakers from `spans`, those of the wall time of
    /// the same recording
    /// ([`of_wall_with_addresses`](ExportSamples::of_wall_with_addresses)), in the place of the
    /// samples' records of waits. The time on a CPU stays that of the samples.
    #[must_use]
    pub fn with_waits(mut self, spans: &'a ExportSamples<'a>, symbols: &SymbolOptions) -> RecordingRows<'a> {
        self.filter = RowFilter::Samples;
        self.waits = Some(spans);
        self.builds_of(spans, symbols);
        self
    }

    /// Goes on with the waits; false if there are none that were not read yet.
    fn begin_waits(&mut self) -> bool {
        let Some(spans) = self.waits.take() else { return false };
        self.samples = spans;
        self.filter = RowFilter::OffCpu;
        self.start_ns = start_ns(spans);
        self.locations = vec![None; spans.locations.list.len()];
        self.stacks = vec![None; spans.locations.stack_count() as usize];
        self.processes.clear();
        self.events.clear();
        true
    }

    /// What the names of its files have in common.
    pub fn stem(&self) -> crate::schema::FileStem {
        self.writer.stem()
    }

    /// The files.
    ///
    /// # Errors
    /// Those of the Parquet library.
    pub fn into_files(mut self) -> Result<Vec<DatasetFile>, DatasetError> {
        self.add_all()?;
        if self.begin_waits() {
            self.add_all()?;
        }
        self.writer.finish()
    }

    /// Adds the rows of what is read now.
    fn add_all(&mut self) -> Result<(), DatasetError> {
        let samples = self.samples;
        for track in samples.tracks() {
            for row in samples.rows_of(track) {
                if self.filter.keeps(samples, &row) {
                    self.add(&row)?;
                }
            }
        }
        Ok(())
    }

    fn builds_of(&mut self, samples: &ExportSamples<'_>, symbols: &SymbolOptions) {
        let facts = &samples.profile;
        let mut seen = FxHashMap::default();
        for mapping in samples.locations.mappings.iter().filter(|mapping| !mapping.build_id.is_empty()) {
            if seen.insert(&mapping.build_id, ()).is_some() {
                continue;
            }
            let bias = match mapping.kind {
                ModuleKind::File => code_bias(symbols, Path::new(&mapping.path), &mapping.build_id),
                _ => None,
            };
            self.writer.build(BuildRow {
                build_id: hexadecimal(&mapping.build_id),
                path: mapping.path.clone(),
                module: mapping.short_name.clone(),
                arch: facts.arch.clone(),
                first_seen_ns: self.start_ns,
                code_bias: bias,
            });
        }
    }

    fn add(&mut self, row: &SampleRow) -> Result<(), DatasetError> {
        let stack = self.stack(row.stack);
        let process = self.process(row);
        let event = self.event(row);
        let begin = i64::try_from(row.begin_ns).unwrap_or(i64::MAX);
        let value = SampleValue {
            time_ns: self.start_ns.saturating_add(begin),
            value: i64::try_from(row.period).unwrap_or(i64::MAX),
            samples: samples_of(row),
        };
        self.writer.sample(process, event, stack, value)
    }

    fn process(&mut self, row: &SampleRow) -> ProcessNumber {
        let (samples, writer, options) = (self.samples, &mut self.writer, self.options);
        *self.processes.entry((row.named_thread, row.extra)).or_insert_with(|| {
            let thread = samples.thread(row.thread);
            let cgroup = match samples.cgroup(row) {
                Some(names) => {
                    self.cgroups.entry(thread.pid).or_insert(names);
                    Some(names)
                }
                // Spans have none of their own.
                None if samples.is_of_spans() => self.cgroups.get(&thread.pid).copied(),
                None => None,
            };
            let parts = cgroup.map(|names| names.parts());
            let [systemd_unit, container, pod] = parts.unwrap_or_default();
            // Threads have names of their own; a service is a program.
            let is_named = systemd_unit.or(container).or(pod).is_some();
            let program = samples.process_name(thread).unwrap_or(NO_SERVICE);
            let program = Some(program).filter(|_| !is_named);
            writer.process(&ProcessRow {
                pid: thread.pid,
                tid: Some(thread.tid),
                command: samples.comm(row),
                container,
                pod,
                systemd_unit,
                service: options.service.or(program),
            })
        })
    }

    fn event(&mut self, row: &SampleRow) -> EventNumber {
        let (samples, writer) = (self.samples, &mut self.writer);
        let state = row.state.filter(|state| state.state != State::Running);
        let key = (row.event, state.map_or(0, SpanState::number), row.waker);
        *self.events.entry(key).or_insert_with(|| {
            let named = samples.event(row.event);
            let event = self.filter.event_name(samples, row.event);
            let state = state.map_or_else(|| ON_CPU.to_owned(), SpanState::name);
            // Plain counts have the name of the event for a unit.
            let value_unit = if self.filter == RowFilter::OffCpu { "ns" } else { &named.unit };
            writer.event(&EventRow { event, value_unit, state: &state, waker: samples.waker(row) })
        })
    }

    fn stack(&mut self, stack: u32) -> StackNumber {
        if let Some(known) = self.stacks[stack as usize] {
            return known;
        }
        let samples = self.samples;
        let mut numbers = Vec::new();
        for at in samples.locations.stack(stack) {
            let location = &samples.locations.list[*at as usize];
            let [.., line] = samples.locations.lines(location) else { continue };
            if samples.function(line.function).kind != FunctionKind::State {
                numbers.push(self.location(*at, location));
            }
        }
        let known = self.writer.stack(&numbers);
        self.stacks[stack as usize] = Some(known);
        known
    }

    fn location(&mut self, at: u32, location: &FrameLocation) -> LocationNumber {
        if let Some(known) = self.locations[at as usize] {
            return known;
        }
        let samples = self.samples;
        let mapping = location.mapping.map(|mapping| &samples.locations.mappings[mapping as usize]);
        let build_id = mapping.filter(|mapping| !mapping.build_id.is_empty());
        let build_id = build_id.map(|mapping| hexadecimal(&mapping.build_id));
        let lines = samples.locations.lines(location);
        let outermost = lines.last().map(|line| samples.function(line.function));
        let kind = kind(mapping, outermost.map(|function| function.kind));
        let names: Vec<Option<Cow<'_, str>>> =
            lines.iter().map(|line| stable_name(kind, samples.function(line.function))).collect();
        let of_line = |(line, name)| {
            let line: &LocationLine = line;
            let name: &Option<Cow<'_, str>> = name;
            FrameRow {
                function: name.as_deref(),
                file: samples.locations.file(line.function).filter(|_| line.line > 0),
                line: i32::try_from(line.line).ok().filter(|line| *line > 0),
            }
        };
        let can_wait = mapping.is_some_and(can_be_symbolized);
        let frames: Vec<FrameRow<'_>> = match self.options.without_symbols && can_wait {
            true => vec![FrameRow::default()],
            false => lines.iter().zip(&names).map(of_line).collect(),
        };
        let number = self.writer.location(&LocationRow {
            module: outermost.map_or("", |function| stable_module(kind, &function.module)),
            build_id: build_id.as_deref(),
            address: location.file_address as i64,
            kind,
            frames: &frames,
        });
        self.locations[at as usize] = Some(number);
        number
    }
}

/// The number that tells files of a host and moment apart. A recording that does not know its
/// moment has one of its content: a copy of the file, which has another time, has the same.
fn sequence(samples: &ExportSamples<'_>) -> u32 {
    let facts = &samples.profile;
    let is_of_spans = u32::from(samples.is_of_spans());
    if facts.start_unix_ns.is_some() {
        return is_of_spans;
    }
    let events = facts.events.iter().map(|event| (&*event.name, event.total_samples, event.total_period));
    let own_times = [facts.start_ns, facts.duration_ns];
    ids::recording(&facts.kernel, own_times, events).max(FIRST_OF_CONTENT) & !1 | is_of_spans
}

/// When the rows of a recording begin, nanoseconds since 1970.
fn start_ns(samples: &ExportSamples<'_>) -> i64 {
    let facts = &samples.profile;
    let written = facts.written_unix_ns.map(|end| end.saturating_sub(facts.duration_ns));
    let start_ns = facts.start_unix_ns.or(written).unwrap_or(facts.start_ns);
    i64::try_from(start_ns).unwrap_or(0)
}

/// How many samples a row stands for; how many waits, if it is a span of them. Time in which a
/// thread is ready is one.
fn samples_of(row: &SampleRow) -> i64 {
    i64::try_from(row.waits.max(1)).unwrap_or(i64::MAX)
}

/// Whether the functions of a file are found by its build id.
fn can_be_symbolized(mapping: &MappedFile) -> bool {
    !mapping.build_id.is_empty() && matches!(mapping.kind, ModuleKind::File | ModuleKind::Vdso)
}

fn kind(mapping: Option<&MappedFile>, function: Option<FunctionKind>) -> FrameKind {
    match (mapping.map(|mapping| mapping.kind), function) {
        (Some(ModuleKind::Kernel | ModuleKind::KernelModule | ModuleKind::Ksymbol), _)
        | (None, Some(FunctionKind::Kernel)) => FrameKind::Kernel,
        (Some(ModuleKind::Jit { .. }), _) => FrameKind::Jit,
        (Some(ModuleKind::Script), _) => FrameKind::Script,
        _ => FrameKind::User,
    }
}

/// The module of a location. Generated code has one module in all processes: each has other numbers
/// of `[JIT] tid N`, and would have rows of its own.
fn stable_module(kind: FrameKind, module: &str) -> &str {
    if kind == FrameKind::Jit { name_key::GENERATED_CODE } else { module }
}

/// The name of a function, if it has one. Those of generated code are without the addresses and
/// tiers of one process.
fn stable_name(kind: FrameKind, function: &Function) -> Option<Cow<'_, str>> {
    let name = match kind {
        FrameKind::Jit => name_key::function(&function.name),
        _ => Cow::Borrowed(&*function.name),
    };
    (function.kind != FunctionKind::Unknown).then_some(name)
}

/// Without `format!`: a daemon makes one for each location.
fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that generated code has one module and one name in all processes, and other code the
    /// names that it has.
    #[test]
    fn generated_code_is_the_same_in_all_processes() {
        assert_eq!(stable_module(FrameKind::Jit, "[JIT] tid 31366"), "[JIT]");
        assert_eq!(stable_module(FrameKind::User, "libc.so.6"), "libc.so.6");
        let name = |kind, name: &str, of| {
            let function = Function { name: name.to_owned(), kind: of, ..Function::default() };
            stable_name(kind, &function).map(Cow::into_owned)
        };
        let user = FunctionKind::User;
        assert_eq!(
            name(FrameKind::Jit, "JS:*parse app.js:1:15", user).as_deref(),
            Some("JS:parse app.js:1:15")
        );
        assert_eq!(
            name(FrameKind::Jit, "L$$Lambda$1/0x00007f768d000a08.run", user).as_deref(),
            Some("L$$Lambda$1.run")
        );
        assert_eq!(name(FrameKind::User, "f.isra.0", user).as_deref(), Some("f.isra.0"));
        assert_eq!(name(FrameKind::Jit, "[JIT] tid 31366", FunctionKind::Unknown), None);
    }
}
