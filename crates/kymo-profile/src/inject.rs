//! A copy of a recording: with build ids, or with call chains in the place of copies of stacks.
use crate::build_ids::ModuleBuildId;
use crate::load::collect_sideband;
use crate::machine::symbol_options;
use crate::timeline::{Moment, Timeline};
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder, not_unwound};
use kymo_data::{
    BuildId, Event, EventSet, EventSpec, FileWriter, PipeWriter, RawRecord, ReadError, Recording, WriteAt,
    abi, groups, is_lasting_mark,
};
use kymo_symbols::SymbolOptions;
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Bytes of records that are written at once.
const PIECE_BYTES: usize = 1 << 20;

/// What [`inject`] changes.
#[derive(Debug, Clone)]
pub struct Injection {
    /// Modules whose build ids go into the recording's table.
    pub table: Vec<ModuleBuildId>,
    /// Modules whose mappings get their build ids.
    pub mappings: Vec<ModuleBuildId>,
    /// Copies of stacks become call chains.
    pub unwind: bool,
}

/// Why a recording was not copied.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The copy cannot be written.
    #[error("failed to write the recording: {0}")]
    Write(#[from] io::Error),
    /// Trace data of hardware is no records.
    #[error("the recording holds trace data of hardware (AUX), which kymo does not copy: use `perf inject`")]
    HardwareTrace,
    /// Stacks of the recorded machine are not unwound.
    #[error("{0}")]
    OtherMachine(String),
}

/// A recording with more build ids, in file form.
///
/// # Errors
/// When the recording cannot be read, or the file not be written.
pub fn inject(recording: &Recording, injection: &Injection, out: impl WriteAt) -> Result<(), InjectError> {
    let (specs, features) = description(recording, injection);
    let writer = FileWriter::create(out, &specs)?;
    copy_records(recording, injection, |records| writer.append(records))?;
    writer.finish(&features)?;
    if recording.lacks_its_end() {
        writer.mark_incomplete()?;
    }
    Ok(())
}

/// The same in pipe form.
///
/// # Errors
/// As [`inject`].
pub fn inject_pipe(recording: &Recording, injection: &Injection, out: impl Write) -> Result<(), InjectError> {
    let (specs, features) = description(recording, injection);
    let mut writer = PipeWriter::create(out, &specs, &features)?;
    copy_records(recording, injection, |records| writer.append(records))?;
    // Without its last mark the copy says that the end is missing.
    if !recording.lacks_its_end() {
        writer.finish()?;
    }
    Ok(())
}

fn description(recording: &Recording, injection: &Injection) -> (Vec<EventSpec>, kymo_data::Features) {
    let events = &recording.events.list;
    let attr = |event: &Event| match injection.unwind {
        true => event.attr.unwound().unwrap_or_else(|| event.attr.clone()),
        false => event.attr.clone(),
    };
    let specs: Vec<EventSpec> = events
        .iter()
        .map(|event| EventSpec { attr: attr(event), ids: event.ids.clone(), name: event.name.clone() })
        .collect();
    let mut features = recording.features.clone();
    // The copy is neither compressed nor divided into files.
    features.compressed = None;
    features.dir_format = None;
    if features.event_desc.is_empty() || injection.unwind {
        features.event_desc = specs.iter().map(EventSpec::desc).collect();
    }
    if features.groups.is_empty() {
        features.groups = groups(&events.iter().map(|event| event.leader).collect::<Vec<_>>());
    }
    for module in &injection.table {
        if features.build_ids.iter().any(|entry| entry.filename == module.path) {
            continue;
        }
        let mode = if module.kernel { abi::PERF_RECORD_MISC_KERNEL } else { abi::PERF_RECORD_MISC_USER };
        features.build_ids.push(BuildId {
            misc: mode,
            pid: -1,
            id: module.id.clone(),
            filename: module.path.clone(),
        });
    }
    (specs, features)
}

/// Whether a record describes the recording, and so is written by the writer of the copy.
fn is_description(recording: &Recording, kind: u32) -> bool {
    use abi::*;
    match kind {
        PERF_RECORD_HEADER_ATTR
        | PERF_RECORD_HEADER_EVENT_TYPE
        | PERF_RECORD_HEADER_TRACING_DATA
        | PERF_RECORD_HEADER_BUILD_ID
        | PERF_RECORD_HEADER_FEATURE
        | PERF_RECORD_COMPRESSED
        | PERF_RECORD_COMPRESSED2 => true,
        PERF_RECORD_EVENT_UPDATE => recording.is_pipe,
        // It holds for one stream: where several become one, readers must sort all records.
        PERF_RECORD_FINISHED_ROUND => recording.streams() > 1,
        _ => false,
    }
}

