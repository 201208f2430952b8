//! `--ret` harms no program and hides no call: stacks that are copied by a library which is loaded
//! late, handlers that are left while signals come, calls that are nested deeper than an engine
//! follows.

use std::process::Command;

use serde_json::Value;

use crate::copied::{Program, ROOMY, built};
use crate::probe_lifetimes::Probing;
use crate::runtimes::{probed, rounds};
use crate::tools::{Need, Running, find, kymo, require, run, skip, text};

/// `copies.c` as a program, and as its library.
fn copies(test: &str) -> Option<(Program, &'static str)> {
    require(test, &[Need::X86, Need::Root, Need::Program("cc")])?;
    let library = built("copies.c", &["-shared", "-fPIC", "-DLIBRARY"]);
    Some((Program::of("copies.c", &[ROOMY]), library))
}

/// How often the program calls `copies_deep`, and `copies_leaf`.
fn calls() -> (u64, u64) {
    let depths = (0..5).flat_map(|number| (0..200).map(move |round| (number + round) % 30));
    let depths: Vec<u64> = depths.collect();
    (depths.iter().map(|depth| depth + 1).sum(), depths.iter().sum())
}

/// Checks that programs go on as without `--ret` when a library which they load later copies their
/// stacks out and back, or switches them: the command, a child of the command, by every engine that
/// does not replace return addresses.
#[test]
fn a_late_library_copies_stacks() {
    const TEST: &str = "timed_calls::a_late_library_copies_stacks";
    let Some((program, library)) = copies(TEST) else { return };
    let child = format!("{} {library} copied; exit $?", program.text());
    for kind in ["copied", "switched"] {
        let plain = run(Command::new(&program.path).args([library, kind]));
        assert_eq!(plain.code, Some(4), "{}", plain.stderr);
        let command = [program.text(), library, kind];
        let selector = format!("{}:copies_*", program.text());
        for engine in ["auto", "inproc", "kernel"].into_iter().cycle().take(3 * rounds()) {
            let options = ["--ret", "--engine", engine];
            let commands = [&command[..], &["sh", "-c", &child]];
            for command in &commands[..if kind == "copied" && engine != "kernel" { 2 } else { 1 }] {
                let (own, counts, said) = probed(&options, &[&selector], command);
                assert_eq!((said.code, &own), (Some(4), &plain.stdout), "{engine} {kind}: {}", said.stderr);
                let ((deep, deep_timed), (leaf, leaf_timed)) = (counts["copies_deep"], counts["copies_leaf"]);
                assert_eq!((deep, leaf), calls(), "{engine} {kind}: {}", said.stderr);
                assert_eq!(leaf_timed, leaf, "{engine} {kind}: {counts:?}");
                // Copied calls have one place, and the last one that began there is timed.
                assert!(deep_timed <= deep && deep_timed > deep / 4, "{engine} {kind}: {counts:?}");
            }
        }
    }
}

/// Checks the same of a running program that loads the library while it is probed.
#[test]
fn a_library_that_copies_stacks_comes_while_probed() {
    const TEST: &str = "timed_calls::a_library_that_copies_stacks_comes_while_probed";
    let Some((program, library)) = copies(TEST) else { return };
    let plain = run(Command::new(&program.path).args([library, "copied"]));
    let mut running = Running::start(Command::new(&program.path).args([library, "copied", "wait"]));
    assert_eq!(running.line(), "ready\n");
    let probing =
        Probing::by(&mut kymo().command(["probe", "--json", "--ret", "-p", &running.pid(), "copies_*"]));
    running.tell("\n");
    assert_eq!(running.line(), plain.stdout);
    let (found, said) = probing.end();
    assert_eq!(running.end().1, Some(4), "{said}");
    let hits = |name: &str| probe(&found, name)["hits"].as_u64().unwrap_or(0);
    assert_eq!((hits("copies_deep"), hits("copies_leaf")), calls(), "{said}");
}

