//! `-e mem:EXPR` of `kymo record` and `kymo stat`: counts are those of a program that knows how often it writes (`watched.c`).

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::programs;
use crate::tools::{Need, Said, kymo, perf, require, run};
use crate::watch::{alone, waiting};

/// 6 threads write 50 times each; half of them when the others have ended.
const WRITES: [&str; 3] = ["6", "50", "late"];

fn program() -> PathBuf {
    programs::build("watched.c", &[])
}

/// Not moved by the loader, so that its addresses are in its file.
fn fixed() -> PathBuf {
    programs::build("watched.c", &["-no-pie"])
}

/// `kymo stat -x, -e EVENTS -- PROGRAM ARGUMENTS`; it ends as the program does, with 3.
fn stat(events: &str, program: &PathBuf, arguments: &[&str]) -> Said {
    let mut command = kymo().command(["stat", "-x;", "-e", events, "--"]);
    run(command.arg(program).args(arguments))
}

/// Counts and names of the lines that have any.
fn counts(said: &Said) -> Vec<(u64, String)> {
    let line = |line: &str| {
        let mut fields = line.split(';');
        let (count, _unit, name) = (fields.next()?, fields.next()?, fields.next()?);
        Some((count.parse().ok()?, name.to_owned()))
    };
    let found: Vec<_> = said.stderr.lines().filter_map(line).collect();
    assert!(!found.is_empty(), "{}:\n{}\n{}", said.command, said.stdout, said.stderr);
    found
}

fn named(counts: &[(u64, &str)]) -> Vec<(u64, String)> {
    counts.iter().map(|&(count, name)| (count, name.to_owned())).collect()
}

/// Checks that a command's writes are counted exactly, by name, in a program that the loader moves and in one that it does not, with other
/// events in one group, functions and parts of structures included, and that the names are shown as they were written.
#[test]
fn counts_are_the_programs_own() {
    let Some(_alone) = alone("mem_events::counts_are_the_programs_own") else { return };
    for program in [program(), fixed()] {
        let said =
            stat("mem:counter,{mem:total:w,mem:pair.second:4:rw:u},mem:bump", &program, &WRITES).ends(3);
        said.says("runs without address randomization");
        let bump = counts(&said).iter().find(|(_, name)| name == "mem:bump").map(|&(count, _)| count);
        let data = [(300, "mem:counter"), (1, "mem:total:w"), (1, "mem:pair.second:4:rw:u")];
        assert_eq!(counts(&said)[..3], named(&data));
        // It may be inlined in some places; then it is not executed there.
        assert!(bump <= Some(300), "{bump:?}");
    }
    // A child writes to its own copy once more.
    let said = stat("mem:counter", &program(), &["2", "10", "fork"]);
    assert_eq!(counts(&said), named(&[(21, "mem:counter")]));
    let said = stat("mem:spread[3]:8,mem:spread+0x8:8", &program(), &["1", "1"]);
    assert_eq!(counts(&said), named(&[(1, "mem:spread[3]:8"), (1, "mem:spread+0x8:8")]));
}

/// Checks that perf counts the same at the same address.
#[test]
fn counts_are_perfs() {
    const TEST: &str = "mem_events::counts_are_perfs";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let Some(_alone) = alone(TEST) else { return };
    let program = fixed();
    let symbols = Command::new("nm").arg(&program).output().expect("nm");
    let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
    let address = symbols.lines().find_map(|line| line.strip_suffix(" counter")?.split(' ').next());
    let event = format!("mem:0x{}/4:w:u", address.expect("counter is a global variable"));
    let mut theirs = perf().command(["stat", "-x;", "-e", &event, "--"]);
    let theirs = run(theirs.arg(&program).args(WRITES));
    let (count, ours) = (counts(&theirs)[0].0, stat(&event, &program, &WRITES));
    assert_eq!((count, counts(&ours)[0].0), (300, 300));
    assert_eq!(counts(&stat("mem:counter:4:w", &program, &WRITES)), named(&[(300, "mem:counter:4:w")]));
}

/// Checks that a recording has a sample for each write, and that the event keeps its name in it.
#[test]
fn a_sample_for_each_write() {
    const TEST: &str = "mem_events::a_sample_for_each_write";
    let Some(_alone) = alone(TEST) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mem.data");
    let mut command = kymo().command(["record", "-q", "-e", "mem:counter,mem:flag", "-o"]);
    run(command.arg(&file).arg("--").arg(program()).args(WRITES)).ends(3);
    let mut report = kymo().command(["report", "--stdio", "--no-children", "-g", "none", "-i"]);
    let said = run(report.arg(&file));
    said.prints("# Samples: 300  of event 'mem:counter'").prints("# Samples: 1  of event 'mem:flag'");
    assert!(said.stdout.contains("culprit"), "who cleared the flag:\n{}", said.stdout);
}

/// Checks that a place is found in a process that runs, where the loader put it.
#[test]
fn in_a_process_that_runs() {
    const TEST: &str = "mem_events::in_a_process_that_runs";
    let Some(_alone) = alone(TEST) else { return };
    let mut child = waiting(&["4", "25"]);
    let control = tempfile::tempdir().expect("a folder");
    let fifo = |name: &str| {
        let path = control.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
        path.to_str().expect("UTF-8").to_owned()
    };
    let (asks, answers) = (fifo("asks"), fifo("answers"));
    let pid = child.pid();
    let channel = format!("fifo:{asks},{answers}");
    let counting = ["stat", "-x;", "-e", "mem:counter", "-p", &pid, "--control", &channel];
    let counter = kymo().command(counting).stderr(Stdio::piped()).spawn().expect("kymo starts");
    // It answers when it counts.
    std::fs::write(&asks, "ping\n").expect("a line");
    let mut answer = String::new();
    BufReader::new(std::fs::File::open(&answers).expect("the fifo")).read_line(&mut answer).expect("a line");
    assert_eq!(answer, "ack\n");
    child.tell("go\n");
    assert_eq!(child.end().1, Some(3));
    let output = counter.wait_with_output().expect("it ends with the process");
    let said = Said {
        command: "kymo stat -p".into(),
        code: output.status.code(),
        stdout: String::new(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    assert_eq!(counts(&said), named(&[(100, "mem:counter")]));
}

/// Checks that what cannot be found is refused in words, before anything runs.
#[test]
fn refusals() {
    const TEST: &str = "mem_events::refusals";
    let Some(_alone) = alone(TEST) else { return };
    let said = stat("mem:countre", &program(), &["1", "1"]).ends(1);
    assert!(
        said.stderr.contains("countre") && said.stderr.contains("counter"),
        "near names: {}",
        said.stderr
    );
    let said = stat("mem:counter:5:w", &program(), &["1", "1"]);
    assert_ne!(said.code, Some(3), "{}", said.stderr);
    let said = kymo().run(["record", "-e", "mem:counter", "-a", "-o", "/dev/null"]).ends(1);
    said.says("mem:counter is a place in a program; name a command");
    let said = stat("mem:spread", &program(), &["1", "1"]).ends(1);
    said.says("spread is 128 bytes long, more than the registers");
    let said = stat("mem:counter", &PathBuf::from("/nowhere/at/all"), &[]);
    assert!(said.code != Some(0) && said.stderr.contains("/nowhere/at/all"), "{}", said.stderr);
}
