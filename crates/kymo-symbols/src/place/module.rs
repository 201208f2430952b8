//! The target: its modules with what their files say, and its memory.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::debug::DebugInfo;
use super::error::ResolveError;
use super::symbol::Symbols;
use crate::SymbolOptions;
use crate::elf::ElfFile;
use crate::{elf_symbols, locate, user};

/// A program or library as its files tell: symbols and, where they have it, debug information.
///
/// Opening reads the headers. Symbols and debug information are read when the first question needs them, and kept, so
/// that several expressions cost one reading.
#[derive(Debug)]
pub struct ModuleFile {
    name: PathBuf,
    options: SymbolOptions,
    pub(super) own: Arc<ElfFile>,
    /// A debug file that was given, not looked for.
    given_debug: Option<Arc<ElfFile>>,
    build_id: Option<Vec<u8>>,
    companions: OnceLock<Companions>,
    symbols: OnceLock<Symbols>,
    /// Without lists of ranges and locations, and with them.
    debug: [OnceLock<Option<DebugInfo>>; 2],
}

/// The files beside the module's own.
#[derive(Debug, Default)]
struct Companions {
    /// Has `.debug_info`.
    debug: Option<Arc<ElfFile>>,
    /// Has `.symtab`.
    symbols: Option<Arc<ElfFile>>,
    refused: Vec<String>,
}

impl ModuleFile {
    /// Opens the file at `readable`, which the target knows as `name`: the two differ for files of another mount
    /// namespace (`/proc/PID/root/...`), deleted ones (`/proc/PID/map_files/...`), and are equal otherwise.
    ///
    /// Debug files are looked for where `perf` and gdb look: by build id, by `.gnu_debuglink`, beside the file.
    ///
    /// # Errors
    /// The file cannot be read, or is no little-endian ELF file.
    pub fn open(readable: &Path, name: &Path, options: &SymbolOptions) -> Result<ModuleFile, ResolveError> {
        let own =
            ElfFile::open(readable, &options.budget).map_err(|error| wrong(name, &error.to_string()))?;
        Ok(ModuleFile::new(own, name, None, options))
    }

    /// Takes the bytes of a module's file and, if they are elsewhere, those of its debug file. No file is opened.
    ///
    /// # Errors
    /// The bytes are no little-endian ELF file.
    pub fn from_bytes(
        name: &Path,
        bytes: Arc<[u8]>,
        debug: Option<Arc<[u8]>>,
    ) -> Result<ModuleFile, ResolveError> {
        let parse = |bytes| ElfFile::from_bytes(name, bytes).map_err(|error| wrong(name, &error.to_string()));
        let own = parse(bytes)?;
        let debug = debug.map(parse).transpose()?.map(Arc::new);
        let module = ModuleFile::new(own, name, debug.clone(), &SymbolOptions::default());
        let symbols = debug.clone().filter(|elf| elf_symbols::symtab(elf).is_some());
        let _ = module.companions.set(Companions { debug, symbols, refused: Vec::new() });
        Ok(module)
    }

    fn new(own: ElfFile, name: &Path, debug: Option<Arc<ElfFile>>, options: &SymbolOptions) -> ModuleFile {
        let build_id = own.build_id();
        ModuleFile {
            name: name.to_owned(),
            options: options.clone(),
            own: Arc::new(own),
            given_debug: debug,
            build_id,
            companions: OnceLock::new(),
            symbols: OnceLock::new(),
            debug: Default::default(),
        }
    }

    /// What the target calls the file.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The build id, if the file has one.
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// Whether Go's compiler made it: it has the table that Go unwinds by.
    pub fn is_go(&self) -> bool {
        crate::pclntab::section(&self.own).is_some()
    }

