//! What a run of `kymo record` promises: the program's status, the file's name and mode, and a file that opens whatever happens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kymo_data::Recording;
use kymo_data::abi::PERF_RECORD_SAMPLE;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, ready, require, run, signal, skip, text};

/// A shell program that computes until it is ended.
const ENDLESS: &str = "while :; do :; done";

fn folder(test: &str) -> PathBuf {
    fresh_folder(&format!("record-{test}"))
}

/// How many samples kymo sees in a file that must open.
fn samples(path: &Path) -> u64 {
    let columns = "sample,comm,dso,sym";
    let said = kymo().read(["report", "-i", text(path), "--no-children", "-g", "none", "-F", columns]);
    crate::table::samples(&said.stdout)
}

/// perf opens the file as well and sees as many, where there is a perf.
fn perf_agrees(path: &Path, test: &str) {
    if ready(test, &[Need::Perf]) {
        let said = perf().succeed(
            format!("report -i {} --stdio --no-children -g none -F sample,sym", text(path)).split(' '),
        );
        assert_eq!(crate::table::samples(&said.stdout), samples(path), "{}", said.command);
    }
}

/// Starts a recording of an endless program and waits until the file has samples.
fn start_endless(path: &Path) -> Child {
    let program = format!("echo $$ >{}; {ENDLESS}", text(&pid_file(path)));
    let arguments = ["record", "-F", "6000", "-o", text(path), "--", "sh", "-c", &program];
    wait_for_samples(kymo().command(arguments), path)
}

/// Long enough for any machine; nothing waits that long when it works.
const LONG: Duration = Duration::from_secs(600);

/// Starts a recording and waits until the file has samples.
fn wait_for_samples(mut recorder: Command, path: &Path) -> Child {
    let mut child = recorder.stderr(Stdio::piped()).spawn().expect("kymo starts");
    let end = Instant::now() + LONG;
    while !has_sample(path) {
        assert!(Instant::now() < end, "no samples were written for {LONG:?}");
        assert!(child.try_wait().expect("a child").is_none(), "the recording ended by itself");
        std::thread::sleep(Duration::from_millis(5)); // looks seldom, for the sake of who is waited for
    }
    child
}

/// Whether a file, which may still be written or not be there yet, has a sample. Its size does not
/// tell: each BPF program that is loaded or ends anywhere on the machine has records in it.
pub(crate) fn has_sample(path: &Path) -> bool {
    let Ok(file) = fs::File::open(path) else { return false };
    let Ok(recording) = Recording::open(Arc::new(file), Vec::new()) else { return false };
    let mut records = recording.records();
    while let Ok(Some(record)) = records.next_record() {
        if record.header.kind == PERF_RECORD_SAMPLE {
            return true;
        }
    }
    false
}

/// Where the endless program of a recording says who it is.
fn pid_file(path: &Path) -> PathBuf {
    path.with_extension("pid")
}

/// Checks that the program's exit status is passed on, and that the file is whole nevertheless.
#[test]
fn the_exit_status_is_passed_on() {
    let path = folder("status").join("perf.data");
    for status in [0, 7, 129] {
        kymo().run(["record", "-o", text(&path), "--", "sh", "-c", &format!("exit {status}")]).ends(status);
        kymo().succeed(["report", "-i", text(&path)]);
    }
}

/// Checks that a program which dies by a signal makes the recorder's status say so, as a shell shows it.
#[test]
fn a_signal_is_passed_on() {
    let path = folder("signal").join("perf.data");
    for number in [9, 15] {
        let mut command =
            kymo().command(["record", "-o", text(&path), "--", "sh", "-c", &format!("kill -{number} $$")]);
        let status = command.stderr(Stdio::null()).status().expect("kymo starts");
        let seen = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        assert_eq!(seen, Some(128 + number));
    }
}

/// Checks that a program which does not exist is 255 and named, and that no recording is left behind.
#[test]
fn a_command_that_is_not_found() {
    let path = folder("not-found").join("perf.data");
    let said = kymo().run(["record", "-o", text(&path), "--", "no-such-program-here"]).ends(255);
    said.says("no-such-program-here");
}

/// Checks that a command which cannot be executed is 255, says what to do, and leaves an earlier recording alone.
#[test]
fn a_command_that_cannot_be_executed() {
    let folder = folder("not-executable");
    let path = folder.join("perf.data");
    let plain = folder.join("plain");
    fs::write(&path, "PERFILE2 earlier").expect("writes");
    fs::write(&plain, "text").expect("writes");
    for command in [text(&plain), text(&folder)] {
        kymo().run(["record", "-o", text(&path), "--", command]).ends(255).says(command).says("chmod +x");
    }
    assert_eq!(fs::read(&path).expect("still there"), b"PERFILE2 earlier");
}

/// Checks that a value may follow its short option at once, that an unknown option is an error and not the command, and that
/// options behind the command are the command's.
#[test]
fn options_are_told_from_the_command() {
    let path = folder("options").join("perf.data");
    let run = |words: &[&str]| kymo().run(["record", "-o", text(&path)].iter().chain(words));
    assert_eq!(run(&["-F99", "-m8", "-z=3", "-kmono", "sh", "-c", "exit 4"]).code, Some(4));
    for unknown in ["--no-such-option", "-Z"] {
        run(&[unknown, "--", "true"]).ends(129).says(unknown);
    }
}

