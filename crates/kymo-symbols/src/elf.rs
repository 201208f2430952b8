//! ELF files, read piece by piece: only the headers and the sections that are asked for.
//!
//! Hand-parsed because every size is checked against the file's own length before anything is allocated, and because
//! a symbol table of a gigabyte file costs its two sections, not the file.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;

use super::budget::{self, Budget, Charge};
use super::name::text_at;
use super::packing::Packing;

/// Why a file gave no symbols.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum SymbolError {
    /// The file could not be opened or read.
    #[error("failed to read symbols of {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The file is a directory, a device or something else that holds no code.
    #[error("{path} is not a regular file: no symbols")]
    NotAFile { path: PathBuf },
    /// The file is no little-endian ELF file, or its headers point outside of it.
    #[error("{path} holds no symbols: {why}")]
    Elf { path: PathBuf, why: String },
}

pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_RELA: u32 = 4;
pub(crate) const SHT_NOBITS: u32 = 8;
pub(crate) const SHT_REL: u32 = 9;
pub(crate) const SHT_DYNSYM: u32 = 11;
pub(crate) const SHF_ALLOC: u64 = 2;
pub(crate) const SHF_EXECINSTR: u64 = 4;
/// In the flags of a segment.
const PF_X: u32 = 1;
const PT_LOAD: u32 = 1;
pub(crate) const EM_386: u16 = 3;
pub(crate) const EM_PPC64: u16 = 21;
pub(crate) const EM_ARM: u16 = 40;
pub(crate) const EM_X86_64: u16 = 62;
pub(crate) const EM_AARCH64: u16 = 183;
pub(crate) const EM_RISCV: u16 = 243;

/// Files larger than this many sections or segments are not believed.
const MOST_HEADERS: u64 = 1 << 20;
/// Loaded segments beyond these are not looked at: real files have ten, and each symbol is looked up in all of them.
const MOST_SEGMENTS: usize = 256;
/// Names of sections are looked at up to here: a hostile table names one endless string a million times.
const LONGEST_SECTION_NAME: usize = 1024;
/// No section is read beyond this.
const LARGEST_READ: u64 = 4 << 30;
const NO_ROOM: &str = "its section headers take more memory than is left for files of its size";
/// Sentences about parts that were not read, of one file.
const MOST_REFUSALS: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub(crate) name: u32,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) addr: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: u32,
    pub(crate) entry_size: u64,
}

impl Section {
    /// Whether it has instructions in the file.
    fn holds_code(&self) -> bool {
        self.flags & SHF_EXECINSTR != 0 && self.kind != SHT_NOBITS && self.size > 0
    }

    /// Where it was linked.
    fn linked(&self) -> Range<u64> {
        self.addr..self.addr.saturating_add(self.size)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) vaddr: u64,
    pub(crate) offset: u64,
    pub(crate) size_in_file: u64,
    pub(crate) size: u64,
    pub(crate) executable: bool,
}

#[derive(Debug)]
enum Source {
    File(File, u64),
    Bytes(Arc<[u8]>),
}

/// An opened ELF file with its section and segment headers.
#[derive(Debug)]
pub(crate) struct ElfFile {
    pub(crate) path: PathBuf,
    source: Source,
    /// What it is read on account of.
    pub(crate) budget: Budget,
    /// Bytes that the file system stores of it.
    pub(crate) stored: u64,
    refusals: Mutex<Vec<String>>,
    pub(crate) is_64: bool,
    pub(crate) machine: u16,
    /// The address of its first instruction.
    pub(crate) entry: u64,
    pub(crate) sections: Vec<Section>,
    pub(crate) segments: Vec<Segment>,
    /// Where sections of instructions were linked, ascending and apart from each other.
    code: Vec<Range<u64>>,
    names: Vec<u8>,
    /// What headers and names take.
    room: Vec<Charge>,
}

/// Little-endian fields of a header, by offset; missing bytes read as 0 (lengths are checked before).
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|b| b.try_into().ok()).unwrap_or([0; N])
    }

    pub(crate) fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }

    /// A word of the file's class: at `at64` in 64-bit files, at `at32` in 32-bit ones.
    pub(crate) fn word(self, is_64: bool, at64: usize, at32: usize) -> u64 {
        if is_64 { self.u64(at64) } else { u64::from(self.u32(at32)) }
    }
}

