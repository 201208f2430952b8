//! Symbols by name, and names by address, straight from the ELF symbol tables.
//!
//! The symbol tables of the reports keep one of several aliases, as perf does; here every name counts.

use std::borrow::Cow;

use memchr::memmem;

use super::near;
use crate::demangle;
use crate::elf::{self, ElfFile};
use crate::elf_symbols::{self, SymbolEntries};
use crate::name::name_at;

const STT_FILE: u8 = 4;
const STT_COMMON: u8 = 5;
const STT_TLS: u8 = 6;
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
    /// The name of the file that a local symbol is of.
    file: u32,
}

/// A symbol that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSymbol {
    /// As a person reads it.
    pub(super) name: String,
    pub(super) svma: u64,
    pub(super) size: u64,
    pub(super) kind: Kind,
    pub(super) global: bool,
    /// The source file of a local symbol, without folders.
    pub(super) file: Option<String>,
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
        if let Some(section) = elf_symbols::dynsym(own) {
            symbols.add(own, section, 1);
        }
        symbols.entries.sort_by_key(|entry| (entry.svma, std::cmp::Reverse(entry.size), entry.table));
        symbols
    }

    fn add(&mut self, elf: &ElfFile, section: &elf::Section, table: u8) {
        let Some(entries) = SymbolEntries::read(elf, section) else { return };
        let mut file = 0;
        for symbol in entries.iter().skip(1) {
            // Local symbols follow the name of their file.
            if symbol.kind() == STT_FILE {
                file = symbol.name;
                continue;
            }
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
                file: if symbol.info >> 4 == 0 { file } else { 0 },
            });
        }
        self.strings[usize::from(table)] = entries.strings;
    }

    fn string(&self, table: u8, at: u32) -> &[u8] {
        name_at(&self.strings[usize::from(table)], at as usize)
    }

    fn file_of(&self, entry: &Entry) -> Option<String> {
        let name = self.string(entry.table, entry.file);
        (entry.file != 0 && !name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
    }

    fn raw(&self, entry: &Entry) -> &[u8] {
        let name = self.string(entry.table, entry.name);
        // A version (`environ@@GLIBC_2.2.5`) is no part of the name, but `name@plt` is.
        match memchr::memchr(b'@', name) {
            Some(at) if at > 0 && !name.ends_with(b"@plt") => &name[..at],
            _ => name,
        }
    }

    fn found(&self, entry: &Entry) -> NamedSymbol {
        let raw = String::from_utf8_lossy(self.raw(entry));
        NamedSymbol {
            name: demangle::readable(&raw).into_owned(),
            svma: entry.svma,
            size: entry.size,
            kind: entry.kind,
            global: entry.global,
            file: self.file_of(entry),
        }
    }

    /// The symbols that `path` names, one per address; of one source file if one is given.
    ///
    /// Exactly: the name as the linker or the language spells it in full. Else the end of such a path
    /// (`module::STATIC` of `crate::module::STATIC`).
    pub(super) fn named(&self, path: &str, file: Option<&str>, exactly: bool) -> Vec<NamedSymbol> {
        let is_of_file = |entry: &&Entry| match file {
            // Symbol tables have files without folders.
            Some(file) => {
                self.file_of(entry).is_some_and(|name| file == name || file.ends_with(&format!("/{name}")))
            }
            None => true,
        };
        if exactly {
            let as_linked = |entry: &&Entry| self.raw(entry) == path.as_bytes();
            let found: Vec<&Entry> = self.entries.iter().filter(as_linked).filter(is_of_file).collect();
            if !found.is_empty() {
                return self.distinct(found);
            }
        }
        // A mangled name has the letters of the last segment in it, so few have to be made readable.
        let word: &str = near::last_segment(path);
        let word = word.split(['<', '(', '{']).next().unwrap_or("");
        let finder = memmem::Finder::new(word.as_bytes());
        let is_meant = |entry: &&Entry| {
            let raw = self.raw(entry);
            if !demangle::is_candidate(raw) || finder.find(raw).is_none() {
                return false;
            }
            let raw = String::from_utf8_lossy(raw);
            let readable = demangle::readable(&raw);
            if exactly { readable == path } else { ends_with_path(&relaxed(&readable), path) }
        };
        self.distinct(self.entries.iter().filter(is_meant).filter(is_of_file).collect())
    }

    /// Where the module has data of this name that other modules use in place of their own.
    pub(super) fn exported_data(&self, name: &str) -> Option<u64> {
        let is_it = |entry: &&Entry| {
            entry.table == 1 && entry.kind == Kind::Data && entry.global && self.raw(entry) == name.as_bytes()
        };
        self.entries.iter().find(is_it).map(|entry| entry.svma)
    }

    fn distinct(&self, entries: Vec<&Entry>) -> Vec<NamedSymbol> {
        let mut found: Vec<NamedSymbol> = Vec::new();
        for entry in entries {
            match found.iter_mut().find(|known| known.svma == entry.svma && known.kind == entry.kind) {
                Some(known) => known.global |= entry.global,
                None => found.push(self.found(entry)),
            }
        }
        found
    }

    /// The symbol that covers an address, and how far behind its start that is.
    pub(super) fn covering(&self, svma: u64) -> Option<(String, u64)> {
        let end = self.entries.partition_point(|entry| entry.svma <= svma);
        // Symbols that start later are smaller; a few without a length may stand between.
        let covers = |entry: &&Entry| entry.kind != Kind::ThreadLocal && svma - entry.svma < entry.size;
        let entry = self.entries[..end].iter().rev().take(64).find(covers)?;
        Some((self.found(entry).name, svma - entry.svma))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> + '_ {
        self.entries.iter().take(MOST_FOR_NEAR).map(|entry| {
            let raw = String::from_utf8_lossy(self.raw(entry));
            demangle::readable(&raw).into_owned()
        })
    }
}

/// A path as people write it: `Pool::get` for Rust's `<Pool>::get` and `<Pool as Trait>::get`.
pub(super) fn relaxed(path: &str) -> Cow<'_, str> {
    let Some(inside) = path.strip_prefix('<') else { return Cow::Borrowed(path) };
    let mut depth = 1usize;
    let close = inside.bytes().enumerate().position(|(at, byte)| {
        match byte {
            b'<' => depth += 1,
            b'>' if at > 0 && inside.as_bytes()[at - 1] == b'-' => {}
            b'>' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    match close {
        Some(close) => {
            let (kind, rest) = (&inside[..close], &inside[close + 1..]);
            Cow::Owned(format!("{}{rest}", kind.split(" as ").next().unwrap_or(kind)))
        }
        None => Cow::Borrowed(path),
    }
}

/// Whether `whole` is `path` or `...::path`.
pub(super) fn ends_with_path(whole: &str, path: &str) -> bool {
    whole.strip_suffix(path).is_some_and(|before| before.is_empty() || before.ends_with("::"))
}
