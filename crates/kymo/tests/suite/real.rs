//! Programs that nobody here wrote: the ten hottest functions must be the same ten, in the same order, with the same counts.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::scenario::{Recording, record};
use crate::table::{plain, sections};
use crate::tools::{Need, Tool, kymo, names_of_perf, perf, ready, require, run, skip, text};

const FLAGS: &[&str] = &["-F", "999", "-g", "-e", "cpu-clock"];

/// All rows: samples, and object and symbol. In printed order, but for rows with as many samples as each other: these
/// are put in the order of their names, so that it is the same of them, however a tool's demangler spells a name.
fn rows(tool: &Tool, recording: &Recording) -> Vec<(u64, String)> {
    let file = text(&recording.path);
    let arguments = ["report", "-i", file, "--stdio", "--no-children", "-g", "none", "-F", "sample,dso,sym"];
    let said = tool.succeed([&arguments[..], names_of_perf(tool)].concat());
    let mut sections = sections(&said.stdout);
    assert!(!sections.is_empty(), "{} shows no table:\n{}", said.command, said.stderr);
    let rows = sections.swap_remove(0).rows;
    let mut rows: Vec<(u64, String)> = rows
        .into_iter()
        .map(|row| (row[0].parse().expect("a number of samples"), plain(&row[1..].join(" | "))))
        .collect();
    assert!(rows.is_sorted_by_key(|&(samples, _)| std::cmp::Reverse(samples)), "{}", said.command);
    rows.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    rows
}

/// Samples of addresses without a symbol.
fn without_symbol(rows: &[(u64, String)]) -> u64 {
    rows.iter().filter(|(_, name)| name.contains("[.] 0x")).map(|(samples, _)| samples).sum()
}

fn same_ten(name: &str, target: &[&str], needs: &[Need]) {
    let Some(()) = require(&format!("real::{name}"), &[&[Need::Perf], needs].concat()) else { return };
    for recorder in [perf(), kymo()] {
        let recording = record(&recorder, &format!("real-{name}"), FLAGS, target);
        let (theirs, ours) = (rows(&perf(), &recording), rows(&kymo(), &recording));
        assert!(theirs.len() > 10, "the program runs long enough to have ten hot functions");
        let said = format!("recorded by {}\nkept in {}", recording.command, recording.path.display());
        // Of the first sample in a library whose code lies in several segments perf 6.1 now and then finds no symbol, though the file has it.
        match without_symbol(&theirs).saturating_sub(without_symbol(&ours)) {
            0 => assert_eq!(theirs[..10], ours[..10], "{said}"),
            // Behind a symbol whose section is missing, as BOLT leaves one in rustc's library, perf 6.1 reads no other.
            more if more <= theirs.iter().map(|(samples, _)| samples).sum::<u64>() / 50 + 5 => {
                for (samples, name) in &ours[..10] {
                    let row = theirs.iter().find(|(_, of)| of == name);
                    let least = row.map_or(0, |(samples, _)| *samples);
                    assert!((least..=least + more).contains(samples), "{name}: {samples}, {least}: {said}");
                }
            }
            more => panic!("perf has no symbol for {more} samples that kymo has one for: {said}"),
        }
    }
}

/// A file of generated input, written once per test run.
fn input(name: &str, text: impl FnOnce() -> String) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("inputs");
    std::fs::create_dir_all(&folder).expect("the tests' folder is writable");
    let path = folder.join(name);
    std::fs::write(&path, text()).expect("the tests' folder is writable");
    path.to_str().expect("a plain name").to_owned()
}

/// Checks a CPython program.
#[test]
fn cpython() {
    let program = "
import collections, json, re
words = collections.Counter()
for round in range(60):
    text = json.dumps({str(i): [i * j for j in range(20)] for i in range(800)})
    words.update(re.findall(r'[0-9]+', text))
    sorted(words.items(), key=lambda item: (-item[1], item[0]))
";
    same_ten("cpython", &["python3", "-c", program], &[Need::Program("python3")]);
}

/// Checks `xz -T2`, which compresses in two threads.
#[test]
fn xz() {
    let data = input("words.txt", || {
        let mut text = String::new();
        let mut state = 88172645463325252_u64;
        while text.len() < 6 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            write!(text, "{} ", state % 5003).expect("a String takes everything");
        }
        text
    });
    let command = ["xz", "-T2", "--block-size=2MiB", "-kc", &data];
    same_ten("xz", &["sh", "-c", &format!("{} >/dev/null", command.join(" "))], &[Need::Program("xz")]);
}

