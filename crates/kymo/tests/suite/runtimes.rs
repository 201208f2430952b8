//! Programs that walk, copy and switch their own stacks, or leave calls otherwise than by
//! returning: they are probed and timed as any other, and do not notice.
//!
//! Each case runs once in `make test`, and [`ROUNDS`] times in the long form (`KYMO_SOAK=1`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::copied::built;
use crate::programs::sources;
use crate::tools::{Need, Said, kymo, ready, require, run, skip, text};

/// Rounds of each case in the long form.
const ROUNDS: usize = 20;

pub(crate) fn rounds() -> usize {
    if std::env::var_os("KYMO_SOAK").is_some() { ROUNDS } else { 1 }
}

/// What was counted of each function that was probed: hits, and calls whose time is known.
fn counted(json: &str) -> BTreeMap<String, (u64, u64)> {
    let document: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let of = |probe: &Value| {
        let hits = probe["hits"].as_u64()?;
        let name = probe["name"].as_str().expect("a name").rsplit_once(':').map_or("", |(_, name)| name);
        let calls = probe["latencies"]["count"].as_u64().unwrap_or(0);
        let name = if name.is_empty() { probe["name"].as_str().unwrap_or_default() } else { name };
        Some((name.to_owned(), (hits, calls)))
    };
    document["probes"].as_array().expect("a list").iter().filter_map(of).collect()
}

/// What a program says of itself: `NAME CALLS EXITS` lines.
fn truth(stdout: &str) -> BTreeMap<&str, (u64, u64)> {
    stdout
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (name, calls, exits) = (words.next()?, words.next()?, words.next()?);
            Some((name, (calls.parse().ok()?, exits.parse().ok()?)))
        })
        .collect()
}

/// Probes a command with these options; its own output and kymo's document.
pub(crate) fn probed(
    options: &[&str],
    selectors: &[&str],
    command: &[&str],
) -> (String, BTreeMap<String, (u64, u64)>, Said) {
    let mut words = vec!["probe", "--json"];
    words.extend(options);
    words.extend(selectors);
    words.push("--");
    words.extend(command);
    let said = kymo().run(words);
    let begin =
        said.stdout.find("{\n").unwrap_or_else(|| panic!("{:?} {}\n{}", said.code, said.stdout, said.stderr));
    let own = said.stdout[..begin].to_owned();
    let counts = counted(&said.stdout[begin..]);
    (own, counts, said)
}

fn leaves(test: &str) -> Option<&'static str> {
    // A copy for each test: the kernel's probes are in every process of one file.
    let own = format!("-DOF_{}", test.replace("::", "_"));
    require(test, &[Need::X86, Need::Root, Need::Program("c++")]).map(|()| built("leaves.cc", &[&own]))
}

/// Runs `leaves` with and without probes: the same output and status, all hits and all exits.
///
/// `untimed` have no times; of `fewer` some may be missing.
fn left_in_every_way(test: &str, options: &[&str], untimed: &[&str], fewer: &[&str]) {
    let Some(program) = leaves(test) else { return };
    let plain = run(Command::new(program).arg("240"));
    assert_eq!(plain.code, Some(7), "{}", plain.stderr);
    let truth = truth(&plain.stdout);
    for _ in 0..rounds() {
        let (own, counts, said) = probed(options, &["left_*"], &[program, "240"]);
        assert_eq!((said.code, &own), (Some(7), &plain.stdout), "{}", said.stderr);
        for (name, (calls, exits)) in &truth {
            let exits = if untimed.contains(name) { 0 } else { *exits };
            let (hits, timed) = counts.get(*name).copied().unwrap_or_default();
            let complete = timed == exits || (fewer.contains(name) && timed < exits);
            assert!(hits == *calls && complete, "{name}: {counts:?}\n{}", said.stderr);
        }
    }
}

/// Checks that exceptions, longjmp, switched stacks, tail calls, cold parts and jump tables leave
/// the program as it is and every count exact when the kernel times calls:
/// it places probes at exits, and no return address is replaced (which ends this program by
/// `terminate`).
#[test]
fn exceptions_and_switched_stacks_under_the_kernels_probes() {
    let untimed = ["left_computed"];
    left_in_every_way(
        "runtimes::exceptions_and_switched_stacks_under_the_kernels_probes",
        &["--ret", "--engine", "kernel"],
        &untimed,
        &[],
    );
}

/// Checks the same where nothing is asked for: calls are timed inside the program where they end,
/// by the kernel where these places cannot be patched.
#[test]
fn exceptions_and_switched_stacks_inside_the_program() {
    let test = "runtimes::exceptions_and_switched_stacks_inside_the_program";
    left_in_every_way(test, &["--ret"], &["left_computed"], &[]);
}

