//! Loading a user module: which of the candidate files serve, and the table made of them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::budget::{self, Budget};
use super::debuginfod::BuildFile;
use super::elf::{ElfFile, Segment, SymbolError, same_build_id};
use super::elf_symbols::{self, AddressSpace};
use super::file_state::FileState;
use super::locate::{self, Candidate};
use super::mapped_files::MappedCode;
use super::mini_debug_info;
use super::options::{Note, SymbolOptions};
use super::pclntab;
use super::plt;
use super::start_code;
use super::table::{SymbolTable, TableBuilder};

/// What loading a module gave.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) table: SymbolTable,
    pub(super) notes: Vec<Note>,
    /// The file with the symbol table.
    pub(super) symbols: Option<Arc<ElfFile>>,
    /// The file that was mapped, or the nearest thing to it.
    pub(super) runtime: Option<Arc<ElfFile>>,
    /// A kernel image: where it was loaded, relative to where it was linked.
    pub(super) delta: u64,
    /// The files alone decided this: nothing was fetched, and none was refused.
    pub(super) is_complete: bool,
    /// Why there are no names, if there are none.
    pub(super) absence: Option<Absence>,
}

/// Why a file gives no names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absence {
    /// It was read, and has no symbols.
    Stripped,
    /// Another file lies at its path.
    OtherFile,
    /// There is no file, or none that can be read.
    NoFile,
}

impl From<Note> for Loaded {
    /// Nothing, and why.
    fn from(note: Note) -> Loaded {
        Loaded { notes: vec![note], absence: Some(Absence::OtherFile), ..Loaded::default() }
    }
}

/// The files that could have the names of a module.
#[derive(Debug)]
pub(super) struct ModuleFiles {
    /// Where it was mapped from.
    path: PathBuf,
    /// As recorded; otherwise that of the file that lies there now.
    pub(super) build_id: Option<Vec<u8>>,
    /// The first one first.
    pub(super) candidates: Vec<Candidate>,
    /// The file that was mapped, where its path leads to another one or to none: one of the
    /// candidates is its descriptor.
    pub(super) held: Option<Arc<MappedCode>>,
}

impl ModuleFiles {
    /// # Errors
    /// Why the file that lies there now cannot be the one that was mapped, where no build id was
    /// recorded.
    pub(super) fn of(
        options: &SymbolOptions,
        (path, mapped): (&Path, FileState),
        recorded: Option<&[u8]>,
    ) -> Result<ModuleFiles, Note> {
        // Without a recorded build id the file as it lies there now decides which debug files fit
        // it.
        let recorded = recorded.filter(|id| id.iter().any(|&byte| byte != 0));
        let held = options.held_file(path, recorded, mapped);
        let build_id = match recorded {
            Some(id) => Some(id.to_vec()),
            None if held.is_some() => None,
            None => {
                let own = locate::below_root(options, path);
                if let Some(refusal) = options.file_refusal(&own, mapped) {
                    return Err(refusal);
                }
                ElfFile::open(&own, &options.budget).ok().and_then(|elf| elf.build_id())
            }
        };
        let held_path = held.as_ref().map(|file| file.held_path());
        let candidates = locate::candidates(options, path, build_id.as_deref(), held_path.as_deref());
        Ok(ModuleFiles { path: path.to_owned(), build_id, candidates, held })
    }
}

/// What the candidates gave.
#[derive(Default)]
struct Chosen {
    symbols: Option<Arc<ElfFile>>,
    runtime: Option<Arc<ElfFile>>,
    /// Of a stripped Go program.
    go: Option<Arc<ElfFile>>,
    notes: Vec<Note>,
    /// A file could not be read though it is there.
    is_refused: bool,
    /// Why the file at the module's path could not be read.
    own_refusal: Option<Note>,
    /// A file fits, whether it has names or not.
    has_fitting: bool,
    /// The file at the module's path is another one.
    is_replaced: bool,
}

