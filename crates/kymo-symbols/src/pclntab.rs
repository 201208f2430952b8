//! Names of functions in stripped Go programs: the table that Go's runtime prints its own stacks
//! from (`.gopclntab`), which no tool strips.
//!
//! ```text
//!  magic u32 | 0 0 | instruction quantum | bytes of a word
//!  words: functions, files, [text start, from 1.18 on], offsets of: names, units, files, values, functions
//!  at `functions`: (entry, record) for each function, ascending, and the end of the last one
//!  a record:       entry, offset of the name u32, ...
//! ```
//! Entries are u32 offsets from the start of Go's code from 1.18 on, and addresses in words before.
//!
//! Source: `src/debug/gosym/pclntab.go` of Go.

use super::elf::{ElfFile, Fields, Section};
use super::name::name_at;
use super::table::{Binding, TableBuilder};

const GO_1_16: u32 = 0xffff_fffa;
const GO_1_18: u32 = 0xffff_fff0;
const GO_1_20: u32 = 0xffff_fff1;
/// What a table of symbols takes of a function, beside its name.
const BYTES_PER_FUNCTION: u64 = 64;
/// Code that the linker may put behind the last function.
const MOST_PADDING: u64 = 4096;

/// The section with the table.
pub(super) fn section(elf: &ElfFile) -> Option<&Section> {
    let names: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
    names.into_iter().find_map(|name| elf.section(name)).filter(|section| section.size > 0)
}

/// Calls `found` with each function: first address, one past the last, name. No call means that
/// there is no such table, or that it cannot be read.
pub(super) fn for_each(elf: &ElfFile, mut found: impl FnMut(u64, u64, &[u8])) {
    let Some(section) = section(elf) else { return };
    let Some(bytes) = elf.read_section(section) else { return };
    let text = elf.section(b".text").map(|text| (text.addr, text.size));
    let Some(table) = FunctionTable::parse(&bytes, text) else { return };
    for (start, end, name) in table.functions() {
        found(start, end, name_at(table.names, name as usize));
    }
}

/// Adds the functions, at their offsets in the file. Nothing means that there is no such table, or
/// that it cannot be read.
pub(super) fn add(builder: &mut TableBuilder, elf: &ElfFile) -> Option<()> {
    let section = section(elf)?;
    let room = section.size.saturating_mul(2).saturating_add(section.size / 8 * BYTES_PER_FUNCTION);
    let Some(room) = elf.budget.reserve(room.min(elf.stored.saturating_mul(6))) else {
        elf.refuse(format!("{}: its table of functions takes more memory than is left", elf.path.display()));
        return None;
    };
    let bytes = elf.read_section(section)?;
    let text = elf.section(b".text").map(|text| (text.addr, text.size));
    let table = FunctionTable::parse(&bytes, text)?;
    let base = builder.add_names(table.names)?;
    builder.keep(room);
    for (start, end, name) in table.functions() {
        // Other code, of C, may lie between; it is not there for the last word of the table either.
        if let Some(offset) = elf.code_offset(start) {
            builder.insert(offset, end - start, base + name, Binding::Global, 0);
        }
    }
    builder.fix(false);
    Some(())
}

/// First addresses of the functions.
pub(super) fn starts(elf: &ElfFile) -> Option<Vec<u64>> {
    let bytes = elf.read_section(section(elf)?)?;
    let text = elf.section(b".text").map(|text| (text.addr, text.size));
    Some(FunctionTable::parse(&bytes, text)?.functions().map(|(start, ..)| start).collect())
}

/// The parts of a table that name functions.
#[derive(Debug)]
struct FunctionTable<'a> {
    /// From the first name on.
    names: &'a [u8],
    /// From the list of functions on.
    list: &'a [u8],
    /// Bytes of an entry of the list's halves.
    width: usize,
    is_64: bool,
    functions: usize,
    /// Where offsets count from.
    text_start: u64,
}

