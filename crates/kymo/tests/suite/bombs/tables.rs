//! Tables of ELF files that are small and cost their reader once for each pair of entries: sections and names, symbols
//! and segments, stubs and relocations, files and links.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Content, PROGBITS, Section};
use super::{bomb, limited, report};

/// A section of a [`Raw`] file.
#[derive(Clone, Copy, Default)]
struct Header {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
    entry: u64,
}

/// An ELF file whose tables are given as numbers: blobs one after the other, then segments, sections and their names.
struct Raw {
    blobs: Vec<u8>,
    segments: Vec<[u64; 4]>,
    sections: Vec<Header>,
    names: Vec<u8>,
}

/// Where the blobs of a [`Raw`] file begin: the code, at the same address.
const CODE: u64 = 0x1000;
const CODE_BYTES: u64 = 0x1000;

impl Raw {
    /// One page of code, in a section and in a segment.
    fn new() -> Raw {
        let text = Header {
            kind: PROGBITS,
            flags: 6,
            address: CODE,
            offset: CODE,
            size: CODE_BYTES,
            ..Header::default()
        };
        let segments = vec![[0, 0, CODE + CODE_BYTES, 5]];
        let mut raw = Raw {
            blobs: vec![0x90; CODE_BYTES as usize],
            segments,
            sections: vec![Header::default()],
            names: vec![0],
        };
        raw.named(b".text", text);
        raw
    }

    fn named(&mut self, name: &[u8], header: Header) {
        let name_at = self.names.len() as u32;
        self.names.extend(name);
        self.names.push(0);
        self.sections.push(Header { name: name_at, ..header });
    }

    /// Adds a section with these bytes.
    fn section(&mut self, name: &[u8], bytes: &[u8], header: Header) {
        let offset = CODE + self.blobs.len() as u64;
        self.blobs.extend(bytes);
        self.blobs.resize(self.blobs.len().next_multiple_of(16), 0);
        self.named(name, Header { offset, size: bytes.len() as u64, ..header });
    }

    /// Adds a symbol table of functions: names, addresses, sizes.
    fn symbols(&mut self, entries: &[u8], strings: &[u8]) {
        let link = self.sections.len() as u32 + 1;
        self.section(b".symtab", entries, Header { kind: 2, entry: 24, link, ..Header::default() });
        self.section(b".strtab", strings, Header { kind: 3, ..Header::default() });
    }

    fn write(mut self, path: &Path) {
        self.named(b".shstrtab", Header { kind: 3, ..Header::default() });
        let names_at = CODE + self.blobs.len() as u64;
        if let Some(last) = self.sections.last_mut() {
            (last.offset, last.size) = (names_at, self.names.len() as u64);
        }
        let segments_at = (names_at + self.names.len() as u64).next_multiple_of(8);
        let sections_at = segments_at + 56 * self.segments.len() as u64;
        let file = File::create(path).expect("a file");
        let put = |bytes: &[u8], at: u64| file.write_all_at(bytes, at).expect("written");
        put(&self.blobs, CODE);
        put(&self.names, names_at);
        let mut table = Vec::new();
        for [offset, address, size, flags] in &self.segments {
            table.extend((1 | flags << 32).to_le_bytes());
            for word in [*offset, *address, *address, *size, *size, 0x1000] {
                table.extend(word.to_le_bytes());
            }
        }
        for one in &self.sections {
            table.extend(one.name.to_le_bytes());
            table.extend(one.kind.to_le_bytes());
            for word in [one.flags, one.address, one.offset, one.size, u64::from(one.link), 1, one.entry] {
                table.extend(word.to_le_bytes());
            }
        }
        put(&table, segments_at);
        let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        for word in [0, segments_at, sections_at] {
            header.extend(word.to_le_bytes());
        }
        header.extend(0u32.to_le_bytes());
        let (segments, sections) = (self.segments.len() as u16, self.sections.len() as u16);
        for half in [64u16, 56, segments, 64, sections, sections - 1] {
            header.extend(half.to_le_bytes());
        }
        put(&header, 0);
    }
}

/// Functions at all places of the code, so many, and their names of one letter.
fn functions(count: u64) -> Vec<u8> {
    let each = (0..count).flat_map(|number| elf::symbol(1, CODE + number % (CODE_BYTES - 16), 16));
    [0; 24].into_iter().chain(each).collect()
}

/// Reports samples in these files, and lists the functions of each.
fn ask(test: &str, folder: &Path, files: &[PathBuf]) -> bool {
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    if report(test, folder, &paths, &["--inline"]).is_none() {
        return false;
    }
    for file in files.iter().take(2) {
        let path = file.to_str().expect("a plain name");
        let said = limited(test, &["list", "--probes", path, "nothing_of_that_name"]).expect("as before");
        assert!(said.code.is_some_and(|code| code < 128), "{path}: {:?} {}", said.code, said.stderr);
    }
    true
}

/// Checks sixty thousand sections whose names are one text of eight megabytes without an end.
#[test]
fn names_of_sections_are_not_searched_for_their_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut raw = Raw::new();
    raw.symbols(&functions(1000), b"\0f\0");
    for number in 0..60_000 {
        raw.sections.push(Header {
            name: 100 + number % 1000,
            kind: PROGBITS,
            flags: 2,
            ..Header::default()
        });
    }
    raw.names.extend(vec![b'n'; 8 << 20]);
    let path = folder.path().join("names");
    raw.write(&path);
    ask("names_of_sections_are_not_searched_for_their_end", folder.path(), &[path]);
}

