//! From distinct raw stacks to functions: mappings, symbols, inlined functions.
use crate::chains::{ChainId, Chains};
use crate::functions::{FunctionId, Functions, Level};
use crate::raw_frames::{MODE_KERNEL, Place, is_user, walk_chain};
use crate::timeline::{Mapping, Module, ModuleId, ModuleKind, Timeline, is_memory_file};
use kymo_data::InterpretedFunction;
use kymo_symbols::pool;
use kymo_symbols::{Absence, CodeMap, FileState, InlineFrame, ModuleKey, ModuleSymbols, SymbolStore};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// What the kernel returns to from a signal handler: no call lies before these.
const SIGNAL_TRAMPOLINES: [&str; 6] = [
    "__restore_rt",
    "__restore",
    "__kernel_sigreturn",
    "__kernel_rt_sigreturn",
    "runtime.sigreturn",
    "runtime.sigreturn__sigaction",
];

/// Fewer chains than this are one thread's work.
const CHAINS_EACH: usize = 1 << 12;
/// Places that are asked for their names at once.
const PLACES_AT_ONCE: usize = 16 << 10;
/// Inlined frames of all stacks, or four times their words if that is more: real programs have
/// fewer. A file may tell of 256 at every address.
const MOST_INLINED: usize = 16 << 20;

/// How stacks become functions.
#[derive(Debug, Clone, Copy)]
pub struct ResolveOptions {
    /// Frames of functions that the compiler inlined are shown.
    pub inline: bool,
    /// Words of a call chain that are looked at; the rest is cut (`--max-stack`).
    pub max_stack: usize,
    /// The source lines of the sampled instructions are looked up.
    pub lines: bool,
}

impl Default for ResolveOptions {
    fn default() -> Self {
        ResolveOptions { inline: true, max_stack: 127, lines: false }
    }
}

/// The functions of every distinct raw stack.
#[derive(Debug, Default)]
pub struct Stacks {
    leaves: Vec<FunctionId>,
    frames: Vec<FunctionId>,
    /// Where each stack's frames end in `frames`.
    ends: Vec<u32>,
    /// The source line of each stack's sampled instruction, if they were asked for.
    lines: Vec<Arc<str>>,
}

impl Stacks {
    /// Leaf and frames of each stack, for tests.
    #[cfg(test)]
    pub(crate) fn of(list: Vec<(FunctionId, Vec<FunctionId>)>) -> Stacks {
        let mut stacks = Stacks::default();
        for (leaf, frames) in list {
            stacks.leaves.push(leaf);
            stacks.frames.extend(frames);
            stacks.ends.push(stacks.frames.len() as u32);
        }
        stacks
    }

    /// A stack without frames.
    pub(crate) fn push_empty(&mut self, leaf: FunctionId) -> ChainId {
        self.leaves.push(leaf);
        self.ends.push(self.frames.len() as u32);
        (self.leaves.len() - 1) as ChainId
    }

    /// How many stacks.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// No stack at all.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The function that the sampled instruction belongs to, by symbol.
    pub fn leaf(&self, id: ChainId) -> FunctionId {
        self.leaves[id as usize]
    }

    /// The frames of the call chain, innermost first, inlined functions as frames of their own.
    /// Empty where the sample has no call chain.
    pub fn frames(&self, id: ChainId) -> &[FunctionId] {
        let start = (id as usize).checked_sub(1).map_or(0, |i| self.ends[i]) as usize;
        &self.frames[start..self.ends[id as usize] as usize]
    }

    /// `file.c:12` of the sampled instruction; empty unless lines were asked for.
    pub fn line(&self, id: ChainId) -> &str {
        self.lines.get(id as usize).map_or("", |line| line)
    }

    /// Cuts each stack below its outermost function that `matches`, which becomes the sampled one.
    pub(crate) fn cut_below(&mut self, matches: impl Fn(FunctionId) -> bool) {
        let before = std::mem::take(&mut self.frames);
        let mut start = 0;
        for (leaf, end) in self.leaves.iter_mut().zip(&mut self.ends) {
            let stack = &before[start..*end as usize];
            start = *end as usize;
            let kept = stack.iter().rposition(|function| matches(*function)).unwrap_or(0);
            if kept > 0 {
                *leaf = stack[kept];
            }
            self.frames.extend(&stack[kept..]);
            *end = self.frames.len() as u32;
        }
    }
}

