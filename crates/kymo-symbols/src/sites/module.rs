//! One program or library: its functions, markers and lines.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::super::demangle;
use super::super::elf::{EM_AARCH64, EM_X86_64, ElfFile, SymbolError};
use super::super::elf_symbols;
use super::super::locate;
use super::super::options::SymbolOptions;
use super::super::pclntab;
use super::super::user;
use super::go::GoFunctions;
use super::lines::{self, LineMatch};
use super::runtime::{Runtime, SWITCHES, StackUse};
use super::unwind_tables::UnwindTables;
use super::usdt::{self, Marker};
use crate::place::ModuleFile;

const LONGEST_FUNCTION: u64 = 16 << 20;
const MACHINES: [(u16, &str); 2] = [(EM_X86_64, "x86_64"), (EM_AARCH64, "aarch64")];

/// Why a module has no sites.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be probed: {why}", path = path.display())]
pub struct ModuleError {
    /// The file.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

impl ModuleError {
    fn of(path: &Path, error: SymbolError) -> ModuleError {
        let why = match error {
            SymbolError::Io { source, .. } => source.to_string(),
            SymbolError::NotAFile { .. } => "it is not a regular file".into(),
            SymbolError::Elf { why, .. } => why,
        };
        ModuleError { path: path.to_owned(), why }
    }
}

/// A function of a module's symbol table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// As the linker knows it, without a symbol version.
    pub raw_name: Box<str>,
    /// Where it is in the file.
    pub offset: u64,
    /// Where it is as linked.
    pub svma: u64,
    /// Its length; 0 where the table does not say.
    pub size_bytes: u64,
    /// 0 for names that other modules see, 1 for weak ones, 2 for local ones.
    pub(super) rank: u8,
    /// It is called when the program starts, to pick the function that has this name then.
    pub is_resolver: bool,
}

impl Function {
    /// The name for people.
    pub fn name(&self) -> Cow<'_, str> {
        demangle::readable(&self.raw_name)
    }
}

/// A program or library that probes can be put into. What is asked first is read first.
#[derive(Debug)]
pub struct ProbeModule {
    path: PathBuf,
    file: PathBuf,
    root: Option<PathBuf>,
    elf: Arc<ElfFile>,
    functions: OnceLock<Vec<Function>>,
    markers: OnceLock<Vec<Marker>>,
    stack_use: OnceLock<StackUse>,
    go_functions: OnceLock<GoFunctions>,
    unwind_tables: OnceLock<UnwindTables>,
}

impl ProbeModule {
    /// Opens a module: `path` as the probed program knows it, below `root` where that is not our own (`/proc/PID/root`).
    ///
    /// # Errors
    /// [`ModuleError`]: no such file, not an ELF file, or one for another machine.
    pub fn open(path: &Path, root: Option<&Path>) -> Result<ProbeModule, ModuleError> {
        let options = SymbolOptions { symfs: root.map(Path::to_owned), ..SymbolOptions::default() };
        let file = locate::below_root(&options, path);
        let elf = ElfFile::open(&file, &options.budget).map_err(|error| ModuleError::of(path, error))?;
        Ok(ProbeModule {
            path: path.to_owned(),
            file,
            root: root.map(Path::to_owned),
            elf: Arc::new(elf),
            functions: OnceLock::new(),
            markers: OnceLock::new(),
            stack_use: OnceLock::new(),
            go_functions: OnceLock::new(),
            unwind_tables: OnceLock::new(),
        })
    }

    /// As the probed program knows it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same file, as this process can open it.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The same for questions about what its functions are called with; reads its headers anew.
    ///
    /// # Errors
    /// As [`open`](ProbeModule::open).
    pub fn described(&self) -> Result<ModuleFile, ModuleError> {
        let options = SymbolOptions { symfs: self.root.clone(), ..SymbolOptions::default() };
        ModuleFile::open(&self.file, &self.path, &options)
            .map_err(|error| ModuleError { path: self.path.clone(), why: error.to_string() })
    }

