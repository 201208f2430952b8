//! A profile for pprof: `profile.proto`, compressed by gzip.
//!
//! A sample of pprof is a stack of one thread with its counts: how many samples of each event, and
//! the sum of their periods. The thread is in the labels `pid`, `tid` and `comm`; times are left
//! out. Field numbers are those of `proto/profile.proto` of github.com/google/pprof.
use super::locations::MappedFile;
use super::model::{ExportProfile, FunctionKind, Thread};
use super::protobuf::{Message, StringTable};
use super::samples::ExportSamples;
use crate::load::ExtraId;
use flate2::Compression;
use flate2::write::GzEncoder;
use kymo_data::SampleLabel;
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Fields of the outermost message.
mod field {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const FUNCTION: u64 = 5;
    pub(super) const STRING: u64 = 6;
    pub(super) const TIME_NS: u64 = 9;
    pub(super) const DURATION_NS: u64 = 10;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
    pub(super) const DEFAULT_TYPE: u64 = 14;
}

/// Writes all events as one profile: for each how many samples, and the sum of their periods. Spans
/// of wall time have their time only.
///
/// # Errors
/// Those of `out`.
pub fn pprof(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::fast());
    let mut strings = StringTable::new();
    write_samples(samples, &mut strings, &mut gzip)?;
    write_mappings(samples, &mut strings, &mut gzip)?;
    write_locations(samples, &mut gzip)?;
    write_functions(samples, &mut strings, &mut gzip)?;
    write_facts(samples, &mut strings, &mut gzip)?;
    // All texts are known now.
    let mut message = Message::default();
    for text in strings.iter() {
        message.clear().bytes(field::STRING, text.as_bytes()).write_fields(&mut gzip)?;
    }
    gzip.finish()?.flush()
}

/// The counts of each stack of each thread, under the name that the thread had, with the labels
/// that an imported profile had for it.
struct Counts {
    /// Values of a stack: see [`ExportSamples::value_places`].
    width: usize,
    numbers: FxHashMap<(u32, u32, ExtraId), usize>,
    keys: Vec<Stack>,
    values: Vec<u64>,
}

struct Stack {
    thread: u32,
    comm: u64,
    stack: u32,
    extra: ExtraId,
}

impl Counts {
    fn of<'a>(samples: &'a ExportSamples<'_>, strings: &mut StringTable<'a>) -> Counts {
        let (places, width) = samples.value_places();
        let (numbers, keys, values) = (FxHashMap::default(), Vec::new(), Vec::new());
        let mut counts = Counts { width, numbers, keys, values };
        for row in samples.by_time() {
            let next = counts.keys.len();
            let extra = if samples.is_imported() { row.extra } else { 0 };
            let at = *counts.numbers.entry((row.named_thread, row.stack, extra)).or_insert(next);
            if at == next {
                let comm = strings.number(samples.comm(&row));
                counts.keys.push(Stack { thread: row.thread, comm, stack: row.stack, extra });
                counts.values.resize(counts.values.len() + width, 0);
            }
            let mut add = |column: usize, value: u64| {
                let sum = &mut counts.values[at * width + column];
                *sum = sum.saturating_add(value);
            };
            let place = places[row.event as usize];
            add(place, row.period);
            if samples.has_counts(row.event) {
                add(place - 1, row.samples);
            }
        }
        counts
    }
}

fn write_samples<'a>(
    samples: &'a ExportSamples<'_>,
    strings: &mut StringTable<'a>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let counts = Counts::of(samples, strings);
    let mut message = Message::default();
    for (at, key) in counts.keys.iter().enumerate() {
        let stack = samples.locations.stack(key.stack);
        message.clear().numbers(1, stack.iter().map(|location| u64::from(*location) + 1));
        // Also zeros: there is a value for each type.
        message.numbers(2, counts.values[at * counts.width..][..counts.width].iter().copied());
        match samples.is_imported() {
            true => add_labels(samples.labels(key.extra), strings, &mut message),
            false => add_thread(samples.thread(key.thread), key.comm, strings, &mut message),
        }
        message.write(field::SAMPLE, out)?;
    }
    Ok(())
}

fn add_thread(thread: &Thread, comm: u64, strings: &mut StringTable<'_>, sample: &mut Message) {
    let mut label = Message::default();
    for (name, number) in [("pid", thread.pid), ("tid", thread.tid)] {
        label.clear().number(1, strings.number(name)).number(3, i64::from(number) as u64);
        sample.message(3, &label);
    }
    if comm != 0 {
        sample.message(3, label.clear().number(1, strings.number("comm")).number(2, comm));
    }
}

/// The labels that a profile had before it was imported, those of the thread among them.
fn add_labels<'a>(labels: &'a [SampleLabel], strings: &mut StringTable<'a>, sample: &mut Message) {
    let mut message = Message::default();
    for label in labels {
        message.clear().number(1, strings.number(&*label.key)).number(2, strings.number(&*label.text));
        message.number(3, label.number as u64).number(4, strings.number(&*label.unit));
        sample.message(3, &message);
    }
}