impl Chosen {
    fn of(options: &SymbolOptions, files: &ModuleFiles, own: &Path) -> Chosen {
        let mut chosen = Chosen::default();
        for candidate in &files.candidates {
            let elf = match open_if_it_fits(candidate, files.build_id.as_deref(), &options.budget) {
                Ok(elf) => match options.other_machine(elf.machine) {
                    None => {
                        chosen.has_fitting = true;
                        Arc::new(elf)
                    }
                    Some(why) => {
                        let file = candidate.path.display();
                        let note = format!("{file}: {why}; its symbols are not used (--symfs?)");
                        chosen.is_replaced |= candidate.path == own;
                        chosen.notes.push(Note(note));
                        continue;
                    }
                },
                Err(refusal) => {
                    chosen.is_refused |= refusal.is_there;
                    chosen.is_replaced |= candidate.path == own && refusal.mismatch.is_some();
                    if refusal.mismatch.is_some() {
                        chosen.notes.push(Note(refusal.why));
                    } else if candidate.path == own {
                        chosen.own_refusal = Some(Note(refusal.why));
                    }
                    continue;
                }
            };
            if chosen.symbols.is_none() && elf_symbols::symtab(&elf).is_some() {
                chosen.symbols = Some(Arc::clone(&elf));
            }
            if chosen.go.is_none() && pclntab::section(&elf).is_some_and(|_| elf.has_bytes(b".text")) {
                chosen.go = Some(Arc::clone(&elf));
            }
            if chosen.runtime.is_none() && elf_symbols::dynsym(&elf).is_some() {
                chosen.runtime = Some(elf);
            }
            if chosen.symbols.is_some() && chosen.runtime.is_some() {
                break;
            }
        }
        chosen
    }

    fn absence(&self) -> Absence {
        match (self.has_fitting, self.is_replaced) {
            (true, _) => Absence::Stripped,
            (false, true) => Absence::OtherFile,
            (false, false) => Absence::NoFile,
        }
    }
}

pub(super) fn load(options: &SymbolOptions, files: &ModuleFiles) -> Loaded {
    let own = locate::below_root(options, &files.path);
    let chosen = Chosen::of(options, files, &own);
    let absence = Some(chosen.absence());
    let Chosen { mut symbols, runtime, go, mut notes, is_refused, own_refusal, .. } = chosen;
    // A copy by build id has all names: whoever has them need not know.
    notes.extend(own_refusal.filter(|_| symbols.is_none()));
    let mut refused = Vec::new();
    let mut is_complete = !is_refused;
    if symbols.is_none() {
        is_complete &= options.debuginfod.is_none();
        symbols = fetched(options, &files.path, files.build_id.as_deref(), &mut refused).map(Arc::new);
    }
    let (symbols, runtime) = match (symbols.or(go), runtime) {
        (Some(symbols), Some(runtime)) => (symbols, runtime),
        (Some(only), None) | (None, Some(only)) => (Arc::clone(&only), only),
        (None, None) => {
            if notes.is_empty() {
                notes.push(Note(format!(
                    "{} has no symbol table; install its debug symbols to see function names",
                    own.display()
                )));
            }
            return Loaded { notes, absence, ..Loaded::default() };
        }
    };
    let runtime = with_code(options, files.build_id.as_deref(), runtime);
    notes.retain(|_| symbols.path != own && runtime.path != own);
    notes.append(&mut refused);
    Loaded { notes, is_complete, ..of_files(options, symbols, runtime) }
}

/// A debug file has no code, and its segments do not say where that lay: the caller may know.
fn with_code(options: &SymbolOptions, build_id: Option<&[u8]>, runtime: Arc<ElfFile>) -> Arc<ElfFile> {
    let bias = build_id.and_then(|id| options.code_biases.get(id));
    match bias {
        Some(bias) if !runtime.has_code() => match ElfFile::open(&runtime.path, &options.budget) {
            Ok(mut elf) => {
                elf.lay_out_code(*bias);
                Arc::new(elf)
            }
            Err(_) => runtime,
        },
        _ => runtime,
    }
}

/// Where the code of a file was linked, less where it is in the file. Nothing where there is no
/// file of this build id at the path, and where its segments differ in that.
pub fn code_bias(options: &SymbolOptions, path: &Path, build_id: &[u8]) -> Option<i64> {
    let own = Candidate { path: locate::below_root(options, path), checksum: None };
    let elf = open_if_it_fits(&own, Some(build_id), &options.budget).ok()?;
    let mut biases = elf.segments.iter().filter(|segment| segment.executable && segment.size_in_file > 0);
    let bias = |segment: &Segment| segment.vaddr.wrapping_sub(segment.offset) as i64;
    let first = bias(biases.next()?);
    biases.all(|segment| bias(segment) == first).then_some(first)
}

/// The file with the symbols of a module, fetched by debuginfod's client if that is configured.
fn fetched(
    options: &SymbolOptions,
    path: &Path,
    build_id: Option<&[u8]>,
    notes: &mut Vec<Note>,
) -> Option<ElfFile> {
    let opened = options.debuginfod.as_ref()?.fetch(BuildFile::DebugInfo, build_id?, path).and_then(|file| {
        let Some(path) = file else { return Ok(None) };
        let candidate = Candidate { path, checksum: None };
        open_if_it_fits(&candidate, build_id, &options.budget).map(Some).map_err(|refusal| refusal.why)
    });
    match opened {
        Ok(elf) => elf.filter(|elf| elf_symbols::symtab(elf).is_some()),
        Err(why) => {
            notes.push(Note(format!("{}: {why}", path.display())));
            None
        }
    }
}