    /// The file's name.
    pub fn name(&self) -> Cow<'_, str> {
        self.path.file_name().map_or(Cow::Borrowed(""), |name| name.to_string_lossy())
    }

    /// Whether it is a 64-bit file.
    pub fn is_64(&self) -> bool {
        self.elf.is_64
    }

    /// Whether its code is that of this machine.
    pub fn is_native(&self) -> bool {
        MACHINES.contains(&(self.elf.machine, std::env::consts::ARCH))
    }

    /// The functions, by their place in the file and then by name; those of separate debug files too.
    pub fn functions(&self) -> &[Function] {
        self.functions.get_or_init(|| {
            let mut found = Vec::new();
            let debug = self.symbol_file();
            for elf in std::iter::once(&self.elf).chain(&debug) {
                elf_symbols::for_each_function(elf, |symbol| {
                    let Some(offset) = self.elf.code_offset(symbol.svma) else { return };
                    let name = String::from_utf8_lossy(symbol.name);
                    // `memcpy@@GLIBC_2.14`: the version is no part of the name.
                    let name = name.split('@').next().unwrap_or(&name);
                    if name.is_empty() {
                        return;
                    }
                    found.push(Function {
                        raw_name: name.into(),
                        offset,
                        svma: symbol.svma,
                        size_bytes: symbol.size,
                        rank: symbol.rank,
                        is_resolver: symbol.is_resolver,
                    });
                });
            }
            if found.is_empty() && debug.is_none() {
                self.add_go_functions(&mut found);
            }
            fn key(function: &Function) -> (u64, u8, usize, &str) {
                (function.offset, function.rank, function.raw_name.len(), &function.raw_name)
            }
            found.sort_by(|a, b| key(a).cmp(&key(b)));
            found.dedup_by(|b, a| a.offset == b.offset && a.raw_name == b.raw_name);
            found
        })
    }

    /// Adds the functions that a stripped Go program names for its own stack traces.
    fn add_go_functions(&self, found: &mut Vec<Function>) {
        pclntab::for_each(&self.elf, |start, end, name| {
            // Other code, of C, may lie between.
            let Some(offset) = self.elf.code_offset(start) else { return };
            found.push(Function {
                raw_name: String::from_utf8_lossy(name).into(),
                offset,
                svma: start,
                size_bytes: end - start,
                rank: 0,
                is_resolver: false,
            });
        });
    }

    /// The markers (USDT).
    pub fn markers(&self) -> &[Marker] {
        self.markers.get_or_init(|| usdt::markers(&self.elf))
    }

    /// The language's runtime that is in it, if one that walks its own stacks is.
    pub fn runtime(&self) -> Option<Runtime> {
        self.stack_use().runtime
    }

    pub(super) fn stack_use(&self) -> StackUse {
        *self.stack_use.get_or_init(|| StackUse::of(&self.elf, self.symbol_file().as_deref(), &self.name()))
    }

    /// The functions that Go's compiler and assembler made; none in other modules.
    pub(super) fn go_functions(&self) -> &GoFunctions {
        self.go_functions.get_or_init(|| {
            let text = self.functions().iter().find(|function| &*function.raw_name == "runtime.text");
            GoFunctions::of(&self.elf, text.map(|function| function.svma))
        })
    }

    pub(super) fn unwind_tables(&self) -> &UnwindTables {
        self.unwind_tables.get_or_init(|| UnwindTables::of(&self.elf))
    }

    /// The function that a place in the file belongs to.
    pub fn function_at(&self, offset: u64) -> Option<&Function> {
        let functions = self.functions();
        let after = functions.partition_point(|function| function.offset <= offset);
        let start = functions.get(after.checked_sub(1)?)?.offset;
        // Of several names the first is the best.
        let first = functions.partition_point(|function| function.offset < start);
        let inside = |function: &&Function| {
            offset == function.offset || offset - function.offset < function.size_bytes
        };
        functions[first..after].iter().find(inside)
    }

    /// Whether the place is in a part of the file that is loaded as code.
    pub fn is_code(&self, offset: u64) -> bool {
        self.elf.linked_address(offset).and_then(|svma| self.elf.code_offset(svma)) == Some(offset)
    }

    /// Whether an instruction of a function begins so many bytes into it; a probe anywhere else would destroy one. `true` where this machine's instructions are
    /// not known to us.
    pub(super) fn is_instruction(&self, function: &Function, into: u64) -> bool {
        if self.elf.machine != EM_X86_64 || !self.elf.is_64 {
            return true;
        }
        // Code that is decoded from a function's beginning up to the place: more than a function of that length is no function.
        let Some(code) = self.elf.read(function.offset, into.saturating_add(1).min(LONGEST_FUNCTION)) else {
            return false;
        };
        let mut decoder = iced_x86::Decoder::new(64, &code, iced_x86::DecoderOptions::NONE);
        let mut at = 0;
        while at < into && decoder.can_decode() {
            let instruction = decoder.decode();
            // The last one may be cut off by where we have stopped to read.
            at += if instruction.is_invalid() { return false } else { instruction.len() as u64 };
        }
        at == into
    }

    /// Where the place is as linked.
    pub fn svma_of(&self, offset: u64) -> Option<u64> {
        self.elf.linked_address(offset)
    }

    /// Bytes of the file by their address as linked: as many as its part that is loaded there has, up to `bytes`.
    pub fn loaded(&self, svma: u64, bytes: u64) -> Vec<u8> {
        let Some(segment) = self.elf.segment_of(svma) else { return Vec::new() };
        let into = svma - segment.vaddr;
        let bytes = bytes.min(segment.size_in_file.saturating_sub(into));
        let offset = segment.offset.checked_add(into);
        offset.and_then(|offset| self.elf.read(offset, bytes)).unwrap_or_default()
    }

    /// The part of the file that is loaded together and holds this address of code: its first address as linked, and its bytes.
    pub fn code_around(&self, svma: u64) -> Option<(u64, u64)> {
        self.elf.code_offset(svma)?;
        self.elf.segment_of(svma).map(|segment| (segment.vaddr, segment.size_in_file))
    }

    /// The first places of a source line, one for each function that has code of it; or the nearest lines that have any.
    pub(super) fn line(&self, file: &str, line: u32) -> LineMatch {
        let Some(elf) = self.debug_file() else { return LineMatch::NoDebugInfo };
        lines::ask(&elf, |dwarf| lines::find(dwarf, file, line))
    }

    /// Whether the debug information knows a function of that name that has no code of its own, because it was inlined everywhere; where it
    /// was written.
    pub(super) fn inlined_only(&self, name: &str) -> Option<(String, u32)> {
        lines::ask(&self.debug_file()?, |dwarf| lines::inlined_only(dwarf, name))
    }

    pub(super) fn elf(&self) -> &ElfFile {
        &self.elf
    }

    /// A separate file with the symbol table, where this one has been stripped of it.
    fn symbol_file(&self) -> Option<Arc<ElfFile>> {
        if elf_symbols::symtab(&self.elf).is_some() {
            return None;
        }
        self.separate(|elf| elf_symbols::symtab(elf).is_some())
    }

    fn debug_file(&self) -> Option<Arc<ElfFile>> {
        let has = |elf: &ElfFile| elf.has_debug_bytes(b".debug_line");
        if has(&self.elf) {
            return Some(Arc::clone(&self.elf));
        }
        self.separate(has)
    }

    fn separate(&self, fits: impl Fn(&ElfFile) -> bool) -> Option<Arc<ElfFile>> {
        let options = SymbolOptions { symfs: self.root.clone(), ..SymbolOptions::default() };
        let build_id = self.elf.build_id();
        let candidates = locate::candidates(&options, &self.path, build_id.as_deref(), None);
        candidates.iter().filter(|candidate| candidate.path != self.file).find_map(|candidate| {
            let elf = user::open_if_it_fits(candidate, build_id.as_deref(), &options.budget).ok()?;
            fits(&elf).then(|| Arc::new(elf))
        })
    }
}

