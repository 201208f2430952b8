//! The sections of debug information of a file, within what a file may cost.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::section::{PagedSection, SectionReader};
use crate::budget::Charge;
use crate::elf::{self, ElfFile, Fields};
use crate::metered::Metered;

/// What reads debug information.
pub(crate) type Reader = Metered<SectionReader>;

/// A compressed section is not believed beyond this. Sections of debug information unpack to 2 to
/// 20 times their length; the formats could do 1000 (zlib) and more.
const BEST_RATIO: u64 = 64;
/// Sections up to this length may be as empty as they like.
const SMALL_SECTION: u64 = 1 << 20;

/// The sections of debug information, and the room that they take: all of it, though pages are read
/// as they are needed. Those of variables and macros are left out: lines and inlined functions need
/// none of them.
pub(crate) fn sections_of(elf: &Arc<ElfFile>) -> (gimli::Dwarf<Reader>, Vec<Charge>) {
    use gimli::SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    let mut room = Vec::new();
    let load = |id: gimli::SectionId| -> Result<Reader, std::convert::Infallible> {
        let is_needed = !matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro);
        let section = match is_needed.then(|| lazy_section(elf, id.name().as_bytes())).flatten() {
            Some((section, charge)) => {
                room.extend(charge);
                section
            }
            None => PagedSection::of_bytes(Vec::new()),
        };
        Ok(Metered(SectionReader::new(section)))
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => (dwarf, room),
        Err(never) => match never {},
    }
}

/// A section that is read when it is asked for; one that is compressed is unpacked now.
fn lazy_section(elf: &Arc<ElfFile>, name: &[u8]) -> Option<(PagedSection, Option<Charge>)> {
    let section = elf.section(name)?;
    if section.flags & elf::SHF_COMPRESSED != 0 {
        let (bytes, charge) = section_bytes(elf, name)?;
        return Some((PagedSection::of_bytes(bytes), charge));
    }
    if section.kind == elf::SHT_NOBITS {
        return None;
    }
    let charge = elf.budget.reserve(section.size);
    if charge.is_none() {
        elf.refuse(no_room(elf, name, section.size));
        return None;
    }
    Some((PagedSection::of_file(elf, section.offset, section.size)?, charge))
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
pub(crate) fn supplementary(elf: &ElfFile) -> Option<Arc<ElfFile>> {
    let (path, build_id) = shared_link(elf)?;
    let sup = ElfFile::open(&path, &elf.budget).ok()?;
    (sup.build_id()? == build_id).then(|| Arc::new(sup))
}

/// Where that file should be.
pub(super) fn shared_path(elf: &ElfFile) -> Option<PathBuf> {
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
