//! Symbols by name, and names by address, straight from the ELF symbol tables.
//!
//! The symbol tables of the reports keep one of several aliases, as perf does; here every name counts.

use std::ops::Range;

use memchr::memmem;

use super::near;
use crate::symbols::demangle;
use crate::symbols::elf::{self, ElfFile};
use crate::symbols::elf_symbols::{self, Symbol};

const STT_COMMON: u8 = 5;
const STT_TLS: u8 = 6;
/// Names beyond this length are compared up to it.
const LONGEST_NAME: usize = 64 << 10;
/// Names that are looked at for a suggestion.
const MOST_FOR_NEAR: usize = 2_000_000;

/// What a symbol is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Code,
    Data,
    /// Its value is an offset in each thread's block, no address.
    ThreadLocal,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    svma: u64,
    size: u64,
    name: u32,
    table: u8,
    kind: Kind,
    global: bool,
}

/// A symbol that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// As a person reads it.
    pub(super) name: String,
    pub(super) svma: u64,
    pub(super) size: u64,
    pub(super) kind: Kind,
    pub(super) global: bool,
}

/// All named and defined symbols of a module.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// By address, then larger first.
    entries: Vec<Entry>,
    strings: [Vec<u8>; 2],
}

impl Symbols {
    /// Reads `.symtab` of `full`, which may be a debug file, and `.dynsym` of the loaded file.
    pub(super) fn read(full: Option<&ElfFile>, own: &ElfFile) -> Symbols {
        let mut symbols = Symbols::default();
        if let Some(elf) = full
            && let Some(section) = elf_symbols::symtab(elf)
        {
            symbols.add(elf, section, 0);
        }
        if let Some((_, section)) = elf_symbols::dynsym(own) {
            symbols.add(own, section, 1);
        }
        symbols.entries.sort_by_key(|entry| (entry.svma, std::cmp::Reverse(entry.size), entry.table));
        symbols
    }

    fn add(&mut self, elf: &ElfFile, section: &elf::Section, table: u8) {
        let strings = elf.sections.get(section.link as usize).and_then(|section| elf.read_section(section));
        let (Some(strings), Some(bytes)) = (strings, elf.read_section(section)) else { return };
        for bytes in bytes.chunks_exact(if elf.is_64 { 24 } else { 16 }).skip(1) {
            let symbol = Symbol::parse(elf.is_64, bytes);
            let kind = match symbol.kind() {
                elf_symbols::STT_FUNC | elf_symbols::STT_GNU_IFUNC => Kind::Code,
                elf_symbols::STT_OBJECT | elf_symbols::STT_NOTYPE | STT_COMMON => Kind::Data,
                STT_TLS => Kind::ThreadLocal,
                _ => continue,
            };
            if !symbol.is_named_and_defined() || symbol.section == elf_symbols::SHN_ABS {
                continue;
            }
            self.entries.push(Entry {
                svma: symbol.value,
                size: symbol.size,
                name: symbol.name,
                table,
                kind,
                global: symbol.info >> 4 != 0,
            });
        }
        self.strings[usize::from(table)] = strings;
    }

    /// Whether there is none at all.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn raw(&self, entry: &Entry) -> &[u8] {
        let rest = self.strings[usize::from(entry.table)].get(entry.name as usize..).unwrap_or(&[]);
        let rest = &rest[..rest.len().min(LONGEST_NAME)];
        let name = &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())];
        // A version (`environ@@GLIBC_2.2.5`) is no part of the name, but `name@plt` is.
        match memchr::memchr(b'@', name) {
            Some(at) if at > 0 && !name.ends_with(b"@plt") => &name[..at],
            _ => name,
        }
    }

    fn found(&self, entry: &Entry) -> Found {
        let raw = String::from_utf8_lossy(self.raw(entry));
        Found {
            name: demangle::readable(&raw).into_owned(),
            svma: entry.svma,
            size: entry.size,
            kind: entry.kind,
            global: entry.global,
        }
    }

    /// The symbols that `path` names, one per address.
    ///
    /// A name as the linker knows it comes before a readable one, and a whole path before the end of one
    /// (`module::STATIC` of `crate::module::STATIC`).
    pub(super) fn named(&self, path: &str) -> Vec<Found> {
        let as_linked: Vec<&Entry> =
            self.entries.iter().filter(|entry| self.raw(entry) == path.as_bytes()).collect();
        if !as_linked.is_empty() {
            return self.distinct(as_linked);
        }
        // A mangled name has the letters of the last segment in it, so few have to be made readable.
        let word: &str = near::last_segment(path);
        let word = word.split(['<', '(', '{']).next().unwrap_or("");
        let finder = memmem::Finder::new(word.as_bytes());
        let (mut whole, mut ends) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let raw = self.raw(entry);
            if !demangle::is_candidate(raw) || finder.find(raw).is_none() {
                continue;
            }
            let raw = String::from_utf8_lossy(raw);
            let readable = demangle::readable(&raw);
            if readable == path {
                whole.push(entry);
            } else if ends_with_path(&readable, path) {
                ends.push(entry);
            }
        }
        self.distinct(if whole.is_empty() { ends } else { whole })
    }

    fn distinct(&self, entries: Vec<&Entry>) -> Vec<Found> {
        let mut found: Vec<Found> = Vec::new();
        for entry in entries {
            match found.iter_mut().find(|known| known.svma == entry.svma && known.kind == entry.kind) {
                Some(known) => known.global |= entry.global,
                None => found.push(self.found(entry)),
            }
        }
        found
    }

    /// The symbol that covers an address: its name, its start and its length.
    pub(super) fn covering(&self, svma: u64) -> Option<(String, Range<u64>)> {
        let end = self.entries.partition_point(|entry| entry.svma <= svma);
        // Symbols that start later are smaller; a few without a length may stand between.
        let covers = |entry: &&Entry| entry.kind != Kind::ThreadLocal && svma - entry.svma < entry.size;
        let entry = self.entries[..end].iter().rev().take(64).find(covers)?;
        Some((self.found(entry).name, entry.svma..entry.svma.saturating_add(entry.size)))
    }

    /// Readable names of data, or of everything, for suggestions.
    pub(super) fn names(&self, code: bool) -> impl Iterator<Item = String> + '_ {
        let wanted = move |entry: &&Entry| code || entry.kind != Kind::Code;
        self.entries.iter().filter(wanted).take(MOST_FOR_NEAR).map(|entry| {
            let raw = String::from_utf8_lossy(self.raw(entry));
            demangle::readable(&raw).into_owned()
        })
    }
}

/// Whether `whole` is `...::path`.
pub(super) fn ends_with_path(whole: &str, path: &str) -> bool {
    whole.strip_suffix(path).is_some_and(|before| before.ends_with("::"))
}
