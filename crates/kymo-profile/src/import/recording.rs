//! A recording of an imported profile.
use super::{ImportedProfile, ImportedThread};
use kymo_data::{Attr, EventSpec, Features, FileWriter, InterpretedFunction, SampleId, WriteAt, abi, build};
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
            attr: attr(if event.is_time { CPU_CLOCK } else { DUMMY }),
            ids: vec![id],
            name: event.name.clone(),
        })
        .collect();
    let features = Features {
        version: Some(format!("kymo {}", env!("CARGO_PKG_VERSION"))),
        cmdline: vec!["kymo".to_owned(), "import".to_owned(), tool.to_owned()],
        event_desc: specs.iter().map(EventSpec::desc).collect(),
        ..Features::default()
    };
    let writer = FileWriter::create(out, &specs)?;
    let mut records = Vec::new();
    let first = specs.first().map_or_else(|| attr(DUMMY), |spec| spec.attr.clone());
    for thread in &profile.threads {
        let name = thread.comm.as_bytes();
        let id = SampleId::default();
        records.extend(build::comm(&first, &id, thread.pid, thread.tid, name, false));
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
        let stack = &profile.stacks[count.stack as usize];
        let thread = &profile.threads[count.thread as usize];
        for number in 0..count.samples {
            // Every sample has its share, and the first ones what is left.
            let share = count.period / count.samples;
            let period = share + u64::from(number < count.period % count.samples);
            records.extend(sample(u64::from(count.event) + 1, thread, stack, period));
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

fn attr(config: u64) -> Attr {
    use abi::*;
    Attr {
        kind: PERF_TYPE_SOFTWARE,
        config,
        sample_type: PERF_SAMPLE_IDENTIFIER
            | PERF_SAMPLE_IP
            | PERF_SAMPLE_TID
            | PERF_SAMPLE_PERIOD
            | PERF_SAMPLE_CALLCHAIN,
        flags: ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    }
}

/// The first address of a function.
fn address(function: u32) -> u64 {
    InterpretedFunction::FIRST_ADDRESS + ADDRESSES * u64::from(function)
}

fn sample(event: u64, thread: &ImportedThread, stack: &[u32], period: u64) -> Vec<u8> {
    // Return addresses lie behind their calls, and in the same function.
    let chain = stack.iter().enumerate().map(|(at, function)| address(*function) + u64::from(at > 0));
    let task = u64::from(thread.pid as u32) | u64::from(thread.tid as u32) << 32;
    let ip = stack.first().map_or(0, |function| address(*function));
    let head = [event, ip, task, period, stack.len() as u64];
    let body: Vec<u8> = head.into_iter().chain(chain).flat_map(u64::to_le_bytes).collect();
    build::record(abi::PERF_RECORD_SAMPLE, abi::PERF_RECORD_MISC_USER, &body)
}