impl<'a> FunctionTable<'a> {
    /// `text`: where the program's code was linked, and its size.
    fn parse(bytes: &'a [u8], text: Option<(u64, u64)>) -> Option<FunctionTable<'a>> {
        let head = Fields(bytes);
        let magic = head.u32(0);
        let has_offsets = match magic {
            GO_1_16 => false,
            GO_1_18 | GO_1_20 => true,
            _ => return None,
        };
        let word_bytes = usize::from(*bytes.get(7)?);
        if !matches!(word_bytes, 4 | 8) || bytes.get(4..6)? != [0, 0] {
            return None;
        }
        let is_64 = word_bytes == 8;
        let word = |number: usize| head.word(is_64, 8 + 8 * number, 8 + 4 * number);
        let (text_start, first_offset) = if has_offsets { (word(2), 3) } else { (0, 2) };
        let part = |number: usize| bytes.get(usize::try_from(word(number)).ok()?..);
        let (names, list) = (part(first_offset)?, part(first_offset + 4)?);
        // The table's other parts come behind the names.
        let names_end = usize::try_from(word(first_offset + 1).checked_sub(word(first_offset))?).ok()?;
        let names = names.get(..names_end)?;
        let width = if has_offsets { 4 } else { word_bytes };
        let functions = usize::try_from(word(0)).ok()?;
        let mut table = FunctionTable { names, list, width, is_64, functions, text_start };
        if functions == 0 || functions > list.len() / (2 * width) {
            return None;
        }
        if has_offsets && text_start == 0 {
            // Go 1.26 does not tell it any more, and in position-independent programs the loader
            // fills it in. Then all code must be Go's: C code before it would shift every name.
            let (start, size) = text?;
            let end = table.entry(functions);
            if end > size || size - end > MOST_PADDING {
                return None;
            }
            table.text_start = start;
        }
        Some(table)
    }

    /// A number of the list.
    fn number(&self, at: usize) -> u64 {
        let list = Fields(self.list);
        let at = at * self.width;
        if self.width == 4 { list.u32(at).into() } else { list.word(self.is_64, at, at) }
    }

    /// Where a function begins, by its number.
    fn entry(&self, number: usize) -> u64 {
        self.number(2 * number)
    }

    /// First address, one past the last, and where the name is among the names.
    fn functions(&self) -> impl Iterator<Item = (u64, u64, u32)> {
        (0..self.functions).filter_map(|number| {
            let start = self.entry(number).checked_add(self.text_start)?;
            let end = self.entry(number + 1).checked_add(self.text_start)?;
            let record = usize::try_from(self.number(2 * number + 1)).ok()?;
            let name = Fields(self.list.get(record..)?.get(self.width..self.width + 4)?).u32(0);
            let is_named = self.names.get(name as usize).is_some_and(|&first| first != 0);
            (start < end && is_named).then_some((start, end, name))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A table of two functions, `main.a` of 16 and `main.b` of 32 bytes, in the form of this
    /// version.
    fn table(magic: u32, word_bytes: usize, text_start: u64) -> Vec<u8> {
        let has_offsets = magic != GO_1_16;
        let mut out = magic.to_le_bytes().to_vec();
        out.extend([0, 0, 1, word_bytes as u8]);
        let word = |value: u64| value.to_le_bytes()[..word_bytes].to_vec();
        let narrow = |value: u64| value.to_le_bytes()[..if has_offsets { 4 } else { word_bytes }].to_vec();
        let header = 8 + word_bytes * if has_offsets { 8 } else { 7 };
        let names = b"\0main.a\0main.b\0\0";
        let list_at = header + names.len();
        let mut words = vec![2, 1];
        if has_offsets {
            words.push(text_start);
        }
        let list = list_at as u64;
        words.extend([header as u64, list, list, list, list]);
        out.extend(words.into_iter().flat_map(word));
        out.extend(names);
        let base = if has_offsets { 0 } else { text_start };
        let width = if has_offsets { 4 } else { word_bytes };
        let records = 5 * width;
        let entries = [(base, records), (base + 16, records + width + 4)];
        for (entry, record) in entries {
            out.extend(narrow(entry));
            out.extend(narrow(record as u64));
        }
        out.extend(narrow(base + 48));
        for ((entry, _), name) in entries.into_iter().zip([1u32, 8]) {
            out.extend(narrow(entry));
            out.extend(name.to_le_bytes());
        }
        out
    }

    fn found(bytes: &[u8], text: Option<(u64, u64)>) -> Vec<(u64, u64, String)> {
        let Some(table) = FunctionTable::parse(bytes, text) else { return Vec::new() };
        let name =
            |at: u32| String::from_utf8_lossy(crate::name::name_at(table.names, at as usize)).into_owned();
        table.functions().map(|(start, end, at)| (start, end, name(at))).collect()
    }

    /// Checks the forms of all versions, and that a table which does not tell where code begins is
    /// believed only if all code is Go's.
    #[test]
    fn versions() {
        let wanted = [(0x1000, 0x1010, "main.a".to_owned()), (0x1010, 0x1030, "main.b".to_owned())];
        for word_bytes in [4, 8] {
            for magic in [GO_1_16, GO_1_18, GO_1_20] {
                assert_eq!(found(&table(magic, word_bytes, 0x1000), None), wanted, "{magic:x} {word_bytes}");
            }
            let without = table(GO_1_20, word_bytes, 0);
            assert_eq!(found(&without, Some((0x1000, 64))), wanted);
            for text in [None, Some((0x1000, 40)), Some((0x1000, 9000))] {
                assert_eq!(found(&without, text), []);
            }
        }
        assert_eq!(found(&table(0xffff_fffb, 8, 0x1000), None), []);
    }

    proptest! {
        /// Checks that damaged and cut tables give functions within bounds, or none, and never a
        /// panic.
        #[test]
        fn damage(
            version in 0usize..3,
            damage in proptest::collection::vec((0usize..200, any::<u8>()), 1..6),
            cut in 0usize..200,
        ) {
            let mut bytes = table([GO_1_16, GO_1_18, GO_1_20][version], 8, 0x1000);
            for (at, byte) in damage {
                if let Some(place) = bytes.get_mut(at) {
                    *place = byte;
                }
            }
            bytes.truncate(cut.max(8));
            for (start, end, _) in found(&bytes, Some((0x1000, 64))) {
                prop_assert!(start < end);
            }
        }
    }
}