fn write_mappings<'a>(
    samples: &'a ExportSamples<'_>,
    strings: &mut StringTable<'a>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mappings = &samples.locations.mappings;
    // pprof takes the first one for the program.
    let program = program(&samples.profile, mappings).unwrap_or(0);
    let others = (0..mappings.len()).filter(|at| *at != program);
    let mut message = Message::default();
    for at in Some(program).filter(|at| *at < mappings.len()).into_iter().chain(others) {
        let mapping = &mappings[at];
        message.clear().number(1, at as u64 + 1);
        message.number(2, mapping.start).number(3, mapping.end).number(4, mapping.offset);
        message.number(5, strings.number(&*mapping.path));
        message.number(6, strings.number(hexadecimal(&mapping.build_id)));
        // Functions, files, lines and inlined functions are here: pprof looks for none.
        (7..=10).for_each(|has| _ = message.number(has, 1));
        message.write(field::MAPPING, out)?;
    }
    Ok(())
}

/// The file of the program that was recorded, by its name; else a file that is no library.
fn program(profile: &ExportProfile, mappings: &[MappedFile]) -> Option<usize> {
    let name = profile.heading().split(' ').next().unwrap_or_default();
    let is_program =
        |mapping: &MappedFile| !mapping.short_name.contains(".so") && !mapping.short_name.starts_with('[');
    let named = mappings.iter().position(|mapping| mapping.short_name == name);
    named.or_else(|| mappings.iter().position(is_program))
}

fn write_locations(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (mut message, mut line) = (Message::default(), Message::default());
    for (location, id) in samples.locations.list.iter().zip(1..) {
        message.clear().number(1, id);
        message.number(2, location.mapping.map_or(0, |mapping| u64::from(mapping) + 1));
        message.number(3, location.address);
        for at in samples.locations.lines(location) {
            line.clear().number(1, u64::from(at.function) + 1).number(2, u64::from(at.line));
            message.message(4, &line);
        }
        message.write(field::LOCATION, out)?;
    }
    Ok(())
}

fn write_functions<'a>(
    samples: &'a ExportSamples<'_>,
    strings: &mut StringTable<'a>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut message = Message::default();
    let functions = samples.profile.functions.iter().zip(0_u32..);
    for (function, number) in functions.filter(|(function, _)| function.kind != FunctionKind::Comm) {
        message.clear().number(1, u64::from(number) + 1);
        // Without a name of the linker pprof takes the other one as it is.
        message.number(2, strings.number(&*function.name));
        message.number(4, strings.number(samples.locations.file(number).unwrap_or_default()));
        message.write(field::FUNCTION, out)?;
    }
    Ok(())
}

/// Types of the values, time, period and comments.
fn write_facts<'a>(
    samples: &'a ExportSamples<'_>,
    strings: &mut StringTable<'a>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let profile = &samples.profile;
    let mut types = Vec::new();
    for (event, number) in profile.events.iter().zip(0_u32..) {
        if samples.has_counts(number) {
            let name = match profile.events.len() {
                _ if !event.samples_type.is_empty() => event.samples_type.clone(),
                1 => "samples".to_owned(),
                _ => format!("{}_samples", event.name),
            };
            types.push((strings.number(name), strings.number("count"), None));
        }
        let unit = strings.number(event.unit_of_values());
        types.push((strings.number(&*event.name), unit, samples.fixed_period(number)));
    }
    let (mut message, mut facts) = (Message::default(), Message::default());
    for (name, unit, _) in &types {
        message.clear().number(1, *name).number(2, *unit).write(field::SAMPLE_TYPE, out)?;
    }
    facts.number(field::TIME_NS, profile.start_unix_ns.unwrap_or(0));
    facts.number(field::DURATION_NS, profile.duration_ns);
    let (places, _) = samples.value_places();
    if let Some((name, unit, period)) = places.first().and_then(|first| types.get(*first)) {
        let (counted, counted_unit, period) = match &profile.sampling {
            Some(said) => (strings.number(&*said.name), strings.number(&*said.unit), said.period),
            None => (*name, *unit, period.unwrap_or(0)),
        };
        facts.message(field::PERIOD_TYPE, message.clear().number(1, counted).number(2, counted_unit));
        facts.number(field::PERIOD, period);
        facts.number(field::DEFAULT_TYPE, *name);
    }
    let comments: Vec<u64> = comments(profile).into_iter().map(|line| strings.number(line)).collect();
    facts.numbers(field::COMMENT, comments.into_iter());
    facts.write_fields(out)
}

/// What the recording is, what was lost, and what should be known of it: a sentence each.
fn comments(profile: &ExportProfile) -> Vec<String> {
    let mut lines = vec![profile.heading().to_owned()];
    let facts = [
        ("recorded by", &profile.recorder),
        ("host", &profile.host),
        ("kernel", &profile.kernel),
        ("CPU", &profile.cpu),
    ];
    let known = facts.into_iter().filter(|(_, fact)| !fact.is_empty());
    lines.extend(known.map(|(what, fact)| format!("{what}: {fact}")));
    lines.extend(profile.loss.iter().map(|loss| format!("lost: {} ({})", loss.count, loss.cause)));
    lines.extend(profile.notes.iter().cloned());
    lines
}

/// Bytes as hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
