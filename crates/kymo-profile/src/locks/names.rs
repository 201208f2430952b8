//! Names of locks: the variable and field that an address is in.
use crate::resolve::{KernelIdentity, module_key};
use crate::timeline::{ModuleId, ModuleKind, Timeline};
use kymo_symbols::SymbolStore;
use kymo_symbols::place::{DataAt, ModuleFile, data_at};
use rustc_hash::FxHashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// So much memory behind the last mapping of a module is looked at.
const MOST_DISTANCE: u64 = 1 << 32;

/// Finds variables by address; files are opened once.
pub(crate) struct Names<'a> {
    timeline: &'a Timeline,
    store: &'a SymbolStore,
    files: FxHashMap<ModuleId, Option<ModuleFile>>,
}

impl<'a> Names<'a> {
    pub(crate) fn new(timeline: &'a Timeline, store: &'a SymbolStore) -> Names<'a> {
        Names { timeline, store, files: FxHashMap::default() }
    }

    /// The variable at an address of this version of an address space, and the file that has it.
    pub(crate) fn of(&mut self, maps: u32, address: u64) -> Option<(DataAt, String)> {
        let timeline = self.timeline;
        let code = timeline.maps(maps).iter(&timeline.mappings).filter(|mapping| {
            let is_file = timeline.modules.get(mapping.module).kind == ModuleKind::File;
            is_file
                && mapping.executable
                && !mapping.identity
                && address.abs_diff(mapping.start) < MOST_DISTANCE
        });
        for mapping in code {
            let module = mapping.module;
            let Some(file) = self.file(module) else { continue };
            let bias = file.bias_of_code(mapping.start, mapping.pgoff);
            let Some(svma) = bias.map(|bias| address.wrapping_sub(bias)) else { continue };
            if file.has_address(svma) {
                let found = data_at(file, svma, &is_lock_type)?;
                return Some((found, timeline.modules.get(module).short_name.clone()));
            }
        }
        None
    }

    /// The module's file, if it is the one that was recorded.
    fn file(&mut self, id: ModuleId) -> Option<&ModuleFile> {
        let module = self.timeline.modules.get(id);
        let options = self.store.options();
        let open = || {
            let name = Path::new(OsStr::from_bytes(&module.path));
            let readable: PathBuf = match &options.symfs {
                Some(root) => root.join(name.strip_prefix("/").unwrap_or(name)),
                None => name.to_owned(),
            };
            let key = module_key(module, &KernelIdentity::default(), self.timeline.recorded_until);
            if self.store.file_refusal(&key).is_some() {
                return None;
            }
            let file = ModuleFile::open(&readable, name, options).ok()?;
            let is_same = module.build_id.is_empty()
                || file.build_id().is_some_and(|id| module.build_id.starts_with(id));
            is_same.then_some(file)
        };
        self.files.entry(id).or_insert_with(open).as_ref()
    }
}

/// Whether a type is a lock as programs know it, whose own fields are no news.
fn is_lock_type(spelled: &str) -> bool {
    let plain = spelled.split('<').next().unwrap_or(spelled);
    let last = plain.rsplit("::").next().unwrap_or(plain).to_ascii_lowercase();
    ["mutex", "rwlock", "spinlock", "pthread_cond", "once", "sem_t"].iter().any(|word| last.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that locks of C, C++ and Rust are known by their types, and what is around them not.
    #[test]
    fn types_of_locks() {
        for lock in
            ["pthread_mutex_t", "std::mutex", "std::sync::poison::mutex::Mutex<Vec<u8>>", "RwLock<i32>"]
        {
            assert!(is_lock_type(lock), "{lock}");
        }
        for other in ["struct table", "Vec<std::sync::Mutex<u8>>", "int", ""] {
            assert!(!is_lock_type(other), "{other}");
        }
    }
}