/// Checks the same of replaced return addresses, where calls under way on more stacks than the
/// shadow stack is deep are counted and not timed.
#[test]
fn exceptions_and_switched_stacks_with_replaced_return_addresses() {
    left_in_every_way(
        "runtimes::exceptions_and_switched_stacks_with_replaced_return_addresses",
        &["--ret", "--engine", "shadow", "--force"],
        &[],
        &["left_on_stack", "left_yields"],
    );
}

/// Checks that `auto` times calls of a program which switches stacks where they end, that all of
/// them are timed, and that replaced return addresses are refused there with the reason.
#[test]
fn auto_replaces_no_return_address_where_stacks_are_switched() {
    const TEST: &str = "runtimes::auto_replaces_no_return_address_where_stacks_are_switched";
    let Some(program) = leaves(TEST) else { return };
    let (_, counts, said) = probed(&["--ret"], &["left_on_stack", "left_yields"], &[program, "240"]);
    assert_eq!(said.code, Some(7), "{}", said.stderr);
    let refused = kymo().run(["probe", "--ret", "--engine", "shadow", "left_yields", "--", program, "240"]);
    refused.ends(1).says("it switches stacks (swapcontext)").says("--force does it even so");
    let wanted = [("left_on_stack", (11520, 11520)), ("left_yields", (1920, 1920))];
    assert_eq!(counts, wanted.map(|(name, counts)| (name.to_owned(), counts)).into(), "{}", said.stderr);
}

/// Checks that no latency is below what a call is known to take, that none is missing, and that the
/// longest is at least the mean.
#[test]
fn latencies_against_known_waits() {
    let Some(program) = leaves("runtimes::latencies_against_known_waits") else { return };
    for engine in ["kernel", "inproc", "auto"] {
        let said =
            kymo().run(["probe", "--json", "--ret", "--engine", engine, "left_waits", "--", program, "240"]);
        let latencies = &said.json()["probes"][0]["latencies"];
        let number = |name: &str| latencies[name].as_u64().unwrap_or_else(|| panic!("{name}: {latencies}"));
        assert_eq!(number("count"), 51, "{engine}");
        // One call waits 20 us, 50 wait 100 us. The engine inside knows times to an eighth.
        let at_least = 50 * 100_000 + 20_000;
        assert!(number("total_ns") >= at_least - at_least / 8, "{engine}: {latencies}");
        assert!(number("p50_ns") >= 100_000 - 100_000 / 8, "{engine}: {latencies}");
        assert!(number("max_ns") >= number("p50_ns"), "{engine}: {latencies}");
    }
}

/// A Go program, compiled; nothing, loudly, where that cannot be.
fn growing(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    require(test, &[Need::X86, Need::Root, Need::Program("go")])?;
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("growing");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(&program).arg(sources().join("growing.go"));
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go")).env("GOFLAGS", "-mod=mod");
    let said = run(&mut go);
    if said.code != Some(0) {
        skip(test, format!("go build: {}", said.stderr.lines().next().unwrap_or_default()));
        return None;
    }
    Some((folder, program))
}

/// Checks a Go program whose stacks are copied while calls are timed, by stubs and by the kernel:
/// each call is counted once, though functions begin anew when their stack has grown, each return
/// is timed though it happens on another stack and another thread, and panics leave nothing that is
/// taken for another call's.
#[test]
fn goroutines_move_and_their_stacks_grow() {
    let Some((_folder, program)) = growing("runtimes::goroutines_move_and_their_stacks_grow") else { return };
    let program = text(&program);
    let plain = run(Command::new(program).arg("20"));
    let truth = truth(&plain.stdout);
    for engine in ["auto", "kernel"].into_iter().cycle().take(2 * rounds()) {
        let (own, counts, said) = probed(&["--ret", "--engine", engine], &["main.*"], &[program, "20"]);
        assert_eq!((said.code, &own), (Some(5), &plain.stdout), "{}", said.stderr);
        if engine == "auto" {
            said.says("without a library in the program");
        }
        assert_eq!(truth.len(), 5, "{}", plain.stdout);
        for (name, wanted) in &truth {
            assert_eq!(counts.get(*name), Some(wanted), "{name}: {}", said.stderr);
        }
    }
}

