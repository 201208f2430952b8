//! The store: every module's symbols, loaded on first use and shared by all threads.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use hashbrown::HashMap;

use super::inline::{InlineFrame, Lines};
use super::kallsyms::Kallsyms;
use super::kernel;
use super::options::{Note, SymbolOptions};
use super::table::{SymbolRef, SymbolTable};
use super::user::{self, Loaded};
use super::{perf_map, vdso};

/// Which module an address belongs to, as the recording knows it; `build_id`: what it stored, if
/// anything. For kernel modules that is the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub enum ModuleKey {
    /// A file mapped by a process, by the path of the mapping record. Addresses are file offsets.
    Elf { path: PathBuf, build_id: Option<Vec<u8>> },
    /// The kernel image. Addresses are absolute.
    Kernel {
        build_id: Option<Vec<u8>>,
        /// The recorded address of the reference symbol (`_text` or `_stext`) and its name, from the kernel's
        /// mapping record: lets a recording of an earlier boot be read after the kernel moved.
        reference: Option<(String, u64)>,
    },
    /// A loadable kernel module, by its name without the brackets. Addresses are absolute.
    KernelModule { name: String, build_id: Option<Vec<u8>> },
    /// The vdso of the machine that reads the recording. Addresses are file offsets.
    Vdso { build_id: Option<Vec<u8>> },
    /// Code that a just-in-time compiler described in `/tmp/perf-PID.map`, PID as numbered in the
    /// recording. Addresses are absolute.
    PerfMap { pid: i32 },
    /// Memory without a file: no symbols.
    Anonymous,
}

/// The symbols of one module, ready for lookups from any thread.
#[derive(Debug)]
pub struct ModuleSymbols {
    table: SymbolTable,
    notes: Vec<Note>,
    source: Option<PathBuf>,
    lines: Lines,
}

impl ModuleSymbols {
    fn new(loaded: Loaded, demangle: bool) -> ModuleSymbols {
        let source = loaded.symbols.as_ref().map(|elf| elf.path.clone());
        ModuleSymbols {
            table: loaded.table,
            notes: loaded.notes,
            source,
            lines: Lines::new(loaded.symbols, loaded.runtime, loaded.delta, demangle),
        }
    }

    /// The symbol that covers `address` (in the module's address space, see the module's documentation).
    pub fn find(&self, address: u64) -> Option<SymbolRef<'_>> {
        self.table.find(address)
    }

    /// All symbols.
    pub fn table(&self) -> &SymbolTable {
        &self.table
    }

    /// What the user should know: why there are no symbols, which file was refused.
    pub fn notes(&self) -> Vec<Note> {
        let refused = self.lines.refusals().into_iter().map(Note);
        self.notes.iter().cloned().chain(refused).collect()
    }

    /// The file that the symbols come from.
    pub fn source(&self) -> Option<&Path> {
        self.source.as_deref()
    }

    /// The functions that `address` belongs to, innermost first and the function of the symbol table last, with
    /// the source line in each. Empty without debug information. The first call reads the debug information.
    ///
    /// For the caller's frames of a stack give the return address minus one: the call, not what follows it.
    pub fn inline_frames(&self, address: u64) -> Arc<[InlineFrame]> {
        self.lines.frames(address)
    }
}

type Slot = Arc<OnceLock<Arc<ModuleSymbols>>>;
type ListSlot = Arc<OnceLock<Result<Kallsyms, Note>>>;

/// Every module's symbols, each loaded once.
#[derive(Debug, Default)]
pub struct SymbolStore {
    options: SymbolOptions,
    slots: Mutex<HashMap<ModuleKey, Slot>>,
    /// The kernel's symbol list, which serves the kernel and all its modules; by the file that it was read from.
    kallsyms: Mutex<HashMap<PathBuf, ListSlot>>,
}

impl SymbolStore {
    /// An empty store; nothing is opened before the first [`get`](SymbolStore::get).
    pub fn new(options: SymbolOptions) -> SymbolStore {
        SymbolStore { options, ..SymbolStore::default() }
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
        Arc::clone(slot.get_or_init(|| Arc::new(ModuleSymbols::new(self.load(key), self.options.demangle))))
    }

    /// Loads several modules on all threads of the pool.
    pub fn load_all(&self, keys: &[ModuleKey]) {
        crate::pool::map(keys, |key| _ = self.get(key));
    }

    fn load(&self, key: &ModuleKey) -> Loaded {
        match key {
            ModuleKey::Elf { path, build_id } => user::load(&self.options, path, build_id.as_deref()),
            ModuleKey::Kernel { build_id, reference } => {
                if let Some(loaded) =
                    kernel::load_vmlinux(&self.options, build_id.as_deref(), reference.as_ref())
                {
                    return loaded;
                }
                self.of_symbol_list(build_id, |list| Ok(kernel::table_of(list, reference.as_ref())))
            }
            ModuleKey::KernelModule { name, build_id } => self.of_symbol_list(build_id, |list| {
                list.modules.get(name.as_str()).cloned().ok_or_else(|| {
                    Note(format!(
                        "the kernel module {name} is not loaded any more: its addresses have no names"
                    ))
                })
            }),
            ModuleKey::Vdso { build_id } => vdso::load(&self.options, build_id.as_deref()),
            ModuleKey::PerfMap { pid } => perf_map::load(&self.options, *pid),
            ModuleKey::Anonymous => Loaded::default(),
        }
    }

    fn of_symbol_list(
        &self,
        build_id: &Option<Vec<u8>>,
        pick: impl FnOnce(&Kallsyms) -> Result<SymbolTable, Note>,
    ) -> Loaded {
        let path = match kernel::find_kallsyms(&self.options, build_id.as_deref()) {
            Ok(path) => path,
            Err(note) => return note.into(),
        };
        let slot = {
            let mut lists = self.kallsyms.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            Arc::clone(lists.entry(path.clone()).or_default())
        };
        let list = slot.get_or_init(|| kernel::load_kallsyms(&self.options, &path));
        match list.as_ref().map_err(Note::clone).and_then(pick) {
            Ok(table) => Loaded { table, ..Loaded::default() },
            Err(note) => note.into(),
        }
    }
}
