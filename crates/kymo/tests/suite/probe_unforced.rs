//! Where the kernel does not let a program write its own code (`proc_mem.force_override` of Linux
//! 6.12 and later), kymo writes it while it holds the threads: through the memory of a thread that
//! it traces, or by ptrace.
//!
//! `fixtures/programs/unforced.c` makes such a kernel: in the program alone (only tracers may
//! write, `ptrace`), or in kymo, too (nobody may by `/proc/PID/mem`, `never`).

use std::path::PathBuf;
use std::process::Command;

use crate::copied::Program;
use crate::probe_lifetimes::{Many, Probing, hits_of_all};
use crate::programs::build;
use crate::tools::{Need, kymo, require, run};

const BY_MEMORY: &str = "written by kymo through /proc/PID/mem";
const BY_PTRACE: &str = "written by kymo through ptrace";

fn library() -> PathBuf {
    build("unforced.c", &["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
}

/// The program of 64 functions on such a kernel.
fn many(test: &str) -> Option<Many> {
    let (program, folder) = Many::copy(test)?;
    Some(Many::run(Command::new(&program).env("LD_PRELOAD", library()), &program, folder))
}

/// A kymo that probes all functions, on a kernel where tracers may write through files, or nobody
/// may.
fn probing(many: &Many, tracers_may: bool) -> Probing {
    let pid = many.pid();
    let words = ["probe", "--json", "--engine", "inproc", "-p", &pid, "many_*", "libc:str*"];
    let mut command = kymo().command(words);
    if !tracers_may {
        command.env("LD_PRELOAD", library());
    }
    Probing::by(&mut command)
}

/// Checks that a running program is patched by the tracer in both ways, functions of the C library
/// with it; that each call is counted, the program answers the same, and its code is its file's
/// afterwards.
#[test]
fn attached() {
    let Some(mut many) = many("probe_unforced::attached") else { return };
    let plain = many.call(100);
    let file = format!("/{}", many.program());
    for (tracers_may, words) in [(true, BY_MEMORY), (false, BY_PTRACE)] {
        let probing = probing(&many, tracers_may);
        assert_eq!(many.call(100), plain);
        assert!(!many.is_untouched(&file));
        let (found, said) = probing.end();
        assert_eq!(hits_of_all(&found), (100, "inproc".to_owned()), "{said}");
        assert!(said.contains(words), "{said}");
        assert!(many.is_untouched(&file) && many.is_untouched("/libc.so"), "{words}");
    }
}

/// Checks that a program goes on when the kymo that has probes in it is killed, though nobody can
/// take them away then, and that the next one does.
#[test]
fn killed() {
    let Some(mut many) = many("probe_unforced::killed") else { return };
    let plain = many.call(100);
    for tracers_may in [true, false] {
        probing(&many, tracers_may).kill();
        for _ in 0..3 {
            assert_eq!(many.call(100), plain);
        }
        let next = probing(&many, !tracers_may);
        assert_eq!(many.call(100), plain);
        let (found, said) = next.end();
        assert_eq!(hits_of_all(&found), (100, "inproc".to_owned()), "{said}");
        assert!(said.contains("that a killed kymo had left"), "{said}");
        assert!(many.is_untouched(&format!("/{}", many.program())) && many.is_untouched("/libc.so"));
    }
}

/// Checks that a command, its threads and what it forks and executes are counted and timed from the
/// first call on, and that what cannot have the agent comes up without it: the ways in are written
/// by the tracer, too.
#[test]
fn launched() {
    const TEST: &str = "probe_unforced::launched";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc")]) else { return };
    let (program, fixed) = (Program::of("probed.c", &[]), build("says.c", &["-static"]));
    let outer = format!("{}:probed_outer", program.text());
    let script = format!("{} 200 3 2; {}", program.text(), fixed.display());
    let mut command = kymo()
        .command(["probe", "--json", "--engine", "inproc", "--ret", &outer, "--", "/bin/sh", "-c", &script]);
    let said = run(command.env("LD_PRELOAD", library())).ends(0);
    said.prints("outer 1800 inner 1800").says(BY_PTRACE).says("1 of 3 programs came up without the agent");
    assert!(!said.stdout.contains("KYMO_AGENT_AT"), "{}", said.stdout);
    let json = said.stdout.find("{\n").expect("a document");
    let found: serde_json::Value = serde_json::from_str(&said.stdout[json..]).expect("JSON");
    let probe = &found["probes"][0];
    assert_eq!((&probe["hits"], &probe["latencies"]["count"]), (&1800.into(), &1800.into()), "{probe}");
}

/// Checks that a program whose threads nobody can hold, because a debugger does, is refused with
/// the reason and a status, and runs as ever; zeros are no result.
#[test]
fn refused() {
    const TEST: &str = "probe_unforced::refused";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("cc"), Need::Program("strace")]) else { return };
    let program = Program::of("probed.c", &[]);
    let outer = format!("{}:probed_outer", program.text());
    let words = ["probe", "--engine", "inproc", &outer, "--", "strace", "-f", "-o", "/dev/null"];
    let mut command = kymo().command(words.iter().copied().chain([program.text(), "50", "2", "1"]));
    let said = run(command.env("LD_PRELOAD", library())).ends(1);
    said.prints("outer 200 inner 200");
    said.says("the program may not write its own code").says("traces it already");
    said.says("the program cannot be probed from inside").says("leave --engine out");
}
