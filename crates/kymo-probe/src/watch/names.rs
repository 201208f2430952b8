//! Names for instructions of processes that run, or ran: function, file and line.
use crate::modules::{CodeMapping, mapped_code};
use kymo_files::open_regular;
use kymo_perf::proc::ProcessMemory;
use kymo_perf::watch::TRAPS_BEFORE_ACCESS;
use kymo_symbols::place::accessing_instruction;
use kymo_symbols::{ModuleKey, SymbolStore};
use rustc_hash::FxHashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// So much of a function is read to find the instruction before a place in it.
const MOST_CODE_BYTES: u64 = 1 << 20;
/// An instruction's length at most.
const INSTRUCTION_BYTES: u64 = 16;
/// A process's mappings are read again for an address that is in none, so often at most.
const REREADS: u32 = 16;

/// Where an instruction is in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The function as compiled in, innermost.
    pub function: Option<String>,
    /// How far behind the start of the symbol it is.
    pub offset: u64,
    /// The source file.
    pub file: Option<String>,
    /// The line in it, from 1.
    pub line: Option<u32>,
    /// The file that the code is from.
    pub module: Option<String>,
    /// The instruction.
    pub address: u64,
    /// Whether it is the instruction that made the access; otherwise the one behind it.
    pub exact: bool,
}

#[derive(Debug, Default)]
struct Space {
    maps: Arc<Vec<CodeMapping>>,
    reads: u32,
}

/// Looks names up and remembers them.
#[derive(Default)]
pub struct Names {
    store: SymbolStore,
    spaces: FxHashMap<i32, Space>,
    parents: FxHashMap<i32, i32>,
    sites: FxHashMap<(i32, u64, bool), Arc<Site>>,
    callers: FxHashMap<(i32, u64), Arc<Site>>,
}

impl Names {
    /// A process was made: until it executes something, its memory is as its maker's.
    pub fn child(&mut self, pid: i32, parent: i32) {
        self.parents.insert(pid, parent);
        self.spaces.remove(&pid);
    }

    /// Reads a process's mappings now, because it may end.
    pub fn look(&mut self, pid: i32) {
        let space = self.spaces.entry(pid).or_default();
        space.reads += 1;
        let mut maps = mapped_code(pid);
        maps.retain(|map| map.path.has_root());
        if !maps.is_empty() {
            space.maps = Arc::new(maps);
        }
    }

    /// The instruction that made an access, from where its thread went on. `code`: the access was the execution of the instruction itself.
    pub fn access(&mut self, pid: i32, ip: u64, code: bool) -> Arc<Site> {
        if let Some(known) = self.sites.get(&(pid, ip, code)) {
            return Arc::clone(known);
        }
        let exact = if code || TRAPS_BEFORE_ACCESS { Some(ip) } else { self.before(pid, ip) };
        // Where the instruction is not found, its last byte is the one before.
        let mut site = self.find(pid, exact.unwrap_or(ip.wrapping_sub(u64::from(!code))));
        site.exact = exact.is_some();
        if exact.is_none() {
            site.address = ip;
            site.offset = site.offset.wrapping_add(1);
        }
        let site = Arc::new(site);
        self.sites.insert((pid, ip, code), Arc::clone(&site));
        site
    }

    /// The call from which a function returns to `ip`.
    pub fn caller(&mut self, pid: i32, ip: u64) -> Arc<Site> {
        if let Some(known) = self.callers.get(&(pid, ip)) {
            return Arc::clone(known);
        }
        let mut site = self.find(pid, ip.wrapping_sub(1));
        (site.address, site.offset) = (ip, site.offset.wrapping_add(1));
        let site = Arc::new(site);
        self.callers.insert((pid, ip), Arc::clone(&site));
        site
    }

    fn mapped(&mut self, pid: i32, ip: u64) -> Option<CodeMapping> {
        let covers = |maps: &[CodeMapping]| maps.iter().find(|map| map.covers(ip)).cloned();
        let mut process = pid;
        // From a process that is gone to the ones that made it.
        for _ in 0..16 {
            let known = self.spaces.entry(process).or_default();
            if let Some(found) = covers(&known.maps) {
                return Some(found);
            }
            if known.reads < REREADS {
                self.look(process);
                if let Some(found) = self.spaces.get(&process).and_then(|space| covers(&space.maps)) {
                    return Some(found);
                }
            }
            process = *self.parents.get(&process)?;
        }
        None
    }

    fn find(&mut self, pid: i32, address: u64) -> Site {
        let mut site = Site { address, ..Site::default() };
        let Some(mapped) = self.mapped(pid, address) else { return site };
        site.module = Some(mapped.path.display().to_string());
        let symbols = self.store.get(&ModuleKey::file(mapped.path.clone(), None));
        let at = address - mapped.start + mapped.offset;
        if let Some(symbol) = symbols.find(at) {
            site.function = Some(symbol.name.to_owned());
            site.offset = at - symbol.start;
        }
        if let Some(frame) = symbols.inline_frames(at).first() {
            if let Some(function) = &frame.function {
                site.function = Some(function.to_string());
            }
            site.file = frame.file.as_deref().map(str::to_owned);
            site.line = frame.line;
        }
        site
    }

    /// The start of the instruction that ends at `ip`.
    fn before(&mut self, pid: i32, ip: u64) -> Option<u64> {
        let mapped = self.mapped(pid, ip.wrapping_sub(1))?;
        let symbols = self.store.get(&ModuleKey::file(mapped.path.clone(), None));
        let at = ip - mapped.start + mapped.offset;
        let start = symbols.find(at - 1)?.start;
        let bytes = (at + INSTRUCTION_BYTES).checked_sub(start).filter(|&bytes| bytes <= MOST_CODE_BYTES)?;
        let mut code = vec![0; bytes as usize];
        let avma = (start + mapped.start).checked_sub(mapped.offset)?;
        let live = ProcessMemory::open(pid).ok().and_then(|memory| memory.read(avma, &mut code).ok());
        live.or_else(|| open_regular(&mapped.path).ok()?.read_exact_at(&mut code, start).ok())?;
        accessing_instruction(&code, avma, ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn here() -> u64 {
        std::hint::black_box(here as *const () as usize as u64)
    }

    /// Checks that a function of this program is found with its file, also under the id of a child that is gone, and that an address that
    /// is nowhere has no name.
    #[test]
    fn own_functions() {
        let mut names = Names::default();
        let pid = std::process::id() as i32;
        let site = names.access(pid, here() + 4, false);
        assert!(site.function.as_deref().is_some_and(|name| name.ends_with("here")), "{site:?}");
        assert!(site.file.as_deref().is_some_and(|file| file.ends_with("names.rs")), "{site:?}");
        names.child(i32::MAX, pid);
        assert_eq!(names.access(i32::MAX, here() + 4, false).function, site.function);
        assert_eq!(names.access(pid, 0x10, false).function, None);
    }
}
