//! Names for the jump stubs of the procedure linkage table: `function@plt`, as objdump names them.
//!
//! ```text
//!  .plt      push, jmp (header) | jmp *GOT[3]; push 0; jmp header | ...        lazy binding
//!  .plt.sec  endbr64; jmp *GOT[3] | ...      the stubs that are called where .plt's entries start with endbr64
//!  .plt.got  jmp *GOT[n] | ...               functions whose address is taken, too
//! ```
//!
//! The code of `.plt` that resolves a function at its first call is no function's: it is named `.plt`, as perf 6.2 and
//! later name it. That is the header, and all of `.plt` where `.plt.sec` has the stubs.
//!
//! A stub is told by the word of the GOT that it jumps through, and the word by the relocation that fills it. The
//! order of the relocations says nothing: linkers put those of IFUNCs (`IRELATIVE`) last. Other machines than x86 have
//! entries of one size in order of the relocations, as perf 6.1 takes them.

use std::collections::BTreeMap;

use super::elf::{self, EM_386, EM_AARCH64, EM_ARM, EM_X86_64, ElfFile, Fields, Section};
use super::elf_symbols::{SymbolEntries, dynsym};
use super::table::{Binding, TableBuilder};

/// `R_X86_64_*` and `R_386_*` have the same numbers for these two.
const R_GLOB_DAT: u64 = 6;
const R_JUMP_SLOT: u64 = 7;
const R_X86_64_IRELATIVE: u64 = 37;
const R_386_IRELATIVE: u64 = 42;
/// Names may take so much more than the string table that they come from, which a hostile table repeats.
const MOST_REPEATED: usize = 1 << 20;

/// One relocation of a word of the GOT.
struct Relocation {
    at: u64,
    kind: u64,
    symbol: usize,
    addend: i64,
}

/// Adds the stubs of a loaded file; nothing if it has none, or what names them cannot be read.
pub(super) fn add(builder: &mut TableBuilder, runtime: &ElfFile) -> Option<()> {
    let names = Names::read(runtime)?;
    match runtime.machine {
        EM_386 | EM_X86_64 => add_x86(builder, runtime, &names),
        _ => add_in_order(builder, runtime, &names),
    }
}

/// What a stub is called after. Names are made when they are written, one after the other: a hostile table gives one long name to
/// each of a million stubs.
#[derive(Clone, Copy)]
enum StubName {
    Symbol(usize),
    /// An IFUNC by the address of its resolver.
    Resolver(i64),
}

/// The symbols for dynamic linking.
struct Names {
    number: usize,
    entries: SymbolEntries,
}

impl Names {
    fn read(runtime: &ElfFile) -> Option<Names> {
        let section = dynsym(runtime)?;
        let number = runtime.sections.iter().position(|other| std::ptr::eq(other, section))?;
        let entries = SymbolEntries::read(runtime, section)?;
        (!entries.strings.is_empty()).then_some(Names { number, entries })
    }

    fn of(&self, number: usize) -> &[u8] {
        self.entries.get(number).map_or(&[], |symbol| self.entries.name(symbol))
    }

    /// Collects stubs: address, size, name.
    fn insert(
        &self,
        builder: &mut TableBuilder,
        stubs: impl Iterator<Item = (u64, u64, StubName)>,
    ) -> Option<()> {
        let mut arena = Vec::new();
        let mut found = Vec::new();
        for (address, size, name) in stubs {
            if arena.len() > self.entries.strings.len().saturating_mul(4) + MOST_REPEATED {
                return None;
            }
            found.push((address, size, arena.len() as u32));
            match name {
                StubName::Symbol(number) => arena.extend_from_slice(self.of(number)),
                StubName::Resolver(address) => arena.extend_from_slice(&resolver(address)),
            }
            arena.extend_from_slice(b"@plt\0");
        }
        let base = builder.add_names(&arena)?;
        for (address, size, name) in found {
            builder.insert(address, size, base + name, Binding::Global, 0);
        }
        Some(())
    }
}

