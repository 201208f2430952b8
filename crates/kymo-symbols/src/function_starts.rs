//! Where functions start by a file's unwind tables: stripped files keep them.
//!
//! `.eh_frame_hdr` is a sorted table of them, as the Linux Standard Base describes it.
use super::elf::ElfFile;

/// Version, and the encodings that linkers write: the pointer as four bytes relative to itself, the
/// count as four bytes, the table as pairs of four bytes relative to the section.
const HEADER: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// Bytes before the table: the header, the pointer, the count.
const TABLE_AT: usize = 12;

/// File offsets, ascending. None where there is no such table.
pub(super) fn by_unwind_table(elf: &ElfFile) -> Vec<u64> {
    let read = || {
        let section = elf.section(b".eh_frame_hdr")?;
        let bytes = elf.read_section(section)?;
        let table = bytes.get(TABLE_AT..).filter(|_| bytes.starts_with(&HEADER))?;
        let count = u32::from_le_bytes(bytes.get(8..TABLE_AT)?.try_into().ok()?);
        let start = |entry: &[u8]| {
            let relative = i32::from_le_bytes(*entry.first_chunk()?);
            let address = section.addr.wrapping_add_signed(relative.into());
            let segment = elf.segment_of(address)?;
            Some(address.wrapping_sub(segment.vaddr).wrapping_add(segment.offset))
        };
        let entries = table.chunks_exact(8).take(count as usize);
        let mut starts: Vec<u64> = entries.filter_map(start).collect();
        starts.sort_unstable();
        Some(starts)
    };
    read().unwrap_or_default()
}
