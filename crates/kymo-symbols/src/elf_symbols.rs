//! Symbols of ELF files: which entries count as symbols, and at which file offset.

use super::elf::{self, EM_AARCH64, EM_ARM, EM_RISCV, ElfFile, Fields, Section};
use super::function_starts;
use super::name::name_at;
use super::table::{Binding, TableBuilder};

pub(crate) const STT_NOTYPE: u8 = 0;
pub(crate) const STT_OBJECT: u8 = 1;
pub(crate) const STT_FUNC: u8 = 2;
pub(crate) const STT_GNU_IFUNC: u8 = 10;
const STV_INTERNAL: u8 = 1;
const STV_HIDDEN: u8 = 2;
const SHN_UNDEF: u16 = 0;
pub(crate) const SHN_ABS: u16 = 0xfff1;

/// Where a symbol's address is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressSpace {
    /// File offsets: user modules.
    FileOffset,
    /// As linked: a kernel image.
    Linked,
}

/// The symbol table proper of a file, if it has one.
pub(crate) fn symtab(elf: &ElfFile) -> Option<&Section> {
    elf.section(b".symtab").filter(|s| s.kind == elf::SHT_SYMTAB)
}

/// The dynamic linker's symbol table, if the file has one with bytes in it.
pub(crate) fn dynsym(elf: &ElfFile) -> Option<&Section> {
    elf.section(b".dynsym").filter(|s| s.kind == elf::SHT_DYNSYM)
}

/// One entry of an ELF symbol table.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) name: u32,
    pub(crate) info: u8,
    pub(crate) other: u8,
    pub(crate) section: u16,
    pub(crate) value: u64,
    pub(crate) size: u64,
}

impl Symbol {
    pub(crate) fn parse(is_64: bool, bytes: &[u8]) -> Symbol {
        let f = Fields(bytes);
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let at = |at_64: usize, at_32: usize| if is_64 { at_64 } else { at_32 };
        Symbol {
            name: f.u32(0),
            info: byte(at(4, 12)),
            other: byte(at(5, 13)),
            section: f.u16(at(6, 14)),
            value: f.word(is_64, 8, 4),
            size: f.word(is_64, 16, 8),
        }
    }

    pub(crate) fn kind(self) -> u8 {
        self.info & 15
    }

    pub(crate) fn binding(self) -> Binding {
        match self.info >> 4 {
            1 => Binding::Global,
            2 => Binding::Weak,
            _ => Binding::Local,
        }
    }

    pub(crate) fn is_named_and_defined(self) -> bool {
        self.name != 0 && self.section != SHN_UNDEF
    }

    pub(crate) fn is_function(self) -> bool {
        self.is_named_and_defined() && matches!(self.kind(), STT_FUNC | STT_GNU_IFUNC)
    }

    fn is_function_or_object(self) -> bool {
        self.is_named_and_defined() && matches!(self.kind(), STT_FUNC | STT_GNU_IFUNC | STT_OBJECT)
    }

    fn is_label(self) -> bool {
        self.is_named_and_defined()
            && self.kind() == STT_NOTYPE
            && self.section != SHN_ABS
            && !matches!(self.other & 3, STV_HIDDEN | STV_INTERNAL)
    }
}

/// A symbol table that was read, with the names of its entries.
pub(crate) struct SymbolEntries {
    is_64: bool,
    bytes: Vec<u8>,
    pub(crate) strings: Vec<u8>,
}

impl SymbolEntries {
    pub(crate) fn read(elf: &ElfFile, table: &Section) -> Option<SymbolEntries> {
        let strings = elf.read_section(elf.sections.get(table.link as usize)?)?;
        Some(SymbolEntries { is_64: elf.is_64, bytes: elf.read_section(table)?, strings })
    }