impl ElfFile {
    pub(crate) fn open(path: &Path, budget: &Budget) -> Result<ElfFile, SymbolError> {
        let (file, metadata) = budget::open_regular(path).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidInput => SymbolError::NotAFile { path: path.to_owned() },
            _ => SymbolError::Io { path: path.to_owned(), source },
        })?;
        ElfFile::of_file(path, file, &metadata, budget)
    }

    /// A file that is open already.
    pub(crate) fn of_file(
        path: &Path,
        file: File,
        metadata: &Metadata,
        budget: &Budget,
    ) -> Result<ElfFile, SymbolError> {
        budget.admit(metadata);
        let stored = budget::stored_bytes(metadata);
        ElfFile::parse(path.to_owned(), Source::File(file, metadata.len()), budget.clone(), stored)
    }

    /// Whether root alone can write the file that was opened.
    pub(crate) fn is_root_owned(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let Source::File(file, _) = &self.source else { return false };
        file.metadata().is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0)
    }

    pub(crate) fn from_bytes(name: &Path, bytes: Arc<[u8]>) -> Result<ElfFile, SymbolError> {
        let stored = bytes.len() as u64;
        ElfFile::parse(name.to_owned(), Source::Bytes(bytes), Budget::default(), stored)
    }

    /// A file that this one carries, unpacked; `held`: what its bytes take.
    pub(crate) fn carried(&self, bytes: Arc<[u8]>, held: Charge) -> Result<ElfFile, SymbolError> {
        let stored = bytes.len() as u64;
        let mut file = ElfFile::parse(self.path.clone(), Source::Bytes(bytes), self.budget.clone(), stored)?;
        file.room.push(held);
        Ok(file)
    }

    fn parse(path: PathBuf, source: Source, budget: Budget, stored: u64) -> Result<ElfFile, SymbolError> {
        let mut elf = ElfFile {
            path,
            source,
            budget,
            stored,
            refusals: Mutex::default(),
            is_64: true,
            machine: 0,
            entry: 0,
            sections: Vec::new(),
            segments: Vec::new(),
            code: Vec::new(),
            names: Vec::new(),
            room: Vec::new(),
        };
        let ident = elf.read(0, 64.min(elf.len())).unwrap_or_default();
        if !ident.starts_with(b"\x7fELF") {
            return Err(elf.wrong("it is not an ELF file"));
        }
        elf.is_64 = match ident.get(4) {
            Some(2) => true,
            Some(1) => false,
            _ => return Err(elf.wrong("its ELF class is neither 32 nor 64 bits")),
        };
        if ident.get(5) != Some(&1) {
            return Err(elf.wrong("it is big-endian; kymo reads little-endian files only"));
        }
        let is_64 = elf.is_64;
        if ident.len() < if is_64 { 64 } else { 52 } {
            return Err(elf.wrong("its header is cut short"));
        }
        let header = Fields(&ident);
        elf.machine = header.u16(18);
        elf.entry = header.word(is_64, 24, 24);
        // From the sizes of entries on, fields of 32-bit files lie twelve bytes before those of
        // 64-bit ones.
        let half = |at: usize| header.u16(if is_64 { at } else { at - 12 });
        elf.read_segments(header.word(is_64, 32, 28), half(54).into(), half(56).into());
        let names = half(62).into();
        elf.read_sections(header.word(is_64, 40, 32), half(58).into(), half(60).into(), names)?;
        Ok(elf)
    }

    fn read_segments(&mut self, offset: u64, entry_size: u64, count: u64) {
        let is_64 = self.is_64;
        if entry_size < if is_64 { 56 } else { 32 } {
            return;
        }
        let Some(table) = self.read(offset, entry_size.saturating_mul(count)) else { return };
        for header in table.chunks_exact(entry_size as usize).map(Fields) {
            if header.u32(0) == PT_LOAD && self.segments.len() < MOST_SEGMENTS {
                self.segments.push(Segment {
                    vaddr: header.word(is_64, 16, 8),
                    offset: header.word(is_64, 8, 4),
                    size_in_file: header.word(is_64, 32, 16),
                    size: header.word(is_64, 40, 20),
                    executable: header.u32(if is_64 { 4 } else { 24 }) & PF_X != 0,
                });
            }
        }
    }

    fn read_sections(
        &mut self,
        offset: u64,
        entry_size: u64,
        mut count: u64,
        mut names: u32,
    ) -> Result<(), SymbolError> {
        let is_64 = self.is_64;
        if offset == 0 {
            return Ok(());
        }
        if entry_size < if is_64 { 64 } else { 40 } {
            return Err(self.wrong("its section headers are too small"));
        }
        let section = |header: Fields<'_>| Section {
            name: header.u32(0),
            kind: header.u32(4),
            flags: header.word(is_64, 8, 8),
            addr: header.word(is_64, 16, 12),
            offset: header.word(is_64, 24, 16),
            size: header.word(is_64, 32, 20),
            link: header.u32(if is_64 { 40 } else { 24 }),
            entry_size: header.word(is_64, 56, 36),
        };
        let first =
            self.read(offset, entry_size).ok_or_else(|| self.wrong("its section headers are cut off"))?;
        let first = section(Fields(&first));
        // Counts that do not fit the header are kept in the first section.
        if count == 0 {
            count = first.size;
        }
        if names == 0xffff {
            names = first.link;
        }
        if count > MOST_HEADERS {
            return Err(self.wrong("it claims more than a million sections"));
        }
        // The table, which goes again, and what is made of it.
        let bytes = (entry_size + size_of::<Section>() as u64) * count;
        self.room.push(self.budget.reserve(bytes).ok_or_else(|| self.wrong(NO_ROOM))?);
        let table = self
            .read(offset, entry_size * count)
            .ok_or_else(|| self.wrong("its section headers are cut off"))?;
        self.sections =
            table.chunks_exact(entry_size as usize).map(|header| section(Fields(header))).collect();
        if let Some(section) = self.sections.get(names as usize).cloned() {
            self.room
                .push(self.budget.reserve(section.size.min(self.stored)).ok_or_else(|| self.wrong(NO_ROOM))?);
            self.names = self.read_section(&section).unwrap_or_default();
        }
        self.code = merged(self.sections.iter().filter(|section| section.holds_code()).map(Section::linked));
        Ok(())
    }

    pub(crate) fn wrong(&self, why: &str) -> SymbolError {
        SymbolError::Elf { path: self.path.clone(), why: why.to_owned() }
    }

    fn len(&self) -> u64 {
        match &self.source {
            Source::File(_, len) => *len,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Bytes of the file; nothing if any of them lies outside.
    pub(crate) fn read(&self, offset: u64, size: u64) -> Option<Vec<u8>> {
        let size = self.readable(offset, size)?;
        match &self.source {
            Source::File(file, _) => {
                let mut bytes = vec![0; size];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(bytes)
            }
            Source::Bytes(bytes) => Some(bytes.get(offset as usize..offset as usize + size)?.to_vec()),
        }
    }

    /// The size of a range, if it lies inside of the file and is stored.
    pub(crate) fn readable(&self, offset: u64, size: u64) -> Option<usize> {
        if offset.checked_add(size)? > self.len() || size > LARGEST_READ {
            return None;
        }
        if let Source::File(file, _) = &self.source
            && !budget::is_stored(file, offset, size)
        {
            self.refuse(format!(
                "{}: {size} bytes at offset {offset} are mostly holes of a sparse file; they were not read",
                self.path.display()
            ));
            return None;
        }
        usize::try_from(size).ok()
    }

    /// Keeps a sentence about a part that is not read.
    pub(crate) fn refuse(&self, why: String) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if refusals.len() < MOST_REFUSALS && !refusals.contains(&why) {
            refusals.push(why);
        }
    }

    /// The parts that were not read so far, and why: sentences.
    pub(crate) fn refusals(&self) -> Vec<String> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A section's bytes as stored; nothing for sections without bytes or outside of the file.
    pub(crate) fn read_section(&self, section: &Section) -> Option<Vec<u8>> {
        if section.kind == SHT_NOBITS { None } else { self.read(section.offset, section.size) }
    }

    pub(crate) fn section_name(&self, section: &Section) -> &[u8] {
        text_at(&self.names, section.name as usize, LONGEST_SECTION_NAME)
    }

    /// The first section with this name.
    pub(crate) fn section(&self, name: &[u8]) -> Option<&Section> {
        // Nothing is searched for the end of a name: there may be a million of them.
        let is = |section: &&Section| {
            let rest = self.names.get(section.name as usize..).unwrap_or(&[]);
            rest.strip_prefix(name).is_some_and(|rest| matches!(rest.first(), None | Some(0)))
        };
        self.sections.iter().skip(1).find(is)
    }

    /// The first section of debug information with this name, `.debug_info` or the like, in
    /// whichever form it is packed.
    pub(crate) fn debug_section(&self, name: &[u8]) -> Option<(&Section, Packing)> {
        let packed = [b".z", name.strip_prefix(b".")?].concat();
        let section = self.section(name).or_else(|| self.section(&packed))?;
        Some((section, Packing::of(self.section_name(section), section.flags, name)?))
    }

    /// Whether the file itself has bytes of a section of debug information.
    pub(crate) fn has_debug_bytes(&self, name: &[u8]) -> bool {
        self.debug_section(name).is_some_and(|(section, _)| section.kind != SHT_NOBITS && section.size > 0)
    }

    /// Whether the file itself has bytes of a section of this name.
    pub(crate) fn has_bytes(&self, name: &[u8]) -> bool {
        self.section(name).is_some_and(|section| section.kind != SHT_NOBITS && section.size > 0)
    }

    /// Whether a section of instructions was linked there, or there are no section headers.
    fn is_code(&self, vaddr: u64) -> bool {
        let after = self.code.partition_point(|range| range.start <= vaddr);
        self.sections.is_empty()
            || after.checked_sub(1).and_then(|at| self.code.get(at)).is_some_and(|range| vaddr < range.end)
    }

    /// Where code that was linked at an address is in the file: inside a section of instructions,
    /// or, without section headers, inside a loaded segment.
    pub(crate) fn code_offset(&self, vaddr: u64) -> Option<u64> {
        let segment = self.segment_of(vaddr).filter(|_| self.is_code(vaddr))?;
        let into = vaddr - segment.vaddr;
        if into < segment.size_in_file { into.checked_add(segment.offset) } else { None }
    }

    /// Where the instructions end that were linked at an address: with their section, if there is
    /// one.
    pub(crate) fn code_end(&self, vaddr: u64) -> Option<u64> {
        let after = self.code.partition_point(|range| range.start <= vaddr);
        let range = self.code.get(after.checked_sub(1)?)?;
        (vaddr < range.end).then_some(range.end)
    }

    /// The loaded segment that holds this linked address.
    pub(crate) fn segment_of(&self, vaddr: u64) -> Option<&Segment> {
        self.segments.iter().find(|segment| {
            let size = segment.size.max(segment.size_in_file);
            vaddr >= segment.vaddr && vaddr - segment.vaddr < size
        })
    }

    /// Whether a segment has code in this file.
    pub(crate) fn has_code(&self) -> bool {
        self.segments.iter().any(|segment| segment.executable && segment.size_in_file > 0)
    }

    /// Gives the code of a file that has none the places in the file that it was taken from: `bias`
    /// before its linked addresses.
    pub(crate) fn lay_out_code(&mut self, bias: i64) {
        self.segments.retain(|segment| segment.executable);
        for segment in &mut self.segments {
            segment.offset = segment.vaddr.wrapping_sub(bias as u64);
            segment.size_in_file = segment.size;
        }
    }

    /// The linked address (SVMA) of a file offset.
    pub(crate) fn linked_address(&self, offset: u64) -> Option<u64> {
        let inside = |s: &&Segment| offset >= s.offset && offset - s.offset < s.size_in_file;
        let segment = self.segments.iter().find(inside)?;
        Some((offset - segment.offset).wrapping_add(segment.vaddr))
    }

    /// The build id note, looked for in the sections where perf looks.
    pub(crate) fn build_id(&self) -> Option<Vec<u8>> {
        let names: [&[u8]; 3] = [b".note.gnu.build-id", b".notes", b".note"];
        let section = names.iter().find_map(|name| self.section(name))?;
        build_id_of_notes(&self.read_section(section)?)
    }

    /// The name and checksum of the file that holds the debug information.
    pub(crate) fn debuglink(&self) -> Option<(Vec<u8>, u32)> {
        let section = self.section(b".gnu_debuglink")?;
        let bytes = self.read_section(section)?;
        let end = memchr::memchr(0, &bytes)?;
        let sum = Fields(&bytes).u32((end + 4) & !3);
        Some((bytes[..end].to_vec(), sum))
    }
}

