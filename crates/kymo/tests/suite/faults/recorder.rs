//! A recorder that is killed, stopped or moved at any moment.
//!
//! A recorder waits by CLOCK_MONOTONIC alone ([`std::time::Instant`], poll); the wall clock names files and is told in the header. To step the wall
//! clock of a machine that others use is not for a test, and no namespace has a wall clock of its own, so a preloaded library makes it jump for
//! the recorder. That readers bear times which jump is in kymo-profile's `loss/tests.rs` and `timeline/live_tests.rs`.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{
    BUSY, Dice, WAYS, WHILE_RECORDED, ended, folder, recorder, rounds, said_samples, samples, words,
    works_when_told,
};
use crate::programs::build;
use crate::tools::{Need, kymo, ready, run, signal, skip, text};

/// Starts a recording of a shell program that holds no pipe longer than it runs.
fn start(path: &Path, options: &[&str], way: &str, program: &str) -> Child {
    recorder(way, &[&["-F", "4000"], options].concat(), path, program).spawn().expect("kymo starts")
}

/// Waits so long, or until the child has ended; true if it has.
fn ends_within(child: &Child, time: Duration) -> bool {
    let fd = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("the child is there");
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
}

/// A random moment in the life of a recorder: so long after its start, or with so much in its file. Returns it in words.
fn wait_for_a_moment(dice: &mut Dice, child: &Child, path: &Path, most_bytes: u64) -> String {
    if most_bytes == 0 || dice.below(2) == 0 {
        let time = Duration::from_micros(dice.below(600_000));
        assert!(!ends_within(child, time), "the recording ended by itself");
        return format!("{time:?} after the start");
    }
    let bytes = dice.below(most_bytes);
    while fs::metadata(path).map_or(0, |file| file.len()) < bytes {
        assert!(!ends_within(child, Duration::from_millis(1)), "the recording ended by itself");
    }
    format!("with {bytes} bytes")
}

/// Checks a recorder that is killed at random moments, its start included, with both ways of writing, packed, and in several files: whatever
/// file is there opens in kymo and perf and both find the same; and nothing that it started outlives it.
#[test]
fn killed_at_any_moment() {
    let test = "faults::recorder::killed_at_any_moment";
    let mut dice = Dice::of(test);
    let (mut files, mut with_samples) = (0, 0);
    for round in 0..rounds(10, 100) {
        let folder = folder(&format!("killed-{round}"));
        let path = folder.join("perf.data");
        let way = dice.of_all(&WAYS);
        // How large a file becomes in a second or so; 0: it does not keep its name.
        let (options, most_bytes) = dice.of_all(&[
            (&[][..], 300_000),
            (&["-g"], 300_000),
            (&["-z"], 20_000),
            (&["-a"], 300_000),
            (&["--switch-output=100K"], 0),
        ]);
        if options == ["-a"] && !ready(test, &[Need::Root]) {
            continue;
        }
        let child = start(&path, options, way, WHILE_RECORDED);
        let moment = wait_for_a_moment(&mut dice, &child, &path, most_bytes);
        eprintln!("{test}: round {round}: {way}, {options:?}, {moment}");
        signal(&child, Signal::KILL);
        ended(test, child);
        for file in fs::read_dir(&folder).expect("the folder") {
            files += 1;
            with_samples += u32::from(samples(test, &file.expect("a file").path()) > 0);
        }
    }
    eprintln!("{test}: {files} files, {with_samples} of them with samples");
    assert!(with_samples > 0, "of so many moments some are later than the first sample");
}

/// Checks a recorder that is stopped at random moments for random times: it goes on where it was, ends as if nothing had been, and its account
/// is that of its file.
#[test]
fn stopped_at_any_moment() {
    let test = "faults::recorder::stopped_at_any_moment";
    let mut dice = Dice::of(test);
    for round in 0..rounds(3, 30) {
        let path = folder(&format!("stopped-{round}")).join("perf.data");
        let way = dice.of_all(&WAYS);
        let child = start(&path, &[], way, BUSY);
        for _ in 0..1 + dice.below(3) {
            if ends_within(&child, Duration::from_micros(dice.below(300_000))) {
                break;
            }
            signal(&child, Signal::STOP);
            std::thread::sleep(Duration::from_micros(dice.below(200_000)));
            signal(&child, Signal::CONT);
        }
        let output = ended(test, child);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(0), "{way}: {said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{way}: {said}");
        assert!(said.contains("lost "), "{said}");
    }
}

