//! Which files a recording's samples are in, by build id: `buildid-list`, `archive`, and
//! `inject`, which adds them.
use crate::load::{LoadOptions, collect_sideband, load};
use crate::raw_frames::{Place, walk_chain};
use crate::resolve::{KernelIdentity, Resolver, module_key};
use crate::timeline::{ModuleId, ModuleKind, Timeline};
use kymo_data::{ReadError, Recording, abi};
use kymo_symbols::build_id_cache::build_id_bytes;
use kymo_symbols::{SymbolOptions, SymbolStore};
use rustc_hash::FxHashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

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

/// Where build ids that the recording does not have come from: from nowhere by default. An id of a
/// file as it is now is no recorded one.
#[derive(Debug, Clone, Default)]
pub struct FileBuildIds {
    /// Files are read for theirs, as far as nothing says that they are not those that were mapped.
    pub read_files: bool,
    /// The build id of the recorded kernel, if the caller knows it.
    pub kernel: Option<Vec<u8>>,
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
                let mut add = |Place { mode, ip, .. }: Place| {
                    hit.extend(resolver.mapping(chain.maps, mode, ip).map(|mapping| mapping.module));
                };
                add(Place::sampled(chain));
                walk_chain(&loaded.chains, chain, usize::MAX, add);
            }
            (loaded.timeline, Some(hit))
        }
        Which::All => (Arc::new(collect_sideband(recording, workers, options, &|_, _| {})?.0), None),
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
    let store = SymbolStore::new(options.clone());
    let mut found = Vec::new();
    for (id, module) in timeline.modules.iter() {
        if hit.is_some_and(|hit| !hit.contains(&id)) {
            continue;
        }
        let own = (!module.build_id.is_empty()).then(|| module.build_id.clone());
        let kernel = matches!(module.kind, ModuleKind::Kernel | ModuleKind::KernelModule);
        let build_id = own.or_else(|| match module.kind {
            ModuleKind::File if from.read_files => {
                let key = module_key(module, &KernelIdentity::default(), timeline.recorded_until);
                let path = Path::new(OsStr::from_bytes(&module.path));
                store.file_refusal(&key).is_none().then(|| build_id_bytes(path, options).ok()).flatten()
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
