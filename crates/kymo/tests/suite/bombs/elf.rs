//! ELF files written section by section, with holes where bytes are only claimed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) const SYMTAB: u32 = 2;
pub(super) const STRTAB: u32 = 3;
pub(super) const PROGBITS: u32 = 1;
pub(super) const COMPRESSED: u64 = 0x800;
const ALLOC_AND_EXECUTE: u64 = 6;

/// What a section holds.
pub(super) enum Content {
    Bytes(Vec<u8>),
    /// So many bytes of nothing.
    Hole(u64),
}

pub(super) struct Section {
    pub(super) name: &'static str,
    pub(super) kind: u32,
    pub(super) flags: u64,
    /// The section's number in [`write()`]'s list, counted from 1, that this one refers to.
    pub(super) link: u32,
    pub(super) content: Content,
}

impl Section {
    pub(super) fn new(name: &'static str, kind: u32, content: Content) -> Section {
        Section { name, kind, flags: 0, link: 0, content }
    }
}

/// The first section of every file: code at file offset and address 0x1000, 0x1000 bytes long.
pub(super) fn text() -> Section {
    let content = Content::Bytes(vec![0x90; 0x1000]);
    Section { flags: ALLOC_AND_EXECUTE, ..Section::new(".text", PROGBITS, content) }
}

/// One entry of `.symtab`: a global function of section 1.
pub(super) fn symbol(name: u32, value: u64, size: u64) -> [u8; 24] {
    let mut entry = [0; 24];
    entry[..4].copy_from_slice(&name.to_le_bytes());
    entry[4] = 0x12;
    entry[6] = 1;
    entry[8..16].copy_from_slice(&value.to_le_bytes());
    entry[16..].copy_from_slice(&size.to_le_bytes());
    entry
}

/// Sections 2 and 3: symbols with these names, places and sizes.
pub(super) fn symbols(list: &[(Vec<u8>, u64, u64)]) -> [Section; 2] {
    let (mut strings, mut entries) = (vec![0], vec![0; 24]);
    for (name, value, size) in list {
        entries.extend(symbol(strings.len() as u32, *value, *size));
        strings.extend(name);
        strings.push(0);
    }
    let table = Section { link: 3, ..Section::new(".symtab", SYMTAB, Content::Bytes(entries)) };
    [table, Section::new(".strtab", STRTAB, Content::Bytes(strings))]
}

/// Writes a 64-bit x86 file. Its one segment maps all of it where it lies.
pub(super) fn write(path: &Path, sections: &[Section]) {
    const HEADER: u64 = 64 + 56;
    let file = File::create(path).expect("a file");
    let mut names = vec![0];
    let mut headers = vec![0; 64];
    let mut at = 0x1000;
    let mut put = |name: &str, kind: u32, flags: u64, link: u32, size: u64, at: u64| {
        let entry_size: u64 = if kind == SYMTAB { 24 } else { 0 };
        let address = if flags & 2 == 0 { 0 } else { at };
        headers.extend((names.len() as u32).to_le_bytes());
        headers.extend(kind.to_le_bytes());
        for word in [flags, address, at, size] {
            headers.extend(word.to_le_bytes());
        }
        headers.extend(link.to_le_bytes());
        headers.extend(0u32.to_le_bytes());
        headers.extend(1u64.to_le_bytes());
        headers.extend(entry_size.to_le_bytes());
        names.extend(name.as_bytes());
        names.push(0);
    };
    for section in sections {
        let size = match &section.content {
            Content::Bytes(bytes) => {
                file.write_all_at(bytes, at).expect("written");
                bytes.len() as u64
            }
            Content::Hole(size) => *size,
        };
        put(section.name, section.kind, section.flags, section.link, size, at);
        at = (at + size).next_multiple_of(4096);
    }
    put(".shstrtab", STRTAB, 0, 0, 4096, at);
    file.write_all_at(&names, at).expect("written");
    let headers_at = at + 4096;
    file.write_all_at(&headers, headers_at).expect("written");
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0, 64, headers_at] {
        header.extend(word.to_le_bytes());
    }
    header.extend(0u32.to_le_bytes());
    let count = sections.len() as u16 + 2;
    for half in [64u16, 56, 1, 64, count, count - 1] {
        header.extend(half.to_le_bytes());
    }
    header.extend(1u32.to_le_bytes());
    header.extend(5u32.to_le_bytes());
    for word in [0, 0, 0, 0x2000, 0x2000, 0x1000u64] {
        header.extend(word.to_le_bytes());
    }
    assert_eq!(header.len() as u64, HEADER);
    file.write_all_at(&header, 0).expect("written");
}

/// The header of a compressed section.
fn compressed(format: u32, unpacked: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = format.to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(unpacked.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(data);
    bytes
}

/// A zstd frame that is `head` and then `times` 128 KiB of `byte`, at four bytes each.
pub(super) fn zstd_frame(head: &[u8], byte: u8, times: u32) -> Vec<u8> {
    const BLOCK: u32 = 128 << 10;
    const RUN: u32 = 1 << 1;
    // A window of 1 MiB, no checksum.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 10 << 3];
    let mut block = |size: u32, kind: u32, content: &[u8], is_last: bool| {
        frame.extend(&(size << 3 | kind | u32::from(is_last)).to_le_bytes()[..3]);
        frame.extend(content);
    };
    for part in head.chunks(BLOCK as usize) {
        block(part.len() as u32, 0, part, false);
    }
    for number in 0..times {
        block(BLOCK, RUN, &[byte], number + 1 == times);
    }
    frame
}

/// A section's content that unpacks to `head` and `times` 128 KiB of `byte`.
pub(super) fn zstd(head: &[u8], byte: u8, times: u32) -> Content {
    let unpacked = head.len() as u64 + (u64::from(times) << 17);
    Content::Bytes(compressed(2, unpacked, &zstd_frame(head, byte, times)))
}

/// Has the section with this number in its table so many times more.
pub(super) fn repeat_section(path: &Path, number: usize, times: u16) {
    let mut bytes = std::fs::read(path).expect("the file");
    let table = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes")) as usize;
    let count = u16::from_le_bytes([bytes[60], bytes[61]]);
    let header = bytes[table + 64 * number..table + 64 * (number + 1)].to_vec();
    bytes.truncate(table + 64 * usize::from(count));
    bytes.extend(header.repeat(usize::from(times)));
    bytes[60..62].copy_from_slice(&(count + times).to_le_bytes());
    std::fs::write(path, bytes).expect("written");
}

/// A section's content of `packed` bytes of zlib that unpack to 159 times as many zeros.
pub(super) fn zlib_zeros(packed: usize) -> Content {
    let mut bits: Vec<bool> = Vec::new();
    let mut put = |code: u32, length: u32| bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
    // The last block, with fixed codes; one zero; then copies of 258 bytes from one byte before.
    put(0b1, 1);
    put(0b10, 2);
    put(0b0011_0000, 8);
    let copies = packed * 8 / 13;
    for _ in 0..copies {
        put(0b1100_0101, 8);
        put(0, 5);
    }
    put(0, 7);
    let mut data = vec![0x78, 0x01];
    data.extend(bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |all, &bit| all << 1 | u8::from(bit))));
    let unpacked = 1 + 258 * copies as u64;
    // The checksum of zeros: a stays 1, b counts them.
    data.extend(((unpacked % 65_521) as u32 * 65_536 + 1).to_be_bytes());
    Content::Bytes(compressed(1, unpacked, &data))
}
