//! Markers that a program was compiled with (USDT): the notes that `<sys/sdt.h>` leaves in a file.
//!
//! ```text
//!  .note.stapsdt   u32 name length (8) | u32 description length | u32 type (3) | "stapsdt\0"
//!                  u64 place | u64 where .stapsdt.base was | u64 semaphore (0: none) | provider\0 name\0 arguments\0
//! ```
//! The linker's prelink step moves code without rewriting notes; the distance that `.stapsdt.base` has moved since is that of all places.

use super::super::elf::{self, ElfFile, Fields};

const STAPSDT: u32 = 3;
/// More markers than any program has.
const MOST: usize = 1 << 20;

/// A marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Who placed it.
    pub provider: String,
    /// What it marks.
    pub name: String,
    /// Where its arguments are, in the notation of the assembler: `8@%rdi -4@$5`.
    pub arguments: String,
    /// Where it is as linked.
    pub svma: u64,
    /// Where it is in the file.
    pub offset: u64,
    /// Where in the file the counter lies that tells the program whether anyone listens.
    pub semaphore: Option<u64>,
}

/// The markers of a file, in the order of their notes. Notes that make no sense are left out.
pub(super) fn markers(elf: &ElfFile) -> Vec<Marker> {
    let Some(section) = elf.section(b".note.stapsdt") else { return Vec::new() };
    let Some(notes) = elf.read_section(section) else { return Vec::new() };
    let base = elf.section(b".stapsdt.base").map(|section| section.addr);
    parse(&notes, elf.is_64, base)
        .into_iter()
        .filter_map(|note| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let semaphore = match note.semaphore {
                0 => None,
                address => Some(elf.segment_of(address).map(|s| address - s.vaddr + s.offset)?),
            };
            Some(Marker {
                provider: text(note.provider),
                name: text(note.name),
                arguments: text(note.arguments),
                svma: note.place,
                offset: elf.code_offset(note.place)?,
                semaphore,
            })
        })
        .collect()
}

struct Note<'a> {
    place: u64,
    semaphore: u64,
    provider: &'a [u8],
    name: &'a [u8],
    arguments: &'a [u8],
}

fn parse(notes: &[u8], is_64: bool, base_now: Option<u64>) -> Vec<Note<'_>> {
    let markers = elf::notes(notes).filter(|&(kind, name, _)| kind == STAPSDT && name == Some(b"stapsdt\0"));
    markers.filter_map(|(.., description)| marker(description?, is_64, base_now)).take(MOST).collect()
}

fn marker(description: &[u8], is_64: bool, base_now: Option<u64>) -> Option<Note<'_>> {
    let word = if is_64 { 8 } else { 4 };
    let fields = Fields(description);
    let at = |index: usize| fields.word(is_64, 8 * index, 4 * index);
    let strings = description.get(3 * word..)?;
    let mut parts = strings.splitn(4, |&byte| byte == 0);
    let (provider, name, arguments) = (parts.next()?, parts.next()?, parts.next()?);
    // A name is shown, and written into the kernel's list of probes.
    if provider.is_empty() || name.is_empty() || provider.len() > 256 || name.len() > 256 {
        return None;
    }
    let moved = base_now.map_or(0, |now| now.wrapping_sub(at(1)));
    let semaphore = if at(2) == 0 { 0 } else { at(2).wrapping_add(moved) };
    Some(Note { place: at(0).wrapping_add(moved), semaphore, provider, name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn note(place: u64, base: u64, semaphore: u64, strings: &[u8]) -> Vec<u8> {
        let mut description = Vec::new();
        [place, base, semaphore].iter().for_each(|word| description.extend(word.to_le_bytes()));
        description.extend(strings);
        let mut out = Vec::new();
        for word in [8, description.len() as u32, STAPSDT] {
            out.extend(word.to_le_bytes());
        }
        out.extend(b"stapsdt\0");
        out.extend(&description);
        out.resize(out.len().next_multiple_of(4), 0);
        out
    }

    /// Checks places, semaphores and strings of two notes, moved by the distance of the base, and that a foreign note between them is passed over.
    #[test]
    fn notes() {
        let mut bytes = note(0x1000, 0x500, 0, b"prov\0first\08@%rdi\0");
        bytes.extend([4, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0]);
        bytes.extend(b"GNU\0abcd");
        bytes.extend(note(0x1010, 0x500, 0x3000, b"prov\0second\0\0"));
        let found = parse(&bytes, true, Some(0x600));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].place, found[0].semaphore), (0x1100, 0));
        assert_eq!((found[0].provider, found[0].name), (&b"prov"[..], &b"first"[..]));
        assert_eq!(found[0].arguments, b"8@%rdi");
        assert_eq!((found[1].place, found[1].semaphore), (0x1110, 0x3100));
    }

    /// Checks that strings without their ends are no marker.
    #[test]
    fn damaged() {
        assert!(parse(&note(1, 2, 3, b"prov"), true, None).is_empty());
        assert!(parse(&note(1, 2, 3, b"\0name\0\0"), true, None).is_empty());
        let mut huge = note(1, 2, 3, b"p\0n\0\0");
        huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&huge, true, None).is_empty());
    }

    proptest! {
        /// Checks that no bytes make the parser panic, also with a header that makes sense.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), lengths in prop::array::uniform2(0u32..64)) {
            let mut notes = Vec::new();
            for word in [8, lengths[0], STAPSDT] {
                notes.extend(word.to_le_bytes());
            }
            notes.extend(b"stapsdt\0");
            notes.extend(&bytes);
            for is_64 in [true, false] {
                let _ = parse(&notes, is_64, Some(7)).len();
                let _ = parse(&bytes, is_64, None).len();
            }
        }
    }
}
