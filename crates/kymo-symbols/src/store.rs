//! The store: every module's symbols, loaded on first use and shared by all threads.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use hashbrown::HashMap;

use super::file_state::FileState;
use super::kallsyms::Kallsyms;
use super::kernel;
use super::locate;
use super::module_symbols::ModuleSymbols;
use super::options::{Note, SymbolOptions};
use super::table::SymbolTable;
use super::user::Loaded;
use super::{perf_map, vdso};

/// Which module an address belongs to, as the recording knows it; `build_id`: what it stored, if
/// anything. For kernel modules that is the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub enum ModuleKey {
    /// A file mapped by a process, by the path of the mapping record. Addresses are file offsets.
    Elf {
        path: PathBuf,
        build_id: Option<Vec<u8>>,
        /// Where there is no build id: what else tells whether the file here is the one that was
        /// mapped.
        mapped: FileState,
    },
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

impl ModuleKey {
    /// A file of which nothing is known but its path and perhaps its build id.
    pub fn file(path: PathBuf, build_id: Option<Vec<u8>>) -> ModuleKey {
        ModuleKey::Elf { path, build_id, mapped: FileState::default() }
    }

    /// The build id, if the recording has one.
    pub fn build_id(&self) -> Option<&[u8]> {
        match self {
            ModuleKey::Elf { build_id, .. }
            | ModuleKey::Kernel { build_id, .. }
            | ModuleKey::KernelModule { build_id, .. }
            | ModuleKey::Vdso { build_id } => build_id.as_deref(),
            ModuleKey::PerfMap { .. } | ModuleKey::Anonymous => None,
        }
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
        SymbolStore { options, slots: Mutex::default(), kallsyms: Mutex::default() }
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
        Arc::clone(slot.get_or_init(|| Arc::new(self.module(key))))
    }

    /// Why the file at a module's path is not taken for the one that was mapped, before it is
    /// opened. Nothing where a recorded build id decides that.
    pub fn file_refusal(&self, key: &ModuleKey) -> Option<Note> {
        match key {
            ModuleKey::Elf { path, build_id: None, mapped } => {
                if self.options.held_file(path, None, *mapped).is_some() {
                    return None;
                }
                self.options.file_refusal(&locate::below_root(&self.options, path), *mapped)
            }
            _ => None,
        }
    }

    /// Forgets modules that are not to be kept: the next question reads them anew. For stores that
    /// live while programs come, change and go.
    pub fn retain(&self, mut keeps: impl FnMut(&ModuleKey) -> bool) {
        let mut slots = self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        slots.retain(|key, _| keeps(key));
    }

    /// Loads several modules on all threads of the pool.
    pub fn load_all(&self, keys: &[ModuleKey]) {
        crate::pool::map(keys, |key| _ = self.get(key));
    }

    /// Reads the symbol list that a kernel's names will come from, where no image has them: sooner
    /// than the first question, and beside other work. `build_id`: of the kernel, if it is known.
    pub fn prepare_symbol_list(&self, build_id: Option<Vec<u8>>) {
        if !kernel::has_image(&self.options, build_id.as_deref()) {
            // Why there is none is said to the first question.
            _ = self.with_symbol_list(&build_id, |_, _| Ok(()));
        }
    }

    /// How many modules were read from their files, though a cache can have their answers.
    pub fn modules_resolved(&self) -> usize {
        self.modules().iter().filter(|module| module.was_resolved()).count()
    }

    /// The modules that were asked for.
    fn modules(&self) -> Vec<Arc<ModuleSymbols>> {
        let slots = self.slots.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        slots.values().filter_map(|slot| slot.get().cloned()).collect()
    }

    fn module(&self, key: &ModuleKey) -> ModuleSymbols {
        let options = &self.options;
        match key {
            ModuleKey::Elf { path, build_id, mapped } if !options.without_files => {
                ModuleSymbols::of_file(options, (path, *mapped), build_id.as_deref())
            }
            other => ModuleSymbols::new(self.load(other), options),
        }
    }

    fn load(&self, key: &ModuleKey) -> Loaded {
        match key {
            ModuleKey::Elf { .. } => Loaded::default(),
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
        match self.with_symbol_list(build_id, |_, list| pick(list)) {
            Ok(table) => Loaded { table, ..Loaded::default() },
            Err(note) => note.into(),
        }
    }

    /// Asks the symbol list of a kernel, and where that lies.
    fn with_symbol_list<T>(
        &self,
        build_id: &Option<Vec<u8>>,
        pick: impl FnOnce(&Path, &Kallsyms) -> Result<T, Note>,
    ) -> Result<T, Note> {
        let path = kernel::find_kallsyms(&self.options, build_id.as_deref())?;
        let slot = {
            let mut lists = self.kallsyms.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            Arc::clone(lists.entry(path.clone()).or_default())
        };
        let list = slot.get_or_init(|| kernel::load_kallsyms(&self.options, &path));
        list.as_ref().map_err(Note::clone).and_then(|list| pick(&path, list))
    }

    /// How much further up the running kernel lay when it was recorded. An error where the recorded
    /// kernel is another one.
    pub(crate) fn kernel_moved_by(
        &self,
        build_id: &Option<Vec<u8>>,
        reference: Option<&(String, u64)>,
    ) -> Result<u64, Note> {
        self.with_symbol_list(build_id, |path, list| match kernel::is_running(path) {
            true => Ok(kernel::moved_by(list, reference)),
            false => Err(Note(
                "the recorded kernel is not the running one: give its image with --vmlinux to see its code"
                    .into(),
            )),
        })
    }
}

impl Drop for SymbolStore {
    /// What was resolved is kept in the cache.
    fn drop(&mut self) {
        let Some(cache) = self.options.cache.as_ref().filter(|_| !std::thread::panicking()) else { return };
        let resolved: Vec<_> = self.modules().into_iter().filter(|module| module.was_resolved()).collect();
        if crate::pool::map(&resolved, |module| module.keep(cache)).contains(&true) {
            cache.make_room();
        }
    }
}
