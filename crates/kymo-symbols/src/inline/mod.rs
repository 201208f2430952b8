//! Inlined functions and source lines, from DWARF.
//!
//! ```text
//!  address --Units--> unit --Functions, LineTable--> InlineFrames, kept by address
//!               reading pages of sections as they are needed    (section, sections)
//! ```
//!
//! The debug information of a module is opened when the first address asks for it. All threads
//! share what was parsed; answers are kept per address, because a recording asks for few addresses
//! many times.

mod function;
mod line_table;
#[cfg(test)]
mod model;
mod names;
mod ranges;
mod root;
mod section;
mod sections;
mod split;
mod texts;
mod units;

pub(crate) use sections::{Reader, section_bytes, sections_of, supplementary};

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hashbrown::HashMap;

use self::function::{Function, Inlined, NameSource};
use self::names::{declared_at, name_of};
use self::sections::shared_path;
use self::split::SplitFiles;
use self::texts::Texts;
use self::units::{ParsedUnit, Units};
use super::budget::{Charge, Work};
use super::cache::SharedFile;
use super::elf::ElfFile;
use super::elf_symbols::{self, SymbolEntries};
use super::metered;
use super::options::SymbolOptions;

/// Functions inlined into each other at one address; damaged information must not make an endless
/// chain.
pub(super) const MOST_FRAMES: usize = 256;

/// One function that was compiled into another, or the outermost function itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlineFrame {
    /// The function's name, demangled unless switched off.
    pub function: Option<Arc<str>>,
    /// The source file, as the debug information names it.
    pub file: Option<Arc<str>>,
    /// The line in that file, counted from 1.
    pub line: Option<u32>,
}

/// The lines of one module.
#[derive(Default)]
pub(super) struct Lines {
    debug: Option<Arc<ElfFile>>,
    runtime: Option<Arc<ElfFile>>,
    /// Where a kernel image was loaded, relative to where it was linked.
    delta: u64,
    options: SymbolOptions,
    dwarf: OnceLock<Option<Dwarf>>,
    /// The file that the debug information refers to, as it was before that was read.
    shared: OnceLock<Option<SharedFile>>,
    /// What was parsed so far, and the room that it takes.
    parsed: Mutex<Option<(Arc<Units>, Vec<Charge>)>>,
    known: RwLock<HashMap<u64, CachedFrames>>,
    texts: Texts,
    /// The work that was there for this module has been used up.
    is_stopped: AtomicBool,
}

/// An answer that is kept, with the room that it takes.
struct CachedFrames(Arc<[InlineFrame]>, #[expect(dead_code, reason = "held, not read")] Charge);

/// The unit that has the functions of an address: the one with its lines, or one split off.
#[derive(Clone, Copy)]
struct FunctionUnit<'a> {
    units: &'a Units,
    unit: &'a ParsedUnit,
    texts: &'a Texts,
}

impl FunctionUnit<'_> {
    /// Whether what seems to be a function that was inlined into itself is the rest of its one
    /// call: gcc splits it off behind an early return, and says that it is called where the
    /// function is declared. A recursive call stands elsewhere, at another column of that line at
    /// least.
    fn is_split_part(&self, inlined: &Inlined) -> bool {
        let NameSource::Other(place) = inlined.name else { return false };
        let call = (u64::from(inlined.call_line), u64::from(inlined.call_column));
        declared_at(self.units, self.unit.with(self.units.dwarf()), place) == Some(call)
    }
}

struct Dwarf {
    sections: Arc<gimli::Dwarf<Reader>>,
    work: Arc<Work>,
    /// Bytes that are stored of the files.
    stored: u64,
    file: Arc<ElfFile>,
    split: SplitFiles,
    _room: Vec<Charge>,
}

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines")
            .field("debug", &self.debug.as_ref().map(|elf| &elf.path))
            .finish_non_exhaustive()
    }
}

impl Lines {
    pub(super) fn new(
        debug: Option<Arc<ElfFile>>,
        runtime: Option<Arc<ElfFile>>,
        delta: u64,
        options: &SymbolOptions,
    ) -> Lines {
        let texts = Texts::new(options.demangle);
        Lines { debug, runtime, delta, options: options.clone(), texts, ..Lines::default() }
    }

    /// The file whose code was mapped, and where it was loaded relative to where it was linked.
    pub(super) fn image(&self) -> Option<(&Arc<ElfFile>, u64)> {
        Some((self.runtime.as_ref().or(self.debug.as_ref())?, self.delta))
    }

