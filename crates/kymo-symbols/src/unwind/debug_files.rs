//! What takes work to get at: `.debug_frame` where it is compressed (in every program of Go) or in
//! a separate debug file, and where functions begin.

use std::path::Path;
use std::sync::Arc;

use super::elf::Image;
use crate::budget::Charge;
use crate::elf::ElfFile;
use crate::elf_symbols::{self, SymbolEntries};
use crate::inline::section_bytes;
use crate::locate::{self, Candidate};
use crate::options::SymbolOptions;
use crate::pclntab;
use crate::user::open_if_it_fits;

/// A section, unpacked, and the room that it takes.
type Unpacked = (Vec<u8>, Option<Charge>);

const NAME: &[u8] = b".debug_frame";

/// The `.debug_frame` of a file: compressed in the file itself, or in the first debug file that has
/// one. Debug files are recognised by the build id, or by the checksum in `.gnu_debuglink`.
pub(super) fn debug_frame(
    image: &Image,
    path: &Path,
    build_id: Option<&[u8]>,
    options: &SymbolOptions,
) -> Option<Unpacked> {
    let own = elf_file(image, path, options)?;
    if let Some(found) = section_bytes(&own, NAME) {
        return Some(found);
    }
    // The vdso has no debug file.
    if !path.is_absolute() {
        return None;
    }
    let is_vouched_for = |candidate: &Candidate| build_id.is_some() || candidate.checksum.is_some();
    locate::candidates(options, path, build_id, None).iter().filter(|one| is_vouched_for(one)).find_map(
        |one| {
            let file = open_if_it_fits(one, build_id, &options.budget).ok()?;
            // A debug file keeps the sections of code as names without bytes.
            section_bytes(&file, NAME).filter(|(bytes, _)| !bytes.is_empty())
        },
    )
}

/// First addresses of functions, ascending, and the room that they take.
#[derive(Debug, Default)]
pub(super) struct FunctionStarts {
    pub(super) addresses: Vec<u64>,
    _room: Option<Charge>,
}

/// What addresses of functions count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartPlace {
    /// They are as linked.
    Linked,
    /// They are offsets in the file.
    File,
}

/// Where the functions of a file begin, as linked or in the file: by its symbols, or by the table
/// of Go's runtime.
pub(super) fn function_starts(
    image: &Image,
    path: &Path,
    options: &SymbolOptions,
    place: StartPlace,
) -> Option<FunctionStarts> {
    let elf = elf_file(image, path, options)?;
    let tables = elf_symbols::tables(&elf).map(|table| table.size).sum::<u64>();
    let room = options.budget.reserve(tables.saturating_add(elf.stored / 8))?;
    let entries = elf_symbols::tables(&elf).filter_map(|table| SymbolEntries::read(&elf, table));
    let mut starts: Vec<u64> = entries
        .flat_map(|entries| entries.iter().collect::<Vec<_>>())
        .filter(|symbol| symbol.is_function())
        .map(|symbol| symbol.value)
        .collect();
    if starts.is_empty() {
        starts = pclntab::starts(&elf).unwrap_or_default();
    }
    if place == StartPlace::File {
        starts = starts.into_iter().filter_map(|start| elf.code_offset(start)).collect();
    }
    starts.sort_unstable();
    starts.dedup();
    Some(FunctionStarts { addresses: starts, _room: Some(room) })
}

fn elf_file(image: &Image, path: &Path, options: &SymbolOptions) -> Option<ElfFile> {
    match image {
        Image::Bytes(bytes) => ElfFile::from_bytes(path, Arc::clone(bytes)).ok(),
        Image::File(file) => {
            let (file, metadata) = (file.try_clone().ok()?, file.metadata().ok()?);
            ElfFile::of_file(path, file, &metadata, &options.budget).ok()
        }
    }
}