/// A source file with its folder, and a line in it, 0 if that is not known.
pub(crate) type SourcePlace = (Arc<str>, u32);

/// The whole address space of a mode whose mappings no recording has.
static UNMAPPED: [Mapping; 3] = {
    const fn all_of(module: ModuleId) -> Mapping {
        Mapping { start: 0, end: u64::MAX, pgoff: 0, module, identity: true, executable: true, pid: 0 }
    }
    [all_of(ModuleId::GUEST_KERNEL), all_of(ModuleId::GUEST_USER), all_of(ModuleId::HYPERVISOR)]
};

/// Places, each with a number.
#[derive(Default)]
struct PlaceTable {
    numbers: FxHashMap<Place, u32>,
    /// By number, and whether their inlined functions are wanted.
    all: Vec<(Place, bool)>,
}

impl PlaceTable {
    fn number(&mut self, place: Place, inline: bool) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(place).or_insert(next);
        match self.all.get_mut(number as usize) {
            Some(known) => known.1 |= inline,
            None => self.all.push((place, inline)),
        }
        number
    }
}

/// Some chains, with their frames as numbers of places.
struct Walked {
    places: PlaceTable,
    frames: Vec<u32>,
    /// Of each chain the place of its sampled instruction, and where its frames end.
    stacks: Vec<(u32, usize)>,
}

impl Walked {
    fn of(chains: &Chains, ids: &[ChainId], options: ResolveOptions) -> Walked {
        let mut walked = Walked {
            places: PlaceTable::default(),
            frames: Vec::new(),
            stacks: Vec::with_capacity(ids.len()),
        };
        for id in ids {
            let chain = chains.get(*id);
            walk_chain(chains, chain, options.max_stack, |place| {
                walked.frames.push(walked.places.number(place, options.inline));
            });
            // Inlined functions are needed for frames only: a leaf is counted under its symbol.
            let leaf = walked.places.number(Place::sampled(chain), false);
            walked.stacks.push((leaf, walked.frames.len()));
        }
        walked
    }
}

/// The functions of places, by number.
struct PlaceFunctions {
    /// The function as that of a sample, and where its frames are.
    of: Vec<(FunctionId, usize, usize)>,
    /// Frames of chains, innermost first; the last one of each place is the symbol.
    frames: Vec<FunctionId>,
}

impl PlaceFunctions {
    fn leaf(&self, number: u32) -> FunctionId {
        self.of[number as usize].0
    }

    fn frames(&self, number: u32) -> &[FunctionId] {
        let (_, start, end) = self.of[number as usize];
        &self.frames[start..end]
    }
}

/// Resolves addresses of one timeline through one symbol store.
#[derive(Debug)]
pub struct Resolver<'a> {
    timeline: &'a Timeline,
    store: &'a SymbolStore,
    keys: Vec<ModuleKey>,
}

/// What one address is: its mapping's module, and the symbol.
#[derive(Debug, Clone, Default)]
pub struct Named {
    /// The module, `None` outside every mapping.
    pub module: Option<ModuleId>,
    /// The address that was looked up: of a return address that of the call.
    pub address: u64,
    /// The same in the module's own terms.
    pub module_address: u64,
    /// Start, end and name.
    pub symbol: Option<(u64, u64, Box<str>)>,
    /// The line of the source file, for functions that an interpreter runs.
    pub line: Option<u32>,
    /// Names of the functions inlined at the address, innermost first, without the symbol itself.
    pub inlined: Vec<Arc<str>>,
    /// Of generated code: which of those that were in its place at different times.
    pub(crate) serial: Option<u32>,
}

