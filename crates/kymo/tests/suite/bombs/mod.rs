//! Files that cost their readers: sizes without bytes, sections that unpack to a thousand times their length, debug
//! information without an end, names without measure. An ordinary user makes them in a second, and root's kymo reads them.
//!
//! Each report runs with at most 512 MiB of memory that it may write to (RLIMIT_DATA), and says what it left out. A limit
//! on CPU time, far beyond what any of them needs, ends what would never end.

mod dwarf;
mod elf;
mod features;
mod names;
mod recording;
mod stacks;
mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use elf::{COMPRESSED, Content, PROGBITS, STRTAB, SYMTAB, Section};

use crate::tools::{Need, Said, kymo, require, run};

const MOST_BYTES: u64 = 512 << 20;
/// What the honest file's function is called.
const HONEST: &str = "honest_function";

/// Runs kymo within the limits; nothing, loudly, where the machine cannot set them.
fn limited(test: &str, arguments: &[&str]) -> Option<Said> {
    // Debian: util-linux.
    require(test, &[Need::Program("prlimit")])?;
    let mut command = Command::new("prlimit");
    command.arg(format!("--data={MOST_BYTES}")).arg("--cpu=300").arg(kymo().path()).args(arguments);
    Some(run(command.env("HOME", "/nonexistent").env("LC_ALL", "C").stdin(Stdio::null())))
}

/// An ordinary file beside the bombs.
fn honest(folder: &Path) -> PathBuf {
    let path = folder.join("honest");
    let [table, strings] = elf::symbols(&[(HONEST.into(), 0x1000, 0x1000)]);
    elf::write(&path, &[elf::text(), table, strings]);
    path
}

/// Reports samples in these files and an honest one. The honest one's function must be there.
fn report(test: &str, folder: &Path, files: &[&Path], more: &[&str]) -> Option<Said> {
    let honest = honest(folder);
    let mut all = files.to_vec();
    all.push(&honest);
    let data = folder.join("data");
    recording::write(&data, &recording::records(&all, &[0x1000, 0x1800, 0x1ff0]));
    let mut arguments = vec!["report", "-f", "--stdio", "-i", data.to_str().expect("a plain name")];
    arguments.extend(more);
    let said = limited(test, &arguments)?.ends(0);
    said.prints(HONEST);
    Some(said)
}

/// A file with these sections behind its text and one function, `bombed`.
fn bomb(folder: &Path, name: &str, sections: Vec<Section>) -> PathBuf {
    let path = folder.join(name);
    let [table, strings] = elf::symbols(&[(b"bombed".to_vec(), 0x1000, 0x1000)]);
    let mut all = vec![elf::text(), table, strings];
    all.extend(sections);
    elf::write(&path, &all);
    path
}

/// Checks that symbol tables of gigabytes without bytes are not read, that kymo says so, and that other files keep their names.
#[test]
fn sparse_symbol_tables_cost_what_is_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files = Vec::new();
    for (number, (symbols, strings)) in
        [(3 << 30, 3 << 30), (1 << 20, 3 << 30), (3 << 30, 4096)].iter().enumerate()
    {
        let path = folder.path().join(format!("sparse{number}"));
        let table = Section { link: 3, ..Section::new(".symtab", SYMTAB, Content::Hole(*symbols)) };
        let strings = Section::new(".strtab", STRTAB, Content::Hole(*strings));
        elf::write(&path, &[elf::text(), table, strings]);
        files.push(path);
    }
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let test = "sparse_symbol_tables_cost_what_is_stored";
    let Some(said) = report(test, folder.path(), &files, &[]) else { return };
    said.says("holes");
}

/// Checks that sections that unpack to a thousand times their length, and to gigabytes, are left packed.
#[test]
fn compressed_sections_cost_what_is_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let packed = |name, content| Section { flags: COMPRESSED, ..Section::new(name, PROGBITS, content) };
    let zlib = ["one", "two", "three"].map(|name| {
        let sections = vec![
            packed(".debug_info", elf::zlib_zeros(6 << 20)),
            packed(".debug_str", elf::zlib_zeros(6 << 20)),
            packed(".debug_line", elf::zlib_zeros(6 << 20)),
        ];
        bomb(folder.path(), &format!("zlib-{name}"), sections)
    });
    let zstd = bomb(
        folder.path(),
        "zstd",
        vec![
            packed(".debug_info", elf::zstd(&[], 0, 24_000)),
            packed(".debug_abbrev", elf::zstd(&[], 1, 24_000)),
        ],
    );
    let files = [&zlib[0], &zlib[1], &zlib[2], &zstd].map(PathBuf::as_path);
    let test = "compressed_sections_cost_what_is_stored";
    let Some(said) = report(test, folder.path(), &files, &["--inline"]) else { return };
    said.prints("bombed").says("unpack");
}

/// Checks that many small bombs together have no more room than one.
#[test]
fn many_small_bombs_share_one_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let files: Vec<PathBuf> = (0..600)
        .map(|number| {
            // Each section alone is small enough, or unpacks not too far.
            let packed = |name, byte| {
                let content = elf::zstd(&[], byte, 8);
                Section { flags: COMPRESSED, ..Section::new(name, PROGBITS, content) }
            };
            let sections =
                vec![packed(".debug_info", 0), packed(".debug_abbrev", 0), packed(".debug_str", b'a')];
            bomb(folder.path(), &format!("small{number}"), sections)
        })
        .collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let test = "many_small_bombs_share_one_account";
    let Some(said) = report(test, folder.path(), &files, &["--inline"]) else { return };
    said.prints("bombed");
}