    /// Calls `each` with the address of every function in the symbol tables, and its stored name.
    pub(super) fn each_function(&self, each: &mut dyn FnMut(u64, &[u8])) {
        let Some((image, delta)) = self.image() else { return };
        let files = [self.debug.as_ref(), self.runtime.as_ref()];
        for elf in files.into_iter().flatten() {
            for entries in elf_symbols::tables(elf).filter_map(|table| SymbolEntries::read(elf, table)) {
                for symbol in entries.iter().filter(|symbol| symbol.is_function()) {
                    let address = match self.runtime {
                        Some(_) => image.code_offset(symbol.value),
                        None => Some(symbol.value.wrapping_add(delta)),
                    };
                    if let Some(address) = address {
                        each(address, entries.name(symbol));
                    }
                }
            }
        }
    }

    /// What was not read, and why.
    pub(super) fn refusals(&self) -> Vec<String> {
        let files = [self.debug.as_ref(), self.runtime.as_ref()];
        let mut all: Vec<String> = files.into_iter().flatten().flat_map(|elf| elf.refusals()).collect();
        all.extend(self.dwarf.get().and_then(|dwarf| dwarf.as_ref()?.split.note()));
        all.dedup();
        all
    }

    /// The frames at `address`, innermost first.
    pub(super) fn frames(&self, address: u64) -> Arc<[InlineFrame]> {
        if let Some(known) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&address) {
            return Arc::clone(&known.0);
        }
        let Some((frames, file)) = self.find(address) else { return Arc::default() };
        let frames: Arc<[InlineFrame]> = frames.into();
        // What finds no room is looked up again when it is asked for again.
        let bytes = 96 + std::mem::size_of_val(&*frames) as u64;
        if let Some(charge) = file.budget.reserve(bytes) {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            known.entry(address).or_insert_with(|| CachedFrames(Arc::clone(&frames), charge));
        }
        frames
    }

    fn find(&self, address: u64) -> Option<(Vec<InlineFrame>, Arc<ElfFile>)> {
        let dwarf = self.dwarf.get_or_init(|| self.read_dwarf()).as_ref()?;
        let linked = match &self.runtime {
            Some(runtime) => runtime.linked_address(address),
            None => Some(address.wrapping_sub(self.delta)),
        };
        let Some(linked) = linked else { return Some((Vec::new(), Arc::clone(&dwarf.file))) };
        // Pairs with nothing: it only saves the attempt.
        if self.is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        let units = {
            let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
            let made = || (Arc::new(Units::new(Arc::clone(&dwarf.sections))), Vec::new());
            Arc::clone(&parsed.get_or_insert_with(made).0)
        };
        let (frames, cost) =
            metered::question(&dwarf.work, dwarf.stored, || self.frames_of(dwarf, &units, linked));
        if cost.is_stopped {
            self.is_stopped.store(true, Ordering::Relaxed);
            dwarf.file.refuse(format!(
                "{}: its debug information takes more work or memory than a file of {} bytes may cost; lines and \
                 inlined functions were left out",
                dwarf.file.path.display(),
                dwarf.stored
            ));
            return None;
        }
        let charge = dwarf.file.budget.reserve(cost.bytes);
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        match (parsed.as_mut().filter(|(current, _)| Arc::ptr_eq(current, &units)), charge) {
            (Some((_, room)), Some(charge)) => match room.last_mut() {
                Some(all) => all.absorb(charge),
                None => room.push(charge),
            },
            // What finds no room is parsed anew by the next question.
            (Some(_), None) => *parsed = None,
            (None, _) => {}
        }
        Some((frames.unwrap_or_default(), Arc::clone(&dwarf.file)))
    }

    /// The frames at a linked address; nothing if what is known of them is damaged.
    fn frames_of(&self, dwarf: &Dwarf, units: &Units, linked: u64) -> Option<Vec<InlineFrame>> {
        // Those that the list lacks are looked for when it has no answer.
        let unlisted = std::iter::once_with(|| units.unlisted(linked)).flatten();
        for offset in units.listed(linked).chain(unlisted) {
            let Some(unit) = units.at(offset) else { continue };
            let own = FunctionUnit { units, unit: &unit, texts: &self.texts };
            let split = dwarf.split.unit(units, (offset, &unit));
            let split = split.as_deref().map(|split| FunctionUnit {
                units: &split.units,
                unit: &split.unit,
                texts: &split.texts,
            });
            let of = split.unwrap_or(own);
            let function = match of.unit.functions(of.units)?.find(of.unit.with(of.units.dwarf()), linked) {
                Some(Ok(function)) => Some(function),
                Some(Err(())) => return None,
                None => None,
            };
            let line = unit.lines().and_then(|lines| lines.find(linked));
            if function.is_some() || line.is_some() {
                return Some(self.frames_in(own, of, function, (linked, line)));
            }
        }
        Some(Vec::new())
    }

    fn frames_in(
        &self,
        // Split units number the files of their skeleton's lines.
        FunctionUnit { units, unit, texts }: FunctionUnit<'_>,
        of: FunctionUnit<'_>,
        function: Option<&Function>,
        (linked, line): (u64, Option<(u64, u32)>),
    ) -> Vec<InlineFrame> {
        let file_of = |number: u64| unit.lines()?.file(unit.with(units.dwarf()), number, texts);
        let name = |source: &NameSource| match source {
            NameSource::None => None,
            NameSource::Own(place, name) => of.texts.function(*place, || Some(name.clone())),
            NameSource::Other(place) => {
                of.texts.function(*place, || name_of(of.units, of.unit.with(of.units.dwarf()), *place))
            }
        };
        let inlined_at: Vec<_> =
            function.into_iter().flat_map(|function| function.inlined_at(linked)).collect();
        let mut location = (line.and_then(|(file, _)| file_of(file)), line.map_or(0, |(_, line)| line));
        let mut frames = Vec::with_capacity(inlined_at.len() + 1);
        for (depth, &inlined) in inlined_at.iter().enumerate().rev().take(MOST_FRAMES - 1) {
            let own = name(&inlined.name);
            let around = match depth {
                0 => function.map(|function| &function.name),
                _ => Some(&inlined_at[depth - 1].name),
            };
            // One call, of which the rest was split off: the function around it goes on here.
            if own.is_some() && own == around.and_then(name) && of.is_split_part(inlined) {
                continue;
            }
            let (file, line) = location;
            frames.push(InlineFrame { function: own, file, line: (line != 0).then_some(line) });
            location = (inlined.call_file.and_then(file_of), inlined.call_line);
        }
        let (file, line) = location;
        let function = function.and_then(|function| name(&function.name));
        frames.push(InlineFrame { function, file, line: (line != 0).then_some(line) });
        frames
    }

    /// Whether there is no debug information, as far as that was asked.
    pub(super) fn has_no_debug_information(&self) -> bool {
        self.dwarf.get().is_some_and(Option::is_none)
    }

    /// Whether functions were read from files that were split off.
    pub(super) fn has_split_units(&self) -> bool {
        self.dwarf.get().is_some_and(|dwarf| dwarf.as_ref().is_some_and(|dwarf| dwarf.split.was_used()))
    }

    /// Whether any address was asked.
    pub(super) fn has_answered(&self) -> bool {
        self.dwarf.get().is_some()
    }

    /// Calls `each` with the answers that were kept.
    pub(super) fn each_answer(&self, mut each: impl FnMut(u64, &[InlineFrame])) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().for_each(|(&address, frames)| each(address, &frames.0));
    }

    /// The file that the debug information refers to, as it was when that was read, or is now.
    pub(super) fn shared_file(&self) -> Option<SharedFile> {
        self.shared
            .get_or_init(|| Some(SharedFile::now(shared_path(self.with_debug_information()?)?)))
            .clone()
    }

    fn with_debug_information(&self) -> Option<&Arc<ElfFile>> {
        let files = [self.debug.as_ref(), self.runtime.as_ref()];
        files.into_iter().flatten().find(|elf| elf.has_debug_bytes(b".debug_info"))
    }

    fn read_dwarf(&self) -> Option<Dwarf> {
        let elf = self.with_debug_information()?;
        let _ = self.shared_file();
        let (mut sections, mut room) = sections_of(elf);
        let mut stored = elf.stored;
        let shared = supplementary(elf).unwrap_or_else(|why| {
            elf.refuse(why);
            None
        });
        if let Some(shared) = shared {
            let (more, more_room) = sections_of(&shared);
            // What was refused of it is missing here.
            shared.refusals().into_iter().for_each(|why| elf.refuse(why));
            sections.set_sup(more);
            room.extend(more_room);
            stored += shared.stored;
        }
        let work = Arc::new(elf.budget.work(stored));
        let mapped = self.runtime.as_ref().map(|runtime| &*runtime.path);
        let split = SplitFiles::new(elf, mapped, &self.options);
        let file = Arc::clone(elf);
        Some(Dwarf { sections: Arc::new(sections), work, stored, file, split, _room: room })
    }
}
