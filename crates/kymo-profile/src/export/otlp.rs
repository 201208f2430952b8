//! OTLP profiles (`opentelemetry.proto.profiles.v1development`): an `ExportProfilesServiceRequest`,
//! as a collector takes it.
//!
//! ```text
//!  request --> ResourceProfiles of each process --> a Profile for each event --> samples
//!     '------> dictionary: strings, functions, locations, mappings, stacks, attributes
//! ```
//! A sample of OTLP is a stack of one thread with a value for each time that it was seen: its
//! period. Moments are there where the recording says when it was made on the wall clock. A span
//! of wall time says what the thread did in `thread.state`, and who ended its wait in
//! `thread.waker`; there is no convention for either. The dictionary has what the samples of the
//! request name and nothing else; the first entry of each of its tables is empty, which stands for
//! "none". Field numbers are those of version 1.11 of the protocol (Python's package
//! opentelemetry-proto 1.45).
use super::model::{FunctionKind, Thread};
use super::pprof::hexadecimal;
use super::protobuf::{Message, StringTable};
use super::row_filter::RowFilter;
use super::samples::{ExportSamples, SampleRow, Track};
use crate::load::Count;
use crate::wall::SpanState;
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

/// Fields of the request.
const RESOURCE_PROFILES: u64 = 1;
const DICTIONARY: u64 = 2;

/// Tables of the dictionary.
mod table {
    pub(super) const MAPPING: u64 = 1;
    pub(super) const LOCATION: u64 = 2;
    pub(super) const FUNCTION: u64 = 3;
    pub(super) const LINK: u64 = 4;
    pub(super) const STRING: u64 = 5;
    pub(super) const ATTRIBUTE: u64 = 6;
    pub(super) const STACK: u64 = 7;
}

/// Writes a profile for each process and event that has such rows.
///
/// # Errors
/// Those of `out`.
pub fn otlp(samples: &ExportSamples<'_>, filter: RowFilter, out: &mut dyn Write) -> io::Result<()> {
    let mut dictionary = Dictionary::new();
    let mut tracks: Vec<Track> = samples.tracks().to_vec();
    let pid = |track: &Track| {
        let thread = samples.thread(track.thread);
        (thread.pid, thread.earlier_processes)
    };
    tracks.sort_by_key(|track| (pid(track), track.event));
    for of_process in tracks.chunk_by(|a, b| pid(a) == pid(b)) {
        write_process((samples, filter), of_process, &mut dictionary, out)?;
    }
    dictionary.write(samples, out)
}

/// What the samples so far have named.
struct Dictionary<'a> {
    strings: StringTable<'a>,
    stacks: Numbering,
    attributes: Message,
    /// By key and text, or number.
    numbers: FxHashMap<(&'static str, AttributeValue), u64>,
}

/// The entries of a table, in the order in which they were named first. Their numbers begin with 1.
#[derive(Default)]
struct Numbering {
    entries: Vec<u32>,
    numbers: FxHashMap<u32, u64>,
}