/// Checks the name, the mode, the older file's new name, and the line that scripts look for.
#[test]
fn the_file_and_the_line() {
    let folder = folder("file");
    let record = || {
        run(kymo()
            .command(["record", "--", "sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done"])
            .current_dir(&folder))
    };
    let said = record().ends(0);
    assert_eq!(said.stdout, "", "words go to stderr");
    let path = folder.join("perf.data");
    assert_eq!(fs::metadata(&path).expect("written").permissions().mode() & 0o777, 0o600);
    let line = said.stderr.lines().find(|line| line.contains("Captured and wrote")).expect("perf's line");
    let (_, count) = line.rsplit_once('(').expect("a count of samples");
    let count: u64 = count.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
    assert_eq!(count, samples(&path), "{line}");
    assert!(said.stderr.contains("lost"), "the loss account is always there: {}", said.stderr);
    let first = fs::read(&path).expect("written");
    record();
    assert_eq!(fs::read(folder.join("perf.data.old")).expect("kept"), first);
}

/// Checks that SIGINT ends a recording cleanly: the file is complete and the words are those of a normal end.
#[test]
fn an_interrupt_ends_the_recording() {
    let path = folder("interrupt").join("perf.data");
    let child = start_endless(&path);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("kymo ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("Captured and wrote"), "{words}");
    assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()), "kymo ended the program, as perf does");
    assert!(samples(&path) > 0);
    perf_agrees(&path, "record::an_interrupt_ends_the_recording");
}

/// Checks that an interrupted recording says so in its status where the program's own end was no signal.
#[test]
fn an_interrupt_shows_in_the_status() {
    let path = folder("interrupt-status").join("perf.data");
    let program = format!("trap 'exit 3' TERM; {ENDLESS}");
    let arguments = ["record", "-F", "6000", "-o", text(&path), "--", "sh", "-c", &program];
    let child = wait_for_samples(kymo().command(arguments), &path);
    signal(&child, Signal::INT);
    let output = child.wait_with_output().expect("kymo ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{words}");
}

/// Starts a recording of a program that does this when it is to end, and interrupts it.
fn interrupted_with_a_slow_program(path: &Path, at_end: &str) -> Child {
    let program = format!("echo $$ >{}; trap '{at_end}' TERM; {ENDLESS}", text(&pid_file(path)));
    let arguments = ["record", "-F", "6000", "-o", text(path), "--", "sh", "-c", &program];
    let child = wait_for_samples(kymo().command(arguments), path);
    signal(&child, Signal::INT);
    child
}

/// The program of such a recording.
fn recorded(path: &Path) -> Pid {
    let pid = fs::read_to_string(pid_file(path)).expect("the program ran");
    pid.trim().parse().ok().and_then(Pid::from_raw).expect("a pid")
}

/// Checks that interrupts right after each other are one request: a terminal sends one to all, and
/// `sudo` or `timeout` passes on its own. kymo waits for the program.
#[test]
fn interrupts_right_after_each_other_are_one() {
    let path = folder("interrupts-as-one").join("perf.data");
    let child = interrupted_with_a_slow_program(&path, "sleep 0.3; exit 3");
    for _ in 0..3 {
        signal(&child, Signal::INT);
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("kymo ends");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("Captured and wrote"), "{words}");
    assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()), "{words}");
    assert!(test_kill_process(recorded(&path)).is_err(), "kymo waited for the program");
}

/// Checks that a later interrupt ends a recorder that waits for its program, at once.
#[test]
fn a_later_interrupt_ends_the_recorder() {
    let path = folder("interrupts-apart").join("perf.data");
    let mut child = interrupted_with_a_slow_program(&path, "exec sleep 1000");
    while child.try_wait().expect("kymo is there").is_none() {
        std::thread::sleep(Duration::from_millis(100));
        signal(&child, Signal::INT);
    }
    let status = child.wait().expect("kymo ended");
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    kill_process(recorded(&path), Signal::KILL).expect("nobody waited for the program");
}

/// Checks that a recorder killed half-way leaves a file which opens in both tools.
#[test]
fn a_killed_recorder_leaves_a_valid_file() {
    for round in 0..3 {
        let path = folder(&format!("killed-{round}")).join("perf.data");
        let child = start_endless(&path);
        signal(&child, Signal::KILL);
        kill_process(recorded(&path), Signal::KILL).expect("it still runs");
        // The pipe closes with the last of both.
        child.wait_with_output().expect("kymo ends");
        assert!(samples(&path) > 0, "the file has samples");
        perf_agrees(&path, "record::a_killed_recorder_leaves_a_valid_file");
    }
}