impl<'a> Resolver<'a> {
    /// A resolver; nothing is loaded before the first question.
    pub fn new(timeline: &'a Timeline, store: &'a SymbolStore) -> Resolver<'a> {
        let kernel = KernelIdentity::of(timeline);
        let key = |module| module_key(module, &kernel, timeline.recorded_until);
        let keys = timeline.modules.iter().map(|(_, module)| key(module)).collect();
        Resolver { timeline, store, keys }
    }

    /// The mapping that covers an address.
    pub fn mapping(&self, maps: u32, mode: u8, ip: u64) -> Option<&'a Mapping> {
        let timeline = self.timeline;
        if let Some(module) = ModuleId::for_mode(mode) {
            return UNMAPPED.iter().find(|mapping| mapping.module == module);
        }
        if mode == MODE_KERNEL {
            timeline.kernel.find(&timeline.mappings, ip)
        } else {
            timeline.maps(maps).find(&timeline.mappings, ip)
        }
    }

    /// What the recording itself tells of a module's generated code.
    fn code_of(&self, module: ModuleId) -> Option<&'a CodeMap> {
        match self.timeline.modules.get(module).kind {
            ModuleKind::Jit { pid } => self.timeline.code.of(pid),
            _ => None,
        }
    }

    /// Whether the recording itself tells of a module's code.
    pub(crate) fn is_generated(&self, module: ModuleId) -> bool {
        self.code_of(module).is_some()
    }

    /// Whether a module's symbols are in files of its own.
    pub(crate) fn has_files(&self, module: ModuleId) -> bool {
        use ModuleKind::{File, Kernel, KernelModule, Vdso};
        matches!(self.timeline.modules.get(module).kind, File | Kernel | KernelModule | Vdso)
    }

    /// Where a module's symbols are asked for.
    pub(crate) fn key(&self, module: ModuleId) -> &ModuleKey {
        self.keys.get(module.0 as usize).unwrap_or(&ModuleKey::Anonymous)
    }

    /// The address in the terms of its module.
    pub(crate) fn module_address(&self, maps: u32, mode: u8, ip: u64) -> Option<u64> {
        Some(self.mapping(maps, mode, ip)?.module_address(ip))
    }

    /// The symbols of a module.
    pub fn symbols(&self, module: ModuleId) -> Arc<ModuleSymbols> {
        self.store.get(self.key(module))
    }

    /// Resolves all stacks; modules load and addresses resolve on all threads of the pool.
    pub fn resolve(&self, chains: &Chains, functions: &mut Functions, options: ResolveOptions) -> Stacks {
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
        let ids: Vec<ChainId> = (0..chains.len() as ChainId).collect();
        let pieces: Vec<&[ChainId]> = ids.chunks(ids.len().div_ceil(cpus).max(CHAINS_EACH)).collect();
        let walked = pool::map(&pieces, |ids| Walked::of(chains, ids, options));
        // Each piece numbers its places by itself; here they get common numbers.
        let mut places = PlaceTable::default();
        let common: Vec<Vec<u32>> = (walked.iter())
            .map(|piece| {
                piece.places.all.iter().map(|(place, inline)| places.number(*place, *inline)).collect()
            })
            .collect();
        let functions_of = self.functions_of(places, functions);

        let mut inlined_left = MOST_INLINED.max(4 * chains.words_total());
        let mut stacks = Stacks::default();
        for (piece, common) in walked.into_iter().zip(common) {
            let mut start = 0;
            for (leaf, end) in piece.stacks {
                stacks.leaves.push(functions_of.leaf(common[leaf as usize]));
                for number in &piece.frames[start..end] {
                    let frames = functions_of.frames(common[*number as usize]);
                    // The last one is the symbol; those before it are inlined.
                    let inlined = frames.len() - 1;
                    let kept = if inlined <= inlined_left { 0 } else { inlined };
                    inlined_left -= inlined - kept;
                    stacks.frames.extend(&frames[kept..]);
                }
                start = end;
                stacks.ends.push(stacks.frames.len() as u32);
            }
        }
        if options.lines {
            let places: Vec<Place> =
                (0..chains.len()).map(|id| Place::sampled(chains.get(id as ChainId))).collect();
            stacks.lines = pool::map(&places, |place| self.source_line(*place));
        }
        stacks
    }

    /// The functions of each place.
    fn functions_of(&self, places: PlaceTable, functions: &mut Functions) -> PlaceFunctions {
        // Neighbours go to one thread, so that no two threads parse the debug information of one
        // unit. Ids of functions must not depend on the order of the chains: places are asked in
        // their own order.
        let mut wanted: Vec<(Place, bool, u32)> =
            places.all.into_iter().enumerate().map(|(number, at)| (at.0, at.1, number as u32)).collect();
        pool::sort_by_key(&mut wanted, |place| place.0);
        self.preload(wanted.iter().map(|place| place.0));
        let mut all = PlaceFunctions { of: vec![(FunctionId(0), 0, 0); wanted.len()], frames: Vec::new() };
        // A name may be long, and every place of a function has it: few are held at once.
        for places in wanted.chunks(PLACES_AT_ONCE) {
            let found: Vec<Named> = pool::map(places, |&(place, inline, _)| self.named(place, inline));
            for (&(place, _, number), found) in places.iter().zip(found) {
                let start = all.frames.len();
                let leaf = name(functions, place, &found, &mut all.frames);
                all.of[number as usize] = (leaf, start, all.frames.len());
            }
        }
        all
    }

    /// What tables call a module.
    pub fn module_name(&self, module: ModuleId) -> &'a str {
        &self.timeline.modules.get(module).short_name
    }

    /// Whether this address space is one of the timeline's.
    pub(crate) fn has_space(&self, maps: u32) -> bool {
        (maps as usize) < self.timeline.version_count()
    }

    /// The source file with its folder, and the line, of an address; only debug information has
    /// them.
    pub fn file_and_line(&self, place: Place) -> Option<(Arc<str>, u32)> {
        let found = self.named(place, false);
        let frames = self.symbols(found.module?).inline_frames(found.module_address);
        let frame = frames.first()?;
        Some((frame.file.clone()?, frame.line?))
    }

    /// Source file and line of each frame that an address has in stacks, innermost first and that
    /// of the symbol last. Frames that are left out at the front have no line.
    pub(crate) fn source_places(&self, place: Place) -> Vec<Option<SourcePlace>> {
        let found = self.named(place, false);
        let Some(module) = found.module else { return Vec::new() };
        if let Some(line) = found.line {
            let path = String::from_utf8_lossy(&self.timeline.modules.get(module).path);
            return vec![Some((path.into(), line))];
        }
        if !self.has_files(module) {
            return Vec::new();
        }
        let frames = self.symbols(module).inline_frames(found.module_address);
        let (inlined, outermost) = shown_frames(&frames);
        inlined.into_iter().chain(outermost).map(source_place).collect()
    }

    /// `file.c:12` of an address; without debug information `function+offset`, without a symbol
    /// `module[address]`.
    pub fn source_line(&self, place: Place) -> Arc<str> {
        let found = self.named(place, false);
        let Some(module) = found.module else { return format!("{:#x}", place.ip).into() };
        if let Some(line) = found.line {
            return format!("{}:{line}", self.timeline.modules.get(module).short_name).into();
        }
        let symbols = self.symbols(module);
        if let Some(frame) = symbols.inline_frames(found.module_address).first()
            && let (Some(file), Some(line)) = (&frame.file, frame.line)
        {
            return format!("{}:{line}", file.rsplit('/').next().unwrap_or(file)).into();
        }
        let recorded = found.recorded_address(place);
        match found.symbol {
            Some((start, _, name)) => format!("{name}+{}", recorded.saturating_sub(start)).into(),
            None => {
                let module = &self.timeline.modules.get(module).short_name;
                format!("{module}[{recorded:x}]").into()
            }
        }
    }

    /// What the user should know about the symbols of these modules: sentences.
    pub fn notes(&self, modules: &[ModuleId]) -> Vec<String> {
        let mut notes: Vec<String> = (modules.iter())
            .filter_map(|&module| match self.timeline.modules.get(module).kind {
                ModuleKind::Jit { pid } => self.timeline.code.note(pid).map(str::to_owned),
                _ => None,
            })
            .collect();
        notes.extend(self.with_files(modules).flat_map(|m| self.symbols(m).notes()).map(|n| n.0));
        // One sentence may hold for many modules.
        let mut seen = FxHashSet::default();
        notes.retain(|note| seen.insert(note.clone()));
        notes
    }

    /// Those modules whose names are in files.
    fn with_files(&self, modules: &[ModuleId]) -> impl Iterator<Item = ModuleId> {
        modules.iter().copied().filter(|&module| self.code_of(module).is_none())
    }

    /// Loads every module that is about to be asked, in parallel.
    fn preload(&self, places: impl Iterator<Item = Place>) {
        let mut modules = FxHashSet::default();
        for Place { maps, mode, ip, is_return } in places {
            if let Some(mapping) = self.mapping(maps, mode, ip.wrapping_sub(u64::from(is_return))) {
                modules.insert(mapping.module);
            }
        }
        let modules: Vec<ModuleId> = modules.into_iter().collect();
        let keys: Vec<ModuleKey> = self.with_files(&modules).map(|m| self.key(m).clone()).collect();
        self.store.load_all(&keys);
    }

    /// What an address is called; `inline` asks for inlined functions, which takes debug
    /// information. Of a return address the call counts, if there is one.
    pub fn named(&self, place: Place, inline: bool) -> Named {
        // Lines of interpreted functions are those of their addresses.
        let is_script = is_user(place.mode) && InterpretedFunction::holds(place.ip);
        if !place.is_return || is_script {
            return self.find(place, place.ip, inline);
        }
        let call = self.find(place, place.ip.wrapping_sub(1), inline);
        // Also where a call is the last instruction of its function: it does not return.
        if call.symbol.as_ref().is_some_and(|(_, end, _)| call.recorded_address(place) < *end) {
            return call;
        }
        let next = self.find(place, place.ip, inline);
        let is_start = next.symbol.as_ref().is_some_and(|(start, ..)| *start == next.module_address);
        let is_elsewhere = next.module != call.module;
        if (is_start || is_elsewhere) && !self.store.options().entry_names {
            return next;
        }
        if is_entered_by_return(&call, &next, !is_user(place.mode)) { next } else { call }
    }

    /// What is at an address of the place's address space.
    fn find(&self, Place { maps, mode, .. }: Place, ip: u64, inline: bool) -> Named {
        if is_user(mode)
            && let Some((function, module_address, line)) = self.timeline.scripts.find(ip)
        {
            let symbol = Some((function.start, function.end, function.name.as_ref().into()));
            let module = Some(function.module);
            return Named { module, address: ip, module_address, symbol, line, ..Named::default() };
        }
        let Some(mapping) = self.mapping(maps, mode, ip) else {
            return Named { address: ip, module_address: ip, ..Named::default() };
        };
        let module_address = mapping.module_address(ip);
        let module = Some(mapping.module);
        let mut found = Named { module, address: ip, module_address, ..Named::default() };
        let module = self.timeline.modules.get(mapping.module);
        if module.kind == ModuleKind::Ksymbol {
            // Code that came at run time has exactly one symbol: itself.
            let name = String::from_utf8_lossy(&module.path).into_owned();
            found.symbol = Some((mapping.start, mapping.end, name.into()));
            return found;
        }
        if let Some(code) = self.code_of(mapping.module) {
            let time_ns = self.timeline.version_from(maps).time_ns;
            if let Some(code) = code.find(module_address, time_ns) {
                found.symbol = Some((code.start, code.end, code.name.into()));
                found.serial = Some(code.serial);
            }
            return found;
        }
        if self.find_by_process(&mut found, mapping, maps, ip) {
            return found;
        }
        let symbols = self.symbols(mapping.module);
        if let Some(symbol) = symbols.find(module_address) {
            found.symbol = Some((symbol.start, symbol.end, symbol.name.into()));
            if inline {
                found.inlined = inlined_names(&symbols, module_address);
            }
        }
        found
    }
}