fn relocations(runtime: &ElfFile, section: &Section) -> Option<Vec<Relocation>> {
    let is_64 = runtime.is_64;
    let entry_size = match (section.kind, is_64) {
        (elf::SHT_RELA, true) => 24,
        (elf::SHT_RELA, false) => 12,
        (elf::SHT_REL, true) => 16,
        (elf::SHT_REL, false) => 8,
        _ => return None,
    };
    let bytes = runtime.read_section(section)?;
    let one = |bytes: &[u8]| {
        let fields = Fields(bytes);
        let info = fields.word(is_64, 8, 4);
        let (symbol, kind) = if is_64 { (info >> 32, info & 0xffff_ffff) } else { (info >> 8, info & 0xff) };
        let addend = match (section.kind, is_64) {
            (elf::SHT_RELA, true) => fields.u64(16) as i64,
            (elf::SHT_RELA, false) => i64::from(fields.u32(8) as i32),
            _ => 0,
        };
        Relocation { at: fields.word(is_64, 0, 0), kind, symbol: symbol as usize, addend }
    };
    Some(bytes.chunks_exact(entry_size).map(one).collect())
}

fn add_x86(builder: &mut TableBuilder, runtime: &ElfFile, names: &Names) -> Option<()> {
    // The stubs: the word that each jumps through, with address in the file and size.
    let mut stubs: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let got = [&b".got.plt"[..], b".got"].iter().find_map(|name| runtime.section(name));
    let got = got.map_or(0, |section| section.addr);
    for name in [&b".plt"[..], b".plt.got", b".plt.sec", b".plt.bnd", b".iplt"] {
        let Some(section) = runtime.section(name) else { continue };
        let Some(code) = runtime.read_section(section) else { continue };
        let mut at = 0;
        while at < code.len() {
            let (word, size) = match jump(&code[at..], runtime.machine, section.addr + at as u64, got) {
                Some((word, has_mark)) => (Some(word), if name == b".plt.got" && !has_mark { 8 } else { 16 }),
                None => (None, 8),
            };
            if let Some(word) = word {
                stubs.entry(word).or_default().push((section.offset.wrapping_add(at as u64), size as u64));
            }
            at += size;
        }
    }
    let mut named: BTreeMap<u64, (u64, StubName)> = BTreeMap::new();
    for name in [&b".rela.plt"[..], b".rel.plt", b".rela.dyn", b".rel.dyn"] {
        let Some(section) = runtime.section(name) else { continue };
        for relocation in relocations(runtime, section).unwrap_or_default() {
            if !stubs.contains_key(&relocation.at) {
                continue;
            }
            let name = match relocation.kind {
                R_X86_64_IRELATIVE if runtime.is_64 => StubName::Resolver(relocation.addend),
                // The addend lies in the word itself.
                R_386_IRELATIVE if !runtime.is_64 => {
                    StubName::Resolver(word_at(runtime, relocation.at).map_or(0, i64::from))
                }
                R_GLOB_DAT | R_JUMP_SLOT => StubName::Symbol(relocation.symbol),
                _ => continue,
            };
            // The first relocation of a word names its stubs; a hostile table has a million for one word of a million stubs.
            for (address, size) in stubs.remove(&relocation.at).unwrap_or_default() {
                named.entry(address).or_insert((size, name));
            }
        }
    }
    add_resolver(builder, runtime, stubs.values().flatten().map(|&(address, _)| address));
    names.insert(builder, named.into_iter().map(|(address, (size, name))| (address, size, name)))
}

/// Names the part of `.plt` before its first stub.
fn add_resolver(builder: &mut TableBuilder, runtime: &ElfFile, stubs: impl Iterator<Item = u64>) {
    let Some(plt) = runtime.section(b".plt") else { return };
    let end = plt.offset.saturating_add(plt.size);
    let end = stubs.filter(|stub| (plt.offset..end).contains(stub)).min().unwrap_or(end);
    if end > plt.offset
        && let Some(name) = builder.add_names(b".plt\0")
    {
        builder.insert(plt.offset, end - plt.offset, name, Binding::Global, 0);
    }
}

/// An IFUNC without a name is told by the address of its resolver.
fn resolver(address: i64) -> Vec<u8> {
    format!("*ABS*+{address:#x}").into_bytes()
}

