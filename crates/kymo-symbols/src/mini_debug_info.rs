//! Symbols that stripped files of Fedora, RHEL and others carry: an ELF file with a symbol table,
//! compressed with xz, in the section `.gnu_debugdata` ("MiniDebugInfo").
//!
//! It has the functions that are not in `.dynsym`. Its sections have no bytes; addresses are those of
//! the file that carries it.

use std::io::Read;

use lzma_rust2::XzReader;

use super::elf::ElfFile;

/// No such file is unpacked beyond this: the largest of Fedora's have some MiB.
const MOST_BYTES: u64 = 64 << 20;
/// Symbol tables shrink to a fifth, or a tenth. What grows more is no symbol table.
const MOST_GROWTH: u64 = 64;
/// Small ones may always grow up to here.
const SMALL_BYTES: u64 = 1 << 20;
/// What the decoder may take for its window, in KiB: `xz` without options needs 8 MiB.
const MOST_WINDOW_KIB: u32 = 17 << 10;

/// The file with symbols that another one carries. A refusal is noted with the carrier.
pub(super) fn unpack(carrier: &ElfFile) -> Option<ElfFile> {
    let section = carrier.section(b".gnu_debugdata").filter(|section| section.size > 0)?;
    let most = section.size.saturating_mul(MOST_GROWTH).clamp(SMALL_BYTES, MOST_BYTES);
    let refuse = |why: &str| {
        carrier.refuse(format!("{}: its section .gnu_debugdata {why}", carrier.path.display()));
    };
    // The packed bytes, the window, and the unpacked bytes, which are moved once.
    let working = section.size.saturating_add(u64::from(MOST_WINDOW_KIB) << 10).saturating_add(most);
    let Some(_working) = carrier.budget.reserve(working) else {
        refuse("takes more memory than is left for files of its size");
        return None;
    };
    let packed = carrier.read_section(section)?;
    let mut bytes = Vec::new();
    let mut unpacked = XzReader::new_mem_limit(packed.as_slice(), false, MOST_WINDOW_KIB).take(most + 1);
    if let Err(error) = unpacked.read_to_end(&mut bytes) {
        refuse(&format!("cannot be unpacked: {error}"));
        return None;
    }
    if bytes.len() as u64 > most {
        refuse(&format!("unpacks to more than {most} bytes, as no symbol table does"));
        return None;
    }
    let Some(held) = carrier.budget.reserve(bytes.len() as u64) else {
        refuse("takes more memory than is left for files of its size");
        return None;
    };
    match carrier.carried(bytes.into(), held) {
        Ok(file) => Some(file),
        Err(error) => {
            refuse(&format!("has no symbols: {error}"));
            None
        }
    }
}