impl Named {
    /// The address as it was recorded, in the module's own terms.
    pub fn recorded_address(&self, place: Place) -> u64 {
        self.module_address.wrapping_add(place.ip.wrapping_sub(self.address))
    }
}

/// Whether code was entered by a return, so that what lies before it is no call. `call`, `next`:
/// what lies before a return address and at it, in different symbols.
fn is_entered_by_return(call: &Named, next: &Named, in_kernel: bool) -> bool {
    let begins = |(start, _, name): &(u64, u64, Box<str>)| {
        // An interrupt can come at the first instruction of a function of the kernel.
        *start == next.module_address && (in_kernel || SIGNAL_TRAMPOLINES.contains(&&**name))
    };
    next.symbol.as_ref().is_some_and(begins) || (call.module.is_none() && next.module.is_some())
}

impl Resolver<'_> {
    /// Names code of a file without a build id by what its process tells. A compiler may have made
    /// it in a memfd, or the recorder kept the names of a file that its path did not lead to. The
    /// file that lies at the path now may be another one.
    fn find_by_process(&self, found: &mut Named, mapping: &Mapping, maps: u32, ip: u64) -> bool {
        let module = self.timeline.modules.get(mapping.module);
        if module.kind != ModuleKind::File || !module.build_id.is_empty() || mapping.pid <= 0 {
            return false;
        }
        let in_file = |(start, end)| (mapping.module_address(start), mapping.module_address(end));
        if let Some(code) = self.timeline.code.of(mapping.pid) {
            if let Some(code) = code.find(ip, self.timeline.version_from(maps).time_ns) {
                let (start, end) = in_file((code.start, code.end));
                found.symbol = Some((start, end, code.name.into()));
                found.serial = Some(code.serial);
            }
        } else if is_memory_file(&module.path) {
            let symbols = self.store.get(&ModuleKey::PerfMap { pid: mapping.pid });
            if let Some(symbol) = symbols.find(ip) {
                let (start, end) = in_file((symbol.start, symbol.end));
                found.symbol = Some((start, end, symbol.name.into()));
            }
        }
        found.symbol.is_some()
    }

    /// Those of these modules that have no names, and why.
    pub(crate) fn absences(&self, modules: &[ModuleId]) -> Vec<(ModuleId, Absence)> {
        let files = modules.iter().filter(|id| self.timeline.modules.get(**id).kind == ModuleKind::File);
        files.filter_map(|&module| Some((module, self.symbols(module).absence()?))).collect()
    }
}

