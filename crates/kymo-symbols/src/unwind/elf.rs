//! The parts of an ELF file that unwinding needs, read with plain reads.
//!
//! Every count, offset and size in the file is a claim: it is checked against the size of the file before
//! anything is allocated or read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::arch::Arch;
use crate::budget::{Budget, Charge, is_stored};

/// Loaded segments beyond these are not looked at: real files have ten, and each address is looked up in all of them.
const MOST_SEGMENTS: usize = 256;
/// Notes that are searched for a build id.
const MOST_NOTES: usize = 64;
/// Sections of jump stubs.
const MOST_STUBS: usize = 16;
/// No name that is looked for is longer.
const LONGEST_NAME: usize = 32;
/// The largest section that is read; the unwind data of the largest programs known is a tenth of it.
const MAX_SECTION_BYTES: u64 = 512 << 20;
/// So much is read without a look at the file's size.
const MOST_UNCHECKED_BYTES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const SHT_NOBITS: u32 = 8;
const SHF_COMPRESSED: u64 = 1 << 11;
const NT_GNU_BUILD_ID: u32 = 3;

/// The content of a module's file.
#[derive(Debug)]
pub enum Image {
    /// An open file; it is read, never mapped, so that a file that shrinks cannot kill the reader.
    File(File),
    /// Bytes in memory, for tests and for the vdso.
    Bytes(Arc<[u8]>),
}

impl Image {
    /// Size in bytes.
    pub(super) fn len(&self) -> io::Result<u64> {
        match self {
            Image::File(file) => Ok(file.metadata()?.len()),
            Image::Bytes(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// Reads exactly these bytes; `None` when the image does not have them.
    pub(super) fn read(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let end = offset.checked_add(len)?;
        // A few bytes are not worth another system call: the read fails where they are not there.
        if len > MAX_SECTION_BYTES || len > MOST_UNCHECKED_BYTES && end > self.len().ok()? {
            return None;
        }
        let size = usize::try_from(len).ok()?;
        match self {
            Image::Bytes(bytes) => {
                let start = usize::try_from(offset).ok()?;
                Some(bytes.get(start..start.checked_add(size)?)?.to_vec())
            }
            Image::File(file) => {
                if !is_stored(file, offset, len) {
                    return None;
                }
                let mut out = vec![0; size];
                file.read_exact_at(&mut out, offset).ok()?;
                Some(out)
            }
        }
    }
}

/// A loadable piece of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) offset: u64,
    pub(super) svma: u64,
    pub(super) file_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) executable: bool,
}

/// A section's bytes and where they lie in the module's own addresses.
#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) svma: u64,
    pub(super) bytes: Vec<u8>,
}

/// What was found in the file.
#[derive(Debug)]
pub(super) struct ElfParts {
    pub(super) arch: Arch,
    pub(super) segments: Vec<Segment>,
    pub(super) build_id: Option<Vec<u8>>,
    pub(super) eh_frame: Option<Section>,
    pub(super) eh_frame_hdr: Option<Section>,
    pub(super) debug_frame: Option<Section>,
    pub(super) text_svma: u64,
    pub(super) got_svma: u64,
    /// Where a program begins.
    pub(super) entry: u64,
    /// It is a program of Go.
    pub(super) is_go: bool,
    /// Where linkers put jump stubs; some (lld) write no unwind data for them.
    pub(super) stubs: Vec<Range<u64>>,
    /// What the sections take.
    pub(super) room: Vec<Charge>,
}

impl ElfParts {
    fn empty(arch: Arch) -> ElfParts {
        ElfParts {
            arch,
            segments: Vec::new(),
            build_id: None,
            eh_frame: None,
            eh_frame_hdr: None,
            debug_frame: None,
            text_svma: 0,
            got_svma: 0,
            entry: 0,
            is_go: false,
            stubs: Vec::new(),
            room: Vec::new(),
        }
    }

    /// Reads the parts of an image.
    ///
    /// # Errors
    /// Says in words why the image cannot be used.
    pub(super) fn read(image: &Image, budget: &Budget) -> Result<ElfParts, String> {
        if let Image::File(file) = image
            && let Ok(metadata) = file.metadata()
        {
            budget.admit(&metadata);
        }
        let header = image.read(0, 64).ok_or("it is shorter than an ELF header")?;
        if header[..4] != *b"\x7fELF" {
            return Err("it is not an ELF file".to_owned());
        }
        if header[4] != 2 || header[5] != 1 {
            return Err("it is not a 64-bit little-endian ELF file".to_owned());
        }
        let machine = u16_at(&header, 18);
        let arch = Arch::of_elf(machine).ok_or_else(|| {
            format!("it is for ELF machine {machine}; x86_64 (62) and aarch64 (183) can be unwound")
        })?;
        let mut parts = ElfParts::empty(arch);
        parts.entry = u64_at(&header, 24);
        let unwind_segment = parts.read_segments(image, &header);
        parts.read_sections(image, &header, budget)?;
        if parts.eh_frame.is_none()
            && let Some(segment) = unwind_segment
        {
            parts.read_without_sections(image, segment, budget)?;
        }
        Ok(parts)
    }