/// Checks that all functions of a Go program, those of its runtime among them, can be counted and
/// timed, and that nothing is put into the runtime's assembly: `goexit+1` is the
/// return address of every goroutine.
#[test]
fn nothing_is_put_into_go_assembly() {
    let Some((_folder, program)) = growing("runtimes::nothing_is_put_into_go_assembly") else { return };
    let program = text(&program);
    for name in ["goexit.abi0", "gogo.abi0", "mcall", "morestack.abi0", "asmcgocall.abi0"] {
        let name = &format!("runtime.{name}");
        let said = kymo().run(["probe", name, "--", program, "1"]);
        let refused =
            said.stderr.contains("assembly of Go's runtime") || said.stderr.contains("no function in");
        assert!(said.code == Some(1) && refused, "{name}: {:?} {}", said.code, said.stderr);
    }
    let plain = run(Command::new(program).arg("10"));
    for options in [&["--count"][..], &["--ret"]] {
        for _ in 0..rounds() {
            let (own, counts, said) = probed(options, &["runtime.*", "main.*"], &[program, "10"]);
            assert_eq!((said.code, &own), (Some(5), &plain.stdout), "{}", said.stderr);
            assert!(counts.len() > 500 && counts["main.Deep"].0 == 1010, "{}", said.stderr);
            assert!(!counts.keys().any(|name| name.starts_with("runtime.goexit.")), "{counts:?}");
        }
    }
}

/// A program that says `ready`, runs until its input ends or the file $STOP_FILE is there, is
/// probed by each of these meanwhile, and must end as without.
struct Visited<'a> {
    test: &'a str,
    command: &'a [&'a str],
    /// Options and selectors of each visit.
    visits: &'a [&'a [&'a str]],
}

impl Visited<'_> {
    fn check(&self) {
        let folder = tempfile::tempdir().expect("a folder");
        let stop = folder.path().join("stop");
        let command = || {
            let mut command = Command::new(self.command[0]);
            command.args(&self.command[1..]).env("STOP_FILE", &stop);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        };
        std::fs::write(&stop, "").expect("a file");
        let plain = command().spawn().and_then(Child::wait_with_output).expect("its output");
        for round in 0..rounds() {
            std::fs::remove_file(&stop).expect("our file");
            let mut child = command().spawn().expect("it starts");
            let input = child.stdin.take();
            let pid = child.id().to_string();
            // It has loaded what is to be probed when it says so.
            let mut first = [0; 6];
            let output = child.stdout.as_mut().expect("piped");
            std::io::Read::read_exact(output, &mut first)
                .unwrap_or_else(|error| panic!("{}: {error}", self.test));
            for visit in self.visits {
                let mut words = vec!["probe", "--json", "-p", &pid, "-d", "0.5"];
                words.extend(*visit);
                let said = kymo().run(words);
                let state = child.try_wait().expect("a child");
                assert!(
                    state.is_none(),
                    "{} round {round}, {visit:?}: {state:?}\n{}",
                    self.test,
                    said.stderr
                );
                if said.stderr.contains("no function in ") {
                    skip(self.test, format!("{visit:?}: {}", said.stderr.trim()));
                    continue;
                }
                assert_eq!(said.code, Some(0), "{} {visit:?}: {}", self.test, said.stderr);
                let counts = counted(&said.stdout);
                assert!(counts.values().any(|(hits, _)| *hits > 0), "{visit:?}: {}", said.stderr);
                if visit.contains(&"--ret") {
                    assert!(counts.values().any(|(_, timed)| *timed > 0), "{visit:?}: {}", said.stderr);
                }
            }
            std::fs::write(&stop, "").expect("a file");
            drop(input);
            let output = child.wait_with_output().expect("its output");
            let all = [&first[..], &output.stdout].concat();
            assert_eq!(
                output.status,
                plain.status,
                "{}: {}",
                self.test,
                String::from_utf8_lossy(&output.stderr)
            );
            assert_eq!(all, plain.stdout, "{}", self.test);
        }
    }
}

/// Checks a Java virtual machine that collects garbage, throws and loads: functions of its
/// safepoints are counted and timed, and it goes on.
#[test]
fn a_java_machine_walks_its_stacks() {
    const TEST: &str = "runtimes::a_java_machine_walks_its_stacks";
    if !ready(TEST, &[Need::Root, Need::Program("java"), Need::Program("javac")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let compiled =
        run(Command::new("javac").arg("-d").arg(folder.path()).arg(sources().join("Collects.java")));
    if compiled.code != Some(0) {
        return skip(TEST, format!("javac: {}", compiled.stderr));
    }
    let classes = text(folder.path());
    Visited {
        test: TEST,
        command: &["java", "-Xmx64m", "-cp", classes, "Collects"],
        visits: &[
            &["--ret", "libjvm.so:*Safepoint*"],
            &["--count", "libjvm.so:*GC*"],
            &["--ret", "libjvm.so:*Thread*", "libjvm.so:frame::*"],
        ],
    }
    .check();
}

/// Checks node: the functions that generated code calls are counted and timed, and it goes on.
#[test]
fn v8_walks_its_stacks() {
    const TEST: &str = "runtimes::v8_walks_its_stacks";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("node")]) else { return };
    let script = sources().join("collects.js");
    Visited {
        test: TEST,
        command: &["node", "--max-old-space-size=64", text(&script)],
        visits: &[
            &["--ret", "v8::internal::Runtime_*"],
            &["--count", "v8::internal::Heap::*"],
            &["--ret", "v8::internal::Isolate::*"],
        ],
    }
    .check();
}