/// Checks debug information that is well-formed and endless to follow: nesting that would exhaust the stack, range lists
/// that all functions share, units and lines by the million.
#[test]
fn endless_debug_information_is_left_unread() {
    let folder = tempfile::tempdir().expect("a folder");
    let bombs: [(&str, Vec<Section>); 6] = [
        ("deep", dwarf::deep()),
        ("deep-and-stored", dwarf::deep_and_stored()),
        ("ranges", dwarf::shared_ranges()),
        ("units", dwarf::many_units()),
        ("units-stored", dwarf::two_million_units()),
        ("rows", dwarf::many_rows()),
    ];
    for (name, sections) in bombs {
        let file = bomb(folder.path(), name, sections);
        let test = "endless_debug_information_is_left_unread";
        let Some(said) = report(test, folder.path(), &[&file], &["--inline"]) else { return };
        assert!(said.stdout.contains("bombed"), "{name}: {}", said.stdout);
        // What functions are called with, and which lines they have, is asked of the same.
        let path = file.to_str().expect("a plain name");
        for selector in ["bombed", "a.c:7"] {
            let said = limited(test, &["list", "--probes", path, "-v", selector]).expect("as before");
            assert!(
                said.code.is_some_and(|code| code < 128),
                "{name} {selector}: {:?} {}",
                said.code,
                said.stderr
            );
        }
        // Nesting is followed in a loop and costs what is stored. What grows faster is given up.
        if name == "ranges" {
            assert!(said.stderr.contains("debug information takes more"), "{name}: {}", said.stderr);
        }
    }
}

/// Checks that perf maps of holes, pipes and devices cost nothing, and that what is stored before a hole is read.
#[test]
fn perf_maps_without_bytes_are_not_waited_for() {
    let test = "perf_maps_without_bytes_are_not_waited_for";
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("tmp")).expect("a folder");
    let map = root.join(format!("tmp/perf-{}.map", recording::PID));
    let mut records = Vec::new();
    let mut mapping = [recording::PID.to_le_bytes(), recording::PID.to_le_bytes()].concat();
    for word in [0x7000_0000u64, 0x10000, 0] {
        mapping.extend(word.to_le_bytes());
    }
    mapping.extend(b"//anon\0\0");
    records.extend(recording::record(1, 2, &mapping));
    records.extend(recording::sample(0x7000_0010));
    let data = folder.path().join("data");
    recording::write(&data, &records);
    let (data, root) = (data.to_str().expect("a name"), root.to_str().expect("a name"));
    let look = || limited(test, &["report", "-f", "--stdio", "-i", data, "--symfs", root]);

    let file = std::fs::File::create(&map).expect("a map");
    std::os::unix::fs::FileExt::write_all_at(&file, b"70000000 1000 generated_function\n", 0)
        .expect("written");
    file.set_len(100 << 30).expect("a hole");
    let Some(said) = look() else { return };
    said.ends(0).prints("generated_function").says("holes");

    std::fs::remove_file(&map).expect("removed");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &map, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    look().expect("as before").ends(0).says("not a regular file");
    std::fs::remove_file(&map).expect("removed");
    std::os::unix::fs::symlink("/dev/zero", &map).expect("a link");
    look().expect("as before").ends(0).says("not a regular file");
}

/// Checks that a link to separate debug information that names a pipe or a device is not followed into it.
#[test]
fn debug_links_to_pipes_are_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo.debug");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    let sparse = folder.path().join("sparse.debug");
    std::fs::File::create(&sparse).expect("a file").set_len(1 << 40).expect("a hole");
    let link = |name: &[u8]| {
        let mut content = name.to_vec();
        content.push(0);
        content.resize(content.len().next_multiple_of(4), 0);
        content.extend([1, 2, 3, 4]);
        vec![Section::new(".gnu_debuglink", PROGBITS, Content::Bytes(content))]
    };
    let names: [&[u8]; 3] = [b"fifo.debug", b"/dev/zero", b"sparse.debug"];
    let files: Vec<PathBuf> = names
        .iter()
        .enumerate()
        .map(|(number, name)| bomb(folder.path(), &format!("link{number}"), link(name)))
        .collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let test = "debug_links_to_pipes_are_not_waited_for";
    let Some(said) = report(test, folder.path(), &files, &["--inline"]) else { return };
    said.prints("bombed");
}

/// Checks that compressed records that unpack without measure end the reading with a sentence.
#[test]
fn compressed_records_unpack_within_measure() {
    let test = "compressed_records_unpack_within_measure";
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let file = honest(folder.path());
    let mut records = recording::records(&[&file], &[0x1000]);
    // Two gigabytes of records of type 0x48484848, 0x4848 bytes each.
    let frame = elf::zstd_frame(&[], 0x48, 15_000);
    for part in frame.chunks(60_000) {
        records.extend(recording::record(81, 0, part));
    }
    recording::write(&data, &records);
    let name = data.to_str().expect("a plain name");
    let Some(said) = limited(test, &["report", "-f", "--stdio", "-i", name]) else { return };
    // A recording that was not read to its end is no success.
    said.ends(2).prints(HONEST).says("unpack to more than 1000 times");
}
