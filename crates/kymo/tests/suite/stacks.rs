//! Call chains as `kymo record` takes them where nobody says how: they reach the function that the
//! program begins in.

use std::path::Path;
use std::process::Command;

use kymo_perf::bpf::Follower;

use crate::programs::{build, sources};
use crate::tools::{Need, kymo, ready};

/// Whether stacks are unwound on this machine, and programs can be built.
fn can_unwind(test: &str) -> bool {
    let is_x86 = cfg!(target_arch = "x86_64");
    if !is_x86 {
        kymo_testing::skip(test, "stacks are unwound on x86-64 only");
    }
    is_x86 && ready(test, &[Need::Program("cc")])
}

/// The names of each sample's user frames, innermost first.
fn chains(recording: &Path) -> Vec<Vec<String>> {
    let said = kymo().succeed(["script", "-i", recording.to_str().expect("a plain name"), "-F", "ip,sym"]);
    let samples = said.stdout.split("\n\n").map(|sample| {
        let names = sample.lines().filter_map(|line| line.split_whitespace().nth(1));
        names.map(|name| name.split('+').next().unwrap_or(name).to_owned()).collect::<Vec<_>>()
    });
    samples.filter(|names| !names.is_empty()).collect()
}

/// The chains of a program that is recorded with these options.
fn recorded(options: &[&str], program: &Path) -> Vec<Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording");
    let file = path.to_str().expect("a plain name");
    let mut command = vec!["record", "-F", "999", "-e", "cpu-clock:u", "-o", file];
    command.extend(options);
    command.extend(["--", program.to_str().expect("a plain name")]);
    kymo().succeed(command);
    chains(&path)
}

/// The samples whose innermost frame is this function, and how many of them have exactly these
/// frames.
fn exact(chains: &[Vec<String>], innermost: &str, frames: &[&str]) -> (usize, usize) {
    let inside = chains.iter().filter(|names| names[0] == innermost);
    let is_exact = |names: &&Vec<String>| names.iter().map(String::as_str).eq(frames.iter().copied());
    (inside.clone().count(), inside.filter(is_exact).count())
}

/// The frames of a program in C outside of `main`.
const OUTSIDE: [&str; 4] = ["main", "__libc_start_call_main", "__libc_start_main", "_start"];

