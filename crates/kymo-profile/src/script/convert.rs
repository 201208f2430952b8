//! `data convert --to-json`: header and samples as JSON, with perf's keys in perf's order.
use super::{Printed, ScriptError};
use crate::dump::civil;
use crate::load::{TimeSpans, collect_sideband};
use crate::order::in_order;
use crate::raw_frames::{Place, RawFrame, walk_words};
use crate::resolve::Resolver;
use crate::text::json;
use crate::timeline::Moment;
use crate::unwind_samples::recorded_chain;
use kymo_data::{Attr, RawRecord, Recording, Sample, abi, tracing_data};
use kymo_symbols::SymbolStore;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes a recording as JSON; `captured` is when its file was last changed.
///
/// # Errors
/// When the recording cannot be read at all, or `out` cannot be written.
pub fn write_json(
    recording: &Recording,
    captured: Option<SystemTime>,
    time: Option<&TimeSpans>,
    store: &SymbolStore,
    out: &mut dyn Write,
) -> Result<Printed, ScriptError> {
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, _, _) = collect_sideband(recording, workers, store.options(), &|_, _| {})?;
    let resolver = Resolver::new(&timeline, store);
    let formats = recording.features.tracing_data.as_deref().and_then(|blob| tracing_data::parse(blob).ok());
    writeln!(out, "{{\n\t\"linux-perf-json-version\": 1,")?;
    header(out, recording, captured)?;
    write!(out, "\t\"samples\": [")?;
    let mut printed = Printed::default();
    // As perf: -1 where only other events tell the CPU.
    let cpus = recording.events.list.iter().any(|e| e.attr.sample_type & abi::PERF_SAMPLE_CPU != 0);
    let wanted = |kind| kind == abi::PERF_RECORD_SAMPLE;
    printed.problems = in_order(recording, wanted, |record| -> Result<(), ScriptError> {
        let Some(event) = recording.events.event_of(record).map(|event| &recording.events.list[event]) else {
            return Ok(());
        };
        let Ok(sample) = event.layout.parse(record.header.misc, record.body) else { return Ok(()) };
        if time.is_some_and(|spans| !spans.contains(sample.time.unwrap_or(0))) {
            return Ok(());
        }
        write!(out, "{}\n\t\t{{", if printed.samples == 0 { "" } else { "," })?;
        printed.samples += 1;
        let (pid, tid) = (sample.pid.unwrap_or(-1), sample.tid.or(sample.pid).unwrap_or(-1));
        let view = timeline.thread(pid, tid, Moment::new(sample.time, record.position));
        let cpu = if cpus {
            format!("\n\t\t\t\"cpu\": {},", sample.cpu.map_or(-1, i64::from))
        } else {
            String::new()
        };
        write!(out, "\n\t\t\t\"timestamp\": {},", sample.time.unwrap_or(0))?;
        write!(out, "\n\t\t\t\"pid\": {pid},\n\t\t\t\"tid\": {tid},{cpu}")?;
        let comm = timeline.comm(view.comm);
        write!(out, "\n\t\t\t\"comm\": {},", json(&*comm)?)?;
        chain(out, &resolver, record, (&event.attr, &sample), view.maps)?;
        if let (Some(raw), Some(formats)) = (sample.raw, &formats)
            && let Some(format) = formats.format(event.attr.config)
        {
            for field in format.fields.iter().filter(|field| !field.name.starts_with("common_")) {
                write!(out, ",\n\t\t\t{}: {}", json(&field.name)?, json(&field.printed(raw))?)?;
            }
        }
        write!(out, "\n\t\t}}")?;
        Ok(())
    })?;
    writeln!(out, "\n\t]\n}}")?;
    Ok(printed)
}

fn chain(
    out: &mut dyn Write,
    resolver: &Resolver<'_>,
    record: &RawRecord<'_>,
    (attr, sample): (&Attr, &Sample<'_>),
    maps: u32,
) -> io::Result<()> {
    write!(out, "\n\t\t\t\"callchain\": [")?;
    let mut done = Ok(());
    let mut first = true;
    let mut frame = |frame: RawFrame| {
        if done.is_ok() {
            done = place(out, resolver, Place::new(maps, frame), first);
            first = false;
        }
    };
    match sample.callchain {
        Some(_) => walk_words(recorded_chain(attr, sample), usize::MAX, &mut frame),
        None => {
            let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
            frame(RawFrame { mode, ip: sample.ip.unwrap_or(0), is_return: false });
        }
    }
    done?;
    write!(out, "\n\t\t\t]")
}

/// One address; only where it has a symbol, the module is told, too.
fn place(out: &mut dyn Write, resolver: &Resolver<'_>, place: Place, first: bool) -> io::Result<()> {
    let (named, ip) = (resolver.named(place, false), place.ip);
    write!(out, "{}\n\t\t\t\t{{", if first { "" } else { "," })?;
    write!(out, "\n\t\t\t\t\t\"ip\": \"{ip:#x}\"")?;
    if let (Some((_, _, name)), Some(module)) = (&named.symbol, named.module) {
        write!(out, ",\n\t\t\t\t\t\"symbol\": {}", json(&**name)?)?;
        write!(out, ",\n\t\t\t\t\t\"dso\": {}", json(resolver.module_name(module))?)?;
    }
    write!(out, "\n\t\t\t\t}}")
}

fn header(out: &mut dyn Write, recording: &Recording, captured: Option<SystemTime>) -> io::Result<()> {
    let features = &recording.features;
    let data = if recording.is_pipe { 0..0 } else { recording.data_range() };
    writeln!(out, "\t\"headers\": {{\n\t\t\"header-version\": 1,")?;
    if let Some(captured) = captured {
        writeln!(out, "\t\t\"captured-on\": \"{}\",", iso_date(captured))?;
    }
    writeln!(out, "\t\t\"data-offset\": {},", data.start)?;
    writeln!(out, "\t\t\"data-size\": {},", data.end - data.start)?;
    writeln!(out, "\t\t\"feat-offset\": {},", data.end)?;
    let text = |value: &Option<String>| json(value.as_deref().unwrap_or(""));
    writeln!(out, "\t\t\"hostname\": {},", text(&features.hostname)?)?;
    writeln!(out, "\t\t\"os-release\": {},", text(&features.os_release)?)?;
    writeln!(out, "\t\t\"arch\": {},", text(&features.arch)?)?;
    if features.cpu_desc.is_some() {
        writeln!(out, "\t\t\"cpu-desc\": {},", text(&features.cpu_desc)?)?;
    }
    writeln!(out, "\t\t\"cpuid\": {},", text(&features.cpuid)?)?;
    let cpus = features.nr_cpus.map_or((0, 0), |cpus| (cpus.online, cpus.available));
    writeln!(out, "\t\t\"nrcpus-online\": {},\n\t\t\"nrcpus-avail\": {},", cpus.0, cpus.1)?;
    writeln!(out, "\t\t\"perf-version\": {},", text(&features.version)?)?;
    write!(out, "\t\t\"cmdline\": [")?;
    for (at, word) in features.cmdline.iter().enumerate() {
        write!(out, "{}\n\t\t\t{}", if at == 0 { "" } else { "," }, json(word)?)?;
    }
    writeln!(out, "\n\t\t]\n\t}},")
}

/// `2026-11-23T10:27:35Z`.
fn iso_date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let ((year, month, day), second) = (civil(seconds / 86_400), seconds % 86_400);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}