/// Runs `works.EXTENSION` by its interpreter under these visits.
fn interpreted(test: &str, interpreter: &'static str, script: &str, visits: &[&[&str]]) {
    let Some(()) = require(test, &[Need::Root, Need::Program(interpreter)]) else { return };
    let script = sources().join(script);
    Visited { test, command: &[interpreter, text(&script)], visits }.check();
}

/// Checks Ruby, which scans its stack for objects, leaves calls by longjmp and switches fibers.
#[test]
fn ruby_scans_its_stack_and_switches_fibers() {
    let visits: [&[&str]; 2] = [&["--count", "libruby*:*"], &["--ret", "libruby*:rb_*"]];
    interpreted("runtimes::ruby_scans_its_stack_and_switches_fibers", "ruby", "works.rb", &visits);
}

/// Checks Lua, which leaves calls by longjmp.
#[test]
fn lua_leaves_calls_by_longjmp() {
    let visits: [&[&str]; 2] = [&["--count", "lua*"], &["--ret", "lua*"]];
    interpreted("runtimes::lua_leaves_calls_by_longjmp", "lua5.4", "works.lua", &visits);
}

/// Checks LuaJIT, whose interpreter and generated code unwind by themselves.
#[test]
fn luajit_unwinds_by_itself() {
    let visits: [&[&str]; 2] = [&["--count", "lua*"], &["--ret", "lua*"]];
    interpreted("runtimes::luajit_unwinds_by_itself", "luajit", "works.lua", &visits);
}

/// Checks an OCaml program, whose collector looks up each return address.
#[test]
fn the_collector_of_ocaml_looks_up_return_addresses() {
    const TEST: &str = "runtimes::the_collector_of_ocaml_looks_up_return_addresses";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("ocamlopt")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("works.ml");
    std::fs::copy(sources().join("works.ml"), &own).expect("a copy");
    let program = folder.path().join("works");
    let compiled = run(Command::new("ocamlopt").arg("-g").arg(&own).arg("-o").arg(&program));
    if compiled.code != Some(0) {
        return skip(TEST, format!("ocamlopt: {}", compiled.stderr));
    }
    let command = [text(&program)];
    Visited { test: TEST, command: &command, visits: &[&["--count", "caml*"], &["--ret", "caml*"]] }.check();
}

/// Checks Erlang, whose processes have stacks of their own.
#[test]
fn erlang_has_stacks_of_its_own() {
    const TEST: &str = "runtimes::erlang_has_stacks_of_its_own";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("erl"), Need::Program("erlc")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let source = sources().join("works.erl");
    let compiled = run(Command::new("erlc").arg("-o").arg(folder.path()).arg(&source));
    if compiled.code != Some(0) {
        return skip(TEST, format!("erlc: {}", compiled.stderr));
    }
    let command = ["erl", "-noshell", "-pa", text(folder.path()), "-run", "works", "main"];
    Visited { test: TEST, command: &command, visits: &[&["--count", "*"], &["--ret", "*"]] }.check();
}

/// Checks 40 fibers of boost.context: all calls are counted and timed though they are left on one
/// stack and go on later, by the kernel's probes and as `auto` decides.
#[test]
fn boost_fibers_switch_stacks() {
    const TEST: &str = "runtimes::boost_fibers_switch_stacks";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("c++")]) else { return };
    if !Path::new("/usr/include/boost/context/fiber.hpp").exists() {
        return skip(TEST, "boost.context is not installed (Debian: libboost-context-dev)");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("fibers");
    let mut compiler = Command::new("c++");
    compiler.args(["-O2", "-g"]).arg(sources().join("fibers.cc")).arg("-o").arg(&program);
    run(compiler.arg("-lboost_context")).ends(0);
    let program = text(&program);
    let plain = run(Command::new(program).arg("50"));
    for options in [&["--ret"][..], &["--ret", "--engine", "kernel"]] {
        for _ in 0..rounds() {
            let (own, counts, said) = probed(options, &["left_*"], &[program, "50"]);
            assert_eq!((said.code, &own), (Some(6), &plain.stdout), "{}", said.stderr);
            for (name, wanted) in truth(&plain.stdout) {
                assert_eq!(counts.get(name), Some(&wanted), "{name}: {}", said.stderr);
            }
        }
    }
}
