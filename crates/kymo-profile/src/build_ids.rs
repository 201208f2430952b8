//! Which files a recording's samples are in, by build id: `buildid-list`, `archive`, and `inject`, which adds them.
use crate::load::{LoadOptions, collect_sideband, load};
use crate::resolve::{Resolver, walk_chain};
use crate::timeline::{ModuleId, ModuleKind, Timeline};
use kymo_data::{
    BuildId, EventSpec, FileWriter, PipeWriter, RawRecord, ReadError, Recording, WriteAt, abi, groups,
};
use kymo_symbols::build_id_cache::{BuildIdCache, CacheError, build_id_bytes, hex};
use kymo_symbols::{SymbolOptions, SymbolStore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of records that are written at once.
const PIECE_BYTES: usize = 1 << 20;

/// Which modules count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that the recording's own table lists; without a table as [`Which::Hit`].
    Listed,
    /// Those that a sample or a caller is in.
    Hit,
    /// All that were mapped to be executed.
    All,
}

/// A module with its build id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleBuildId {
    /// Path, or a name in brackets.
    pub path: Vec<u8>,
    /// Build id; empty if none is known.
    pub id: Vec<u8>,
    /// It is of the kernel.
    pub kernel: bool,
}

/// Where build ids that the recording does not have come from.
#[derive(Debug, Clone, Default)]
pub struct FileBuildIds {
    /// Files are read for theirs.
    pub read_files: bool,
    /// The build id of the recorded kernel, if the caller knows it.
    pub kernel: Option<Vec<u8>>,
}

/// Copies the files of a recording into the build-id cache, as far as they are what was recorded;
/// returns what could not be copied.
///
/// # Errors
/// As [`modules`].
pub fn keep_files(
    recording: &Recording,
    which: Which,
    cache: &BuildIdCache,
    options: &SymbolOptions,
) -> Result<Vec<CacheError>, ReadError> {
    let modules = modules(recording, which, &FileBuildIds::default(), options)?;
    let files = modules.iter().filter(|module| !module.kernel && !module.id.is_empty());
    let kept = files.map(|module| {
        let path = Path::new(OsStr::from_bytes(&module.path));
        cache.keep(path, &hex(&module.id), options)
    });
    Ok(kept.filter_map(Result::err).collect())
}

/// The modules of a recording that have a build id, by path; with [`Which::Hit`] also those without.
///
/// # Errors
/// When the recording cannot be read at all.
pub fn modules(
    recording: &Recording,
    which: Which,
    from: &FileBuildIds,
    options: &SymbolOptions,
) -> Result<Vec<ModuleBuildId>, ReadError> {
    if which == Which::Listed && !recording.features.build_ids.is_empty() {
        let listed = recording.features.build_ids.iter().map(|entry| ModuleBuildId {
            path: entry.filename.clone(),
            id: entry.id.clone(),
            kernel: entry.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK == abi::PERF_RECORD_MISC_KERNEL,
        });
        return Ok(sorted(listed.collect()));
    }
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (timeline, hit) = match which {
        Which::Hit | Which::Listed => {
            let all = LoadOptions { callchains: true, ..LoadOptions::default() };
            let loaded = load(recording, &all, &|_, _, _| {})?;
            let store = SymbolStore::new(options.clone());
            let resolver = Resolver::new(&loaded.timeline, &store);
            let mut hit = FxHashSet::default();
            for id in 0..loaded.chains.len() {
                let chain = loaded.chains.get(id as u32);
                let mut add = |mode, ip| {
                    hit.extend(resolver.mapping(chain.maps, mode, ip).map(|mapping| mapping.module));
                };
                add(chain.mode, chain.ip);
                walk_chain(&loaded.chains, chain, usize::MAX, add);
            }
            (loaded.timeline, Some(hit))
        }
        Which::All => (collect_sideband(recording, workers, options, &|_, _| {})?.0, None),
    };
    Ok(sorted(of_timeline(&timeline, hit.as_ref(), from, options)))
}

fn sorted(mut modules: Vec<ModuleBuildId>) -> Vec<ModuleBuildId> {
    modules.sort_unstable();
    modules.dedup_by(|a, b| (&a.path, &a.id) == (&b.path, &b.id));
    modules
}

fn of_timeline(
    timeline: &Timeline,
    hit: Option<&FxHashSet<ModuleId>>,
    from: &FileBuildIds,
    options: &SymbolOptions,
) -> Vec<ModuleBuildId> {
    let mut found = Vec::new();
    for (id, module) in timeline.modules.iter() {
        if hit.is_some_and(|hit| !hit.contains(&id)) {
            continue;
        }
        let own = (!module.build_id.is_empty()).then(|| module.build_id.clone());
        let kernel = matches!(module.kind, ModuleKind::Kernel | ModuleKind::KernelModule);
        let build_id = own.or_else(|| match module.kind {
            ModuleKind::File if from.read_files => {
                use std::os::unix::ffi::OsStrExt;
                let path = Path::new(std::ffi::OsStr::from_bytes(&module.path));
                build_id_bytes(path, options).ok()
            }
            ModuleKind::Kernel => from.kernel.clone(),
            _ => None,
        });
        // Whoever asks what was hit wants to know what has no build id, too.
        if let Some(id) = build_id.or_else(|| hit.map(|_| Vec::new())) {
            found.push(ModuleBuildId { path: module.path.clone(), id, kernel });
        }
    }
    found
}

/// What [`inject`] changes.
#[derive(Debug, Clone)]
pub struct Injection {
    /// Modules whose build ids go into the recording's table.
    pub table: Vec<ModuleBuildId>,
    /// Modules whose mappings get their build ids.
    pub mappings: Vec<ModuleBuildId>,
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
    writer.finish()?;
    Ok(())
}

fn description(recording: &Recording, injection: &Injection) -> (Vec<EventSpec>, kymo_data::Features) {
    let events = &recording.events.list;
    let specs: Vec<EventSpec> = events
        .iter()
        .map(|event| EventSpec { attr: event.attr.clone(), ids: event.ids.clone(), name: event.name.clone() })
        .collect();
    let mut features = recording.features.clone();
    // The copy is neither compressed nor divided into files.
    features.compressed = None;
    features.dir_format = None;
    if features.event_desc.is_empty() {
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
    let by_path: FxHashMap<&[u8], &[u8]> =
        injection.mappings.iter().map(|module| (&module.path[..], &module.id[..])).collect();
    let mut piece = Vec::with_capacity(PIECE_BYTES + (64 << 10));
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        if matches!(record.header.kind, abi::PERF_RECORD_AUXTRACE | abi::PERF_RECORD_AUXTRACE_INFO) {
            return Err(InjectError::HardwareTrace);
        }
        if is_description(recording, record.header.kind) {
            continue;
        }
        push(&mut piece, &record, &by_path);
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
