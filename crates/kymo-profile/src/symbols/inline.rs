//! Inlined functions and source lines, from DWARF.
//!
//! The debug information of a module is read when the first address asks for it. Each thread that looks up works
//! with a context of its own, taken from a small stack and put back; answers are kept per address, because a
//! recording asks for few addresses many times.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hashbrown::HashMap;

use super::demangle;
use super::elf::{self, ElfFile, Fields};

pub(super) type Reader = gimli::EndianArcSlice<gimli::LittleEndian>;
type Context = addr2line::Context<Reader>;

/// Contexts that are kept for the next lookups of a module; each holds its own parsed units.
const SPARE_CONTEXTS: usize = 4;
/// A compressed section is not believed beyond this; the best ratio of the formats is about 1:1000.
const BEST_RATIO: u64 = 2048;

/// One function that was compiled into another, or the outermost function itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InlineFrame {
    /// The function's name, demangled unless switched off.
    pub function: Option<Arc<str>>,
    /// The function's name as the linker knows it.
    pub raw_function: Option<Arc<str>>,
    /// The source file, as the debug information names it.
    pub file: Option<Arc<str>>,
    /// The line in that file, counted from 1.
    pub line: Option<u32>,
}

/// The lines of one module.
pub(super) struct Lines {
    debug: Option<Arc<ElfFile>>,
    runtime: Option<Arc<ElfFile>>,
    /// Where a kernel image was loaded, relative to where it was linked.
    delta: u64,
    demangle: bool,
    dwarf: OnceLock<Option<Arc<gimli::Dwarf<Reader>>>>,
    contexts: Mutex<Vec<Context>>,
    known: RwLock<HashMap<u64, Arc<[InlineFrame]>>>,
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
        Lines {
            debug,
            runtime,
            delta,
            demangle,
            dwarf: OnceLock::new(),
            contexts: Mutex::default(),
            known: RwLock::default(),
        }
    }

    /// The frames at `address`, innermost first.
    pub(super) fn frames(&self, address: u64) -> Arc<[InlineFrame]> {
        if let Some(known) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&address) {
            return Arc::clone(known);
        }
        let frames: Arc<[InlineFrame]> = self.find(address).unwrap_or_default().into();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(address).or_insert(frames))
    }

    fn find(&self, address: u64) -> Option<Vec<InlineFrame>> {
        let linked = match &self.runtime {
            Some(runtime) => runtime.linked_address(address)?,
            None => address.wrapping_sub(self.delta),
        };
        let dwarf = self.dwarf.get_or_init(|| self.read_dwarf().map(Arc::new)).as_ref()?;
        let spare = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let context = match spare {
            Some(context) => context,
            None => Context::from_arc_dwarf(Arc::clone(dwarf)).ok()?,
        };
        let frames = self.frames_of(&context, linked);
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if contexts.len() < SPARE_CONTEXTS {
            contexts.push(context);
        }
        frames
    }

    fn frames_of(&self, context: &Context, linked: u64) -> Option<Vec<InlineFrame>> {
        let mut found = context.find_frames(linked).skip_all_loads().ok()?;
        let mut frames = Vec::new();
        // Damaged information must not make an endless chain.
        while frames.len() < 256 {
            let Ok(Some(frame)) = found.next() else { break };
            let raw = frame.function.as_ref().and_then(|name| name.raw_name().ok().map(|n| n.into_owned()));
            let shown = raw.as_deref().map(|raw| match self.demangle {
                true => Arc::from(demangle::readable(raw)),
                false => Arc::from(raw),
            });
            let location = frame.location.as_ref();
            frames.push(InlineFrame {
                function: shown,
                raw_function: raw.map(Arc::from),
                file: location.and_then(|l| l.file).map(Arc::from),
                line: location.and_then(|l| l.line),
            });
        }
        Some(frames)
    }

    fn read_dwarf(&self) -> Option<gimli::Dwarf<Reader>> {
        let files = [self.debug.as_ref(), self.runtime.as_ref()];
        let elf = files.into_iter().flatten().find(|elf| {
            elf.section(b".debug_info").is_some_and(|(_, section)| section.kind != elf::SHT_NOBITS)
        })?;
        let mut dwarf = sections_of(elf);
        if let Some(sup) = supplementary(elf) {
            dwarf.set_sup(sections_of(&sup));
        }
        Some(dwarf)
    }
}

pub(super) fn sections_of(elf: &ElfFile) -> gimli::Dwarf<Reader> {
    let load = |id: gimli::SectionId| -> Result<Reader, std::convert::Infallible> {
        let bytes = section_bytes(elf, id.name().as_bytes()).unwrap_or_default();
        Ok(gimli::EndianArcSlice::new(Arc::from(bytes), gimli::LittleEndian))
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => dwarf,
        Err(never) => match never {},
    }
}

/// A section's bytes, decompressed.
pub(crate) fn section_bytes(elf: &ElfFile, name: &[u8]) -> Option<Vec<u8>> {
    let (_, section) = elf.section(name)?;
    let bytes = elf.read_section(section)?;
    if section.flags & elf::SHF_COMPRESSED == 0 {
        return Some(bytes);
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
    if uncompressed_size > (data.len() as u64).saturating_mul(BEST_RATIO) {
        return None;
    }
    let compressed = object::read::CompressedData { format, data, uncompressed_size };
    compressed.decompress().ok().map(|data| data.into_owned())
}

/// The file that several debug files share (`.gnu_debugaltlink`), if it is the one that was meant.
pub(crate) fn supplementary(elf: &ElfFile) -> Option<ElfFile> {
    use std::os::unix::ffi::OsStrExt;
    let (_, section) = elf.section(b".gnu_debugaltlink")?;
    let bytes = elf.read_section(section)?;
    let end = memchr::memchr(0, &bytes)?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&bytes[..end]));
    let path: PathBuf = match elf.path.parent() {
        // Relative to where the debug file really lies.
        Some(dir) => dir.canonicalize().ok()?.join(name),
        None => name.to_owned(),
    };
    let sup = ElfFile::open(&path).ok()?;
    (sup.build_id()? == bytes[end + 1..]).then_some(sup)
}
