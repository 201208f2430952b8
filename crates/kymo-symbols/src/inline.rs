//! Inlined functions and source lines, from DWARF.
//!
//! The debug information of a module is read when the first address asks for it. Each thread that looks up works
//! with a context of its own, taken from a small stack and put back; answers are kept per address, because a
//! recording asks for few addresses many times.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use gimli::Reader as _;
use hashbrown::{HashMap, HashSet};

use super::budget::{Charge, Work};
use super::cache::SharedFile;
use super::demangle;
use super::elf::{self, ElfFile, Fields};
use super::elf_symbols::{self, SymbolEntries};
use super::metered::{self, Metered};
use super::name::shortened;

pub(super) type Reader = Metered<gimli::EndianArcSlice<gimli::LittleEndian>>;
type Context = addr2line::Context<Reader>;

/// Contexts that are kept for the next lookups of a module; each holds its own parsed units.
const SPARE_CONTEXTS: usize = 4;
/// A compressed section is not believed beyond this. Sections of debug information unpack to 2 to 20 times their
/// length; the formats could do 1000 (zlib) and more.
const BEST_RATIO: u64 = 64;
/// Sections up to this length may be as empty as they like.
const SMALL_SECTION: u64 = 1 << 20;
/// Functions inlined into each other at one address; damaged information must not make an endless chain.
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
    demangle: bool,
    dwarf: OnceLock<Option<Dwarf>>,
    /// The file that the debug information refers to, as it was before that was read.
    shared: OnceLock<Option<SharedFile>>,
    contexts: Mutex<Vec<(Context, Vec<Charge>)>>,
    known: RwLock<HashMap<u64, CachedFrames>>,
    /// Every name once, however many addresses have it.
    names: Mutex<HashSet<Arc<str>>>,
    /// The work that was there for this module has been used up.
    is_stopped: AtomicBool,
}

/// An answer that is kept, with the room that it takes.
struct CachedFrames(Arc<[InlineFrame]>, #[expect(dead_code, reason = "held, not read")] Charge);

struct Dwarf {
    sections: Arc<gimli::Dwarf<Reader>>,
    work: Arc<Work>,
    /// Bytes that are stored of the files.
    stored: u64,
    file: Arc<ElfFile>,
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
        demangle: bool,
    ) -> Lines {
        Lines { debug, runtime, delta, demangle, ..Lines::default() }
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
        let spare = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let (answer, cost) = metered::question(&dwarf.work, dwarf.stored, || {
            let (context, room) = match spare {
                Some(spare) => spare,
                None => (Context::from_arc_dwarf(Arc::clone(&dwarf.sections)).ok()?, Vec::new()),
            };
            let frames = self.frames_of(&context, linked);
            Some((context, room, frames))
        });
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
        let (context, mut room, frames) = answer?;
        // A context that finds no room is made anew.
        if let Some(charge) = dwarf.file.budget.reserve(cost.bytes) {
            room.push(charge);
            let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
            if contexts.len() < SPARE_CONTEXTS {
                contexts.push((context, room));
            }
        }
        Some((frames.unwrap_or_default(), Arc::clone(&dwarf.file)))
    }

    fn frames_of(&self, context: &Context, linked: u64) -> Option<Vec<InlineFrame>> {
        let mut found = context.find_frames(linked).skip_all_loads().ok()?;
        let mut frames = Vec::new();
        while frames.len() < MOST_FRAMES {
            let Ok(Some(frame)) = found.next() else { break };
            let function = frame.function.as_ref().and_then(|function| {
                let bytes = function.name.to_slice().ok()?;
                let name = shortened(&bytes);
                let shown = if self.demangle { demangle::readable(&name) } else { Cow::Borrowed(&*name) };
                Some(self.interned(&shown))
            });
            let location = frame.location.as_ref();
            frames.push(InlineFrame {
                function,
                file: location.and_then(|l| l.file).map(|file| self.interned(&shortened(file.as_bytes()))),
                line: location.and_then(|l| l.line),
            });
        }
        Some(frames)
    }

    fn interned(&self, text: &str) -> Arc<str> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(names.get_or_insert_with(text, |text| Arc::from(text)))
    }

    /// Whether there is no debug information, as far as that was asked.
    pub(super) fn has_no_debug_information(&self) -> bool {
        self.dwarf.get().is_some_and(Option::is_none)
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
        files.into_iter().flatten().find(|elf| elf.has_bytes(b".debug_info"))
    }

    fn read_dwarf(&self) -> Option<Dwarf> {
        let elf = self.with_debug_information()?;
        let _ = self.shared_file();
        let (mut sections, mut room) = sections_of(elf);
        let mut stored = elf.stored;
        if let Some(shared) = supplementary(elf) {
            let (more, more_room) = sections_of(&shared);
            // What was refused of it is missing here.
            shared.refusals().into_iter().for_each(|why| elf.refuse(why));
            sections.set_sup(more);
            room.extend(more_room);
            stored += shared.stored;
        }
        let work = Arc::new(elf.budget.work(stored));
        Some(Dwarf { sections: Arc::new(sections), work, stored, file: Arc::clone(elf), _room: room })
    }
}