/// The functions inlined at an address, innermost first.
fn inlined_names(symbols: &ModuleSymbols, address: u64) -> Vec<Arc<str>> {
    let frames = symbols.inline_frames(address);
    let (inlined, _) = shown_frames(&frames);
    inlined.into_iter().filter_map(|frame| frame.function.clone()).collect()
}

/// Of the frames of the debug information those that stacks show as inlined, innermost first; and
/// the outermost one.
///
/// The outermost frame of the debug information is the symbol itself, under whichever of its names,
/// and is left out.
fn shown_frames(frames: &[InlineFrame]) -> (Vec<&InlineFrame>, Option<&InlineFrame>) {
    let mut inlined: Vec<&InlineFrame> = frames.iter().filter(|frame| frame.function.is_some()).collect();
    let outermost = inlined.pop();
    (inlined, outermost.or(frames.last()))
}

/// A function at an address of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressFunction {
    /// Its name.
    pub name: Arc<str>,
    /// Source file with its folder, if debug information says.
    pub file: Option<Arc<str>>,
    /// Line in the file, if debug information says.
    pub line: Option<u32>,
}

/// The functions at an address of a module, as stacks show them: innermost first, those but the
/// last are inlined. None where no symbol covers the address.
pub fn functions_at(symbols: &ModuleSymbols, address: u64) -> Vec<AddressFunction> {
    let Some(symbol) = symbols.find(address) else { return Vec::new() };
    let frames = symbols.inline_frames(address);
    let (inlined, outermost) = shown_frames(&frames);
    let of_frame = |frame: &InlineFrame, name: Arc<str>| AddressFunction {
        name,
        file: frame.file.clone(),
        line: frame.line.filter(|_| frame.file.is_some()),
    };
    let inlined = inlined.into_iter().filter_map(|frame| Some(of_frame(frame, frame.function.clone()?)));
    let mut functions: Vec<AddressFunction> = inlined.collect();
    let name: Arc<str> = Arc::from(symbol.name);
    functions.push(match outermost {
        Some(frame) => of_frame(frame, name),
        None => AddressFunction { name, file: None, line: None },
    });
    functions
}