    /// How far the file was moved from where it was linked (AVMA - SVMA), when the byte at `offset` of it is mapped
    /// at `start`. Take its lowest mapping: where two segments share a page of the file, the first is meant.
    ///
    /// Nothing if that part of the file is in no loaded segment.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let page = |address: u64| address & !0xfff;
        let segment = self.own.segments.iter().find(|segment| {
            let end = segment.offset.saturating_add(segment.size_in_file);
            offset >= page(segment.offset) && offset < end
        })?;
        Some(start.wrapping_add(segment.offset.wrapping_sub(offset)).wrapping_sub(segment.vaddr))
    }

    /// The same for a mapping of code, by the segment of code that it shows.
    pub fn bias_of_code(&self, start: u64, offset: u64) -> Option<u64> {
        let page = |address: u64| address & !0xfff;
        let segment = self.own.segments.iter().filter(|segment| segment.executable).find(|segment| {
            let end = segment.offset.saturating_add(segment.size_in_file);
            offset >= page(segment.offset) && offset < end
        })?;
        Some(start.wrapping_add(segment.offset.wrapping_sub(offset)).wrapping_sub(segment.vaddr))
    }

    /// Whether an address (as linked) is in one of its segments.
    pub fn has_address(&self, svma: u64) -> bool {
        self.own.segment_of(svma).is_some()
    }

    /// Whether there is debug information, here or in a file beside.
    pub fn has_debug_info(&self) -> bool {
        self.debug_file().is_some()
    }

    /// Whether its own names are gone: neither symbols but those for linking nor debug information, here or in a file beside.
    pub(super) fn is_stripped(&self) -> bool {
        elf_symbols::symtab(&self.own).is_none()
            && self.companions().symbols.is_none()
            && !self.has_debug_info()
    }

    /// The file's name without folders, for messages.
    pub(super) fn short_name(&self) -> String {
        let name = self.name.file_name().unwrap_or(self.name.as_os_str());
        name.to_string_lossy().into_owned()
    }

    /// The file with the debug information, if there is one.
    pub(super) fn debug_file(&self) -> Option<&Arc<ElfFile>> {
        if has_debug_info(&self.own) {
            return Some(&self.own);
        }
        self.companions().debug.as_ref()
    }

    /// The symbols, read now if this is the first question.
    pub(super) fn symbols(&self) -> &Symbols {
        self.symbols.get_or_init(|| {
            let full = if elf_symbols::symtab(&self.own).is_some() {
                Some(&self.own)
            } else {
                self.companions().symbols.as_ref()
            };
            Symbols::read(full.map(|elf| &**elf), &self.own)
        })
    }

    /// The debug information, with the lists of ranges and locations or without them; read now if
    /// this is the first question.
    pub(super) fn debug_info(&self, lists: bool) -> Option<&DebugInfo> {
        let read = || self.debug_file().map(|elf| DebugInfo::read(elf, lists));
        self.debug[usize::from(lists)].get_or_init(read).as_ref()
    }

    /// Debug files that are there and were not taken, and why.
    pub(super) fn refused(&self) -> &[String] {
        self.companions.get().map_or(&[], |companions| &companions.refused)
    }

    fn companions(&self) -> &Companions {
        self.companions.get_or_init(|| {
            let mut found = Companions { debug: self.given_debug.clone(), ..Companions::default() };
            for candidate in locate::candidates(&self.options, &self.name, self.build_id(), None) {
                if candidate.path == self.name {
                    continue;
                }
                match user::open_if_it_fits(&candidate, self.build_id(), &self.options.budget) {
                    Ok(elf) => {
                        let elf = Arc::new(elf);
                        if found.debug.is_none() && has_debug_info(&elf) {
                            found.debug = Some(Arc::clone(&elf));
                        }
                        if found.symbols.is_none() && elf_symbols::symtab(&elf).is_some() {
                            found.symbols = Some(elf);
                        }
                    }
                    Err(refusal) if refusal.mismatch.is_some() => found.refused.push(refusal.why),
                    Err(_) => {}
                }
                if found.debug.is_some() && found.symbols.is_some() {
                    break;
                }
            }
            found
        })
    }
}

fn wrong(name: &Path, why: &str) -> ResolveError {
    ResolveError::Module { path: name.to_owned(), why: why.to_owned() }
}

fn has_debug_info(elf: &ElfFile) -> bool {
    elf.has_debug_bytes(b".debug_info")
}

/// A module where it lies in a process.
#[derive(Clone, Debug)]
pub struct Module {
    /// What its files say; shared by all processes that run it.
    pub file: Arc<ModuleFile>,
    /// AVMA - SVMA, wrapping.
    pub bias: u64,
}

/// One line of a process's list of mappings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses (AVMA).
    pub range: Range<u64>,
    /// The offset in the file of the first of them.
    pub offset: u64,
    /// The file, as the target knows it.
    pub path: PathBuf,
}

/// The process in which places are looked for.
#[derive(Clone)]
pub struct Target<'a> {
    /// Its modules, in the order in which names are looked for: the program first, then libraries.
    pub modules: Vec<Module>,
    /// Reads its memory at an AVMA, all bytes or an error. Asked only when a pointer has to be followed.
    pub memory: &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>,
}

impl Target<'_> {
    /// The module that covers an address with one of its segments.
    pub fn module_at(&self, avma: u64) -> Option<&Module> {
        self.modules
            .iter()
            .find(|module| module.file.own.segment_of(avma.wrapping_sub(module.bias)).is_some())
    }
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("modules", &self.modules).finish_non_exhaustive()
    }
}

/// The modules among a process's mappings, each once: the program first, then the others by address.
///
/// `open` is asked once per file and gives its content; files that it refuses (devices, files that are gone) are left
/// out. `program` is where `/proc/PID/exe` points.
pub fn modules_of(
    mappings: &[Mapping],
    program: Option<&Path>,
    mut open: impl FnMut(&Mapping) -> Option<Arc<ModuleFile>>,
) -> Vec<Module> {
    let mut seen: Vec<&Path> = Vec::new();
    let mut modules: Vec<Module> = Vec::new();
    for mapping in mappings {
        let path = mapping.path.as_path();
        if seen.contains(&path) || !path.is_absolute() {
            continue;
        }
        seen.push(path);
        let Some(file) = open(mapping) else { continue };
        let Some(bias) = file.bias(mapping.range.start, mapping.offset) else { continue };
        let at = if Some(path) == program { 0 } else { modules.len() };
        modules.insert(at, Module { file, bias });
    }
    modules
}