    /// Program headers; returns the one that points to `.eh_frame_hdr`.
    fn read_segments(&mut self, image: &Image, header: &[u8]) -> Option<Segment> {
        let (offset, size, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
        let table = read_table(image, offset, size, count, 56)?;
        let (mut unwind, mut notes) = (None, 0);
        for entry in table.chunks_exact(usize::from(size)) {
            let segment = Segment {
                offset: u64_at(entry, 8),
                svma: u64_at(entry, 16),
                file_bytes: u64_at(entry, 32),
                memory_bytes: u64_at(entry, 40),
                executable: u32_at(entry, 4) & PF_X != 0,
            };
            match u32_at(entry, 0) {
                PT_LOAD if self.segments.len() < MOST_SEGMENTS => self.segments.push(segment),
                PT_GNU_EH_FRAME => unwind = Some(segment),
                PT_NOTE if self.build_id.is_none() && notes < MOST_NOTES => {
                    notes += 1;
                    self.build_id = image
                        .read(segment.offset, segment.file_bytes.min(1 << 16))
                        .and_then(|n| build_id(&n));
                }
                _ => {}
            }
        }
        unwind
    }

    fn read_sections(&mut self, image: &Image, header: &[u8], budget: &Budget) -> Result<(), String> {
        let (offset, size, count) = (u64_at(header, 40), u16_at(header, 58), u16_at(header, 60));
        let names_index = usize::from(u16_at(header, 62));
        let Some(table) = read_table(image, offset, size, count, 64) else { return Ok(()) };
        let entries: Vec<&[u8]> = table.chunks_exact(usize::from(size)).collect();
        let Some(names_entry) = entries.get(names_index) else { return Ok(()) };
        let names = image.read(u64_at(names_entry, 24), u64_at(names_entry, 32).min(1 << 24));
        let Some(names) = names else { return Ok(()) };
        // Of several sections with one name the first counts: a hostile file has sixty thousand.
        let mut read: Vec<&[u8]> = Vec::new();
        for entry in &entries {
            let name = names.get(u32_at(entry, 0) as usize..).unwrap_or_default();
            let name = &name[..name.len().min(LONGEST_NAME)];
            let name = &name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())];
            let svma = u64_at(entry, 16);
            let bytes = u64_at(entry, 32);
            let place = match name {
                b".eh_frame" => &mut self.eh_frame,
                b".eh_frame_hdr" => &mut self.eh_frame_hdr,
                b".debug_frame" => &mut self.debug_frame,
                b".gopclntab" => {
                    self.is_go = true;
                    continue;
                }
                b".text" => {
                    self.text_svma = svma;
                    continue;
                }
                b".got" => {
                    self.got_svma = svma;
                    continue;
                }
                b".plt" | b".plt.sec" | b".plt.got" | b".iplt" => {
                    if self.stubs.len() < MOST_STUBS {
                        self.stubs.push(svma..svma.saturating_add(bytes));
                    }
                    continue;
                }
                b".note.gnu.build-id" if self.build_id.is_none() && !read.contains(&name) => {
                    read.push(name);
                    let note = image.read(u64_at(entry, 24), bytes.min(1 << 16));
                    self.build_id = note.and_then(|note| build_id(&note));
                    continue;
                }
                _ => continue,
            };
            let usable = u32_at(entry, 4) != SHT_NOBITS && u64_at(entry, 8) & SHF_COMPRESSED == 0;
            if !usable || read.contains(&name) {
                continue;
            }
            read.push(name);
            self.room.push(room_for(budget, image, bytes)?);
            *place = image.read(u64_at(entry, 24), bytes).map(|bytes| Section { svma, bytes });
        }
        Ok(())
    }

    /// Files whose section table was cut off still have a program header for the lookup table, and the table
    /// says where `.eh_frame` starts; it is then taken up to the end of its segment.
    fn read_without_sections(
        &mut self,
        image: &Image,
        header: Segment,
        budget: &Budget,
    ) -> Result<(), String> {
        self.room.push(room_for(budget, image, header.file_bytes)?);
        let Some(bytes) = image.read(header.offset, header.file_bytes) else { return Ok(()) };
        let Some((segment, frame_svma)) = self.frame_of(header.svma, &bytes) else { return Ok(()) };
        let skip = frame_svma - segment.svma;
        self.room.push(room_for(budget, image, segment.file_bytes - skip)?);
        let offset = segment.offset.checked_add(skip);
        let Some(frame) = offset.and_then(|offset| image.read(offset, segment.file_bytes - skip)) else {
            return Ok(());
        };
        self.eh_frame_hdr = Some(Section { svma: header.svma, bytes });
        self.eh_frame = Some(Section { svma: frame_svma, bytes: frame });
        Ok(())
    }

    /// Where a lookup table says that `.eh_frame` starts, and the segment that it is in.
    fn frame_of(&self, header_svma: u64, header: &[u8]) -> Option<(Segment, u64)> {
        let bases = gimli::BaseAddresses::default().set_eh_frame_hdr(header_svma);
        let table = gimli::EhFrameHdr::new(header, gimli::LittleEndian).parse(&bases, 8).ok()?;
        let svma = table.eh_frame_ptr().direct().ok()?;
        let holds = |s: &&Segment| svma.checked_sub(s.svma).is_some_and(|distance| distance < s.file_bytes);
        Some((*self.segments.iter().find(holds)?, svma))
    }

    /// How many bytes are kept.
    pub(super) fn kept_bytes(&self) -> u64 {
        [&self.eh_frame, &self.eh_frame_hdr, &self.debug_frame]
            .into_iter()
            .flatten()
            .map(|section| section.bytes.len() as u64)
            .sum()
    }

    /// The executable segment that holds this address in the file.
    pub(super) fn code_of(&self, svma: u64) -> Option<&Segment> {
        let holds = |s: &&Segment| s.executable && svma.wrapping_sub(s.svma) < s.file_bytes;
        self.segments.iter().find(holds)
    }

    /// The address, as linked, of a byte of the file that is mapped executable.
    pub(super) fn svma_of(&self, file_offset: u64) -> Option<u64> {
        let exact = |s: &&Segment| {
            s.executable && file_offset.checked_sub(s.offset).is_some_and(|distance| distance < s.file_bytes)
        };
        // Mappings are made of whole pages, so some bytes around a segment are mapped with it.
        let paged = |s: &&Segment| {
            let distance = file_offset.wrapping_sub(s.offset & !0xfff);
            s.executable && distance < s.memory_bytes.saturating_add(0x2000)
        };
        let segment = self.segments.iter().find(exact).or_else(|| self.segments.iter().find(paged))?;
        Some(segment.svma.wrapping_add(file_offset.wrapping_sub(segment.offset)))
    }
}

