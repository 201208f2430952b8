//! The unwinder against perf: real programs, recorded here, unwound by both, compared frame for frame.
use crate::perf_script;
use crate::programs::{build, sources};
use crate::recorded;
use kymo_symbols::unwind::{Convention, MAX_FRAMES, Stop, UnwindModules, UnwindStats, Unwinder};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How many walks there were, and how many of them relate to perf's in which way.
#[derive(Debug, Default)]
struct Agreement {
    samples: usize,
    equal: usize,
    perf_stops_earlier: usize,
    /// perf goes further, or the frames differ: in words.
    wrong: Vec<String>,
    stats: UnwindStats,
}

/// Records a command with perf and unwinds it with both. `None`, said loudly, where that is not possible.
fn agreement(test: &str, command: &[&str]) -> Option<Agreement> {
    let skip = |reason: &str| {
        kymo_testing::skip(test, reason);
        None
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("perf.data");
    let recorded = kymo_testing::perf_command("perf")
        .args(["record", "-q", "-e", "cpu-clock", "-F", "5000", "--call-graph", "dwarf", "-o"])
        .arg(&file)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output();
    match recorded {
        Ok(output) if output.status.success() => {}
        Ok(output) => return skip(&format!("perf record: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => return skip(&format!("perf: {error}")),
    }
    let Some(mut theirs) = perf_script::stacks(&file) else { return skip("perf script failed") };
    let modules = UnwindModules::new();
    let mut unwinder = Unwinder::new(Convention::Perf);
    let mut agreement = Agreement::default();
    for sample in recorded::samples(&file, &modules) {
        let mut frames = Vec::new();
        let stop = unwinder.unwind(&sample.space, &sample.regs, &sample.stack, MAX_FRAMES, &mut frames);
        let ours: Vec<u64> = frames.iter().map(|&ip| perf_script::shown(&sample.space, ip)).collect();
        let theirs = theirs.get_mut(&sample.key).and_then(Vec::pop).unwrap_or_default();
        agreement.samples += 1;
        match perf_script::compare(&ours, &theirs) {
            "equal" => agreement.equal += 1,
            "perf stops earlier" => agreement.perf_stops_earlier += 1,
            class => agreement.wrong.push(format!("{class} ({stop:?}): {ours:x?}, perf {theirs:x?}")),
        }
    }
    agreement.stats = unwinder.stats().clone();
    eprintln!(
        "{test}: {} of {} walks equal perf's, {} go further, {:?}",
        agreement.equal, agreement.samples, agreement.perf_stops_earlier, agreement.stats
    );
    if agreement.samples < 20 {
        return skip("fewer than 20 samples: the machine is too busy");
    }
    Some(agreement)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Nine tenths must be equal, and all but a few that are not must be perf's stopping early. The few are perf's known mistakes,
/// which the module's documentation lists; they depend on where samples fall.
fn agrees(test: &str, command: &[&str]) {
    if let Some(agreement) = agreement(test, command) {
        assert!(agreement.equal * 10 >= agreement.samples * 9, "{test}: {agreement:#?}");
        assert!(agreement.wrong.len() <= 1 + agreement.samples / 30, "{test}: {agreement:#?}");
    }
}

fn agrees_built(test: &str, program: &str, flags: &[&str], arguments: &[&str]) {
    let needed = if program.ends_with(".rs") { "rustc" } else { "c++" };
    if Command::new(needed).arg("--version").output().is_err() {
        kymo_testing::skip(test, format!("{needed} is not installed"));
        return;
    }
    let built: PathBuf = build(program, flags);
    agrees(test, &[&[text(&built)], arguments].concat());
}

/// Checks recursion, callbacks, alloca, realigned stacks, tail calls and signal handlers, without frame pointers.
#[test]
fn c_without_frame_pointers() {
    agrees_built("c_without_frame_pointers", "deep.c", &["-fomit-frame-pointer"], &["100"]);
}

/// Checks the same with frame pointers, and not optimised.
#[test]
fn c_with_frame_pointers() {
    agrees_built("c_with_frame_pointers", "deep.c", &["-fno-omit-frame-pointer"], &["100"]);
    agrees_built("c_not_optimised", "deep.c", &["-O0"], &["50"]);
}

/// Checks C++ that throws, in a position-independent program and in one at a fixed address.
#[test]
fn cpp_with_exceptions() {
    agrees_built("cpp_with_exceptions", "exceptions.cc", &[], &["500"]);
    agrees_built("cpp_at_a_fixed_address", "exceptions.cc", &["-no-pie"], &["500"]);
}

/// Checks threads and caught panics of Rust, with and without frame pointers.
#[test]
fn rust_threads() {
    agrees_built("rust_threads", "hot.rs", &[], &["60"]);
    agrees_built("rust_threads_with_frame_pointers", "hot.rs", &["-Cforce-frame-pointers=yes"], &["60"]);
}

/// Checks the deep stacks of an interpreter, which end where the recorded bytes end.
#[test]
fn interpreter() {
    let executable = "import sys; print(sys.executable)";
    match Command::new("python3").args(["-c", executable]).output() {
        Ok(output) if output.status.success() => {
            let python = String::from_utf8_lossy(&output.stdout);
            agrees("interpreter", &[python.trim(), text(&sources().join("snake.py"))]);
        }
        _ => kymo_testing::skip("interpreter", "no python3 here"),
    }
}

/// Checks that where perf gives up (a static program without a lookup table, functions with a debug section only) walks
/// go on to the root.
#[test]
fn where_perf_gives_up() {
    for (test, program, flags, arguments) in [
        ("static", "exceptions.cc", &["-static"][..], "500"),
        ("debug_frame", "deep.c", &["-fno-asynchronous-unwind-tables", "-fomit-frame-pointer"][..], "100"),
    ] {
        let built = build(program, flags);
        let Some(agreement) = agreement(test, &[text(&built), arguments]) else { continue };
        assert!(agreement.equal * 2 < agreement.samples, "{test}: perf has learned it: {agreement:#?}");
        // The sample at the end of the process may have no stack any more.
        let roots = agreement.stats.stopped(Stop::Root) as usize;
        assert!(roots * 20 >= agreement.samples * 19, "{test}: {agreement:#?}");
    }
}
