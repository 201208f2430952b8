//! The symbols of one module: from its files, or from what the symbol cache has of earlier runs.

use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hashbrown::HashSet;

use super::budget::Charge;
use super::cache::{Answers, Identity, SymbolCache};
use super::demangle;
use super::elf::ElfFile;
use super::file_state::FileState;
use super::inline::{InlineFrame, Lines};
use super::locate;
use super::name::shortened;
use super::options::{Note, SymbolOptions};
use super::table::{SymbolRef, SymbolTable};
use super::user::{self, Absence, Loaded, ModuleFiles};

/// Functions with a fitting name that are looked at.
const MOST_ALIASES: usize = 1 << 16;

/// The symbols of one module, ready for lookups from any thread.
#[derive(Debug)]
pub struct ModuleSymbols {
    loaded: OnceLock<LoadedModule>,
    cached: Option<CachedModule>,
}

/// What the files of a module gave.
#[derive(Debug)]
struct LoadedModule {
    table: SymbolTable,
    notes: Vec<Note>,
    source: Option<PathBuf>,
    lines: Lines,
    is_complete: bool,
    absence: Option<Absence>,
}

/// A module that the cache may have answers of.
#[derive(Debug)]
struct CachedModule {
    options: SymbolOptions,
    files: ModuleFiles,
    identity: Identity,
    answers: Option<(Answers, Charge)>,
    asked: AskedAddresses,
}

/// Addresses whose symbols were asked for and are not in the cache. Threads seldom meet there.
#[derive(Debug, Default)]
struct AskedAddresses {
    shards: [Mutex<HashSet<u64>>; 16],
    hasher: foldhash::fast::FixedState,
}

impl AskedAddresses {
    /// Addresses of one shard: more than any recording asks.
    const MOST: usize = 1 << 18;

    fn insert(&self, address: u64) {
        let shard = self.hasher.hash_one(address) as usize % self.shards.len();
        let mut shard = self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if shard.len() < AskedAddresses::MOST {
            shard.insert(address);
        }
    }

    fn all(&self) -> Vec<u64> {
        let shard = |shard: &Mutex<HashSet<u64>>| -> Vec<u64> {
            shard.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
        };
        self.shards.iter().flat_map(shard).collect()
    }
}

impl LoadedModule {
    fn new(loaded: Loaded, options: &SymbolOptions) -> LoadedModule {
        let source = loaded.symbols.as_ref().map(|elf| elf.path.clone());
        LoadedModule {
            table: loaded.table,
            notes: loaded.notes,
            source,
            lines: Lines::new(loaded.symbols, loaded.runtime, loaded.delta, options),
            is_complete: loaded.is_complete,
            absence: loaded.absence,
        }
    }

    fn notes(&self) -> Vec<Note> {
        let refused = self.lines.refusals().into_iter().map(Note);
        self.notes.iter().cloned().chain(refused).collect()
    }
}

impl ModuleSymbols {
    pub(super) fn new(loaded: Loaded, options: &SymbolOptions) -> ModuleSymbols {
        let loaded = OnceLock::from(LoadedModule::new(loaded, options));
        ModuleSymbols { loaded, cached: None }
    }

    /// A file that a process mapped. With answers of earlier runs its files are read only when an
    /// address was not asked before.
    pub(super) fn of_file(
        options: &SymbolOptions,
        (path, mapped): (&Path, FileState),
        build_id: Option<&[u8]>,
    ) -> ModuleSymbols {
        let files = match ModuleFiles::of(options, (path, mapped), build_id) {
            Ok(files) => files,
            Err(refusal) => return ModuleSymbols::new(refusal.into(), options),
        };
        let own = locate::below_root(options, path);
        let cache = options.cache.as_ref();
        let identity = Identity::of(options, files.build_id.as_deref(), &files.candidates, &own);
        // A descriptor's path means nothing to a later process.
        let identity = identity.filter(|_| files.held.is_none());
        let (Some(cache), Some(identity)) = (cache, identity) else {
            return ModuleSymbols::new(user::load(options, &files), options);
        };
        let answers = cache.read(&identity, &options.budget);
        let has_answers = answers.is_some();
        let asked = AskedAddresses::default();
        let cached = CachedModule { options: options.clone(), files, identity, answers, asked };
        let symbols = ModuleSymbols { loaded: OnceLock::new(), cached: Some(cached) };
        if !has_answers {
            symbols.loaded();
        }
        symbols
    }

