//! Names of functions for the recording, of files that nobody can find again.
//!
//! A copy of a file is found by its build id. Of a file without one that is not at its path any
//! more (`go run`, a program in another root) the names go into the recording, as those of
//! generated code do: by process and address.
use super::FileWatch;
use super::holder::UnidentifiedMapping;
use kymo_data::CodeNames;
use kymo_symbols::{MappedCode, MappedFiles, ModuleKey, SymbolOptions, SymbolStore};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Text of names, in bytes, of all files together.
const MOST_BYTES: usize = 16 << 20;

/// Files without a build id that are gone: no copy of them could be found again.
#[derive(Debug, Default)]
pub(crate) struct GoneFiles(BTreeSet<Vec<u8>>);

impl GoneFiles {
    /// What the user should know where names cannot be in each file of the recording. `files`: how
    /// many there are.
    pub(crate) fn remark(&self, are_snapshots: bool, files: usize) -> Option<String> {
        let first = String::from_utf8_lossy(self.0.first()?).escape_debug().to_string();
        let place = match (are_snapshots, files) {
            (true, _) => "snapshots",
            (false, 0 | 1) => return None,
            (false, _) => "the files before the last one",
        };
        let more = match self.0.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "functions of {first}{more} have no names in {place}: its file cannot be found by path any more, \
             and has no build ID (link with -Wl,--build-id)"
        ))
    }
}

impl FileWatch {
    /// The files without a build id that cannot be found by their paths any more.
    pub(crate) fn gone(&self) -> GoneFiles {
        self.wait();
        let mappings = self.unidentified().into_iter();
        GoneFiles(
            mappings.filter(|mapping| gone_file(mapping).is_some()).map(|m| m.file.path.clone()).collect(),
        )
    }

    /// Records with the names of files that have no build id and are gone.
    pub(crate) fn names_of_gone(&self) -> Vec<u8> {
        self.wait();
        let mut by_process: BTreeMap<i32, Vec<UnidentifiedMapping>> = BTreeMap::new();
        for mapping in self.unidentified() {
            by_process.entry(mapping.seen.pid).or_default().push(mapping);
        }
        // Descriptors' paths are names here, and mean nothing to other runs.
        let store = SymbolStore::new(SymbolOptions { cache: None, ..SymbolOptions::default() });
        let (mut out, mut left) = (Vec::new(), MOST_BYTES);
        for (pid, mappings) in by_process {
            let mut text = String::new();
            for mapping in mappings.iter().filter(|mapping| is_alone(mapping, &mappings)) {
                add_names(mapping, &store, &mut text, left);
            }
            left = left.saturating_sub(text.len());
            let names = CodeNames { pid, from_ns: 0, until_ns: 0, text: text.into_bytes() };
            out.extend(names.records().unwrap_or_default());
        }
        out
    }
}

/// Whether no other file was mapped at this place by this process: names go by address.
fn is_alone(mapping: &UnidentifiedMapping, all: &[UnidentifiedMapping]) -> bool {
    all.iter().all(|other| {
        let is_apart = other.seen.end <= mapping.seen.start || mapping.seen.end <= other.seen.start;
        is_apart
            || (other.file == mapping.file && other.offset == mapping.offset && other.seen == mapping.seen)
    })
}

/// The file of a mapping, if it has no build id and its path does not lead to it.
fn gone_file(mapping: &UnidentifiedMapping) -> Option<Arc<MappedCode>> {
    let path = Path::new(OsStr::from_bytes(&mapping.file.path));
    let held = MappedFiles::of_process().of_mapping(path, &[], mapping.file.file_id)?;
    (held.is_elf && held.build_id.is_none() && !held.is_at_path()).then_some(held)
}

/// Adds the names of a mapping's functions as lines of a perf map, if its file is gone.
fn add_names(mapping: &UnidentifiedMapping, store: &SymbolStore, text: &mut String, left: usize) {
    let UnidentifiedMapping { seen, offset, .. } = mapping;
    let Some(held) = gone_file(mapping) else { return };
    let symbols = store.get(&ModuleKey::file(held.held_path(), None));
    let length = seen.end - seen.start;
    for symbol in symbols.table().iter() {
        let Some(at) = symbol.start.checked_sub(*offset).filter(|at| *at < length) else { continue };
        if text.len() >= left {
            return;
        }
        let name = symbol.name.replace('\n', " ");
        // Writing to a string does not fail.
        _ = writeln!(text, "{:x} {:x} {name}", seen.start + at, symbol.end - symbol.start);
    }
}