fn of_files(options: &SymbolOptions, symbols: Arc<ElfFile>, runtime: Arc<ElfFile>) -> Loaded {
    let mut builder = TableBuilder::new(Vec::new(), options.demangle);
    elf_symbols::add_symbols(&mut builder, &symbols, &runtime, AddressSpace::FileOffset);
    if elf_symbols::symtab(&symbols).is_none() {
        if options.entry_names
            && let Some(carried) = mini_debug_info::unpack(&symbols)
        {
            elf_symbols::add_symbols(&mut builder, &carried, &runtime, AddressSpace::FileOffset);
        }
        // A Go program that was stripped still names its functions.
        let _ = pclntab::add(&mut builder, &symbols);
    }
    // perf names the stubs of files that have symbols of their own only.
    if builder.len() > 0 || options.entry_names {
        // A module without a PLT is complete without it.
        let _ = plt::add(&mut builder, &runtime);
    }
    if options.entry_names {
        let _ = start_code::add(&mut builder, &runtime);
    }
    let table = builder.finish();
    Loaded { table, symbols: Some(symbols), runtime: Some(runtime), ..Loaded::default() }
}

/// Loads the symbols of an image in memory (the vdso).
pub(super) fn load_image(options: &SymbolOptions, elf: ElfFile) -> Loaded {
    let elf = Arc::new(elf);
    of_files(options, Arc::clone(&elf), elf)
}

/// Why a file is not the one that was meant.
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Why it is another file.
    pub(crate) mismatch: Option<&'static str>,
    /// There is a file, which is damaged or takes more memory than is left.
    pub(crate) is_there: bool,
}

/// Opens a candidate unless its build id or checksum is that of another file.
pub(crate) fn open_if_it_fits(
    candidate: &Candidate,
    build_id: Option<&[u8]>,
    budget: &Budget,
) -> Result<ElfFile, Refusal> {
    let refuse = |error: SymbolError| Refusal {
        why: error.to_string(),
        mismatch: None,
        is_there: matches!(error, SymbolError::Elf { .. }),
    };
    let elf = ElfFile::open(&candidate.path, budget).map_err(refuse)?;
    let own_id = elf.build_id();
    let mismatch = |why: &'static str| Refusal {
        why: format!("{}: {why}; its symbols are not used", candidate.path.display()),
        mismatch: Some(why),
        is_there: false,
    };
    match (build_id, &own_id) {
        (Some(wanted), Some(own)) if same_build_id(wanted, own) => {}
        (Some(_), Some(_)) => {
            return Err(mismatch(
                "the file is not the one that was recorded (its build id differs; was it rebuilt or updated?)",
            ));
        }
        (Some(_), None) => {
            return Err(mismatch("the recording has a build id for it, but the file has none"));
        }
        (None, _) => {
            // A build id would have vouched for the pair; the checksum is all there is.
            if let Some(wanted) = candidate.checksum
                && checksum(&candidate.path, budget) != Some(wanted)
            {
                return Err(mismatch("the checksum in .gnu_debuglink is that of another file"));
            }
        }
    }
    Ok(elf)
}

/// The CRC-32 of a file, as `.gnu_debuglink` counts it.
fn checksum(path: &Path, budget: &Budget) -> Option<u32> {
    let (file, metadata) = budget::open_regular(path).ok()?;
    // The sum is over every byte: holes would cost their length.
    if !budget::is_stored(&file, 0, metadata.len()) {
        return None;
    }
    budget.checksum(&metadata, || crc32(file))
}

fn crc32(mut file: std::fs::File) -> Option<u32> {
    let table: [u32; 256] = std::array::from_fn(|i| {
        (0..8).fold(i as u32, |c, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 })
    });
    let mut buffer = vec![0; 1 << 16];
    let mut crc = !0u32;
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(!crc),
            n => {
                for &byte in &buffer[..n] {
                    crc = table[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;

    /// Checks that the file that lies here under the path of a program of another machine names
    /// nothing, and that the reason is said.
    #[test]
    fn a_file_for_another_machine() {
        let other = match Arch::NATIVE {
            Some(Arch::Aarch64) => Arch::X86_64,
            _ => Arch::Aarch64,
        };
        let load = |arch| {
            let options = SymbolOptions { arch, ..SymbolOptions::default() };
            let own = (Path::new("/proc/self/exe"), FileState::default());
            load(&options, &ModuleFiles::of(&options, own, None).expect("this machine's"))
        };
        assert!(load(None).symbols.is_some() && load(Arch::NATIVE).symbols.is_some());
        let refused = load(Some(other));
        assert!(refused.symbols.is_none());
        assert!(refused.notes.iter().any(|note| note.0.contains(other.name())), "{:?}", refused.notes);
    }
}
