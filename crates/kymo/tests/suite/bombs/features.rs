//! Recordings whose descriptions cost their reader: sections of holes, lists of nothing, formats
//! and texts of tracepoints by the million; and lists of the kernel's and of generated code's symbols.

use super::recording::{self, CALL_CHAINS, Feature};
use super::{HONEST, honest, limited};

const TRACING_DATA: u32 = 1;
const BUILD_ID: u32 = 2;
const HOSTNAME: u32 = 3;
const CMDLINE: u32 = 11;
const EVENT_DESC: u32 = 12;
const NUMA: u32 = 14;
const PMU_MAPPINGS: u32 = 16;
const GROUP_DESC: u32 = 17;
const BPF_PROG_INFO: u32 = 25;
const BPF_BTF: u32 = 26;
/// What no tool knows.
const UNKNOWN: u32 = 60;

/// Reports a recording with this feature section, and prints its header and its script.
fn read(test: &str, name: &str, bit: u32, feature: Feature) -> Option<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = honest(folder.path());
    let records = recording::records(&[&file], &[0x1000]);
    let data = folder.path().join("data");
    recording::write_with(&data, &records, CALL_CHAINS, 0, &[(bit, feature)]);
    let data = data.to_str().expect("a plain name");
    for arguments in [
        &["report", "-f", "--stdio", "-i", data][..],
        &["report", "-f", "--header-only", "-i", data],
        &["script", "-f", "-i", data],
    ] {
        let said = limited(test, arguments)?;
        // A refusal in words is an answer, too.
        let (code, err) = (said.code, &said.stderr);
        assert!(code.is_some_and(|code| code < 3), "{name} {}: {code:?} {err}", said.command);
        assert!(code == Some(1) || arguments[1] != "-f" || !said.stdout.is_empty(), "{name}: {err}");
    }
    Some(())
}

/// Checks sections of gigabytes that are holes, one kind at a time.
#[test]
fn feature_sections_without_bytes() {
    let known = [TRACING_DATA, BUILD_ID, HOSTNAME, CMDLINE, EVENT_DESC, NUMA, PMU_MAPPINGS, GROUP_DESC];
    for bit in known.into_iter().chain([BPF_PROG_INFO, BPF_BTF, UNKNOWN]) {
        let name = bit.to_string();
        let Some(()) = read("feature_sections_without_bytes", &name, bit, Feature::Hole(6 << 30)) else {
            return;
        };
    }
}

/// Checks lists of sixteen million empty texts: each would take six times its length.
#[test]
fn feature_lists_of_nothing() {
    const COUNT: u32 = 16 << 20;
    for bit in [CMDLINE, PMU_MAPPINGS, GROUP_DESC, EVENT_DESC] {
        let mut bytes = COUNT.to_le_bytes().to_vec();
        bytes.resize(64 << 20, 0);
        let Some(()) = read("feature_lists_of_nothing", &bit.to_string(), bit, Feature::Bytes(bytes)) else {
            return;
        };
    }
}

fn sized(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// Tracing data with these formats and texts of the kernel.
fn tracing(formats: &[Vec<u8>], texts: &[u8]) -> Feature {
    let mut out = b"\x17\x08\x44tracing0.6\0\0\x08\0\x10\0\0header_page\0".to_vec();
    sized(&mut out, b"");
    out.extend(b"header_event\0");
    sized(&mut out, b"");
    out.extend(0u32.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(b"any\0");
    out.extend((formats.len() as u32).to_le_bytes());
    for format in formats {
        sized(&mut out, format);
    }
    out.extend(0u32.to_le_bytes());
    out.extend((texts.len() as u32).to_le_bytes());
    out.extend(texts);
    sized(&mut out, b"");
    Feature::Bytes(out)
}

/// Checks formats of a million fields, three hundred thousand formats, print formats that nest and
/// repeat themselves, and texts by the million.
#[test]
fn tracepoints_without_measure() {
    let format = |id: u64, rest: &[u8]| [format!("name: n\nID: {id}\nformat:\n").as_bytes(), rest].concat();
    let field = &b"\tfield:u8 a;\toffset:0;\tsize:1;\tsigned:0;\n"[..];
    let many: Vec<Vec<u8>> = (0..300_000).map(|id| format(id, field)).collect();
    let nested = [field, b"\nprint fmt: \"%d\", ", &vec![b'('; 200 << 10]].concat();
    let flags = b"__print_flags(REC->a, \"|\", { 1, \"A\" }), ".repeat(5000);
    let repeated = [field, b"\nprint fmt: \"", &b"%s".repeat(5000), b"\", ", &flags, b"1\n"].concat();
    for (name, feature) in [
        ("fields", tracing(&[format(7, &field.repeat(1_000_000))], b"")),
        ("formats", tracing(&many, b"")),
        ("nested", tracing(&[format(7, &nested)], b"")),
        ("repeated", tracing(&[format(7, &repeated)], b"")),
        ("texts", tracing(&[], &b"0x1:\n".repeat(8 << 20))),
    ] {
        let Some(()) = read("tracepoints_without_measure", name, TRACING_DATA, feature) else { return };
    }
}

/// Checks a list of the kernel's symbols, and a map of generated code, in which each symbol has
/// six bytes.
#[test]
fn symbol_lists_of_short_lines() {
    let test = "symbol_lists_of_short_lines";
    let folder = tempfile::tempdir().expect("a folder");
    let file = honest(folder.path());
    let mut records = recording::records(&[&file], &[0x1000]);
    records.extend(recording::kernel_sample(0xffff_ffff_8100_0010));
    records.extend(recording::anonymous(0x7000_0000, 0x1_0000));
    records.extend(recording::sample(0x7000_0010));
    let data = folder.path().join("data");
    recording::write(&data, &records);
    let list = folder.path().join("kallsyms");
    std::fs::write(&list, b"1 T a\n".repeat(10 << 20)).expect("a list");
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("tmp")).expect("a folder");
    let map = root.join(format!("tmp/perf-{}.map", recording::PID));
    std::fs::write(&map, b"7 1 a\n".repeat(10 << 20)).expect("a map");
    let text = |path: &std::path::Path| path.to_str().expect("a plain name").to_owned();
    let (data, list, root) = (text(&data), text(&list), text(&root));
    for more in [["--kallsyms", &list], ["--symfs", &root]] {
        let mut arguments = vec!["report", "-f", "--stdio", "-i", &data];
        arguments.extend(more);
        let Some(said) = limited(test, &arguments) else { return };
        let said = said.ends(0);
        assert!(more[0] == "--symfs" || said.stdout.contains(HONEST), "{}", said.stdout);
    }
}
