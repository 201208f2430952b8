//! `kymo annotate`: its counts are those of `perf annotate`, source lines have their cost once, and
//! code that is not the recorded one is never shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::generated_code::DUMPS;
use crate::perf_verbs::newest_perf;
use crate::programs::build;
use crate::reference::keys;
use crate::scenario::{fresh_folder, record};
use crate::tools::{Need, Tool, kymo, perf, ready, run, skip, text};

/// Samples by module and address, as a tool annotates them: functions over 0.1 % of all samples.
/// Stubs of the procedure linkage table are left out: perf has no names for those of `.plt.got`.
fn counts(tool: &Tool, file: &str) -> BTreeMap<(String, u64), u64> {
    let words = ["annotate", "--stdio", "-n", "--percent-limit", "0.1", "--no-source", "-i", file];
    let said = tool.succeed(words);
    let mut counts = BTreeMap::new();
    let (mut module, mut is_stub) = (String::new(), false);
    for line in said.stdout.lines() {
        if let Some((_, rest)) = line.split_once("Source code & Disassembly of ") {
            (module, is_stub) = (rest.split(" for ").next().expect("a module").to_owned(), false);
        } else if line.ends_with(">:") {
            // The head of the table has no name that both have.
            is_stub = line.contains("plt");
        } else if !is_stub
            && let Some((samples, rest)) = line.split_once(" :")
            && let Some((address, _)) = rest.trim_start().split_once(':')
            && let (Ok(samples), Ok(address)) =
                (samples.trim().parse::<u64>(), u64::from_str_radix(address, 16))
            && samples > 0
        {
            *counts.entry((module.clone(), address)).or_default() += samples;
        }
    }
    counts
}

/// Checks the counts of each instruction of a recording beside the installed perf and the newest.
fn same_counts(test: &str, file: &Path) {
    let file = text(file);
    let ours = counts(&kymo(), file);
    assert!(!ours.is_empty(), "{test}: no function has code");
    for perf in std::iter::once(perf()).chain(newest_perf(test)) {
        let theirs = counts(&perf, file);
        let differs: Vec<_> = (theirs.iter().map(|(place, n)| (place, Some(n), ours.get(place))))
            .chain(
                ours.iter().filter(|(place, _)| !theirs.contains_key(place)).map(|(p, n)| (p, None, Some(n))),
            )
            .filter(|(_, theirs, ours)| theirs != ours)
            .collect();
        let first = &differs[..differs.len().min(5)];
        assert!(
            differs.is_empty(),
            "{test}: {} of {} places differ: {first:x?}",
            differs.len(),
            theirs.len()
        );
    }
}

const EVENT: [&str; 4] = ["-e", "cpu-clock", "-F", "4000"];

/// Checks the counts of programs in C, C++ and Rust, the last two with inlined functions.
#[test]
fn counts_are_those_of_perf() {
    const TEST: &str = "annotate::counts_are_those_of_perf";
    if !ready(TEST, &[Need::Perf]) {
        return;
    }
    for (source, argument, compiler) in
        [("spin.c", "100", "cc"), ("inline.cc", "100", "c++"), ("hot.rs", "3", "rustc")]
    {
        if !ready(&format!("{TEST} ({source})"), &[Need::Program(compiler)]) {
            continue;
        }
        let program = build(source, &[]);
        let flags = [&EVENT[..], &["-g"]].concat();
        let recording = record(&perf(), &format!("annotate-{source}"), &flags, &[text(&program), argument]);
        same_counts(&format!("{TEST} ({source})"), &recording.path);
    }
}

/// Checks the counts of CPython, whose interpreter is one function of some 10,000 instructions.
#[test]
fn counts_of_cpython() {
    const TEST: &str = "annotate::counts_of_cpython";
    const WORK: &str = "import json\nd = {str(i): [i, 'x' * 20] for i in range(20000)}\nfor _ in range(4): d = json.loads(json.dumps(d))\nprint(sum(sorted(len(k) for k in d)))";
    if ready(TEST, &[Need::Perf, Need::Program("python3")]) {
        let recording = record(&perf(), "annotate-python", &EVENT, &["python3", "-c", WORK]);
        same_counts(TEST, &recording.path);
    }
}

