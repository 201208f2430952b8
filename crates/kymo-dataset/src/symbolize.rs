//! Names for the functions of a dataset that has none of them yet: once for each build.
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::frames::Frames;
use crate::live::live_files;
use crate::read::TableReader;
use crate::schema::{HOST_KEY, REPLACES_KEY, Table};
use crate::store::{DatasetStore, StoredFile, open};
use crate::writer::DatasetFile;
use kymo_profile::resolve::{AddressFunction, functions_at};
use kymo_symbols::{ModuleKey, ModuleSymbols, SymbolOptions, SymbolStore, pool};
use parquet::data_type::ByteArray;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The kernel's symbol that addresses of the kernel count from.
const KERNEL_TEXT: &str = "_text";

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbolized {
    /// Locations without a name that had a build id.
    pub unnamed: usize,
    /// Those that have a name now.
    pub named: usize,
    /// Files of the table `frames` that were replaced.
    pub files_replaced: usize,
    /// Builds that had unnamed locations.
    pub builds: usize,
    /// What the user should know about the files with symbols: sentences.
    pub notes: Vec<String>,
}

impl fmt::Display for Symbolized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Symbolized { unnamed, named, files_replaced, builds, .. } = self;
        write!(
            f,
            "{named} of {unnamed} locations without a name have one now ({builds} builds, {files_replaced} files replaced)"
        )
    }
}

impl Frames {
    /// The code of a row that has no name and could get one.
    fn unnamed(&self, row: usize) -> Option<UnnamedCode> {
        if self.function[row].is_some() || self.inline_depth[row] != 0 {
            return None;
        }
        let is_kernel = match text(&self.kind[row]) {
            "user" => false,
            // Modules of the kernel lie elsewhere on each host.
            "kernel" if text(&self.module[row]).starts_with("[kernel") => true,
            _ => return None,
        };
        let build_id = bytes_of(text(self.build_id[row].as_ref()?))?;
        Some(UnnamedCode { build_id, is_kernel, address: self.address[row] as u64 })
    }
}

/// UnnamedCode without a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct UnnamedCode {
    build_id: Vec<u8>,
    is_kernel: bool,
    address: u64,
}

/// Functions by code; by location, those that another file has already.
#[derive(Default)]
struct Names {
    found: FxHashMap<UnnamedCode, Vec<AddressFunction>>,
    known: FxHashMap<i64, Vec<AddressFunction>>,
}

impl Names {
    fn get(&self, location: i64, code: &UnnamedCode) -> Option<&[AddressFunction]> {
        let names = self.known.get(&location).or_else(|| self.found.get(code))?;
        (!names.is_empty()).then_some(names)
    }
}

/// Gives names to the functions of a dataset that have none, by the build ids of their files, and
/// replaces the files of the table `frames` that change, each as a whole.
///
/// `options` say where files with symbols are. Locations that get names later get those that the
/// same location has in another file: all files agree.
///
/// # Errors
/// A sentence for a file that cannot be read or replaced; those before it stay replaced.
pub fn symbolize(dataset: &dyn DatasetStore, options: SymbolOptions) -> Result<Symbolized, DatasetError> {
    let files = live_files(dataset, Table::Frames)?;
    let open = |file: &StoredFile| open(dataset, file, Table::Frames);
    let (mut wanted, mut unnamed) = (BTreeSet::new(), BTreeSet::new());
    for file in &files {
        let frames = Frames::read(&open(file)?)?;
        for row in 0..frames.len() {
            if let Some(code) = frames.unnamed(row) {
                unnamed.insert(frames.location_id[row]);
                wanted.insert(code);
            }
        }
    }
    let mut names = Names::default();
    for file in files.iter().filter(|_| !unnamed.is_empty()) {
        remember(&Frames::read(&open(file)?)?, &unnamed, &mut names.known);
    }
    let mut done = Symbolized { unnamed: unnamed.len(), ..Symbolized::default() };
    let (paths, biases) = builds(dataset)?;
    // A cache's answers are of files that have their code; these may have none.
    let store = SymbolStore::new(SymbolOptions { code_biases: biases, cache: None, ..options });
    let wanted: Vec<UnnamedCode> = wanted.into_iter().collect();
    for of_build in wanted.chunk_by(|a, b| (&a.build_id, a.is_kernel) == (&b.build_id, b.is_kernel)) {
        done.builds += 1;
        let symbols = symbols_of(&store, &of_build[0], &paths);
        let found = pool::map(of_build, |code| functions_at(&symbols, code.address));
        names.found.extend(of_build.iter().cloned().zip(found));
        done.notes.extend(symbols.notes().into_iter().map(|note| note.0));
    }
    done.notes.sort();
    done.notes.dedup();
    let mut with_name = BTreeSet::new();
    for file in files.iter().filter(|_| !unnamed.is_empty()) {
        let reader = open(file)?;
        let frames = Frames::read(&reader)?;
        let gets_name = |row: &usize| {
            let code = frames.unnamed(*row);
            code.is_some_and(|code| names.get(frames.location_id[*row], &code).is_some())
        };
        let changed: Vec<usize> = (0..frames.len()).filter(gets_name).collect();
        if !changed.is_empty() {
            with_name.extend(changed.iter().map(|row| frames.location_id[*row]));
            let bytes = rewritten((&reader, &frames), &names, &file.path)?;
            dataset.put(&DatasetFile { table: Table::Frames, path: file.path.clone(), bytes })?;
            done.files_replaced += 1;
        }
    }
    done.named = with_name.len();
    Ok(done)
}