fn word_at(runtime: &ElfFile, svma: u64) -> Option<u32> {
    let segment = runtime.segment_of(svma)?;
    let bytes = runtime.read(svma.wrapping_sub(segment.vaddr).wrapping_add(segment.offset), 4)?;
    Some(Fields(&bytes).u32(0))
}

/// The word that a stub jumps through, and whether the stub starts with a mark for indirect branches.
fn jump(code: &[u8], machine: u16, address: u64, got: u64) -> Option<(u64, bool)> {
    let marks: [&[u8]; 2] = [&[0xf3, 0x0f, 0x1e, 0xfa], &[0xf3, 0x0f, 0x1e, 0xfb]];
    let has_mark = marks.iter().any(|mark| code.starts_with(mark));
    let mut at = if has_mark { 4 } else { 0 };
    if code.get(at) == Some(&0xf2) {
        at += 1;
    }
    let (&opcode, operand) = code.get(at..)?.split_first_chunk::<2>()?;
    let (&operand, _) = operand.split_first_chunk::<4>()?;
    let signed = i64::from(i32::from_le_bytes(operand)) as u64;
    let word = match (machine, opcode) {
        (EM_X86_64, [0xff, 0x25]) => address.wrapping_add(at as u64 + 6).wrapping_add(signed),
        (EM_386, [0xff, 0x25]) => u64::from(u32::from_le_bytes(operand)),
        // Position-independent: relative to the GOT, whose address is in ebx.
        (EM_386, [0xff, 0xa3]) => got.wrapping_add(signed) & 0xffff_ffff,
        _ => return None,
    };
    Some((word, has_mark))
}

/// A header and entries of one size, in order of the relocations.
fn add_in_order(builder: &mut TableBuilder, runtime: &ElfFile, names: &Names) -> Option<()> {
    let sections: [&[u8]; 2] = [b".rela.plt", b".rel.plt"];
    let section = sections.iter().find_map(|name| runtime.section(name))?;
    if section.link as usize != names.number {
        return None;
    }
    let plt = runtime.section(b".plt")?;
    let (header_size, size) = match runtime.machine {
        EM_ARM => (20, 12),
        EM_AARCH64 => (32, 16),
        _ => (plt.entry_size, plt.entry_size),
    };
    let first = plt.offset.wrapping_add(header_size);
    add_resolver(builder, runtime, std::iter::once(first));
    let stubs = relocations(runtime, section)?;
    let address = |number: usize| first.wrapping_add(size.wrapping_mul(number as u64));
    let stubs = stubs.iter().enumerate().map(|(n, one)| (address(n), size, StubName::Symbol(one.symbol)));
    names.insert(builder, stubs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the forms of stubs that linkers write.
    #[test]
    fn stubs_are_told_by_the_word_that_they_jump_through() {
        let at = 0x1000;
        let jump64 = |code: &[u8]| jump(code, EM_X86_64, at, 0);
        assert_eq!(jump64(&[0xff, 0x25, 0x10, 0, 0, 0]), Some((at + 6 + 0x10, false)));
        assert_eq!(jump64(&[0xf2, 0xff, 0x25, 0x10, 0, 0, 0]), Some((at + 7 + 0x10, false)));
        let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0xf0, 0xff, 0xff, 0xff];
        assert_eq!(jump64(&marked), Some((at + 10 - 0x10, true)));
        // The header, and what a lazy stub does the first time.
        assert_eq!(jump64(&[0xff, 0x35, 0, 0, 0, 0, 0xff, 0x25]), None);
        assert_eq!(jump64(&[0xf3, 0x0f, 0x1e, 0xfa, 0x68, 0, 0, 0, 0, 0xe9]), None);
        assert_eq!(jump(&[0xff, 0xa3, 0x0c, 0, 0, 0], EM_386, at, 0x4000), Some((0x400c, false)));
        assert_eq!(jump(&[0xff, 0x25, 0x0c, 0x40, 0, 0], EM_386, at, 0), Some((0x400c, false)));
        assert_eq!(jump64(&[0xff, 0x25, 0]), None);
    }
}