/// Checks a recorder that is stopped for a while and goes on: what the kernel dropped meanwhile is in the account, and the file opens.
#[test]
fn a_stopped_recorder() {
    let test = "faults::a_stopped_recorder";
    for way in WAYS {
        let path = folder(&format!("stopped-{way}")).join("perf.data");
        let (child, mut to, mut from) = works_when_told(&["-F", "6000", "-m", "1"], &path, way);
        signal(&child, Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&child)), WaitOptions::UNTRACED).expect("it stops");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
        std::io::Write::write_all(&mut to, b"go\n").expect("the program reads");
        let mut line = [0; 5];
        from.read_exact(&mut line).expect("the program goes on");
        signal(&child, Signal::CONT);
        std::io::Write::write_all(&mut to, b"go\n").expect("the program reads");
        let out = child.wait_with_output().expect("kymo ends");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}");
        assert!(!said.contains("lost 0 samples"), "a ring of one page was full meanwhile: {said}");
        // The kernel says it with the next record that fits, or, where none came, when the event is closed.
        assert!(said.contains("ring full") || said.contains("at the end"), "{said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{said}");
    }
}

/// Moves all threads of a process to one CPU, or to all of them.
fn move_to(pid: u32, cpus: &CpuSet) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let thread = thread.file_name().into_string().ok().and_then(|name| name.parse().ok());
        if let Some(thread) = thread.and_then(Pid::from_raw) {
            // One that has ended since need not be moved.
            let _ = sched_setaffinity(Some(thread), cpus);
        }
    }
}

/// Checks CPUs that are taken away while they are used: all threads of the recorder, pinned ones too, and of what it records are moved to one
/// CPU, to another, and back. Nothing hangs, no sample is unaccounted for, and the file opens.
#[test]
fn moved_between_cpus() {
    let test = "faults::recorder::moved_between_cpus";
    let all = sched_getaffinity(None).expect("our own CPUs");
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    if usable.len() < 2 {
        return skip(test, "there is only one CPU");
    }
    let mut dice = Dice::of(test);
    let program = crate::programs::build("threads.c", &[]);
    for options in [&["-F", "4000"][..], &["-F", "4000", "-a"]] {
        if options.contains(&"-a") && !ready(test, &[Need::Root]) {
            continue;
        }
        let path = folder(&format!("moved-{}", options.len())).join("perf.data");
        let program = format!("echo $$; read go; exec {} 4 60", text(&program));
        let mut child =
            recorder("uring", options, &path, &program).stdin(Stdio::piped()).spawn().expect("kymo");
        let (mut to, from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut from = std::io::BufReader::new(from);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut from, &mut line).expect("the program starts");
        let target: u32 = line.trim().parse().expect("its process id");
        to.write_all(b"go\n").expect("the program reads");
        let mut moves = 0;
        while !ends_within(&child, Duration::from_millis(10 + dice.below(60))) {
            let cpus = match moves % 3 {
                2 => all,
                _ => {
                    let mut one = CpuSet::new();
                    one.set(dice.of_all(&usable));
                    one
                }
            };
            move_to(child.id(), &cpus);
            move_to(target, &cpus);
            moves += 1;
        }
        let mut rest = String::new();
        from.read_to_string(&mut rest).expect("text");
        let output = ended(test, child);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        eprintln!("{test}: {moves} moves, {} samples: {}", said_samples(&said), said.trim());
        assert!(moves > 0 && said_samples(&said) > 0, "{said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{said}");
    }
}

/// Checks that a wall clock which jumps by an hour, back and forth, at every look changes nothing: the files of a recording are all there under
/// names of their own, each opens, and nothing is lost.
#[test]
fn a_wall_clock_that_jumps() {
    if !ready("faults::a_wall_clock_that_jumps", &[Need::Program("cc"), Need::Program("date")]) {
        return;
    }
    let shim = build("stepping.c", &["-shared", "-fPIC"]);
    let seconds = |command: &mut Command| {
        let said = run(command.arg("+%s"));
        said.stdout.trim().parse::<i64>().expect("a number")
    };
    let jumped = seconds(Command::new("date").env("LD_PRELOAD", &shim)) - seconds(&mut Command::new("date"));
    assert!(jumped.abs() > 3000, "the clock jumps: {jumped}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("perf.data");
    let program = "i=0; while [ $i -lt 800000 ]; do i=$((i+1)); done";
    let options =
        ["record", "-F", "4000", "-o", text(&path), "--switch-output=30K", "--", "sh", "-c", program];
    let said = run(kymo().command(options).env("LD_PRELOAD", &shim)).ends(0);
    said.says("lost 0 samples");
    let files = fs::read_dir(folder.path()).expect("the folder").map(|entry| entry.expect("a file").path());
    let files: Vec<_> = files.collect();
    assert!(files.len() > 1, "{}", said.stderr);
    for file in &files {
        kymo().succeed(["report", "-q", "-i", text(file)]);
    }
}