fn copy_records(
    recording: &Recording,
    injection: &Injection,
    mut append: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), InjectError> {
    let options = symbol_options(recording, SymbolOptions::default());
    let timeline = injection
        .unwind
        .then(|| collect_sideband(recording, 0, &options, &|_, _| {}).map(|(timeline, ..)| timeline));
    let timeline = timeline.transpose()?;
    if let Some(why) = not_unwound(recording).filter(|_| injection.unwind) {
        return Err(InjectError::OtherMachine(why));
    }
    let stacks = timeline.as_ref().map(|timeline| StackUnwinder::new(timeline, recording, &options));
    let mut unwinder = timeline.as_ref().zip(stacks.as_ref().map(StackUnwinder::thread));
    let by_path: FxHashMap<&[u8], &[u8]> =
        injection.mappings.iter().map(|module| (&module.path[..], &module.id[..])).collect();
    let mut piece = Vec::with_capacity(PIECE_BYTES + (64 << 10));
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        if matches!(record.header.kind, abi::PERF_RECORD_AUXTRACE | abi::PERF_RECORD_AUXTRACE_INFO) {
            return Err(InjectError::HardwareTrace);
        }
        if is_description(recording, record.header.kind) && !is_lasting_mark(&record) {
            continue;
        }
        let start = piece.len();
        push(&mut piece, &record, &by_path);
        if let Some((timeline, unwinder)) = &mut unwinder
            && record.header.kind == abi::PERF_RECORD_SAMPLE
        {
            unwind(&recording.events, timeline, unwinder, &record, &mut piece, start);
        }
        if piece.len() >= PIECE_BYTES {
            append(&piece)?;
            piece.clear();
        }
    }
    append(&piece)?;
    Ok(())
}

/// Appends a record; a mapping of a module with a known build id gets it.
fn push(piece: &mut Vec<u8>, record: &RawRecord<'_>, by_path: &FxHashMap<&[u8], &[u8]>) {
    /// Where a MMAP2 record has the file's identity: length, three zeros, 20 bytes of build id.
    const IDENTITY: std::ops::Range<usize> = 32..56;
    let start = piece.len();
    let mut header = record.header;
    piece.extend_from_slice(&header.to_bytes());
    piece.extend_from_slice(record.body);
    if by_path.is_empty() || header.kind != abi::PERF_RECORD_MMAP2 {
        return;
    }
    let Ok(kymo_data::Record::Mmap(map)) = record.parse() else { return };
    let Some(id) = by_path.get(map.filename).filter(|id| id.len() <= 20) else { return };
    if header.misc & abi::PERF_RECORD_MISC_MMAP_BUILD_ID != 0 {
        return;
    }
    let body = start + kymo_data::RECORD_HEADER_BYTES;
    let Some(identity) = piece.get_mut(body + IDENTITY.start..body + IDENTITY.end) else { return };
    identity.fill(0);
    identity[0] = id.len() as u8;
    identity[4..4 + id.len()].copy_from_slice(id);
    header.misc |= abi::PERF_RECORD_MISC_MMAP_BUILD_ID;
    piece[start..body].copy_from_slice(&header.to_bytes());
}

/// Puts a call chain in the place of the copy of a stack, in the sample at the end of `piece`.
fn unwind(
    events: &EventSet,
    timeline: &Timeline,
    unwinder: &mut ThreadUnwinder<'_>,
    record: &RawRecord<'_>,
    piece: &mut Vec<u8>,
    start: usize,
) {
    let Some(layout) = events.event_of(record).map(|event| &events.list[event].layout) else { return };
    let Some(parts) = layout.stack_parts(record.body) else { return };
    let Ok(sample) = layout.parse(record.header.misc, record.body) else { return };
    let pid = sample.pid.unwrap_or(-1);
    let moment = Moment::new(sample.time, record.position);
    let maps = timeline.thread(pid, sample.tid.unwrap_or(pid), moment).maps;
    let stack = sample.user_stack.unwrap_or_default();
    let frames = (!stack.is_empty()).then(|| unwinder.frames(&sample, maps, stack)).flatten();
    let frames = frames.map(|frames| &frames[..frames.len().min(parts.room())]);
    let before = piece.len() - start;
    let size = parts.unwind(piece, start, before, start, frames);
    piece.truncate(start + size);
}