/// Checks three hundred thousand symbols in a file of sixty thousand segments, and in one of as many sections of code.
#[test]
fn symbols_times_segments_and_sections() {
    let folder = tempfile::tempdir().expect("a folder");
    let many = folder.path().join("segments");
    let mut raw = Raw::new();
    raw.symbols(&functions(300_000), b"\0f\0");
    let real = raw.segments.remove(0);
    raw.segments.extend((0..60_000u64).map(|number| [0, (1 << 40) + (number << 12), 0x1000, 5]));
    raw.segments.push(real);
    raw.write(&many);
    let code = folder.path().join("sections");
    let mut raw = Raw::new();
    raw.symbols(&functions(300_000), b"\0f\0");
    let text = raw.sections.remove(1);
    let far = |number: u64| Header { address: (1 << 40) + (number << 12), ..text };
    raw.sections.extend((0..60_000).map(far));
    raw.sections.push(text);
    // The symbols' names are one section further down than when they were written.
    raw.sections[1].link -= 1;
    raw.write(&code);
    ask("symbols_times_segments_and_sections", folder.path(), &[many, code]);
}

/// Checks sixty thousand jump stubs through one word, which sixty thousand relocations name, by a name of sixty kilobytes.
#[test]
fn stubs_times_relocations() {
    const COUNT: u64 = 60_000;
    let folder = tempfile::tempdir().expect("a folder");
    let mut raw = Raw::new();
    raw.symbols(&functions(10), b"\0f\0");
    let dynsym = raw.sections.len() as u32;
    let entries: Vec<u8> = [[0; 24], elf::symbol(1, 0, 0)].concat();
    raw.section(b".dynsym", &entries, Header { kind: 11, entry: 24, link: dynsym + 1, ..Header::default() });
    let name: Vec<u8> = [&[0][..], &vec![b'p'; 60_000], &[0]].concat();
    raw.section(b".dynstr", &name, Header { kind: 3, ..Header::default() });
    const WORD: u64 = 0x7000_0000;
    let at = 0x10_0000u64;
    let stubs: Vec<u8> = (0..COUNT)
        .flat_map(|number| {
            let distance = (WORD - (at + 16 * number + 6)) as u32;
            let mut stub = vec![0xff, 0x25];
            stub.extend(distance.to_le_bytes());
            stub.resize(16, 0x90);
            stub
        })
        .collect();
    raw.section(b".plt", &stubs, Header { kind: PROGBITS, flags: 6, address: at, ..Header::default() });
    let one: Vec<u8> = [WORD, 1 << 32 | 7, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let header = Header { kind: 4, entry: 24, link: dynsym, ..Header::default() };
    raw.section(b".rela.plt", &one.repeat(COUNT as usize), header);
    let path = folder.path().join("stubs");
    raw.write(&path);
    ask("stubs_times_relocations", folder.path(), &[path]);
}

/// Checks three hundred links to one file: it is not held in memory three hundred times.
#[test]
fn links_to_one_file_share_its_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let one = folder.path().join("one");
    let mut raw = Raw::new();
    raw.symbols(&functions(100_000), b"\0f\0");
    raw.write(&one);
    let links: Vec<PathBuf> = (0..300)
        .map(|number| {
            let link = folder.path().join(format!("link{number}"));
            std::os::unix::fs::symlink(&one, &link).expect("a link");
            link
        })
        .collect();
    ask("links_to_one_file_share_its_account", folder.path(), &links);
}

/// Checks four hundred small files that name one large file as that of their debug information: it is summed up once.
#[test]
fn one_large_debug_file_of_many_small_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let large = folder.path().join("large.debug");
    let padding = Section::new(".padding", PROGBITS, Content::Bytes(vec![7; 16 << 20]));
    elf::write(&large, &[elf::text(), padding]);
    let files: Vec<PathBuf> = (0..400)
        .map(|number| {
            let link = Content::Bytes(b"large.debug\0\x01\x02\x03\x04".to_vec());
            bomb(
                folder.path(),
                &format!("small{number}"),
                vec![Section::new(".gnu_debuglink", PROGBITS, link)],
            )
        })
        .collect();
    ask("one_large_debug_file_of_many_small_files", folder.path(), &files);
}

/// Checks a program that needs sixty thousand libraries, to be looked for in a thousand folders.
#[test]
fn libraries_times_folders() {
    let test = "libraries_times_folders";
    let folder = tempfile::tempdir().expect("a folder");
    let mut raw = Raw::new();
    raw.symbols(&functions(10), b"\0f\0");
    let mut strings = vec![0];
    let mut dynamic = Vec::new();
    for number in 0..60_000 {
        dynamic.extend([1, strings.len() as u64]);
        strings.extend(format!("lib{number}.so\0").bytes());
    }
    dynamic.extend([29, strings.len() as u64]);
    let folders: Vec<String> = (0..1000).map(|number| format!("/nonexistent/{number}")).collect();
    strings.extend(folders.join(":").bytes());
    strings.push(0);
    let bytes: Vec<u8> = dynamic.iter().flat_map(|word| word.to_le_bytes()).collect();
    let link = raw.sections.len() as u32 + 1;
    raw.section(b".dynamic", &bytes, Header { kind: 6, entry: 16, link, ..Header::default() });
    raw.section(b".dynstr", &strings, Header { kind: 3, ..Header::default() });
    let path = folder.path().join("needs");
    raw.write(&path);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("our own");
    let path = path.to_str().expect("a plain name");
    let Some(said) = limited(test, &["probe", "--dry-run", "--engine", "kernel", "nothing", "--", path])
    else {
        return;
    };
    assert!(said.code.is_some_and(|code| code < 128), "{:?} {}", said.code, said.stderr);
}