/// Checks threads that leave a handler of SIGSEGV on an alternate stack by siglongjmp while SIGPROF
/// comes: where calls are timed at their ends, and where return addresses are replaced, they
/// compute what they do without probes, and end.
#[test]
fn handlers_are_left_while_signals_come() {
    const TEST: &str = "timed_calls::handlers_are_left_while_signals_come";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) else { return };
    let program = Program::of("recovers.c", &[ROOMY]);
    let command = [program.text(), "20000"];
    let plain = run(Command::new(&program.path).arg("20000"));
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    for engine in ["auto", "shadow"].into_iter().cycle().take(2 * rounds()) {
        let (own, counts, said) = probed(&["--ret", "--engine", engine], &["recovers_*"], &command);
        assert_eq!((said.code, &own), (Some(0), &plain.stdout), "{engine}: {}", said.stderr);
        assert_eq!(counts["recovers_reads"], (60_000, 0), "{engine}: {}", said.stderr);
    }
}

/// Checks that what a function has written below the stack pointer before the patch is as it was
/// behind it, in each way of probing.
#[test]
fn the_red_zone_stays() {
    const TEST: &str = "timed_calls::the_red_zone_stays";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) else { return };
    let program = Program::of("red_zone.c", &[]);
    let command = [program.text()];
    let plain = run(&mut Command::new(&program.path));
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    for engine in ["inproc", "shadow"] {
        for how in [&["--ret"][..], &["--count"], &["--if", "arg2 >= 0"], &["--ret", "--if", "ret >= 0"]] {
            let options = [how, &["--engine", engine]].concat();
            let (own, counts, said) = probed(&options, &["red_zone_*"], &command);
            assert_eq!((said.code, &own), (Some(0), &plain.stdout), "{options:?}: {}", said.stderr);
            for name in ["red_zone_lowest", "red_zone_highest"] {
                assert_eq!(counts[name].0, 1000, "{options:?}: {}", said.stderr);
            }
        }
    }
}

fn probe<'a>(document: &'a Value, name: &str) -> &'a Value {
    let probes = document["probes"].as_array().expect("a list");
    probes.iter().find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{document}"))
}

/// Runs `nested.c` with 10,000 calls under way; its document.
fn nested(program: &Program, engine: &str) -> Value {
    let words = ["probe", "--json", "--ret", "--engine", engine, "nested_*", "--", program.text(), "10000"];
    let said = kymo().succeed(words);
    let (own, document) = said.stdout.split_once('\n').expect("a line of the program");
    assert_eq!(own, "done");
    serde_json::from_str(document).expect("JSON")
}

/// Checks that each of 10,001 calls that are under way at once is timed, and the calls at their
/// bottom are, inside the program and by the kernel.
#[test]
fn ten_thousand_calls_under_way_are_timed() {
    const TEST: &str = "timed_calls::ten_thousand_calls_under_way_are_timed";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) else { return };
    let program = Program::of("nested.c", &[ROOMY]);
    for engine in ["inproc", "kernel"] {
        let found = nested(&program, engine);
        for (name, calls) in [("nested_calls", 10_001), ("nested_long", 1), ("nested_short", 1)] {
            let probe = probe(&found, name);
            let latencies = &probe["latencies"];
            let counted = (&probe["hits"], &latencies["count"], &latencies["missed"]);
            assert_eq!(counted, (&calls.into(), &calls.into(), &0.into()), "{engine} {name}: {found}");
        }
        // All of them wait for the long one.
        let mean = |name: &str| probe(&found, name)["latencies"]["mean_ns"].as_f64().expect("a time");
        assert!(mean("nested_calls") > mean("nested_long") * 0.8, "{engine}: {found}");
        assert!(mean("nested_long") > mean("nested_short"), "{engine}: {found}");
    }
}

/// Checks that calls which are deeper than the shadow stack are counted as not timed, each of them,
/// in the document and in a sentence.
#[test]
fn calls_too_deep_for_the_shadow_stack_are_counted() {
    const TEST: &str = "timed_calls::calls_too_deep_for_the_shadow_stack_are_counted";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) else { return };
    let program = Program::of("nested.c", &[ROOMY]);
    let found = nested(&program, "shadow");
    let mut all_missed = 0;
    for (name, calls) in [("nested_calls", 10_001), ("nested_long", 1), ("nested_short", 1)] {
        let probe = probe(&found, name);
        let number = |name: &str| probe["latencies"][name].as_u64().expect("a number");
        assert_eq!((probe["hits"].as_u64(), number("count") + number("missed")), (Some(calls), calls));
        assert!(number("missed") > 0, "{name}: {found}");
        all_missed += number("missed");
    }
    let notes = found["notes"].to_string();
    assert!(notes.contains(&format!("{all_missed} calls could not be timed")), "{notes}");
}

