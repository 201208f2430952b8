//! Recordings of aarch64, read on any machine: beside perf 7.2, and beside what it printed where
//! the recorded machine's C library was at hand.

use crate::matrix::perf_of;
use crate::tools::{Tool, kymo, skip, text};
use std::path::{Path, PathBuf};

const RECORDINGS: [&str; 6] = ["fp", "dwarf", "cyc", "mem", "tp", "uprobe"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/aarch64")
}

fn printed(tool: &Tool, name: &str, more: &[&str]) -> Vec<Printed> {
    let (file, root) = (folder().join(format!("{name}.data")), folder().join("sysroot"));
    let input = ["script", "-i", text(&file), "--symfs", text(&root)];
    samples(&tool.succeed([&input[..], more].concat()).stdout)
}

/// A sample as `script` prints it.
#[derive(Debug, PartialEq, Eq)]
struct Printed {
    head: String,
    /// Address, name and file of each frame, innermost first.
    frames: Vec<String>,
}

fn samples(printed: &str) -> Vec<Printed> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut samples: Vec<Printed> = Vec::new();
    for line in printed.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        match (line.starts_with('\t'), samples.last_mut()) {
            (true, Some(sample)) => sample.frames.push(words(line)),
            _ => samples.push(Printed { head: words(line), frames: Vec::new() }),
        }
    }
    samples
}

impl Printed {
    fn addresses(&self) -> Vec<&str> {
        self.frames.iter().map(|frame| frame.split(' ').next().unwrap_or("")).collect()
    }

    /// Whether a frame is in a file of the C library, which the fixtures leave out.
    fn is_library(frame: &str) -> bool {
        frame.contains("/aarch64-linux-gnu/")
    }

    /// How many frames were found without a file of the C library: up to the first in it.
    fn known(&self) -> usize {
        self.frames.iter().position(|frame| Printed::is_library(frame)).map_or(self.frames.len(), |at| at + 1)
    }

    /// Whether the program was sampled in the C library.
    fn begins_in_library(&self) -> bool {
        let is_kernel = |frame: &&String| frame.contains("[kernel.kallsyms]") || frame.contains("[virtio");
        self.frames.iter().find(|frame| !is_kernel(frame)).is_some_and(|frame| Printed::is_library(frame))
    }
}

/// Checks that call chains have the addresses that perf 7.2 printed with all files at hand: unwound
/// by the copies of stacks, and with the callers of leaf functions that the kernel's chains leave
/// out.
#[test]
fn call_chains_of_aarch64() {
    for name in ["fp", "dwarf"] {
        let stored = std::fs::read_to_string(folder().join(format!("{name}.script.txt"))).expect("a text");
        let (expected, got) = (samples(&stored), printed(&kymo(), name, &[]));
        assert_eq!(expected.len(), got.len(), "{name}");
        let mut whole = 0;
        for (theirs, ours) in expected.iter().zip(&got) {
            assert_eq!(theirs.head, ours.head, "{name}");
            let frames = if name == "dwarf" || theirs.begins_in_library() {
                theirs.known()
            } else {
                theirs.frames.len()
            };
            assert_eq!(
                theirs.addresses()[..frames],
                ours.addresses()[..frames.min(ours.frames.len())],
                "{name} {theirs:?}"
            );
            whole += usize::from(frames > 1);
        }
        assert!(whole > 40, "{name}: {whole} call chains");
    }
}

/// Checks that the functions of the programs themselves have perf's names: no mapping symbols, and
/// none of the file that lies under the same path on this machine.
#[test]
fn names_in_programs_of_aarch64() {
    let functions = |name: &str, sort: &[&str]| -> String {
        let (file, root) = (folder().join(format!("{name}.data")), folder().join("sysroot"));
        let input = ["report", "-i", text(&file), "--symfs", text(&root), "--no-children", "-g", "none"];
        kymo().succeed([&input[..], sort].concat()).stdout
    };
    let sort = ["-s", "dso,sym", "-F", "sample,dso,sym"];
    let tables = [("cyc", "inner"), ("mem", "bump"), ("uprobe", "tick"), ("tp", "child_work")];
    for (name, function) in tables {
        let table = functions(name, &sort);
        assert!(table.contains(function) || name == "tp", "{name}: {table}");
        assert!(!table.contains("$x") && !table.contains("$d"), "{name}: {table}");
    }
}

/// Checks every recording beside perf 7.2: samples, and call chains as far as the programs' own
/// files lead.
#[test]
fn as_perf_reads_recordings_of_aarch64() {
    let Some(perf) = perf_of("sid") else {
        return skip("aarch64::as_perf_reads_recordings_of_aarch64", "no perf of Debian sid (make setup)");
    };
    for name in RECORDINGS {
        let (theirs, ours) = (printed(&perf, name, &[]), printed(&kymo(), name, &[]));
        assert_eq!(theirs.len(), ours.len(), "{name}");
        for (theirs, ours) in theirs.iter().zip(&ours) {
            assert_eq!(theirs.head, ours.head, "{name}");
            let frames = theirs.known().min(theirs.frames.len());
            assert_eq!(
                theirs.frames[..frames],
                ours.frames[..frames.min(ours.frames.len())],
                "{name} {theirs:?}"
            );
        }
    }
    // perf names no registers of a process whose program is not at hand.
    let registers = |tool: &Tool| -> Vec<String> {
        let heads = printed(tool, "fp", &["-F", "uregs"]).into_iter().map(|sample| sample.head);
        heads.map(|head| head.replace("unknown:", "lr:")).collect()
    };
    assert_eq!(registers(&perf), registers(&kymo()));
}

/// Checks that stacks of a machine that kymo does not unwind are named in a sentence, that no
/// callers are invented for them, and that the samples are counted all the same.
#[test]
fn stacks_of_an_unknown_machine() {
    let mut bytes = std::fs::read(folder().join("dwarf.data")).expect("the recording");
    // Stacks have the word, too; the header comes last.
    let name = bytes.windows(8).rposition(|word| word == b"aarch64\0").expect("the name");
    bytes[name..name + 7].copy_from_slice(b"riscv64");
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("riscv64.data");
    std::fs::write(&file, bytes).expect("written");
    let report = kymo().succeed(["report", "-i", text(&file), "-g", "none", "--no-children"]);
    assert!(report.stderr.contains("copies of stacks are of riscv64"), "{}", report.stderr);
    let of_arm = kymo().succeed(["report", "-i", text(&folder().join("dwarf.data")), "-g", "none"]);
    let samples = |table: &str| table.lines().find(|line| line.contains("Samples")).map(str::to_owned);
    assert_eq!(samples(&report.stdout), samples(&of_arm.stdout));
    let script = kymo().succeed(["script", "-i", text(&file)]);
    let printed = samples_of_programs(&script.stdout);
    assert!(printed > 20, "{}", script.stdout);
    assert!(script.stderr.contains("riscv64"), "{}", script.stderr);
}

/// How many samples of programs there are; each has its own address only.
fn samples_of_programs(printed: &str) -> usize {
    let in_kernel = |frame: &String| frame.find(' ') == Some(16);
    let all = samples(printed);
    let own = all.iter().filter(|sample| !sample.frames.first().is_some_and(in_kernel));
    own.inspect(|sample| assert_eq!(sample.frames.len(), 1, "{sample:?}")).count()
}