/// Keeps the names that locations have in this file, of those that have none in another one.
fn remember(frames: &Frames, unnamed: &BTreeSet<i64>, known: &mut FxHashMap<i64, Vec<AddressFunction>>) {
    let mut row = 0;
    while row < frames.len() {
        let location = frames.location_id[row];
        let end = (row..frames.len()).find(|at| frames.location_id[*at] != location).unwrap_or(frames.len());
        let is_named = (row..end).all(|at| frames.function[at].is_some());
        if is_named && unnamed.contains(&location) && !known.contains_key(&location) {
            let function = |at: usize| AddressFunction {
                name: frames.function[at].as_ref().map_or("", text).into(),
                file: frames.file[at].as_ref().map(|file| text(file).into()),
                line: frames.line[at].and_then(|line| line.try_into().ok()),
            };
            known.insert(location, (row..end).map(function).collect());
        }
        row = end;
    }
}

/// Paths by build id.
type Paths = FxHashMap<Vec<u8>, PathBuf>;

/// Paths and biases by build id, of all hosts.
fn builds(dataset: &dyn DatasetStore) -> Result<(Paths, BTreeMap<Vec<u8>, i64>), DatasetError> {
    let (mut paths, mut biases) = (Paths::default(), BTreeMap::new());
    for file in live_files(dataset, Table::Builds)? {
        let reader = open(dataset, &file, Table::Builds)?;
        let ids = reader.required("build_id", reader.text("build_id")?)?;
        let files = reader.required("path", reader.text("path")?)?;
        let of_code = reader.int64("code_bias")?;
        for ((id, file), bias) in ids.iter().zip(&files).zip(of_code) {
            let Some(id) = bytes_of(text(id)) else { continue };
            if let Some(bias) = bias {
                biases.insert(id.clone(), bias);
            }
            paths.entry(id).or_insert_with(|| PathBuf::from(text(file)));
        }
    }
    Ok((paths, biases))
}

fn symbols_of(store: &SymbolStore, code: &UnnamedCode, paths: &Paths) -> Arc<ModuleSymbols> {
    let build_id = Some(code.build_id.clone());
    let path = paths.get(&code.build_id).map_or(Path::new(""), |path| path);
    store.get(&match (code.is_kernel, path) {
        (true, _) => ModuleKey::Kernel { build_id, reference: Some((KERNEL_TEXT.to_owned(), 0)) },
        (false, path) if path == Path::new("[vdso]") => ModuleKey::Vdso { build_id },
        (false, path) => ModuleKey::file(path.to_owned(), build_id),
    })
}

/// The file with the names that were found.
fn rewritten(
    (reader, frames): (&TableReader, &Frames),
    names: &Names,
    path: &str,
) -> Result<Vec<u8>, DatasetError> {
    let mut rows = Frames::default();
    for row in 0..frames.len() {
        let code = frames.unnamed(row);
        match code.and_then(|code| names.get(frames.location_id[row], &code)) {
            Some(found) => {
                for (function, depth) in found.iter().zip(0..) {
                    let at = rows.len();
                    rows.push(frames, row);
                    rows.inline_depth[at] = depth;
                    rows.function[at] = Some(ByteArray::from(&*function.name));
                    rows.file[at] = function.file.as_deref().map(ByteArray::from);
                    rows.line[at] = function.line.and_then(|line| line.try_into().ok());
                }
            }
            None => rows.push(frames, row),
        }
    }
    let host = reader.metadata(HOST_KEY).unwrap_or_default();
    let mut file = TableFile::new(Table::Frames, host, path.to_owned(), rows.len())?;
    // A merged one stands for the same files.
    if let Some(replaced) = reader.metadata(REPLACES_KEY) {
        file.add_metadata(REPLACES_KEY, replaced.to_owned());
    }
    rows.write(&mut file)?;
    Ok(file.finish()?.1)
}

/// A text of a reader, which has UTF-8 only.
fn text(bytes: &ByteArray) -> &str {
    bytes.as_utf8().unwrap_or_default()
}

/// Bytes of hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    /// Longer than any hash that linkers make.
    const MOST_DIGITS: usize = 128;
    let is_one = digits.len() <= MOST_DIGITS
        && digits.len().is_multiple_of(2)
        && digits.bytes().all(|c| c.is_ascii_hexdigit());
    let pairs = || (0..digits.len()).step_by(2);
    is_one.then(|| pairs().filter_map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect())
}