    fn chunks(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(if self.is_64 { 24 } else { 16 })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Symbol> {
        self.chunks().map(|bytes| Symbol::parse(self.is_64, bytes))
    }

    pub(crate) fn get(&self, number: usize) -> Option<Symbol> {
        self.chunks().nth(number).map(|bytes| Symbol::parse(self.is_64, bytes))
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &[u8] {
        name_at(&self.strings, symbol.name as usize)
    }
}

/// Both symbol tables of a file, as far as it has them.
pub(crate) fn tables(elf: &ElfFile) -> impl Iterator<Item = &Section> {
    [symtab(elf), dynsym(elf)].into_iter().flatten()
}

/// Adds the symbols of `elf`: of `.symtab` and then of `.dynsym`, each followed by the fixing of ends and aliases.
/// `runtime` is the file that was loaded, where `elf` may be one that only holds debug information.
///
/// A symbol of a section that is not there is passed over: post-link optimizers leave such ones. (perf 6.1 drops all
/// symbols behind it.)
pub(super) fn add_symbols(builder: &mut TableBuilder, elf: &ElfFile, runtime: &ElfFile, space: AddressSpace) {
    for table in tables(elf) {
        if add_table(builder, elf, runtime, table, space).is_none() {
            elf.refuse(format!(
                "{}: its section {} could not be read whole; its symbols are missing",
                elf.path.display(),
                String::from_utf8_lossy(elf.section_name(table))
            ));
        }
    }
}

/// Nothing means that the table could not be read.
fn add_table(
    builder: &mut TableBuilder,
    elf: &ElfFile,
    runtime: &ElfFile,
    table: &Section,
    space: AddressSpace,
) -> Option<()> {
    let names = elf.sections.get(table.link as usize)?;
    // The names as read and as kept; an entry of the table takes two to four times its length.
    let bytes = names.size.saturating_mul(2).saturating_add(table.size.saturating_mul(4));
    // What is longer than the file is not read.
    let Some(room) = elf.budget.reserve(bytes.min(elf.stored.saturating_mul(6))) else {
        elf.refuse(format!(
            "{}: its symbols take more memory than is left for files of its size: {bytes} bytes",
            elf.path.display()
        ));
        return None;
    };
    let entries = SymbolEntries::read(elf, table)?;
    let strings = &entries.strings;
    let base = builder.add_names(strings)?;
    builder.keep(room);
    let count = table.size.checked_div(table.entry_size)?;
    let (mut added, mut has_open_end) = (0, false);
    for symbol in entries.iter().take(count.try_into().unwrap_or(usize::MAX)) {
        let is_label = symbol.is_label();
        if !is_label && !symbol.is_function_or_object() {
            continue;
        }
        let Some(name) = strings.get(symbol.name as usize..).filter(|name| !name.is_empty()) else {
            continue;
        };
        if is_mapping_mark(elf.machine, name) || symbol.section == SHN_ABS {
            continue;
        }
        let mut owner = elf;
        let Some(mut section) = elf.sections.get(usize::from(symbol.section)) else { continue };
        // What occupies no memory (linker warnings) has no address either.
        if section.flags & elf::SHF_ALLOC == 0 {
            continue;
        }
        if section.kind == elf::SHT_NOBITS {
            // A debug file's sections are hollow: their offsets are those of the loaded file.
            owner = runtime;
            let Some(loaded) = runtime.sections.get(usize::from(symbol.section)) else { continue };
            section = loaded;
        }
        if is_label && !holds_text_or_data(owner.section_name(section)) {
            continue;
        }
        let mut value = symbol.value;
        if elf.machine == EM_ARM && symbol.kind() == STT_FUNC {
            value &= !1;
        }
        if space == AddressSpace::FileOffset {
            value = match runtime.segment_of(value) {
                Some(segment) => value.wrapping_sub(segment.vaddr).wrapping_add(segment.offset),
                None => value.wrapping_sub(section.addr).wrapping_add(section.offset),
            };
        }
        has_open_end |= symbol.size == 0;
        builder.insert(value, symbol.size, base + symbol.name, symbol.binding(), 0);
        added += 1;
    }
    // The functions between two exported ones have no symbols in a stripped file.
    if has_open_end && space == AddressSpace::FileOffset && symtab(elf).is_none() {
        builder.end_at(function_starts::by_unwind_table(runtime));
    }
    if added > 0 {
        builder.fix(false);
    }
    Some(())
}

/// A function as its symbol tells it.
pub(super) struct FunctionSymbol<'a> {
    pub(super) name: &'a [u8],
    /// Where it is as linked.
    pub(super) svma: u64,
    pub(super) size: u64,
    /// 0 global, 1 weak, 2 local.
    pub(super) rank: u8,
    /// It picks the function when the program starts (IFUNC).
    pub(super) is_resolver: bool,
}

/// Tells of each function in both tables; what makes no sense is left out. Labels of assembly code are functions if they have a size.
pub(super) fn for_each_function(elf: &ElfFile, mut tell: impl FnMut(FunctionSymbol<'_>)) {
    for entries in tables(elf).filter_map(|table| SymbolEntries::read(elf, table)) {
        let mut budget = entries.strings.len().saturating_mul(4) + (1 << 20);
        for symbol in entries.iter() {
            let is_function = matches!(symbol.kind(), STT_FUNC | STT_GNU_IFUNC);
            let is_sized_label = symbol.is_label() && symbol.size > 0;
            if !symbol.is_named_and_defined() || symbol.section == SHN_ABS || !(is_function || is_sized_label)
            {
                continue;
            }
            let name = entries.name(symbol);
            let Some(left) = budget.checked_sub(name.len()) else { return };
            budget = left;
            if is_mapping_mark(elf.machine, name) {
                continue;
            }
            let svma = if elf.machine == EM_ARM { symbol.value & !1 } else { symbol.value };
            let rank = match symbol.binding() {
                Binding::Global => 0,
                Binding::Weak => 1,
                Binding::Local => 2,
            };
            let is_resolver = symbol.kind() == STT_GNU_IFUNC;
            tell(FunctionSymbol { name, svma, size: symbol.size, rank, is_resolver });
        }
    }
}

/// Whether the function of 32-bit ARM that begins here has Thumb instructions: its symbol says so
/// by an odd address (ELF for the Arm Architecture, "Symbol Values").
pub(crate) fn is_thumb(elf: &ElfFile, address: u64) -> bool {
    let is_it = |symbol: Symbol| symbol.is_function() && symbol.value == address | 1;
    elf.machine == EM_ARM
        && tables(elf)
            .filter_map(|table| SymbolEntries::read(elf, table))
            .any(|entries| entries.iter().any(is_it))
}

/// ARM and RISC-V mark code and data with names that are no functions.
fn is_mapping_mark(machine: u16, name: &[u8]) -> bool {
    let kinds: &[u8] = match machine {
        EM_ARM | EM_AARCH64 => b"adtx",
        EM_RISCV => b"dx",
        _ => return false,
    };
    name.len() >= 3 && name[0] == b'$' && kinds.contains(&name[1]) && matches!(name[2], 0 | b'.')
}

fn holds_text_or_data(section: &[u8]) -> bool {
    memchr::memmem::find(section, b"text").is_some() || memchr::memmem::find(section, b"data").is_some()
}