/// The sections of debug information, and the room that they take. Those of variables and macros
/// are left out: they can be the largest, and lines and inlined functions need none of them.
pub(super) fn sections_of(elf: &ElfFile) -> (gimli::Dwarf<Reader>, Vec<Charge>) {
    use gimli::SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    let mut room = Vec::new();
    let load = |id: gimli::SectionId| -> Result<Reader, std::convert::Infallible> {
        let is_needed = !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro);
        let bytes = match is_needed.then(|| shared_bytes(elf, id.name().as_bytes())).flatten() {
            Some((bytes, charge)) => {
                room.extend(charge);
                bytes
            }
            None => Arc::default(),
        };
        Ok(Metered(gimli::EndianArcSlice::new(bytes, gimli::LittleEndian)))
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => (dwarf, room),
        Err(never) => match never {},
    }
}

/// A section's bytes as [`section_bytes`] gives them, to be shared.
fn shared_bytes(elf: &ElfFile, name: &[u8]) -> Option<(Arc<[u8]>, Option<Charge>)> {
    let section = elf.section(name)?;
    let refuse = |bytes: usize| elf.refuse(no_room(elf, name, bytes as u64));
    if section.flags & elf::SHF_COMPRESSED != 0 || section.kind == elf::SHT_NOBITS {
        let (bytes, charge) = section_bytes(elf, name)?;
        // For a moment it is there twice.
        if elf.budget.reserve(bytes.len() as u64).is_none() {
            refuse(bytes.len());
            return None;
        }
        return Some((bytes.into(), charge));
    }
    let bytes = elf.read_shared(section.offset, section.size)?;
    let charge = elf.budget.reserve(bytes.len() as u64);
    if charge.is_none() {
        refuse(bytes.len());
        return None;
    }
    Some((bytes, charge))
}

fn no_room(elf: &ElfFile, name: &[u8], bytes: u64) -> String {
    format!(
        "{}: the {bytes} bytes of its section {} are more than a file that stores {} bytes may take; it was not read",
        elf.path.display(),
        String::from_utf8_lossy(name),
        elf.stored
    )
}

/// A section's bytes, decompressed, and the room that they take.
pub(crate) fn section_bytes(elf: &ElfFile, name: &[u8]) -> Option<(Vec<u8>, Option<Charge>)> {
    let section = elf.section(name)?;
    let is_compressed = section.flags & elf::SHF_COMPRESSED != 0;
    let bytes = elf.read_section(section)?;
    if !is_compressed {
        let Some(charge) = elf.budget.reserve(bytes.len() as u64) else {
            elf.refuse(no_room(elf, name, bytes.len() as u64));
            return None;
        };
        return Some((bytes, Some(charge)));
    }
    let header = Fields(&bytes);
    let header_size = if elf.is_64 { 24 } else { 12 };
    let format = match header.u32(0) {
        1 => object::CompressionFormat::Zlib,
        2 => object::CompressionFormat::Zstandard,
        _ => return None,
    };
    let uncompressed_size = header.word(elf.is_64, 8, 4);
    let data = bytes.get(header_size..)?;
    if uncompressed_size > SMALL_SECTION && uncompressed_size / BEST_RATIO > data.len() as u64 {
        elf.refuse(format!(
            "{}: the {} bytes of its section {} claim to unpack to {uncompressed_size}, more than {BEST_RATIO} times as \
             many; it was not read",
            elf.path.display(),
            data.len(),
            String::from_utf8_lossy(name)
        ));
        return None;
    }
    let Some(charge) = elf.budget.reserve(uncompressed_size) else {
        elf.refuse(no_room(elf, name, uncompressed_size));
        return None;
    };
    let compressed = object::read::CompressedData { format, data, uncompressed_size };
    let unpacked = compressed.decompress().ok()?.into_owned();
    Some((unpacked, Some(charge)))
}

/// The file that several debug files share (`.gnu_debugaltlink`), if it is the one that was meant.
pub(crate) fn supplementary(elf: &ElfFile) -> Option<ElfFile> {
    let (path, build_id) = shared_link(elf)?;
    let sup = ElfFile::open(&path, &elf.budget).ok()?;
    (sup.build_id()? == build_id).then_some(sup)
}

/// Where that file should be.
fn shared_path(elf: &ElfFile) -> Option<PathBuf> {
    shared_link(elf).map(|(path, _)| path)
}

fn shared_link(elf: &ElfFile) -> Option<(PathBuf, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    let section = elf.section(b".gnu_debugaltlink")?;
    let bytes = elf.read_section(section)?;
    let end = memchr::memchr(0, &bytes)?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&bytes[..end]));
    let path: PathBuf = match elf.path.parent() {
        // Relative to where the debug file really lies.
        Some(dir) => dir.canonicalize().ok()?.join(name),
        None => name.to_owned(),
    };
    Some((path, bytes[end + 1..].to_vec()))
}
