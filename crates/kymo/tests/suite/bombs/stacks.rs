//! Unwind tables that cost whoever walks stacks with them: entries of megabytes, half a million
//! descriptions without a table, sections that are holes, and sixty thousand sections of one name.

use std::path::Path;

use super::elf::{self, Content, PROGBITS, Section};
use super::recording::{self, REGISTERS};
use super::{HONEST, bomb, honest, limited};

const ALLOC: u64 = 2;

/// An entry with its length in front of it.
fn entry(body: &[u8]) -> Vec<u8> {
    let padding = vec![0; (4 - body.len() % 4) % 4];
    [&((body.len() + padding.len()) as u32).to_le_bytes()[..], body, &padding].concat()
}

/// A common entry: the frame is at rsp + 8, the return address right below it; then so many
/// instructions that do nothing. `.debug_frame` tells it by another number.
fn common(is_debug: bool, instructions: usize) -> Vec<u8> {
    let id = if is_debug { 0xff } else { 0 };
    let mut body = vec![id, id, id, id, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    body.resize(body.len() + instructions, 0);
    entry(&body)
}

/// A description of code whose common entry is the one at `common`, written at `at`.
fn description(is_debug: bool, (common, at): (usize, usize), start: u64, bytes: u64, own: usize) -> Vec<u8> {
    let pointer = if is_debug { common } else { at + 4 - common };
    let mut body = (pointer as u32).to_le_bytes().to_vec();
    body.extend(start.to_le_bytes());
    body.extend(bytes.to_le_bytes());
    body.resize(body.len() + own, 0);
    entry(&body)
}

fn section(name: &'static str, content: Content) -> Section {
    Section { flags: ALLOC, ..Section::new(name, PROGBITS, content) }
}

/// One description of all code, with so many instructions in the common entry and in itself.
fn one(name: &'static str, in_common: usize, own: usize) -> Vec<Section> {
    let is_debug = name == ".debug_frame";
    let mut bytes = common(is_debug, in_common);
    bytes.extend(description(is_debug, (0, bytes.len()), 0x1000, 0x1000, own));
    vec![section(name, Content::Bytes(bytes))]
}

/// Reports samples with stacks full of addresses in the file's code. The honest file's function
/// must be there.
fn walk(test: &str, folder: &Path, file: &Path) -> Option<()> {
    let honest = honest(folder);
    let mut records = recording::records(&[file, &honest], &[]);
    for number in 0..60u64 {
        let place = |word: u64| recording::base(0) + 0x1000 + (number * 61 + word * 7) % 0x1000;
        let stack: Vec<u8> = (0..1000).flat_map(|word| place(word).to_le_bytes()).collect();
        let ip = if number == 0 { recording::base(1) + 0x1000 } else { place(1) };
        records.extend(recording::stack_sample(ip, &stack));
    }
    let data = folder.join("data");
    // PERF_SAMPLE_IP, _TID, _REGS_USER and _STACK_USER.
    recording::write_with(&data, &records, 0b11_0000_0000_0011, REGISTERS, &[]);
    let data = data.to_str().expect("a plain name");
    let said = limited(test, &["report", "-f", "--stdio", "-g", "-i", data])?.ends(0);
    said.prints(HONEST).prints("bombed");
    Some(())
}

/// Checks tables in which one entry is megabytes long: what every address would have to walk over
/// is not walked.
#[test]
fn unwind_entries_of_megabytes() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, sections) in [
        ("common", one(".eh_frame", 16 << 20, 0)),
        ("common-debug", one(".debug_frame", 16 << 20, 0)),
        ("own", one(".eh_frame", 0, 200 << 10)),
        ("own-debug", one(".debug_frame", 0, 200 << 10)),
    ] {
        let file = bomb(folder.path(), name, sections);
        let Some(()) = walk("unwind_entries_of_megabytes", folder.path(), &file) else { return };
    }
}

/// Checks tables that are holes, with and without a table to look them up, and a lookup table that
/// claims a billion entries.
#[test]
fn unwind_tables_without_bytes() {
    let folder = tempfile::tempdir().expect("a folder");
    let hole = || Content::Hole(3 << 30);
    // Version 1; pointers of 4 bytes from here; a count of 4 bytes; entries of 4 and 4 bytes.
    let mut table = vec![1, 0x1b, 0x03, 0x3b];
    table.extend(0u32.to_le_bytes());
    table.extend(1_000_000_000u32.to_le_bytes());
    for (name, sections) in [
        ("frame", vec![section(".eh_frame", hole())]),
        ("header", vec![section(".eh_frame_hdr", hole()), section(".debug_frame", hole())]),
        ("count", vec![section(".eh_frame_hdr", Content::Bytes(table)), section(".eh_frame", hole())]),
    ] {
        let file = bomb(folder.path(), name, sections);
        let Some(()) = walk("unwind_tables_without_bytes", folder.path(), &file) else { return };
    }
}

/// Checks half a million descriptions that no table looks up, each after a common entry of its own.
#[test]
fn unwind_descriptions_without_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in [".eh_frame", ".debug_frame"] {
        let is_debug = name == ".debug_frame";
        let mut bytes = Vec::new();
        for number in 0..500_000u64 {
            let start = bytes.len();
            bytes.extend(common(is_debug, 0));
            let places = (start, bytes.len());
            bytes.extend(description(is_debug, places, 0x1000 + number, 1, 0));
        }
        let file = bomb(folder.path(), &name[1..], vec![section(name, Content::Bytes(bytes))]);
        let Some(()) = walk("unwind_descriptions_without_a_table", folder.path(), &file) else { return };
    }
}

/// Checks sixty thousand sections called `.eh_frame`, each of them the same eight megabytes.
#[test]
fn one_unwind_table_sixty_thousand_times() {
    let folder = tempfile::tempdir().expect("a folder");
    let [table, strings] = elf::symbols(&[(b"bombed".to_vec(), 0x1000, 0x1000)]);
    let mut frame = common(false, 0);
    frame.extend(description(false, (0, frame.len()), 0x1000, 0x1000, 0));
    frame.resize(8 << 20, 0);
    let all = vec![elf::text(), table, strings, section(".eh_frame", Content::Bytes(frame))];
    let path = folder.path().join("same");
    elf::write(&path, &all);
    elf::repeat_section(&path, 4, 60_000);
    _ = walk("one_unwind_table_sixty_thousand_times", folder.path(), &path);
}