fn with_outside(frames: &[&'static str]) -> Vec<&'static str> {
    [frames, &OUTSIDE].concat()
}

/// Names of versions do not matter here.
fn without_versions(chains: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let plain = |name: String| name.split("@@").next().unwrap_or(&name).to_owned();
    chains.into_iter().map(|names| names.into_iter().map(plain).collect()).collect()
}

/// Checks that a program without frame pointers has whole call chains without an option, which
/// frame pointers do not give.
#[test]
fn whole_without_an_option() {
    if !can_unwind("stacks::whole_without_an_option") {
        return;
    }
    let program = build("spin.c", &["-fomit-frame-pointer"]);
    let frames = with_outside(&["spin"]);
    let (all, whole) = exact(&without_versions(recorded(&[], &program)), "spin", &frames);
    assert!(all > 20 && whole == all, "{whole} of {all}");
    let (_, by_frame_pointer) =
        exact(&without_versions(recorded(&["--call-graph", "fp"], &program)), "spin", &frames);
    assert_eq!(by_frame_pointer, 0, "frame pointers lead nowhere here");
}

/// Checks that the outermost frame of a stripped program has its name.
#[test]
fn start_of_a_stripped_program() {
    if !can_unwind("stacks::start_of_a_stripped_program") {
        return;
    }
    for flags in [&["-s"][..], &["-s", "-no-pie"], &["-s", "-fcf-protection=none"]] {
        let chains = without_versions(recorded(&[], &build("spin.c", flags)));
        let ends = chains.iter().filter(|names| names.last().is_some_and(|name| name == "_start")).count();
        // The dynamic linker has another one.
        assert!(ends > 20 && ends * 10 >= chains.len() * 9, "{flags:?}: {ends} of {}", chains.len());
    }
}

/// Checks that stacks which are deeper than the copy of a sample get the outer frames that they
/// have in the process, that no chain has other frames, and that events which are sampled by count
/// are recorded along frame pointers.
#[test]
fn deeper_than_the_copy() {
    if !can_unwind("stacks::deeper_than_the_copy") {
        return;
    }
    let program = build("deepstack.c", &["-fomit-frame-pointer"]);
    let chains = without_versions(recorded(&[], &program));
    let inside: Vec<_> = chains.iter().filter(|names| names[0] == "spin").collect();
    let deeper = |names: &[String]| names.iter().filter(|name| *name == "deeper").count();
    let whole = inside.iter().filter(|names| {
        let calls = deeper(names);
        (calls == 20 || calls == 40) && names[1 + calls..].iter().eq(&OUTSIDE)
    });
    let cut = inside.iter().filter(|names| {
        let calls = deeper(names);
        calls < 20 && calls + 1 == names.len()
    });
    let (whole, cut) = (whole.count(), cut.count());
    // What is read of a stack after its sample can be a later one's, when the program ends.
    let others = inside.len() - whole - cut;
    assert!(others * 50 <= inside.len(), "{others} of {}", inside.len());
    // The first sample of each descent may come before anything is known.
    assert!(whole * 4 > cut && inside.len() > 20, "{whole} whole, {cut} cut");
}

/// Checks that frames beyond pages that were never touched are found: the kernel's copy ends there.
#[test]
fn beyond_untouched_pages() {
    const TEST: &str = "stacks::beyond_untouched_pages";
    if !can_unwind(TEST) {
        return;
    }
    if let Err(reason) = Follower::available() {
        return kymo_testing::skip(TEST, reason.to_string());
    }
    let program = build("emptyframes.c", &["-fomit-frame-pointer", "-pthread"]);
    let chains = recorded(&[], &program);
    let inside: Vec<_> = chains.iter().filter(|names| names[0] == "spin").collect();
    let is_whole = |names: &&&Vec<String>| {
        let (callers, begins) = (&names[1..], ["begin", "start_thread"]);
        let inner =
            ["outer", "other"].iter().any(|caller| callers.starts_with(&["inner", caller].map(String::from)));
        inner && callers[2..].starts_with(&begins.map(String::from))
    };
    let whole = inside.iter().filter(is_whole).count();
    // The first samples of a thread come before anything is known of its stack.
    assert!(inside.len() > 60 && whole * 10 > inside.len() * 7, "{whole} of {}", inside.len());
}

/// Checks that tracepoints have whole stacks, too: they take no program of the kind that samples
/// of clocks take.
#[test]
fn at_tracepoints() {
    const TEST: &str = "stacks::at_tracepoints";
    if !can_unwind(TEST) || !ready(TEST, &[Need::Root, Need::Tracepoints]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording");
    let file = path.to_str().expect("a plain name");
    let event = ["-a", "-e", "sched:sched_switch", "-c", "1", "--call-graph", "dwarf"];
    kymo().succeed([&["record", "-o", file], &event[..], &["--", "sh", "-c", "sleep 0.1; true"]].concat());
    let chains = chains(&path);
    assert!(chains.iter().any(|names| names.last().is_some_and(|name| name == "_start")), "{chains:?}");
}

/// Checks that the caller of assembly without unwind data and frame pointer is found, and all
/// outside of it.
#[test]
fn assembly_without_unwind_data() {
    if !can_unwind("stacks::assembly_without_unwind_data") {
        return;
    }
    let program = build("untabled.c", &["-fomit-frame-pointer"]);
    let frames = with_outside(&["untabled", "calls_it"]);
    let (all, whole) = exact(&without_versions(recorded(&[], &program)), "untabled", &frames);
    assert!(all > 20 && whole == all, "{whole} of {all}");
}

/// Checks that 32-bit programs have their frames along frame pointers.
#[test]
fn programs_of_32_bits() {
    const TEST: &str = "stacks::programs_of_32_bits";
    if !can_unwind(TEST) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("small");
    let mut compiler = Command::new("cc");
    compiler.args(["-m32", "-O0", "-fno-pie", "-no-pie", "-nostdlib", "-static"]);
    let built = compiler.arg(sources().join("small.c")).arg("-o").arg(&program).output().expect("cc runs");
    if !built.status.success() {
        return kymo_testing::skip(TEST, "cc builds no 32-bit programs here");
    }
    if Command::new(&program).status().is_err() {
        return kymo_testing::skip(TEST, "this kernel runs no 32-bit programs");
    }
    let (all, whole) = exact(&recorded(&[], &program), "inner", &["inner", "outer", "middle", "_start"]);
    // A sample in the prologue misses a frame, as along all frame pointers.
    assert!(all > 20 && whole >= all - 2, "{whole} of {all}");
}

/// Checks that mappings of data, which only unwinding needs, are left out of a recording, and are in
/// it when they are asked for.
#[test]
fn mappings_of_data_are_left_out() {
    if !can_unwind("stacks::mappings_of_data_are_left_out") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recording");
    let file = path.to_str().expect("a plain name");
    let mapped = |options: &[&str]| {
        kymo().succeed([&["record", "-o", file], options, &["--", "ls", "/"]].concat());
        let said = kymo().succeed(["script", "-i", file, "--show-mmap-events"]);
        let lines = said.stdout.lines().filter(|line| line.contains("PERF_RECORD_MMAP2"));
        let (code, data): (Vec<_>, Vec<_>) =
            lines.partition(|line| line.split_whitespace().any(|word| word.len() == 4 && word.contains('x')));
        (code.len(), data.len())
    };
    let (code, data) = mapped(&[]);
    assert!(code > 0 && data == 0, "{code} of code, {data} of data");
    let (code, data) = mapped(&["--data"]);
    assert!(code > 0 && data > 0, "{code} of code, {data} of data, with --data");
}
