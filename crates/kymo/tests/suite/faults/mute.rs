//! Memory and file systems that do not answer: the kernel makes whoever asks wait, and lets only SIGKILL end that, or nothing.
//! kymo gives up after a deadline, says why, leaves the program as it was, and ends.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use super::fuse::{Fault, Faulty};
use super::{ENDLESS, ended, folder, words};
use crate::copied::Program;
use crate::tools::{Need, Running, kymo, require, signal, skip, text};

/// An ordinary user.
const NOBODY: u32 = 65534;

/// `mute.c`, waiting.
fn waiting(test: &str, program: &Program, arguments: &[&str]) -> Option<Running> {
    let mut command = Command::new(&program.path);
    if arguments[0] == "map" {
        command.uid(NOBODY).gid(NOBODY);
    }
    let mut mute = Running::start(command.args(arguments).stderr(Stdio::piped()));
    if mute.line() == "ready\n" {
        return Some(mute);
    }
    let mut said = String::new();
    mute.child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(mute.end().1, Some(77), "{said}");
    skip(test, said.trim());
    None
}

/// Lets it end, and checks that it was not harmed.
fn ends_unharmed(mut mute: Running) {
    assert_eq!(mute.end(), ("alive\n".to_owned(), Some(0)));
}

fn program(test: &str) -> Option<Program> {
    require(test, &[Need::X86, Need::Program("cc"), Need::Root]).map(|()| Program::of("mute.c", &[]))
}

/// Runs kymo, which must end by itself; its status and what it said.
fn end_of(arguments: &[&str]) -> (Option<i32>, String) {
    let output = ended(&arguments.join(" "), kymo().start(arguments));
    (output.status.code(), words(&output))
}

/// Checks a program whose thread's stack lies in memory that nothing answers for: kymo ends, whether it could enter the
/// program or not, and the program goes on.
#[test]
fn a_stack_that_does_not_answer() {
    const TEST: &str = "faults::mute::a_stack_that_does_not_answer";
    let Some(program) = program(TEST) else { return };
    let Some(mute) = waiting(TEST, &program, &["stack"]) else { return };
    let (code, said) = end_of(&["probe", "--engine", "inproc", "-d", "0.1", "called", "-p", &mute.pid()]);
    assert!(matches!(code, Some(0 | 1)), "{said}");
    ends_unharmed(mute);
}

/// Checks a pointer into memory that nothing answers for: watching what it points to fails with the reason.
#[test]
fn a_pointer_that_does_not_answer() {
    const TEST: &str = "faults::mute::a_pointer_that_does_not_answer";
    let Some(program) = program(TEST) else { return };
    let Some(mute) = waiting(TEST, &program, &["pointer"]) else { return };
    let (code, said) = end_of(&["watch", "-d", "0.1", "-p", &mute.pid(), "**(long ***)&pointer"]);
    assert!(code.is_some_and(|code| code != 0), "{said}");
    let (code, said) = end_of(&["watch", "-d", "0.1", "-p", &mute.pid(), "*pointer"]);
    assert!(said.contains("does not answer") || code == Some(0), "{said}");
    ends_unharmed(mute);
}

/// Checks a program that maps, as code, a file of a file system that never answers a read, and that looks like the
/// library which is probed: kymo does not wait for it, whichever engine it takes.
#[test]
fn a_mapped_file_that_does_not_answer() {
    const TEST: &str = "faults::mute::a_mapped_file_that_does_not_answer";
    let Some(program) = program(TEST) else { return };
    let Some(()) = require(TEST, &[Need::Program("mount")]) else { return };
    let place = program.folder.path().join("mounted");
    fs::create_dir(&place).expect("our own folder");
    let like = fs::metadata(&program.path).expect("the program");
    // The user reaches the program.
    fs::set_permissions(program.folder.path(), PermissionsExt::from_mode(0o755)).expect("our own folder");
    let fault = Fault::MuteReads { inode: like.ino(), user: NOBODY };
    let faulty = match Faulty::mount(&place, fault) {
        Ok(faulty) => faulty,
        Err(why) => return skip(TEST, why),
    };
    let file = place.join("mute");
    let mut copy = Command::new("dd");
    copy.args(["if=/dev/zero", "bs=4096", "count=16", "status=none"]).uid(NOBODY).gid(NOBODY);
    assert!(copy.arg(format!("of={}", text(&file))).status().expect("dd").success());
    let Some(mute) = waiting(TEST, &program, &["map", text(&file)]) else { return };
    let library = program.text();
    for engine in ["inproc", "kernel", "auto"] {
        let place = format!("{library}:called");
        let (_, said) = end_of(&["probe", "--engine", engine, "-d", "0.1", &place, "-p", &mute.pid()]);
        assert!(!said.is_empty(), "{engine}");
    }
    faulty.abort();
    ends_unharmed(mute);
}

/// Checks an output on a file system that stops to answer: a signal ends kymo, which says what it waits for and when it
/// gives that up; that the kernel keeps it until the file system is gone, kymo says, too.
/// What kymo has started ends, as well, at whatever write the file system stopped.
#[test]
fn an_output_that_does_not_answer() {
    const TEST: &str = "faults::mute::an_output_that_does_not_answer";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("mount")]) else { return };
    std::thread::scope(|scope| {
        let ways = [("uring", Signal::TERM, 1), ("pwrite", Signal::INT, 3), ("pwrite", Signal::HUP, 9)];
        for (way, by, writes) in ways {
            scope.spawn(move || ends_by(TEST, way, by, writes));
        }
    });
}

/// Ends a recording onto a file system that stops after so many writes by this signal.
fn ends_by(test: &str, way: &str, by: Signal, writes: u32) {
    let place = folder(&format!("mute-output-{way}-{}", by.as_raw()));
    let faulty = match Faulty::mount(&place, Fault::MuteAfter(writes)) {
        Ok(faulty) => faulty,
        Err(why) => return skip(test, why),
    };
    let path = place.join("perf.data");
    let mut child = kymo()
        .command(["record", "-F", "6000", "-o", text(&path), "--", "sh", "-c", ENDLESS])
        .env("KYMO_IO", way)
        .stderr(Stdio::piped())
        .spawn()
        .expect("kymo starts");
    faulty.wait_until_asked_in_vain();
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    signal(&child, by);
    // It says what it waits for before anything else happens.
    let mut first = String::new();
    while !first.contains("does not answer") {
        assert!(said.read_line(&mut first).expect("its words") > 0, "{way}: {first}");
    }
    while !first.contains("; ended,") {
        assert!(said.read_line(&mut first).expect("its words") > 0, "{way}: {first}");
    }
    // Now it only waits in the kernel.
    faulty.abort();
    // Its program has the pipe, too: this returns when both have ended.
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("its words");
    let status = child.wait().expect("its end");
    assert_eq!(status.signal(), Some(by.as_raw()), "{way}: {first}{rest}");
}