/// Checks programs of Python that switch greenlets, and gevent's, with all calls of the interpreter
/// timed: they print the same and end the same.
#[test]
fn greenlets_go_on() {
    const TEST: &str = "timed_calls::greenlets_go_on";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("python3")]) else { return };
    const GREENLET: &str = "
import greenlet
main = greenlet.getcurrent()
def deep(n):
    if n == 0: return main.switch(1)
    return deep(n - 1) + len(sorted([3, 1, 2], key=lambda x: -x))
def job(k): return sum(deep(i % 30) for i in range(k))
all, total = [greenlet.greenlet(job) for _ in range(5)], 0
for g in all: g.switch(20)
while any(not g.dead for g in all):
    for g in all:
        if not g.dead: total += g.switch(2) or 0
print('done', total)
";
    const GEVENT: &str = "
import gevent
def job(k):
    total = 0
    for i in range(k):
        total += sum(j * i % 7 for j in range(300))
        gevent.sleep(0)
    return total
jobs = [gevent.spawn(job, 20) for _ in range(4)]
gevent.joinall(jobs)
print('done', sum(job.value for job in jobs))
";
    for (module, script) in [("greenlet", GREENLET), ("gevent", GEVENT)] {
        let interpreters = ["/usr/bin/python3", "python3"].into_iter().filter(|name| find(name).is_some());
        let mut plain = interpreters.map(|python| (python, run(Command::new(python).args(["-c", script]))));
        let Some((python, plain)) = plain.find(|(_, plain)| plain.code == Some(0)) else {
            skip(TEST, format!("{module} is not installed (Debian: python3-{module})"));
            continue;
        };
        let found = run(Command::new(python).args(["-c", "import sys; print(sys.executable)"]));
        let executable = std::path::Path::new(found.stdout.trim()).canonicalize().expect("Python's file");
        let libraries = run(Command::new("ldd").arg(&executable)).stdout;
        let is_shared = libraries.contains("libpython");
        let selector = if is_shared { "libpython*:*".to_owned() } else { format!("{}:*", text(&executable)) };
        for _ in 0..rounds() {
            let (own, counts, said) =
                probed(&["--ret", "--engine", "inproc"], &[&selector], &[found.stdout.trim(), "-c", script]);
            assert_eq!((said.code, &own), (Some(0), &plain.stdout), "{module}: {}", said.stderr);
            assert!(counts.values().filter(|(hits, timed)| *hits > 0 && *timed > 0).count() > 100);
        }
    }
}

/// Checks calls that are left by longjmp, and those that come after them at the same place: by
/// conditions each is timed or not by itself, inside of dynamic and static programs and by the
/// kernel.
#[test]
fn calls_that_were_left_are_not_the_next_ones() {
    const TEST: &str = "timed_calls::calls_that_were_left_are_not_the_next_ones";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) else { return };
    for (engine, flags) in [("inproc", &[ROOMY][..]), ("inproc", &[ROOMY, "-static"]), ("kernel", &[])] {
        let program = Program::of("jumped.c", flags);
        let counts = |condition: &str| {
            let options = ["--ret", "--engine", engine, "--if", condition];
            let (own, counts, said) = probed(&options, &["jumped"], &[program.text()]);
            assert_eq!((said.code, &*own), (Some(0), "5000\n"), "{engine} {flags:?}: {}", said.stderr);
            counts["jumped"]
        };
        assert_eq!(counts("arg1 == 0"), (1000, 0), "{engine} {flags:?}");
        assert_eq!(counts("arg1 == 1"), (1000, 1000), "{engine} {flags:?}");
        assert_eq!(counts("ret == 6"), (2000, 0), "{engine} {flags:?}");
    }
}