/// Why return addresses of a program with these modules must not be replaced; `None` if nothing
/// speaks against it.
#[must_use]
pub fn stack_walker<'a>(modules: impl IntoIterator<Item = &'a ProbeModule>) -> Option<String> {
    modules.into_iter().find_map(|module| {
        let runtime = module.runtime()?;
        Some(format!("{} walks its own stacks ({})", runtime.name(), module.name()))
    })
}

/// Why calls of a program with these modules may be under way on many stacks of one thread; `None`
/// if nothing says so.
#[must_use]
pub fn switches_stacks<'a>(modules: impl IntoIterator<Item = &'a ProbeModule>) -> Option<String> {
    modules.into_iter().find_map(|module| {
        let why = module.stack_use().leaves.filter(|why| why.starts_with(SWITCHES))?;
        Some(format!("{why} ({})", module.name()))
    })
}

/// The same for the kernel's return probes, which answer no unwinder: also why calls might not
/// return in the order in which they were made.
#[must_use]
pub fn leaves_calls<'a>(modules: impl IntoIterator<Item = &'a ProbeModule> + Clone) -> Option<String> {
    stack_walker(modules.clone()).or_else(|| {
        modules
            .into_iter()
            .find_map(|module| module.stack_use().leaves.map(|why| format!("{why} ({})", module.name())))
    })
}