/// Checks that the kernel's code is shown where it can be read, with perf's counts, and that a
/// sentence says why elsewhere.
#[test]
fn code_of_the_kernel() {
    const TEST: &str = "annotate::code_of_the_kernel";
    if !ready(TEST, &[Need::Root, Need::Perf]) {
        return;
    }
    let target = ["dd", "if=/dev/zero", "of=/dev/null", "bs=1M", "count=4000"];
    let recording = record(&perf(), "annotate-kernel", &EVENT, &target);
    let file = text(&recording.path);
    if !Path::new("/proc/kcore").exists() {
        skip(&format!("{TEST} (counts)"), "this kernel has no /proc/kcore");
        kymo()
            .succeed(["annotate", "-i", file, "-d", "[kernel.kallsyms]"])
            .prints("give its image with --vmlinux");
        return;
    }
    same_counts(TEST, &recording.path);
}

/// Checks what a function with inlined ones looks like: the lines of their sources, through which
/// functions they are inlined, and that the sums of lines are those of the instructions, once each.
#[test]
fn lines_of_inlined_functions() {
    const TEST: &str = "annotate::lines_of_inlined_functions";
    if !ready(TEST, &[Need::Program("c++"), Need::X86]) {
        return;
    }
    let program = build("inline.cc", &[]);
    let recording = record(&kymo(), "annotate-inline", &EVENT, &[text(&program), "100"]);
    let file = text(&recording.path);
    let said = kymo().succeed(["annotate", "-i", file, "-l", "shop::hot_loop"]);
    said.prints("<shop::hot_loop>:").prints("return (x << 13) ^ (x >> 7) ^ i;");
    said.prints("shop::innermost() inline.cc:").prints("Sorted summary for file");
    let answer = kymo().succeed(["query", "--json", file, "annotate shop::hot_loop"]).json();
    keys_are_documented(&answer);
    let function = &answer["annotate"]["functions"][0];
    let sum = |list: &str, key: &str| -> u64 {
        let rows = function[list].as_array().expect("a list").iter();
        rows.map(|row| row[key].as_u64().expect("a number")).sum()
    };
    let samples = function["samples"].as_u64().expect("a number");
    assert!(samples > 20, "{samples}");
    assert_eq!(sum("instructions", "samples"), samples);
    assert_eq!(sum("lines", "self_samples"), samples);
    let lines = function["lines"].as_array().expect("lines");
    let line = |text: &str| {
        let is = |line: &&serde_json::Value| line["text"].as_str().is_some_and(|line| line.contains(text));
        lines.iter().find(is).unwrap_or_else(|| panic!("{text}: {lines:#?}"))
    };
    // The call of what is inlined has little of its own, and in all what was inlined there.
    let (inner, call) = (line("(x << 13)"), line("x = innermost(x"));
    let number = |line: &serde_json::Value, key: &str| line[key].as_u64().expect("a number");
    assert!(number(inner, "self_samples") <= number(call, "total_samples"), "{inner} {call}");
    assert!(number(call, "total_samples") <= samples, "{call} of {samples}");
    let bodies = number(inner, "self_samples");
    assert!(2 * bodies > samples, "{bodies} of {samples}");
}