fn source_place(frame: &InlineFrame) -> Option<SourcePlace> {
    Some((frame.file.clone()?, frame.line.unwrap_or(0)))
}

/// The function of a place as that of a sample; those that it has as the frames of a chain are added.
fn name(
    functions: &mut Functions,
    Place { mode, ip, .. }: Place,
    found: &Named,
    frames: &mut Vec<FunctionId>,
) -> FunctionId {
    let level = Level::of_mode(mode);
    match (&found.symbol, found.module) {
        (Some((start, end, symbol)), Some(module)) => {
            let base = match found.serial {
                Some(serial) => functions.generated(module, level, (*start, *end), serial, symbol),
                None => functions.symbol(module, level, *start, *end, symbol),
            };
            frames.extend(found.inlined.iter().map(|n| functions.inlined(module, level, *start, *end, n)));
            frames.push(base);
            base
        }
        _ => {
            // A sample without a symbol is counted by its place in the module; a frame of a chain
            // by its address.
            let leaf = functions.address(found.module, level, found.module_address);
            frames.push(functions.address(found.module, level, ip));
            leaf
        }
    }
}

/// What a recording tells about its kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelIdentity {
    /// The reference symbol and its recorded address.
    pub(crate) reference: Option<(String, u64)>,
    /// The build id.
    pub(crate) build_id: Option<Vec<u8>>,
}

