//! Names of functions for the recording, of files that nobody can find again.
//!
//! A copy of a file is found by its build id. Of a file without one that is not at its path any
//! more (`go run`, a program in another root) the names go into the recording, as those of
//! generated code do: by process and address.
use super::FileWatch;
use super::holder::UnidentifiedMapping;
use kymo_data::CodeNames;
use kymo_symbols::{MappedFiles, ModuleKey, SymbolOptions, SymbolStore};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Text of names, in bytes, of all files together.
const MOST_BYTES: usize = 16 << 20;

impl FileWatch {
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

/// Adds the names of a mapping's functions as lines of a perf map, if its file is gone.
fn add_names(mapping: &UnidentifiedMapping, store: &SymbolStore, text: &mut String, left: usize) {
    let UnidentifiedMapping { file, seen, offset } = mapping;
    let path = Path::new(OsStr::from_bytes(&file.path));
    let held = MappedFiles::of_process().of_mapping(path, &[], file.file_id);
    let Some(held) = held.filter(|held| held.is_elf && held.build_id.is_none() && !held.is_at_path()) else {
        return;
    };
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
