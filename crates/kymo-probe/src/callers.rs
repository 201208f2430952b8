//! Names for the addresses of callers, while their processes live and after.
use crate::modules::{CodeMapping, mapped_code};
use kymo_symbols::sites::ProbeModule;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More processes than anyone looks at.
const MOST: usize = 1024;

/// Where which module was in which process, as last seen.
#[derive(Debug, Default)]
pub struct CallerNames {
    processes: BTreeMap<i32, Vec<CodeMapping>>,
    modules: HashMap<PathBuf, Option<Arc<ProbeModule>>>,
}

impl CallerNames {
    /// Knows these modules already.
    pub fn new(modules: &[Arc<ProbeModule>]) -> CallerNames {
        let known = modules.iter().map(|module| (module.path().to_owned(), Some(Arc::clone(module))));
        CallerNames { processes: BTreeMap::new(), modules: known.collect() }
    }

    /// Looks at a process again. One that has ended stays as it was last seen.
    pub fn look(&mut self, pid: i32) {
        if self.processes.len() >= MOST && !self.processes.contains_key(&pid) {
            return;
        }
        let found = mapped_code(pid);
        if !found.is_empty() {
            self.processes.insert(pid, found);
        }
    }

    /// The function that a return address lies in, with the distance into it, and its module. A process that was never seen is taken for a child of
    /// one that was, which has its modules where that has them.
    pub fn name(&mut self, pid: i32, address: u64) -> String {
        // The call, not what follows it.
        let call = address.wrapping_sub(1);
        let inside = |mapping: &&CodeMapping| mapping.covers(call);
        let own = self.processes.get(&pid).and_then(|list| list.iter().find(inside));
        let found = own.or_else(|| self.processes.values().find_map(|list| list.iter().find(inside)));
        let Some(CodeMapping { start, offset, path, .. }) = found.cloned() else {
            return format!("{address:#x}");
        };
        let at = call - start + offset;
        let last =
            path.file_name().map_or_else(|| "[code]".into(), |name| name.to_string_lossy().into_owned());
        let open = |path: &Path| ProbeModule::open(path, None).ok().map(Arc::new);
        let module = self.modules.entry(path.clone()).or_insert_with(|| open(&path));
        match module.as_ref().and_then(|module| module.function_at(at)) {
            Some(function) => format!("{}+{:#x} ({last})", function.name(), at + 1 - function.offset),
            None => format!("{last}+{:#x}", at + 1),
        }
    }
}
