//! The sections of debug information of a file, within what a file may cost.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::section::{PagedSection, SectionReader};
use crate::budget::Charge;
use crate::elf::{self, ElfFile};
use crate::metered::Metered;
use crate::packing::{Packing, UnpackError};

/// What reads debug information.
pub(crate) type Reader = Metered<SectionReader>;

/// The sections of debug information, and the room that they take: all of it, though pages are read
/// as they are needed. Those of variables and macros are left out: lines and inlined functions need
/// none of them.
pub(crate) fn sections_of(elf: &Arc<ElfFile>) -> (gimli::Dwarf<Reader>, Vec<Charge>) {
    let mut room = Vec::new();
    let load = |id: gimli::SectionId| -> Result<Reader, std::convert::Infallible> {
        let is_needed = !is_of_variables_or_macros(id);
        let found = is_needed.then(|| lazy_section(elf, id.name().as_bytes())).flatten();
        let Some((section, charge)) = found else { return Ok(empty_section()) };
        room.extend(charge);
        Ok(Metered(SectionReader::new(section)))
    };
    match gimli::Dwarf::load(load) {
        Ok(dwarf) => (dwarf, room),
        Err(never) => match never {},
    }
}

/// A section of a file with debug information that was split off. Packages are divided into units
/// by all of their sections, so none is left out.
pub(super) fn split_section(elf: &Arc<ElfFile>, id: gimli::SectionId, room: &mut Vec<Charge>) -> Reader {
    let found = id.dwo_name().and_then(|name| lazy_section(elf, name.as_bytes()));
    let Some((section, charge)) = found else { return empty_section() };
    room.extend(charge);
    Metered(SectionReader::new(section))
}

/// A section without bytes.
pub(super) fn empty_section() -> Reader {
    Metered(SectionReader::new(PagedSection::of_bytes(Vec::new())))
}

fn is_of_variables_or_macros(id: gimli::SectionId) -> bool {
    use gimli::SectionId::{DebugLoc, DebugLocLists, DebugMacinfo, DebugMacro};
    matches!(id, DebugLoc | DebugLocLists | DebugMacinfo | DebugMacro)
}

/// A section that is read when it is asked for; one that is packed is unpacked now.
fn lazy_section(elf: &Arc<ElfFile>, name: &[u8]) -> Option<(PagedSection, Option<Charge>)> {
    let (section, packing) = elf.debug_section(name)?;
    if packing != Packing::Plain {
        let (bytes, charge) = section_bytes(elf, name)?;
        return Some((PagedSection::of_bytes(bytes), charge));
    }
    if section.kind == elf::SHT_NOBITS {
        return None;
    }
    let charge = elf.budget.reserve(section.size);
    if charge.is_none() {
        elf.refuse(refusal(elf, name, &UnpackError::Room(section.size)));
        return None;
    }
    Some((PagedSection::of_file(elf, section.offset, section.size)?, charge))
}

fn refusal(elf: &ElfFile, name: &[u8], why: &UnpackError) -> String {
    let section = String::from_utf8_lossy(name);
    format!("{}: its section {section} {why}; it was not read", elf.path.display())
}

/// A section's bytes, unpacked, and the room that they take.
pub(crate) fn section_bytes(elf: &ElfFile, name: &[u8]) -> Option<(Vec<u8>, Option<Charge>)> {
    let (section, packing) = elf.debug_section(name)?;
    match packing.unpack(elf.read_section(section)?, elf.is_64, &elf.budget) {
        Ok((bytes, charge)) => Some((bytes, Some(charge))),
        Err(why) => {
            elf.refuse(refusal(elf, name, &why));
            None
        }
    }
}

/// The file that several debug files share (`.gnu_debugaltlink`, or in DWARF 5 `.debug_sup`), if
/// there is one.
///
/// # Errors
/// Why it cannot be read, a sentence.
pub(crate) fn supplementary(elf: &ElfFile) -> Result<Option<Arc<ElfFile>>, String> {
    let Some((path, build_id)) = shared_link(elf) else { return Ok(None) };
    let refused = |why: &dyn std::fmt::Display| {
        let (program, shared) = (elf.path.display(), path.display());
        format!(
            "some inlined functions of {program} are not known: it shares debug information with other files in \
             {shared} ({why}); install the package that has this file"
        )
    };
    let shared = ElfFile::open(&path, &elf.budget).map_err(|why| refused(&why))?;
    let own = shared.build_id().or_else(|| debug_sup(&shared, IS_SUPPLEMENTARY).map(|(_, id)| id));
    match own {
        Some(id) if id == build_id => Ok(Some(Arc::new(shared))),
        _ => Err(refused(&"it is of another build")),
    }
}

/// Where that file should be.
pub(super) fn shared_path(elf: &ElfFile) -> Option<PathBuf> {
    shared_link(elf).map(|(path, _)| path)
}

fn shared_link(elf: &ElfFile) -> Option<(PathBuf, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    let (name, build_id) = gnu_link(elf).or_else(|| debug_sup(elf, HAS_SUPPLEMENTARY))?;
    let name = Path::new(std::ffi::OsStr::from_bytes(&name));
    let path: PathBuf = match elf.path.parent() {
        // Relative to where the debug file really lies.
        Some(dir) => dir.canonicalize().ok()?.join(name),
        None => name.to_owned(),
    };
    Some((path, build_id))
}

/// The name and the build id of the shared file by GNU's section.
fn gnu_link(elf: &ElfFile) -> Option<(Vec<u8>, Vec<u8>)> {
    let bytes = elf.read_section(elf.section(b".gnu_debugaltlink")?)?;
    let end = memchr::memchr(0, &bytes)?;
    Some((bytes[..end].to_vec(), bytes[end + 1..].to_vec()))
}

/// What the section of DWARF 5 says of its file: that another one has a part of it, or that it is
/// one.
const HAS_SUPPLEMENTARY: u8 = 0;
const IS_SUPPLEMENTARY: u8 = 1;

/// The name and the checksum in DWARF 5's section (7.3.6): a build id of the shared file.
fn debug_sup(elf: &ElfFile, role: u8) -> Option<(Vec<u8>, Vec<u8>)> {
    let bytes = elf.read_section(elf.section(b".debug_sup")?)?;
    let rest = bytes.strip_prefix(&[5, 0, role])?;
    let end = memchr::memchr(0, rest)?;
    // A checksum of more than 127 bytes has a longer length; nobody writes one.
    let (length, checksum) = rest[end + 1..].split_first()?;
    Some((rest[..end].to_vec(), checksum.get(..usize::from(*length))?.to_vec()))
}
