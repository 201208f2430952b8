//! The store: every module's symbols, loaded on first use and shared by all threads.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use hashbrown::HashMap;

use super::table::{SymbolRef, SymbolTable};

/// Which module an address belongs to, as the recording knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKey {
    /// A file mapped by a process. Addresses are file offsets.
    Elf {
        /// The path of the mapping record.
        path: PathBuf,
        /// The build id that the recording stored for it, if any.
        build_id: Option<Vec<u8>>,
    },
    /// The kernel image. Addresses are absolute.
    Kernel {
        /// The recorded kernel's build id, if stored.
        build_id: Option<Vec<u8>>,
        /// The recorded address of the reference symbol (`_text` or `_stext`) and its name, from the kernel's
        /// mapping record: lets a recording of an earlier boot be read after the kernel moved.
        reference: Option<(String, u64)>,
    },
    /// A loadable kernel module, by the name in brackets. Addresses are absolute.
    KernelModule {
        /// The name without brackets.
        name: String,
    },
    /// The vdso of the machine that reads the recording. Addresses are file offsets.
    Vdso {
        /// The recorded vdso's build id, if stored.
        build_id: Option<Vec<u8>>,
    },
    /// Code that a just-in-time compiler described in `/tmp/perf-PID.map`. Addresses are absolute.
    PerfMap {
        /// The process, as numbered in the recording.
        pid: i32,
    },
    /// Memory without a file: no symbols.
    Anonymous,
}

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
    /// Whether names of compiled languages are made readable.
    pub demangle: bool,
    /// Whether the kernel's names are demangled too.
    pub demangle_kernel: bool,
    /// Whether perf maps of other owners are read (`-f`).
    pub force: bool,
}

impl Default for SymbolOptions {
    fn default() -> SymbolOptions {
        SymbolOptions {
            symfs: None,
            vmlinux: None,
            kallsyms: None,
            buildid_dir: None,
            demangle: true,
            demangle_kernel: false,
            force: false,
        }
    }
}

/// Something that the user should know about a module's symbols: what, on which file, why, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note(pub String);

/// One function that was compiled into another, or the outermost function itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlineFrame {
    /// The function's name, demangled unless switched off.
    pub function: Option<String>,
    /// The source file, as the debug information names it.
    pub file: Option<String>,
    /// The line in that file, counted from 1.
    pub line: Option<u32>,
}

/// The symbols of one module, ready for lookups from any thread.
#[derive(Debug, Default)]
pub struct ModuleSymbols {
    table: SymbolTable,
    notes: Vec<Note>,
    source: Option<PathBuf>,
}

impl ModuleSymbols {
    /// The symbol that covers `address` (in the module's address space, see the module's documentation).
    pub fn find(&self, address: u64) -> Option<SymbolRef<'_>> {
        self.table.find(address)
    }

    /// All symbols.
    pub fn table(&self) -> &SymbolTable {
        &self.table
    }

    /// What the user should know: why there are no symbols, which file was refused.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The file that the symbols come from.
    pub fn source(&self) -> Option<&std::path::Path> {
        self.source.as_deref()
    }

    /// The functions that `address` belongs to, innermost first and the function of the symbol table last.
    /// Empty without debug information.
    pub fn inline_frames(&self, _address: u64) -> Vec<InlineFrame> {
        Vec::new()
    }
}

type Slot = Arc<OnceLock<Arc<ModuleSymbols>>>;

/// Every module's symbols, each loaded once.
#[derive(Debug, Default)]
pub struct SymbolStore {
    options: SymbolOptions,
    slots: Mutex<HashMap<ModuleKey, Slot>>,
}

impl SymbolStore {
    /// An empty store; nothing is opened before the first [`get`](SymbolStore::get).
    pub fn new(options: SymbolOptions) -> SymbolStore {
        SymbolStore { options, slots: Mutex::default() }
    }

    /// The options that this store was made with.
    pub fn options(&self) -> &SymbolOptions {
        &self.options
    }

    /// The symbols of a module, loaded now if this is the first time. Never fails: a module without symbols has
    /// an empty table and a note.
    pub fn get(&self, key: &ModuleKey) -> Arc<ModuleSymbols> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match slots.get(key) {
                Some(slot) => Arc::clone(slot),
                None => Arc::clone(slots.entry(key.clone()).or_default()),
            }
        };
        Arc::clone(slot.get_or_init(Arc::default))
    }

    /// Loads several modules on all threads of the pool.
    pub fn load_all(&self, keys: &[ModuleKey]) {
        use rayon::prelude::*;
        keys.par_iter().for_each(|key| {
            self.get(key);
        });
    }
}