/// Checks a full disk: a clear error, a status that is not zero, and everything written so far
/// opens; its report says that the rest is missing.
#[test]
fn a_full_disk() {
    let test = "record::a_full_disk";
    let Some(()) = require(test, &[Need::Root, Need::Program("mount")]) else { return };
    let folder = folder("full-disk");
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "none", text(&folder)]).output();
    if !mounted.is_ok_and(|mount| mount.status.success()) {
        return skip(test, "a tmpfs cannot be mounted here");
    }
    let path = folder.join("perf.data");
    // Endless: the recorder ends the program when it cannot go on.
    let said = kymo().run(["record", "-F", "6000", "-o", text(&path), "--", "sh", "-c", ENDLESS]);
    let opened = kymo().run(["report", "-i", text(&path), "-F", "sample,sym", "--no-children", "-g", "none"]);
    let theirs = ready(test, &[Need::Perf]).then(|| perf().run(["report", "--stdio", "-i", text(&path)]));
    Command::new("umount").arg(text(&folder)).status().expect("umount runs");
    assert!(said.code.is_some_and(|code| code != 0), "{}: {}", said.command, said.stderr);
    said.says("No space left on device");
    assert_eq!(opened.code, Some(2), "{}", opened.stderr);
    opened.says("could not write what came after this");
    assert!(!crate::table::sections(&opened.stdout).is_empty(), "samples were written: {}", opened.stderr);
    if let Some(theirs) = theirs {
        assert_eq!(theirs.code, Some(0), "{}", theirs.stderr);
    }
}

/// Checks that a plan can be seen without recording anything.
#[test]
fn a_dry_run_opens_nothing() {
    let folder = folder("dry-run");
    let said = run(kymo()
        .command(["record", "--dry-run", "-e", "cpu-clock", "--", "touch", "it-ran"])
        .current_dir(&folder))
    .ends(0);
    assert!(format!("{}{}", said.stdout, said.stderr).contains("cpu-clock"));
    assert_eq!(
        fs::read_dir(&folder).expect("the folder").count(),
        0,
        "neither a recording nor the program's trace"
    );
}

/// Checks a process that runs already, by pid, with all its names and mappings from before.
#[test]
fn a_running_process() {
    let path = folder("pid").join("perf.data");
    let target = Running::start(Command::new("sh").args(["-c", ENDLESS]));
    kymo().succeed(["record", "-o", text(&path), "-p", &target.pid(), "--", "sleep", "0.5"]);
    drop(target);
    let said = kymo().succeed(
        format!("report -i {} --no-children -g none -F sample,comm,dso,sym", text(&path)).split(' '),
    );
    let rows = crate::table::sections(&said.stdout).swap_remove(0).rows;
    assert!(rows.iter().any(|row| row[1] == "sh" && !row[2].contains("unknown")), "{}", said.stdout);
    perf_agrees(&path, "record::a_running_process");
}

/// Checks what an ordinary user is told when the kernel does not permit: what is missing and what to run.
#[test]
fn an_ordinary_user_is_told_what_to_run() {
    let test = "record::an_ordinary_user_is_told_what_to_run";
    let Some(()) = require(test, &[Need::Root, Need::Program("setpriv")]) else { return };
    let folder = folder("user");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("our folder");
    // The build folder may lie where an ordinary user cannot look.
    let binary = folder.join("kymo");
    kymo_testing::copy_program(kymo().path(), &binary);
    let reachable =
        folder.ancestors().all(|up| fs::metadata(up).is_ok_and(|m| m.permissions().mode() & 0o001 != 0));
    if !reachable {
        return skip(test, "an ordinary user cannot reach the build folder");
    }
    let path = folder.join("perf.data");
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    let mut command = Command::new("setpriv");
    command.args(user).arg(&binary).args(["record", "-a", "-o", text(&path), "--", "true"]);
    let said = run(&mut command).ends(1);
    assert!(said.stderr.contains("perf_event_paranoid"), "what is missing: {}", said.stderr);
    assert!(said.stderr.contains("sysctl") || said.stderr.contains("setcap"), "what to run: {}", said.stderr);
}

/// Checks that perf opens, without a word, what a recorder leaves that is killed as soon as its file has a name: files without a
/// record were refused.
#[test]
fn perf_opens_what_a_recorder_killed_at_once_leaves() {
    if !ready("record::perf_opens_what_a_recorder_killed_at_once_leaves", &[Need::Perf]) {
        return;
    }
    for (name, flags) in [("plain", &["-e", "cpu-clock"][..]), ("packed", &["-z", "-e", "cpu-clock"])] {
        let path = folder(&format!("killed-at-once-{name}")).join("perf.data");
        let arguments = [&["record", "-o", text(&path)], flags, &["--", "sleep", "2"]].concat();
        let mut recorder = kymo().command(arguments).stderr(Stdio::null()).spawn().expect("kymo starts");
        while !path.exists() {
            assert!(recorder.try_wait().expect("can be waited for").is_none(), "{name}: kymo ended");
            std::thread::yield_now();
        }
        recorder.kill().expect("kymo can be killed");
        recorder.wait().expect("can be waited for");
        let said = perf().run(["script", "-i", text(&path)]);
        assert_eq!((said.code, said.stderr.trim()), (Some(0), ""), "{name}");
    }
}