/// Checks what calls called: of a function without recursion each row is either its own or passed
/// through one of its calls. `main` has no rows itself, and is shown with its calls.
#[test]
fn calls_have_what_they_called() {
    const TEST: &str = "annotate::calls_have_what_they_called";
    if !ready(TEST, &[Need::Program("cc"), Need::X86]) {
        return;
    }
    let program = build("callers.c", &["-fno-omit-frame-pointer", "-fno-inline"]);
    // Without the kernel, whose interrupts no instruction calls.
    let flags = ["-e", "cpu-clock:u", "-F", "4000", "-g"];
    let recording = record(&kymo(), "annotate-calls", &flags, &[text(&program), "300"]);
    let file = text(&recording.path);
    let top = kymo().succeed(["query", "--json", file, "top 50 by total"]).json();
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    for name in ["main", "often", "seldom"] {
        let answer = kymo().succeed(["query", "--json", file, &format!("annotate {name}")]).json();
        let function = &answer["annotate"]["functions"][0];
        let rows = function["instructions"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
        let calls: Vec<u64> =
            rows.iter().map(|row| number(&row["call_samples"])).filter(|samples| *samples > 0).collect();
        let sums = top["top"]["rows"].as_array().expect("rows").iter().find(|row| row["name"] == name);
        let sums = sums.unwrap_or_else(|| panic!("{name}: {top:#}"));
        let total = calls.iter().sum::<u64>() + number(&function["samples"]);
        assert_eq!(total, number(&sums["total_samples"]), "{name}: {calls:?}");
        // Each calls at two places that are seen in any recording.
        assert!(calls.len() >= 2 || name == "seldom", "{name}: {calls:?}");
    }
}

/// Checks that docs/reference/formats/query-json.md lists every key of an answer with code.
fn keys_are_documented(answer: &serde_json::Value) {
    let document = include_str!("../../../../docs/reference/formats/query-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .filter(|key| key.starts_with("annotate"))
        .collect();
    let mut every = BTreeSet::new();
    keys(answer, "", &mut every);
    every.retain(|key| key.starts_with("annotate"));
    assert_eq!(every, listed);
}

/// Checks that code is shown only of the file that was recorded: not of one that was built anew,
/// was cut off or is gone, and that the sentence says so.
#[test]
fn a_changed_program_is_not_shown() {
    const TEST: &str = "annotate::a_changed_program_is_not_shown";
    if !ready(TEST, &[Need::Program("cc"), Need::X86]) {
        return;
    }
    let folder = fresh_folder("annotate-changed");
    let program = folder.join("spin");
    std::fs::copy(build("spin.c", &[]), &program).expect("a copy");
    let file = folder.join("perf.data");
    let words = ["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program), "30"];
    kymo().succeed(words);
    // No copy of an earlier run may have its code, or its names.
    let annotate = |function: &str| {
        kymo().run(["--buildid-dir", text(&folder), "annotate", "-i", text(&file), function])
    };
    annotate("spin").ends(0).prints("xor    %rdx,%rax");
    let whole = std::fs::read(&program).expect("the program");
    std::fs::remove_file(&program).expect("removed");
    let is_refused = |words: &str| {
        let said = annotate("spin").ends(1);
        assert!(!said.stdout.contains("xor"), "{}", said.stdout);
        said.says(words);
    };
    is_refused("No such file or directory");
    std::fs::write(&program, &whole[..whole.len() / 2]).expect("a part of it");
    is_refused("spin holds no symbols: its section headers are cut off");
    std::fs::copy(build("spin.c", &["-O1"]), &program).expect("another program");
    is_refused("the file is not the one that was recorded (its build id differs");
}

/// Checks code that a program made while it ran, from the jitdump file: what has one name at two
/// addresses, and what replaced other code.
#[test]
fn generated_code() {
    const TEST: &str = "annotate::generated_code";
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("python3")]) {
        return;
    }
    let folder = fresh_folder("annotate-jitdump");
    let file = folder.join("perf.data");
    let mut record = kymo().command(["record", "-q", "-F", "499", "-e", "cpu-clock:u", "-o", text(&file)]);
    run(record.args(["--", "python3", "-c", DUMPS]).current_dir(&folder)).ends(0);
    for name in ["early_name", "late_name", "other_name"] {
        let said = kymo().succeed(["annotate", "-i", text(&file), name]);
        said.prints("sub    $0x1,%rdi").prints(&format!("<{name}>")).prints("ret");
    }
    let dump = std::fs::read_dir(&folder).expect("the folder").flatten().map(|entry| entry.path());
    let dump =
        dump.into_iter().find(|path| path.extension().is_some_and(|end| end == "dump")).expect("a jitdump");
    let mut bytes = std::fs::read(&dump).expect("the jitdump");
    bytes.truncate(60);
    std::fs::write(&dump, bytes).expect("cut off");
    kymo().run(["annotate", "-i", text(&file), "late_name"]).says("no function with samples of its own");
}

/// Checks the words of perf that choose what is shown.
#[test]
fn what_is_shown() {
    const TEST: &str = "annotate::what_is_shown";
    if !ready(TEST, &[Need::Program("cc"), Need::X86]) {
        return;
    }
    let folder = fresh_folder("annotate-shown");
    // Its source is there under another folder, and acts on terminals.
    let source = folder.join("twice.c");
    let code = "#include <stdlib.h>\nunsigned long twice(unsigned long n) {\n  unsigned long x = 1;\n  while (n--) x = x * 5 ^ n; /* \x1b[2J */\n  return x;\n}\nextern __typeof(twice) also_twice __attribute__((alias(\"twice\")));\nint main(int count, char **words) { return twice(300000000) == 7; }\n";
    std::fs::write(&source, code).expect("a source file");
    let program = folder.join("twice");
    let compiled =
        run(Command::new("cc").args(["-O2", "-g", "-fno-inline", "-o", text(&program), text(&source)]));
    assert_eq!(compiled.code, Some(0), "{}", compiled.stderr);
    let file = folder.join("perf.data");
    kymo().succeed(["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program)]);
    let show = |words: &[&str]| kymo().run([&["annotate", "-i", text(&file)], words].concat());
    let said = show(&["twice"]).ends(0);
    said.prints(" Percent |\tSource code & Disassembly of twice for cpu-clock:u (").prints("while (n--)");
    assert!(!said.stdout.contains('\x1b') && said.stdout.contains("\\x1b[2J"), "{}", said.stdout);
    let name = said.stdout.lines().find(|line| line.contains(" : 000000")).expect("a line with its name");
    // Aliases have the name that tables give them; each of both is understood.
    let other = if name.contains("<twice>") { "also_twice" } else { "twice" };
    show(&[other]).ends(0).prints(&format!("(also {other}):"));
    show(&["-M", "intel", "twice"]).ends(0).prints("ret").prints("xor    r");
    show(&["-P", "twice"]).ends(0).prints(&format!("Disassembly of {} for", program.display()));
    show(&["--asm-raw", "twice"]).ends(0).prints("c3 ");
    show(&["--no-source", "twice"]).ends(0);
    assert!(!show(&["--no-source", "twice"]).stdout.contains("while"));
    show(&["--stdio-color", "always", "twice"]).ends(0).prints("\x1b[31m");
    show(&["--percent-type", "global-hits", "twice"]).ends(0).prints("percent: global hits)");
    show(&["--show-total-period", "twice"]).ends(0).prints("     Period |\t");
    // Elsewhere, and with the folders of the source left out.
    let moved = folder.join("moved");
    std::fs::create_dir(&moved).expect("a folder");
    std::fs::rename(&source, moved.join("twice.c")).expect("moved");
    let said = show(&["twice"]).ends(0);
    said.says("twice.c cannot be read: No such file").prints("twice.c:4");
    let depth = folder.components().count() - 1;
    let words = ["--prefix", text(&moved), "--prefix-strip", &depth.to_string(), "twice"];
    show(&words).ends(0).prints("while (n--)");
    std::fs::write(moved.join("twice.c"), code).expect("written anew");
    show(&words).ends(0).says("twice.c is newer than");
    show(&["--prefix-strip", "2", "twice"]).ends(129);
    show(&["nothing_like_it"])
        .ends(129)
        .says("no function with samples of its own is called 'nothing_like_it'");
    show(&["-d", "libnothing.so", "twice"]).ends(1).says("no function with samples is left by SYMBOL, -d");
    show(&["--data-type"]).ends(129).says("`perf annotate` does");
}