/// Checks gcc on a large generated file.
#[test]
fn gcc() {
    let source = input("large.c", || {
        let mut text = String::from("int printf(const char *, ...);\n");
        for i in 0..500 {
            write!(
                text,
                "static int f{i}(int a, int b)\n{{\n\tint c = a * {i} + b;\n\tfor (int k = 0; k < b; k++) {{\n\t\tif (c & k) c ^= \
                 a + k * {i};\n\t\telse c += b - k;\n\t}}\n\treturn c;\n}}\n"
            )
            .expect("a String takes everything");
        }
        text.push_str("int main(int n, char **v)\n{\n\tint s = 0;\n");
        for i in 0..500 {
            writeln!(text, "\ts += f{i}(n, s & 15);").expect("a String takes everything");
        }
        text.push_str("\tprintf(\"%d\\n\", s);\n\treturn !v;\n}\n");
        text
    });
    same_ten("gcc", &["gcc", "-O2", "-c", "-o", "/dev/null", &source], &[Need::Program("gcc")]);
}

/// Checks a Rust build.
#[test]
fn rustc() {
    let source = input("large.rs", || {
        let mut text = String::from("#![crate_type = \"lib\"]\nuse std::collections::BTreeMap;\n");
        for i in 0..40 {
            write!(
                text,
                "#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]\npub struct S{i} {{ pub a: u64, pub b: String, \
                 pub c: Vec<Option<u32>> }}\npub fn f{i}(m: &BTreeMap<u64, S{i}>) -> Option<String> {{\n    m.iter().filter(|(k, v)| \
                 *k % {} == v.a).map(|(_, v)| format!(\"{{v:?}}\")).max()\n}}\n",
                i + 1
            )
            .expect("a String takes everything");
        }
        text
    });
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("inputs");
    let out = out.to_str().expect("a plain name");
    same_ten(
        "rustc",
        &["rustc", "--edition=2021", "-O", "--out-dir", out, &source],
        &[Need::Program("rustc")],
    );
}

/// Checks that a stripped Go program's functions have the names that its symbol table had: the same recording is read with
/// the stripped file and with the whole one in its place, in both ways that Go links.
#[test]
fn stripped_go_programs_have_names() {
    const TEST: &str = "real::stripped_go_programs_have_names";
    if !ready(TEST, &[Need::Root, Need::Program("go"), Need::Program("strip")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for mode in ["exe", "pie"] {
        let (whole, program) = (folder.path().join("whole"), folder.path().join("program"));
        let mut go = std::process::Command::new("go");
        go.args(["build", "-buildmode", mode, "-o"]).arg(&whole);
        go.arg(crate::programs::sources().join("growing.go")).env("GOFLAGS", "-mod=mod");
        go.env("GOCACHE", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        let built = run(&mut go);
        if built.code != Some(0) {
            skip(TEST, format!("go build: {}", built.stderr));
            return;
        }
        let strip = run(std::process::Command::new("strip").arg("-o").arg(&program).arg(&whole));
        assert_eq!(strip.code, Some(0), "{}", strip.stderr);
        let file = folder.path().join("perf.data");
        // Not more often: some kernels then do little else, and the program comes to its work late.
        let said = kymo().run(["record", "-F", "5000", "-o", text(&file), "--", text(&program), "1000"]);
        assert_eq!(said.code, Some(5), "{}", said.stderr);
        let names = |more: &[&str]| {
            let fields = ["script", "-i", text(&file), "--hide-call-graph", "-F", "ip,sym,dso"];
            let said = kymo().succeed([&fields[..], more].concat()).stdout;
            let own = said.lines().filter(|line| line.ends_with("/program)"));
            // The linker marks assembly in the symbol table, and nowhere else.
            own.map(|line| line.replace(".abi0 ", " ")).collect::<Vec<String>>()
        };
        let stripped = names(&[]);
        // Another file at the path would be refused: it has no build id, and is not what was mapped.
        let root = folder.path().join("root");
        let other = root.join(program.strip_prefix("/").expect("an absolute path"));
        std::fs::create_dir_all(other.parent().expect("a folder")).expect("made");
        std::fs::rename(&whole, &other).expect("renamed");
        let wanted = names(&["--symfs", text(&root)]);
        let differ: Vec<_> = stripped.iter().zip(&wanted).filter(|(a, b)| a != b).collect();
        assert!(wanted.len() > 20 && stripped.len() == wanted.len(), "{mode}: {} samples", wanted.len());
        assert!(
            differ.len() * 50 <= wanted.len(),
            "{mode}: {} of {}: {differ:?}",
            differ.len(),
            wanted.len()
        );
        assert!(stripped.iter().any(|line| line.contains(" main.")), "{mode}: {stripped:?}");
    }
}
