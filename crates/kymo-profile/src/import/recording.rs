//! A recording of an imported profile.
use super::{ImportedCount, ImportedEvent, ImportedProfile};
use kymo_data::{
    Attr, EventSpec, Features, FileWriter, ImportedFacts, ImportedUnit, InterpretedFunction, SampleId,
    SampleLabel, SamplingPeriod, WriteAt, abi, build,
};
use std::io;

/// Addresses of a function: the first where samples are taken, the next where it calls others.
const ADDRESSES: u64 = 16;
/// Bytes of records that are written at once.
const PIECE_BYTES: usize = 1 << 20;
/// Software events: a clock, whose periods are ns, and one that counts nothing by itself.
const CPU_CLOCK: u64 = 0;
const DUMMY: u64 = 9;

/// Writes a profile as a recording in file form. Its functions are marks, its counts samples.
/// `tool`: what it was imported from.
///
/// # Errors
/// Those of `out`.
pub fn write(profile: &ImportedProfile, tool: &str, out: impl WriteAt) -> io::Result<()> {
    let specs: Vec<EventSpec> = profile
        .events
        .iter()
        .zip(1..)
        .map(|(event, id)| EventSpec {
            attr: event_attr(profile, event),
            ids: vec![id],
            name: event.name.clone(),
        })
        .collect();
    let features = Features {
        version: Some(format!("kymo {}", env!("CARGO_PKG_VERSION"))),
        cmdline: vec!["kymo".to_owned(), "import".to_owned(), tool.to_owned()],
        event_desc: specs.iter().map(EventSpec::desc).collect(),
        imported: Some(facts(profile)),
        ..Features::default()
    };
    let writer = FileWriter::create(out, &specs)?;
    let mut records = Vec::new();
    let first = specs.first().map_or_else(|| attr(profile, DUMMY), |spec| spec.attr.clone());
    for thread in &profile.threads {
        let name = thread.comm.as_bytes();
        let id = SampleId::default();
        records.extend(build::comm(&first, &id, thread.pid, thread.tid, name, false));
    }
    for (labels, cgroup) in profile.label_sets.iter().zip(0..).skip(1) {
        records.extend(build::cgroup(&first, &SampleId::default(), cgroup, shown(labels).as_bytes()));
        flush(&writer, &mut records, PIECE_BYTES)?;
    }
    for (function, number) in profile.functions.iter().zip(0..) {
        let function = InterpretedFunction {
            address: address(number),
            size: ADDRESSES as u32,
            name: function.name.clone(),
            file: function.module.clone(),
            ..InterpretedFunction::default()
        };
        records.extend(function.record());
        flush(&writer, &mut records, PIECE_BYTES)?;
    }
    for count in &profile.counts {
        for number in 0..count.samples {
            // Every sample has its share, and the first ones what is left.
            let share = count.period / count.samples;
            let period = share + u64::from(number < count.period % count.samples);
            records.extend(sample(profile, count, period));
            flush(&writer, &mut records, PIECE_BYTES)?;
        }
    }
    flush(&writer, &mut records, 0)?;
    writer.finish(&features)?;
    Ok(())
}

fn flush<W: WriteAt>(writer: &FileWriter<W>, records: &mut Vec<u8>, limit: usize) -> io::Result<()> {
    if records.len() > limit {
        writer.append(records)?;
        records.clear();
    }
    Ok(())
}

/// What the recording keeps of the profile besides its samples.
fn facts(profile: &ImportedProfile) -> ImportedFacts {
    let unit = |event: &ImportedEvent| ImportedUnit {
        unit: event.unit.clone(),
        samples_type: event.samples_type.clone(),
    };
    ImportedFacts {
        start_unix_ns: profile.start_unix_ns,
        duration_ns: profile.duration_ns,
        events: profile.events.iter().map(unit).collect(),
        label_sets: profile.label_sets.iter().skip(1).cloned().collect(),
        sampling: profile.sampling.clone(),
    }
}

/// Labels as the path of a cgroup, those of the thread left out: `/tenant=a/size=7 bytes`.
fn shown(labels: &[SampleLabel]) -> String {
    let of_thread = |label: &&SampleLabel| super::names_thread(&label.key);
    let text = |label: &SampleLabel| match (label.text.is_empty(), label.unit.is_empty()) {
        (false, _) => format!("{}={}", label.key, label.text),
        (true, true) => format!("{}={}", label.key, label.number),
        (true, false) => format!("{}={} {}", label.key, label.number, label.unit),
    };
    let parts: Vec<String> = labels.iter().filter(|label| !of_thread(label)).map(text).collect();
    format!("/{}", parts.join("/"))
}

/// An event with its period, if the profile says one of it.
fn event_attr(profile: &ImportedProfile, event: &ImportedEvent) -> Attr {
    let is_sampled = |sampling: &&SamplingPeriod| sampling.name == event.name && sampling.unit == event.unit;
    let sample_period = profile.sampling.as_ref().filter(is_sampled).map_or(0, |sampling| sampling.period);
    let config = if event.unit == "nanoseconds" { CPU_CLOCK } else { DUMMY };
    Attr { sample_period, ..attr(profile, config) }
}

fn attr(profile: &ImportedProfile, config: u64) -> Attr {
    use abi::*;
    let cgroup = if profile.label_sets.len() > 1 { PERF_SAMPLE_CGROUP } else { 0 };
    Attr {
        kind: PERF_TYPE_SOFTWARE,
        config,
        sample_type: PERF_SAMPLE_IDENTIFIER
            | PERF_SAMPLE_IP
            | PERF_SAMPLE_TID
            | PERF_SAMPLE_PERIOD
            | PERF_SAMPLE_CALLCHAIN
            | cgroup,
        flags: ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    }
}

/// The first address of a function.
fn address(function: u32) -> u64 {
    InterpretedFunction::FIRST_ADDRESS + ADDRESSES * u64::from(function)
}

fn sample(profile: &ImportedProfile, count: &ImportedCount, period: u64) -> Vec<u8> {
    let stack = &profile.stacks[count.stack as usize];
    let thread = &profile.threads[count.thread as usize];
    // Return addresses lie behind their calls, and in the same function.
    let chain = stack.iter().enumerate().map(|(at, function)| address(*function) + u64::from(at > 0));
    let task = u64::from(thread.pid as u32) | u64::from(thread.tid as u32) << 32;
    let ip = stack.first().map_or(0, |function| address(*function));
    let cgroup = (profile.label_sets.len() > 1).then_some(u64::from(count.labels));
    let head = [u64::from(count.event) + 1, ip, task, period, stack.len() as u64];
    let body: Vec<u8> = head.into_iter().chain(chain).chain(cgroup).flat_map(u64::to_le_bytes).collect();
    build::record(abi::PERF_RECORD_SAMPLE, abi::PERF_RECORD_MISC_USER, &body)
}