    fn loaded(&self) -> &LoadedModule {
        self.loaded.get_or_init(|| match &self.cached {
            Some(CachedModule { options, files, .. }) => {
                LoadedModule::new(user::load(options, files), options)
            }
            None => LoadedModule::new(Loaded::default(), &SymbolOptions::default()),
        })
    }

    fn answers(&self) -> Option<&Answers> {
        Some(&self.cached.as_ref()?.answers.as_ref()?.0)
    }

    /// The symbol that covers `address` (in the module's address space, see the module's
    /// documentation).
    pub fn find(&self, address: u64) -> Option<SymbolRef<'_>> {
        if let Some(known) = self.answers().and_then(|answers| answers.symbol(address)) {
            return known;
        }
        if let Some(cached) = &self.cached {
            cached.asked.insert(address);
        }
        self.loaded().table.find(address)
    }

    /// All symbols.
    pub fn table(&self) -> &SymbolTable {
        &self.loaded().table
    }

    /// What the user should know: why there are no symbols, which file was refused.
    pub fn notes(&self) -> Vec<Note> {
        // Modules with notes are not cached.
        self.loaded.get().map_or_else(Vec::new, LoadedModule::notes)
    }

    /// Why there are no names, as far as files were read.
    pub fn absence(&self) -> Option<Absence> {
        self.loaded.get()?.absence
    }

    /// The file that the symbols come from.
    pub fn source(&self) -> Option<&Path> {
        self.loaded().source.as_deref()
    }

    /// Where functions are that have a fitting name among all names of their address, and that
    /// name. [`find`](ModuleSymbols::find) knows one name of each address; this reads the files.
    pub fn addresses_of(&self, fits: impl Fn(&str) -> bool) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        self.loaded().lines.each_function(&mut |address, name| {
            let name = shortened(name);
            let shown = demangle::readable(&name);
            let fitting = [&*name, &*shown].into_iter().find(|name| fits(name));
            if let Some(name) = fitting.filter(|_| found.len() < MOST_ALIASES) {
                found.push((address, name.to_owned()));
            }
        });
        found
    }

    /// The file whose code was mapped, if there is one, and where it was loaded relative to where
    /// it was linked.
    pub(super) fn image(&self) -> Option<(&Arc<ElfFile>, u64)> {
        self.loaded().lines.image()
    }

    /// The functions that `address` belongs to, innermost first and the function of the symbol
    /// table last, with the source line in each. Empty without debug information. The first call
    /// reads the debug information.
    ///
    /// For the caller's frames of a stack give the return address minus one: the call, not what
    /// follows it.
    pub fn inline_frames(&self, address: u64) -> Arc<[InlineFrame]> {
        match self.answers().and_then(|answers| answers.frames(address)) {
            Some(known) => known,
            None => self.loaded().lines.frames(address),
        }
    }

    /// Whether the files of a module that can be in the cache were read.
    pub(super) fn was_resolved(&self) -> bool {
        self.cached.is_some() && self.loaded.get().is_some()
    }

    /// Keeps what was answered; whether there was anything to keep.
    pub(super) fn keep(&self, cache: &SymbolCache) -> bool {
        let (Some(cached), Some(loaded)) = (&self.cached, self.loaded.get()) else { return false };
        let asked = cached.asked.all();
        // Files that were split off are no part of the identity.
        let is_whole = loaded.is_complete && loaded.notes().is_empty() && !loaded.lines.has_split_units();
        if !is_whole || (asked.is_empty() && !loaded.lines.has_answered()) || !cached.identity.holds() {
            return false;
        }
        cache.write(&cached.identity, loaded.lines.shared_file().as_ref(), |builder| {
            if loaded.lines.has_no_debug_information() {
                builder.no_lines();
            }
            asked.iter().for_each(|&address| builder.symbol(address, loaded.table.find(address)));
            loaded.lines.each_answer(|address, frames| builder.frames(address, frames));
        });
        true
    }
}