/// Ranges by their start, those that touch each other as one.
fn merged(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = ranges.filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// A note of a file: its type, its name and its content, as far as these lie inside of the notes.
type ElfNote<'a> = (u32, Option<&'a [u8]>, Option<&'a [u8]>);

/// The notes of a section or segment, up to the first one whose lengths make no sense.
pub(crate) fn notes(mut bytes: &[u8]) -> impl Iterator<Item = ElfNote<'_>> {
    std::iter::from_fn(move || {
        let header = Fields(bytes.get(..12)?);
        let (name, desc) = (header.u32(0) as usize, header.u32(4) as usize);
        let desc_at = 12usize.checked_add(name.checked_next_multiple_of(4)?)?;
        let end = desc_at.checked_add(desc.checked_next_multiple_of(4)?)?;
        let note = (header.u32(8), bytes.get(12..12 + name), bytes.get(desc_at..desc_at + desc));
        // The last note may lack its padding.
        bytes = bytes.get(end..).unwrap_or(&[]);
        Some(note)
    })
}

/// The GNU build id among ELF notes.
pub(crate) fn build_id_of_notes(bytes: &[u8]) -> Option<Vec<u8>> {
    const NT_GNU_BUILD_ID: u32 = 3;
    let (.., id) = notes(bytes).find(|&(kind, name, _)| kind == NT_GNU_BUILD_ID && name == Some(b"GNU\0"))?;
    id.map(<[u8]>::to_vec)
}

/// Whether two build ids name the same file; a short one may have been stored with zeros behind it.
pub(crate) fn same_build_id(a: &[u8], b: &[u8]) -> bool {
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    long.starts_with(short) && long[short.len()..].iter().all(|&byte| byte == 0)
}