impl Numbering {
    fn number(&mut self, entry: u32) -> u64 {
        *self.numbers.entry(entry).or_insert_with(|| {
            self.entries.push(entry);
            self.entries.len() as u64
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum AttributeValue {
    Text(String),
    Number(i64),
}

impl AttributeValue {
    /// An `AnyValue`.
    fn message(&self) -> Message {
        let mut any = Message::default();
        match self {
            AttributeValue::Text(text) => any.bytes(1, text.as_bytes()),
            AttributeValue::Number(number) => any.present(3, *number as u64),
        };
        any
    }
}

impl<'a> Dictionary<'a> {
    fn new() -> Dictionary<'a> {
        let mut attributes = Message::default();
        attributes.message(table::ATTRIBUTE, &Message::default());
        Dictionary {
            strings: StringTable::new(),
            stacks: Numbering::default(),
            attributes,
            numbers: FxHashMap::default(),
        }
    }

    /// The number of an attribute in the table.
    fn attribute(&mut self, key: &'static str, value: AttributeValue) -> u64 {
        let next = self.numbers.len() as u64 + 1;
        let known = (key, value);
        if let Some(number) = self.numbers.get(&known) {
            return *number;
        }
        let mut attribute = Message::default();
        attribute.number(1, self.strings.number(key)).message(2, &known.1.message());
        self.attributes.message(table::ATTRIBUTE, &attribute);
        self.numbers.insert(known, next);
        next
    }

    fn value_type(&mut self, name: &'a str, unit: &'a str) -> Message {
        let mut message = Message::default();
        message.number(1, self.strings.number(name)).number(2, self.strings.number(unit));
        message
    }

    /// All tables as one message.
    fn write(mut self, samples: &'a ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
        let mut all = Message::default();
        all.message(table::LINK, &Message::default());
        let locations = self.add_stacks(samples, &mut all);
        let (functions, mappings) = self.add_locations(samples, &locations, &mut all);
        self.add_functions(samples, &functions, &mut all);
        self.add_mappings(samples, &mappings, &mut all);
        for text in self.strings.iter() {
            all.bytes(table::STRING, text.as_bytes());
        }
        all.append(&self.attributes);
        all.write(DICTIONARY, out)
    }

    /// Adds the stacks of samples; gives the locations in them.
    fn add_stacks(&self, samples: &ExportSamples<'_>, all: &mut Message) -> Numbering {
        let (mut locations, mut message) = (Numbering::default(), Message::default());
        all.message(table::STACK, &message);
        for stack in &self.stacks.entries {
            let of_stack: Vec<u64> =
                samples.locations.stack(*stack).iter().map(|location| locations.number(*location)).collect();
            all.message(table::STACK, message.clear().numbers(1, of_stack.iter().copied()));
        }
        locations
    }

    /// Adds locations; gives the functions and mappings of them.
    fn add_locations(
        &mut self,
        samples: &ExportSamples<'_>,
        locations: &Numbering,
        all: &mut Message,
    ) -> (Numbering, Numbering) {
        let (mut functions, mut mappings) = (Numbering::default(), Numbering::default());
        let (mut message, mut line) = (Message::default(), Message::default());
        all.message(table::LOCATION, &message);
        for location in &locations.entries {
            let location = &samples.locations.list[*location as usize];
            let mapping = location.mapping.map_or(0, |mapping| mappings.number(mapping));
            message.clear().number(1, mapping).number(2, location.address);
            let lines = samples.locations.lines(location);
            for at in lines {
                line.clear().number(1, functions.number(at.function)).number(2, u64::from(at.line));
                message.message(3, &line);
            }
            let kind = lines.last().map(|line| samples.function(line.function).kind);
            let frame_type = match kind {
                Some(FunctionKind::Kernel) => "kernel",
                _ => "native",
            };
            let frame_type = AttributeValue::Text(frame_type.to_owned());
            let frame_type = self.attribute("profile.frame.type", frame_type);
            message.numbers(4, std::iter::once(frame_type));
            all.message(table::LOCATION, &message);
        }
        (functions, mappings)
    }

    fn add_functions(&mut self, samples: &'a ExportSamples<'_>, functions: &Numbering, all: &mut Message) {
        let mut message = Message::default();
        all.message(table::FUNCTION, &message);
        for function in &functions.entries {
            let file = samples.locations.file(*function).unwrap_or_default();
            message.clear().number(1, self.strings.number(&*samples.function(*function).name));
            message.number(3, self.strings.number(file));
            all.message(table::FUNCTION, &message);
        }
    }

    fn add_mappings(&mut self, samples: &'a ExportSamples<'_>, mappings: &Numbering, all: &mut Message) {
        let mut message = Message::default();
        all.message(table::MAPPING, &message);
        for mapping in &mappings.entries {
            let mapping = &samples.locations.mappings[*mapping as usize];
            message.clear().number(1, mapping.start).number(2, mapping.end).number(3, mapping.offset);
            message.number(4, self.strings.number(&*mapping.path));
            if !mapping.build_id.is_empty() {
                let build_id = AttributeValue::Text(hexadecimal(&mapping.build_id));
                let build_id = self.attribute("process.executable.build_id.gnu", build_id);
                message.numbers(5, std::iter::once(build_id));
            }
            all.message(table::MAPPING, &message);
        }
    }
}

/// The profiles of a process: one for each event.
fn write_process<'a>(
    (samples, filter): (&'a ExportSamples<'_>, RowFilter),
    tracks: &[Track],
    dictionary: &mut Dictionary<'a>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut scope = Message::default();
    scope.bytes(1, b"kymo").bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut of_scope = Message::default();
    of_scope.message(1, &scope);
    let mut is_empty = true;
    for of_event in tracks.chunk_by(|a, b| a.event == b.event) {
        if let Some(profile) = profile((samples, filter), of_event, dictionary) {
            of_scope.message(2, &profile);
            is_empty = false;
        }
    }
    if is_empty {
        return Ok(());
    }
    let mut of_resource = Message::default();
    if let Some(track) = tracks.first() {
        of_resource.message(1, &resource(samples, samples.thread(track.thread)));
    }
    of_resource.message(2, &of_scope);
    of_resource.write(RESOURCE_PROFILES, out)
}

/// What a process is.
fn resource(samples: &ExportSamples<'_>, thread: &Thread) -> Message {
    let (pid, profile) = (thread.pid, &samples.profile);
    let name = samples.process_name(thread).unwrap_or_default();
    let text = |text: &str| AttributeValue::Text(text.to_owned());
    let told = || samples.attributes.get(&pid).into_iter().flatten();
    let is_named = told().any(|(key, _)| *key == "service.name");
    let facts = [
        ("process.pid", AttributeValue::Number(i64::from(pid))),
        ("service.name", text(if is_named { "" } else { name })),
        ("process.executable.name", text(name)),
        ("host.name", text(&profile.host)),
        ("host.arch", text(&profile.arch)),
        ("os.version", text(&profile.kernel)),
    ];
    let told = told().map(|(key, value)| (*key, text(value)));
    let mut resource = Message::default();
    for (key, value) in facts.into_iter().chain(told).filter(|(_, value)| *value != text("")) {
        let mut attribute = Message::default();
        attribute.bytes(1, key.as_bytes()).message(2, &value.message());
        resource.message(1, &attribute);
    }
    resource
}

/// The samples of an event of the threads of a process; none if there are no such rows.
fn profile<'a>(
    (samples, filter): (&'a ExportSamples<'_>, RowFilter),
    tracks: &[Track],
    dictionary: &mut Dictionary<'a>,
) -> Option<Message> {
    let rows_of = |track| samples.rows_of(track).filter(|row| filter.keeps(samples, row));
    let first = tracks.first()?;
    tracks.iter().flat_map(rows_of).next()?;
    let event = samples.event(first.event);
    let name = filter.event_name(samples, first.event);
    // Time off the CPU is ns, whatever its event counts.
    let unit = if filter == RowFilter::OffCpu { "nanoseconds" } else { event.unit_of_values() };
    let kind = dictionary.value_type(name, unit);
    let facts = &samples.profile;
    let start_ns = facts.start_unix_ns.filter(|_| samples.has_times());
    let mut profile = Message::default();
    profile.message(1, &kind);
    let mut sum = Count::default();
    for track in tracks {
        let mut rows: Vec<SampleRow> = rows_of(track).collect();
        let state = |row: &SampleRow| row.state.map_or(0, |state| state.shown().number());
        let identity = |row: &SampleRow| (row.named_thread, row.stack, state(row), row.waker);
        rows.sort_by_key(identity);
        for rows in rows.chunk_by(|a, b| identity(a) == identity(b)) {
            profile.message(2, &sample(samples, rows, start_ns, dictionary));
            rows.iter().for_each(|row| sum += Count::of_sample(row.period, 1, false));
        }
    }
    profile.fixed(3, start_ns.unwrap_or(0)).number(4, facts.duration_ns + 1);
    profile.message(5, &kind).number(6, samples.fixed_period(first.event).unwrap_or(0));
    let pid = samples.thread(first.thread).pid;
    profile.bytes(7, &profile_id((&facts.source, &facts.host, facts.start_ns, pid, name, sum.samples)));
    Some(profile)
}

/// 16 bytes that other profiles do not have, and that are the same when it is written again.
fn profile_id(identity: impl Hash) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (half, seed) in bytes.chunks_mut(8).zip(["kymo", "profile"]) {
        let mut hasher = FxHasher::default();
        (seed, &identity).hash(&mut hasher);
        half.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    bytes
}

/// A stack of a thread, each time that it was seen.
fn sample(
    samples: &ExportSamples<'_>,
    rows: &[SampleRow],
    start_ns: Option<u64>,
    dictionary: &mut Dictionary<'_>,
) -> Message {
    let mut message = Message::default();
    let Some(first) = rows.first() else { return message };
    let tid = AttributeValue::Number(i64::from(samples.thread(first.thread).tid));
    let comm = AttributeValue::Text(samples.comm(first).to_owned());
    let state = first.state.map(SpanState::shown).map(SpanState::name);
    let waker = samples.waker(first).map(str::to_owned);
    let mut attributes =
        vec![dictionary.attribute("thread.id", tid), dictionary.attribute("thread.name", comm)];
    for (key, text) in [("thread.state", state), ("thread.waker", waker)] {
        attributes.extend(text.map(|text| dictionary.attribute(key, AttributeValue::Text(text))));
    }
    message.number(1, dictionary.stacks.number(first.stack)).numbers(2, attributes.into_iter());
    message.numbers(4, rows.iter().map(|row| row.period));
    if let Some(start_ns) = start_ns {
        let moments: Vec<u64> = rows.iter().map(|row| start_ns.saturating_add(row.begin_ns)).collect();
        message.fixed_numbers(5, &moments);
    }
    message
}
