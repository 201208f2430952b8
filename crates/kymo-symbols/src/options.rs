//! What a caller says about symbols, and what it is told about them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::budget::Budget;
use super::cache::SymbolCache;
use super::debuginfod::Debuginfod;
use super::machine::RecordedMachine;
use crate::arch::Arch;

/// Where to look for symbols and how to show them.
#[derive(Clone, Debug)]
pub struct SymbolOptions {
    /// A directory that stands for `/` of the recorded machine (`--symfs`).
    pub symfs: Option<PathBuf>,
    /// A kernel image with symbols (`--vmlinux`).
    pub vmlinux: Option<PathBuf>,
    /// The kernel's symbol list (`--kallsyms`); `/proc/kallsyms` unless given.
    pub kallsyms: Option<PathBuf>,
    /// The build-id cache (`--buildid-dir`); `$PERF_BUILDID_DIR` or `~/.debug` unless given.
    pub buildid_dir: Option<PathBuf>,
    /// Folders with debug files by build id, which are tried before all others: `ab/cdef.debug`,
    /// below `.build-id` or at once.
    pub debug_dirs: Vec<PathBuf>,
    /// By build id where the code of a file was linked, less where it is in the file, as
    /// [`code_bias`](crate::code_bias) says: what debug files do not tell once the code was taken
    /// out of them.
    pub code_biases: BTreeMap<Vec<u8>, i64>,
    /// The instruction set of the recorded machine: files for another one are not what was mapped
    /// there. Any file is taken unless given.
    pub arch: Option<Arch>,
    /// Whether the recording is of this machine: what has no recorded build id is named by this
    /// machine's files only then.
    pub machine: RecordedMachine,
    /// Whether names of compiled languages are made readable.
    pub demangle: bool,
    /// Whether the kernel's names are demangled too.
    pub demangle_kernel: bool,
    /// Whether `_start` and the jump stubs of stripped programs are named, which no symbol table
    /// does, and functions by the compressed table of `.gnu_debugdata`. Without, names are as perf
    /// has them: a caller whose call is its last instruction is the function after it, and one at
    /// the end of a mapping is in the next, or in none.
    pub entry_names: bool,
    /// Whether files are left alone: only the kernel's functions and those of generated code get
    /// names, which cannot be had later or elsewhere.
    pub without_files: bool,
    /// What fetches files with symbols that are not here; nothing unless given.
    pub debuginfod: Option<Arc<Debuginfod>>,
    /// Whether perf maps of other owners are read (`-f`).
    pub force: bool,
    /// Answers of earlier runs; none unless given, or made that of the process
    /// ([`use_symbol_cache`]).
    pub cache: Option<SymbolCache>,
    /// The account of what files may cost; the process's own unless another one is given.
    pub budget: Budget,
}

/// The build-id cache that the command line names for the whole process.
static BUILD_ID_CACHE: OnceLock<PathBuf> = OnceLock::new();

/// Makes this folder the build-id cache of all options that name none, from now on.
pub fn name_build_id_cache(folder: PathBuf) {
    // The first one stays; the command line names one at most.
    let _ = BUILD_ID_CACHE.set(folder);
}

/// The symbol cache of the whole process.
static SYMBOL_CACHE: OnceLock<SymbolCache> = OnceLock::new();

/// Makes this the symbol cache of all options that name none, from now on.
pub fn use_symbol_cache(cache: SymbolCache) {
    // The first one stays, as above.
    let _ = SYMBOL_CACHE.set(cache);
}

impl SymbolOptions {
    /// Why a file for this ELF machine is not one of the recorded machine, if it is not.
    pub(crate) fn other_machine(&self, elf_machine: u16) -> Option<String> {
        let (wanted, found) = (self.arch?, Arch::of_elf(elf_machine)?);
        (wanted != found)
            .then(|| format!("the file is for {}, the recorded machine is {}", found.name(), wanted.name()))
    }
}

impl Default for SymbolOptions {
    fn default() -> SymbolOptions {
        SymbolOptions {
            symfs: None,
            vmlinux: None,
            kallsyms: None,
            buildid_dir: BUILD_ID_CACHE.get().cloned(),
            debug_dirs: Vec::new(),
            code_biases: BTreeMap::new(),
            arch: None,
            machine: RecordedMachine::default(),
            demangle: true,
            demangle_kernel: false,
            entry_names: true,
            without_files: false,
            debuginfod: None,
            force: false,
            cache: SYMBOL_CACHE.get().cloned(),
            budget: Budget::default(),
        }
    }
}

/// Something that the user should know about a module's symbols: what, on which file, why, what to
/// do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);
