//! Copies, in the build-id cache, of files that a recording needs for its names.
use crate::build_ids::{FileBuildIds, Which, modules};
use kymo_data::{ReadError, Recording};
use kymo_symbols::build_id_cache::{BuildIdCache, CacheError, hex};
use kymo_symbols::{MappedCode, MappedFiles, SymbolOptions};
use rustc_hash::FxHashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// What a recording may add to the cache by itself, in bytes.
const MOST_KEPT_BYTES: u64 = 1 << 30;

/// What became of files that cannot be found by their paths any more.
#[derive(Debug, Default)]
pub struct KeptFiles {
    /// How many were copied.
    pub copied: usize,
    /// What was not copied, and why.
    pub refused: Vec<CacheError>,
    /// Files that could not be held open until the end of the recording.
    pub dropped: usize,
}

/// Whether the names of a recording that this process has made may need copies of files.
pub fn has_gone_files() -> bool {
    let files = MappedFiles::of_process();
    files.dropped() > 0 || !files.gone().is_empty()
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

/// Copies files that are held open because their paths do not lead to them into the build-id cache.
/// Of recordings that can be read, those that samples are in; `None` is one that cannot, as what
/// went through a pipe: then all that were mapped.
pub fn keep_held_files(
    recordings: impl IntoIterator<Item = Option<Recording>>,
    cache: &BuildIdCache,
    options: &SymbolOptions,
) -> KeptFiles {
    let files = MappedFiles::of_process();
    let mut kept = KeptFiles { dropped: files.dropped(), ..KeptFiles::default() };
    let mut gone: Vec<_> =
        files.gone().into_iter().filter(|file| file.is_elf && file.build_id.is_some()).collect();
    let mut hit = Vec::new();
    for recording in recordings {
        // Most files of a series tell the same, so the first ones suffice.
        if gone.is_empty() {
            break;
        }
        match recording.and_then(|recording| ids_of_samples(&recording, options).ok()) {
            Some(ids) => {
                let is_hit =
                    |file: &mut Arc<MappedCode>| file.build_id.as_ref().is_some_and(|id| ids.contains(id));
                hit.extend(gone.extract_if(.., is_hit));
            }
            None => hit.append(&mut gone),
        }
    }
    let mut bytes = 0;
    for file in hit {
        bytes += file.file().metadata().map_or(0, |meta| meta.len());
        if bytes > MOST_KEPT_BYTES {
            let why = format!("the files that would be copied are larger than {MOST_KEPT_BYTES} bytes");
            kept.refused.push(CacheError::Io(file.path.clone(), std::io::Error::other(why)));
            break;
        }
        match cache.add_held(&file) {
            Ok(is_new) => kept.copied += usize::from(is_new),
            Err(error) => kept.refused.push(error),
        }
    }
    kept
}

fn ids_of_samples(recording: &Recording, options: &SymbolOptions) -> Result<FxHashSet<Vec<u8>>, ReadError> {
    let modules = modules(recording, Which::Hit, &FileBuildIds::default(), options)?;
    Ok(modules.into_iter().map(|module| module.id).collect())
}