/// The instruction set that the code of an image is for, if it says.
pub(super) fn arch(image: &Image) -> Option<Arch> {
    Arch::of_elf(u16_at(&image.read(18, 2)?, 0))
}

/// Room for a section, before it is read.
fn room_for(budget: &Budget, image: &Image, bytes: u64) -> Result<Charge, String> {
    // What is longer than the file is not read.
    let bytes = bytes.min(image.len().unwrap_or(0));
    budget.reserve(bytes).ok_or_else(|| {
        format!(
            "its {bytes} bytes of unwind data are more than a file of its size, among all others, may take"
        )
    })
}

/// Reads a header table whose entries have at least `least` bytes.
fn read_table(image: &Image, offset: u64, size: u16, count: u16, least: u16) -> Option<Vec<u8>> {
    if size < least || count == 0 {
        return None;
    }
    image.read(offset, u64::from(size) * u64::from(count))
}

/// The build id in the bytes of a note segment or section.
fn build_id(notes: &[u8]) -> Option<Vec<u8>> {
    let mut rest = notes;
    while rest.len() >= 12 {
        let (name_len, len, kind) = (u32_at(rest, 0) as usize, u32_at(rest, 4) as usize, u32_at(rest, 8));
        let name_end = 12_usize.checked_add(name_len.checked_next_multiple_of(4)?)?;
        let end = name_end.checked_add(len)?;
        let content = rest.get(name_end..end)?;
        if kind == NT_GNU_BUILD_ID && rest.get(12..16) == Some(b"GNU\0") && name_len == 4 {
            return Some(content.to_vec());
        }
        rest = rest.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// Little-endian words; the callers have checked the length, a short slice reads as 0.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