impl KernelIdentity {
    /// Of the kernel that a timeline tells of.
    pub(crate) fn of(timeline: &Timeline) -> KernelIdentity {
        let text = &timeline.kernel;
        KernelIdentity {
            reference: (text.reference_address != 0 && !text.reference_symbol.is_empty())
                .then(|| (text.reference_symbol.clone(), text.reference_address)),
            build_id: timeline
                .modules
                .iter()
                .find(|(_, m)| m.kind == ModuleKind::Kernel && !m.build_id.is_empty())
                .map(|(_, m)| m.build_id.clone()),
        }
    }
}

/// Where a module's symbols are asked for.
pub(crate) fn module_key(
    module: &Module,
    kernel: &KernelIdentity,
    recorded_until: Option<SystemTime>,
) -> ModuleKey {
    let build_id = (!module.build_id.is_empty()).then(|| module.build_id.clone());
    match module.kind {
        ModuleKind::File => {
            use std::os::unix::ffi::OsStrExt;
            let path = PathBuf::from(std::ffi::OsStr::from_bytes(&module.path));
            // A build id says all: files of one are one.
            let mapped = match build_id {
                Some(_) => FileState::default(),
                None => FileState { file_id: module.file_id, recorded_until },
            };
            ModuleKey::Elf { path, build_id, mapped }
        }
        ModuleKind::Kernel => ModuleKey::Kernel { build_id, reference: kernel.reference.clone() },
        ModuleKind::KernelModule => ModuleKey::KernelModule {
            name: module.short_name.trim_start_matches('[').trim_end_matches(']').to_string(),
            // Of the kernel that it was loaded into: another kernel's list would give wrong names.
            build_id: kernel.build_id.clone(),
        },
        ModuleKind::Vdso => ModuleKey::Vdso { build_id },
        ModuleKind::Jit { pid } => ModuleKey::PerfMap { pid },
        ModuleKind::Memory | ModuleKind::Ksymbol | ModuleKind::Script => ModuleKey::Anonymous,
    }
}
