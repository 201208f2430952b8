//! What the library of a HotSpot virtual machine tells debuggers about its data: where the tables of
//! its structures' fields and types begin (`vmStructs.cpp`), and the names in them.
use std::path::Path;

use super::budget::Budget;
use super::elf::ElfFile;
use super::elf_symbols::{SymbolEntries, dynsym};

/// The longest name that is read.
const LONGEST_NAME: u64 = 64;

/// A `libjvm.so`. Addresses are as linked.
#[derive(Debug)]
pub struct HotspotLibrary {
    elf: ElfFile,
    /// The pointer to the table of fields (`gHotSpotVMStructs`).
    pub fields: u64,
    /// The pointer to the table of types (`gHotSpotVMTypes`).
    pub types: u64,
}

impl HotspotLibrary {
    /// Opens the library; `None`: it has no such tables.
    pub fn open(path: &Path, budget: &Budget) -> Option<HotspotLibrary> {
        let elf = ElfFile::open(path, budget).ok()?;
        let entries = SymbolEntries::read(&elf, dynsym(&elf)?)?;
        let address = |wanted: &[u8]| {
            let mut symbols = entries.iter().filter(|symbol| symbol.is_named_and_defined());
            symbols.find(|&symbol| entries.name(symbol) == wanted).map(|symbol| symbol.value)
        };
        let (fields, types) = (address(b"gHotSpotVMStructs")?, address(b"gHotSpotVMTypes")?);
        drop(entries);
        Some(HotspotLibrary { elf, fields, types })
    }

    /// The constant string at a linked address, without its end.
    #[must_use]
    pub fn string(&self, address: u64) -> Option<Vec<u8>> {
        let segment = self.elf.segment_of(address)?;
        let into = address - segment.vaddr;
        let bytes = LONGEST_NAME.min(segment.size_in_file.checked_sub(into)?);
        let mut text = self.elf.read(segment.offset.checked_add(into)?, bytes)?;
        text.truncate(memchr::memchr(0, &text)?);
        Some(text)
    }

    /// What is added to linked addresses where the file is mapped at `start` from this offset on.
    #[must_use]
    pub fn load_bias(&self, start: u64, offset: u64) -> Option<u64> {
        Some(start.wrapping_sub(self.elf.linked_address(offset)?))
    }
}
