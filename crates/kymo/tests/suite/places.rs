//! Where recordings and results are written, what is in the way there, and what other users have put there: nothing but a recording is
//! moved or removed, nothing goes through another user's link or pipe, and nothing that was recorded is lost.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::tools::{Need, Said, kymo, require, run, text};

/// The number of `nobody` on Debian; nothing here depends on there being such a user.
const USER: u32 = 65_534;

/// A folder of our own in `/tmp`, where other users can come.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// A folder that belongs to an ordinary user.
fn folder_of_user() -> tempfile::TempDir {
    let folder = folder();
    lchown(folder.path(), Some(USER), Some(USER)).expect("we are root");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("ours to change");
    folder
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a named pipe");
}

/// A shell that runs as the ordinary user.
fn as_user(script: &str, arguments: &[&Path]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).args(arguments).uid(USER).gid(USER).stdin(Stdio::null());
    shell
}

/// Records something short.
fn record<S: AsRef<OsStr>>(flags: impl IntoIterator<Item = S>, output: &Path) -> Said {
    let flags: Vec<_> = flags.into_iter().map(|flag| flag.as_ref().to_owned()).collect();
    let mut command = kymo().command(["record", "-e", "page-faults", "-c", "1", "-o", text(output)]);
    run(command.args(flags).args(["--", "true"]))
}

/// All names below a folder, with what their files hold.
fn tree(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).expect("a folder") {
        let path = entry.expect("an entry").path();
        let kind = fs::symlink_metadata(&path).expect("it is there");
        all.push((path.clone(), if kind.is_file() { fs::read(&path).expect("a file") } else { Vec::new() }));
        if kind.is_dir() {
            all.extend(tree(&path));
        }
    }
    all.sort();
    all
}

/// Checks that neither a folder of a user at the recording's place nor one at that of the old recording is moved or removed, and that
/// files which are no recordings stay, too; each is refused with its name and the reason before anything is recorded.
#[test]
fn a_tree_that_is_no_recording_is_never_removed() {
    let folder = folder();
    let old = folder.path().join("perf.data.old");
    fs::create_dir_all(old.join("thesis")).expect("a folder");
    fs::write(old.join("thesis/chapter-1"), "years of work").expect("writes");
    let path = folder.path().join("perf.data");
    assert_eq!(record(["-q"], &folder.path().join("sample")).code, Some(0));
    fs::rename(folder.path().join("sample"), &path).expect("a recording");
    let letter = folder.path().join("letter");
    fs::write(&letter, "Dear Sir").expect("writes");
    let before = tree(folder.path());
    for (output, at, reason) in [
        (&path, "perf.data.old", "thesis in it is none of a recording's files"),
        (&old, "perf.data.old", "it is a directory, but no recording"),
        (&letter, "letter", "no recording (it does not begin with PERFILE2)"),
    ] {
        let said = record([""; 0], output).ends(1);
        said.says(at).says(reason);
        assert!(!said.stderr.contains("Captured"), "{}", said.stderr);
        assert_eq!(tree(folder.path()), before, "{}", said.stderr);
    }
}

/// Checks that whatever is refused or fails before a recording begins leaves the earlier one where it is, with no file beside it: too
/// little memory, a command that is not executable, an event that cannot be opened, and a program that is no program.
#[test]
fn what_is_refused_touches_no_recording() {
    let folder = folder();
    let (path, bad) = (folder.path().join("perf.data"), folder.path().join("bad"));
    assert_eq!(record(["-q"], &path).code, Some(0));
    fs::write(&bad, b"\x7fELF, but not really").expect("writes");
    fs::set_permissions(&bad, Permissions::from_mode(0o755)).expect("ours to change");
    let before = tree(folder.path());
    let refused: [&[&str]; 4] = [
        &["--max-memory", "100K", "--", "true"],
        &["--", "/etc/passwd"],
        &["-e", "breakpoint:no-such-event", "--", "true"],
        &["-C", "4095", "--", "true"],
    ];
    for flags in refused {
        let said = kymo().run(["record", "-o", text(&path)].iter().chain(flags));
        assert!(said.code.is_some_and(|code| code != 0) && !said.stderr.is_empty(), "{}", said.stderr);
        assert_eq!(tree(folder.path()), before, "{}: {}", said.command, said.stderr);
    }
}

/// Checks that a recording without records is told, instead of an empty table alone: one that ended before it began, and an empty file.
#[test]
fn a_recording_without_records_is_told() {
    let folder = folder();
    let path = folder.path().join("perf.data");
    assert_eq!(record(["-q"], &path).code, Some(0));
    let mut bytes = fs::read(&path).expect("a recording");
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    bytes.truncate(word(&bytes, 40) as usize);
    bytes[48..56].fill(0);
    fs::write(&path, &bytes).expect("writes");
    for form in [&["report"][..], &["script"], &["report", "--folded"]] {
        let said = kymo().run(form.iter().copied().chain(["-i", text(&path)]));
        // In a table it is a remark.
        let words = if form == ["report"] { &said.stdout } else { &said.stderr };
        assert!(words.contains("holds no records"), "{form:?}: {words}");
    }
}

/// Checks that what the command prints goes to standard error where the recording goes to standard output, whatever that is called,
/// and that the recording is whole; and that a recording which would be mixed with words is refused.
#[test]
fn the_commands_output_does_not_get_into_the_recording() {
    let folder = folder();
    let path = folder.path().join("recording");
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let mut command = kymo().command(["record", "-e", "cpu-clock", "-o", name, "--", "echo", "printed"]);
        let said = run(command.stdout(File::create(&path).expect("a file")));
        assert_eq!(said.code, Some(0), "{name}: {}", said.stderr);
        assert!(said.stderr.contains("printed\n"), "{name}: {}", said.stderr);
        let read = kymo().run(["report", "-i", text(&path), "--stats"]);
        assert_eq!(
            (read.code, read.stderr.contains("at offset")),
            (Some(0), false),
            "{name}: {}",
            read.stderr
        );
        assert!(!fs::read(&path).expect("a file").windows(8).any(|bytes| bytes == b"printed\n"), "{name}");
    }
    let (file, words) = (File::create(&path).expect("a file"), File::options().append(true).open(&path));
    let mut command = kymo().command(["record", "-o", "-", "--", "true"]);
    let status = command.stdout(file).stderr(words.expect("the same file")).status().expect("kymo runs");
    assert_eq!(status.code(), Some(1));
    let said = fs::read_to_string(&path).expect("only words");
    assert!(said.contains("standard error goes to the same place"), "{said}");
    kymo().run(["watch", "-o", "-", "-p", "1", "counter"]).says("-o wants a file");
}

/// Starts a recorder and waits until it has caught signals and opens its output.
fn recorder(output: &Path, command: &str) -> Child {
    let mut recorder = kymo().command(["record", "-F", "9000", "-e", "cpu-clock", "-o", text(output), "--"]);
    recorder.args(["sh", "-c", command]).stderr(Stdio::piped()).spawn().expect("kymo starts")
}

/// Checks that a named pipe that nothing reads is left at the first TERM, INT or HUP, by that signal and with a sentence; and that a reader
/// which reads nothing more does not hold up the end for ever.
#[test]
fn a_pipe_without_a_reader_obeys_signals() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut child = recorder(&pipe, "while :; do :; done");
        wait_for_handler(&child, signal);
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let mut said = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        let status = child.wait().expect("it ends");
        assert_eq!(status.signal(), Some(signal.as_raw()), "{said}");
        assert!(said.contains("nothing was recorded"), "{said}");
    }
    // Opened and full, but not read.
    let reader = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&pipe);
    let mut child = recorder(&pipe, "while :; do :; done");
    wait_for_handler(&child, Signal::TERM);
    let reader = reader.expect("the reader's end");
    while rustix::io::ioctl_fionread(&reader).expect("a pipe") < 16 << 10 {
        assert!(child.try_wait().expect("its state").is_none(), "it records");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").signal(), Some(Signal::TERM.as_raw()), "{said}");
    assert!(said.contains("took nothing for 5 s") || said.contains("Captured"), "{said}");
}

/// Waits until the process catches the signal, and returns at once: a recorder lost what came in that moment.
fn wait_for_handler(child: &Child, signal: Signal) {
    let bit = 1u64 << (signal.as_raw() - 1);
    loop {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it runs");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
        if u64::from_str_radix(caught.trim(), 16).expect("hexadecimal") & bit != 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Checks that root's kymo in a user's folder writes neither through that user's links nor into their pipes and files, with every
/// option that writes, and that the reason is said.
#[test]
fn root_is_not_led_elsewhere() {
    let Some(()) = require("places::root_is_not_led_elsewhere", &[Need::Root]) else { return };
    let (folder, home) = (folder_of_user(), folder());
    let (victim, source) = (home.path().join("victim"), home.path().join("perf.data"));
    fs::write(&victim, "root's own").expect("writes");
    // `true` may end before it has a sample.
    let busy = ["sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"];
    let recorded =
        kymo().run([&["record", "-q", "-e", "cpu-clock", "-o", text(&source), "--"], &busy[..]].concat());
    assert_eq!(recorded.code, Some(0), "{}", recorded.stderr);
    let link = folder.path().join("link.svg");
    let pipe = folder.path().join("pipe.svg");
    let way = folder.path().join("way");
    let plant = "ln -s \"$2\" \"$1/link.svg\"; ln -s \"$3\" \"$1/way\"; mkfifo \"$1/pipe.svg\"; ln -s \"$2\" \"$1/kymo.1\"";
    let planted = as_user(plant, &[folder.path(), &victim, home.path()]).status();
    assert!(planted.expect("a shell").success());
    let _reader = File::options().read(true).write(true).open(&pipe).expect("a pipe");
    let through = way.join("new.svg");
    for output in [&link, &pipe, &through] {
        let name = text(output);
        let verbs: [&[&str]; 7] = [
            &["record", "-e", "cpu-clock", "-o", name, "--", "true"],
            &["report", "-i", text(&source), "--flamegraph", name],
            &["report", "-i", text(&source), "--html", name],
            &["report", "-i", text(&source), "--loss", name],
            &["stat", "-o", name, "--", "true"],
            &["stat", "--append", "-o", name, "--", "true"],
            &["record", "--snapshot", "-e", "cpu-clock", "-o", name, "--", "true"],
        ];
        for verb in verbs {
            let said = kymo().run(verb);
            assert!(said.code.is_some_and(|code| code != 0), "{}: {}", said.command, said.stderr);
            let reasons = ["symbolic link", &format!("of user {USER}"), "needs files"];
            assert!(reasons.iter().any(|reason| said.stderr.contains(reason)), "{}", said.stderr);
        }
    }
    kymo().run(["man", text(folder.path())]).ends(1);
    assert_eq!(fs::read(&victim).expect("it is there"), b"root's own");
    assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 2, "nothing came into root's folder");
}

/// Checks that while a user exchanges the output's name for a link, a pipe and a directory all the time, root's recordings end, none
/// goes into what the link points to, and whatever file there is under the name at the end is a recording or the user's own.
#[test]
fn an_output_that_is_exchanged_all_the_time() {
    let Some(()) = require("places::an_output_that_is_exchanged_all_the_time", &[Need::Root]) else { return };
    let (folder, home) = (folder_of_user(), folder());
    let victim = home.path().join("victim");
    fs::write(&victim, "root's own").expect("writes");
    let script = "cd \"$1\" && while [ ! -e stop ]; do ln -s \"$2\" a && mv -f a perf.data; mkfifo b && mv -f b perf.data; \
                  rm -f perf.data; printf PERFILE2 >c && mv -f c perf.data; rm -rf perf.data; mkdir perf.data 2>/dev/null && rmdir perf.data; done";
    let mut attacker = as_user(script, &[folder.path(), &victim]);
    let mut attacker = attacker.stderr(Stdio::null()).spawn().expect("a shell");
    let path = folder.path().join("perf.data");
    for _ in 0..12 {
        let said = record(["-q"], &path);
        assert!(said.code.is_some_and(|code| code <= 1), "{:?}: {}", said.code, said.stderr);
        assert!(!said.stderr.contains("panicked"), "{}", said.stderr);
    }
    File::create(folder.path().join("stop")).expect("root may write there");
    attacker.wait().expect("it stops");
    assert_eq!(fs::read(&victim).expect("it is there"), b"root's own");
    assert_eq!(fs::read_dir(home.path()).expect("a folder").count(), 1);
}

/// Checks that a report ends at once whatever its input is exchanged for meanwhile: a recording, a named pipe, nothing.
#[test]
fn an_input_that_is_exchanged_for_a_pipe_does_not_hang_the_report() {
    let folder = folder();
    let (source, path, stop) =
        (folder.path().join("source"), folder.path().join("perf.data"), folder.path().join("stop"));
    assert_eq!(record(["-q"], &source).code, Some(0));
    let script = "cd \"$1\" && while [ ! -e stop ]; do cp source a && mv -f a perf.data; mkfifo b && mv -f b perf.data; done";
    let mut attacker =
        Command::new("sh").args(["-c", script, "sh"]).arg(folder.path()).spawn().expect("a shell");
    for verb in ["report", "script"].iter().cycle().take(40) {
        let said = kymo().run([verb, "-i", text(&path)]);
        assert!(said.code.is_some_and(|code| code <= 1), "{:?}: {}", said.code, said.stderr);
    }
    File::create(stop).expect("writes");
    attacker.wait().expect("it stops");
    // A directory recording whose part is a pipe.
    let directory = folder.path().join("directory");
    fs::create_dir(&directory).expect("a folder");
    fs::copy(&source, directory.join("data")).expect("copies");
    fifo(&directory.join("data.0"));
    kymo().run(["report", "-i", text(&directory)]).ends(1).says("a named pipe");
}

/// Checks that a named pipe is read as a recording while something writes it.
#[test]
fn a_recording_is_read_from_a_named_pipe() {
    let folder = folder();
    let (source, pipe) = (folder.path().join("source"), folder.path().join("pipe"));
    assert_eq!(record(["-q"], &source).code, Some(0));
    fifo(&pipe);
    // Open for both ends: the report finds a writer from its first moment.
    let mut end = File::options().read(true).write(true).open(&pipe).expect("a pipe");
    let report = kymo().command(["report", "-i", text(&pipe), "--stats"]).stdout(Stdio::piped()).spawn();
    end.write_all(&fs::read(&source).expect("a recording")).expect("it fits into the pipe");
    let report = report.expect("kymo starts");
    wait_for_open(&report, &pipe);
    drop(end);
    let output = report.wait_with_output().expect("it ends");
    assert!(output.status.success() && !output.stdout.is_empty());
}

/// Waits until the process has the file open.
fn wait_for_open(child: &Child, file: &Path) {
    let descriptors = format!("/proc/{}/fd", child.id());
    let is_open = || {
        let mut all = fs::read_dir(&descriptors).expect("it runs").flatten();
        all.any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == file))
    };
    while !is_open() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Checks that a result never takes the place of a recording, and that one which cannot be completed leaves the file before it.
#[test]
fn a_result_does_not_replace_a_recording() {
    let folder = folder();
    let (path, page) = (folder.path().join("perf.data"), folder.path().join("page.html"));
    assert_eq!(record(["-q"], &path).code, Some(0));
    let before = fs::read(&path).expect("a recording");
    for option in ["--html", "--flamegraph"] {
        kymo().run(["report", "-i", text(&path), option, text(&path)]).ends(1).says("it is a recording");
    }
    kymo().run(["stat", "-o", text(&path), "--", "true"]).ends(1).says("it is a recording");
    assert_eq!(fs::read(&path).expect("a recording"), before);
    kymo().succeed(["report", "-i", text(&path), "--html", text(&page)]);
    symlink("page.html", folder.path().join("latest")).expect("a link of our own");
    kymo().succeed(["report", "-i", text(&path), "--html", text(&folder.path().join("latest"))]);
    assert!(fs::read_to_string(&page).expect("a page").starts_with("<!"));
}

/// Checks that filters which leave nothing say which of them it was, and what the recording has instead.
#[test]
fn a_filter_that_leaves_nothing_says_so() {
    let folder = folder();
    let path = folder.path().join("perf.data");
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    kymo().succeed([
        "record",
        "-q",
        "--sample-cpu",
        "-e",
        "cpu-clock",
        "-F",
        "4000",
        "-o",
        text(&path),
        "--",
        "sh",
        "-c",
        busy,
    ]);
    let cases: [(&[&str], &str); 8] = [
        (&["report", "-C", "77"], "no sample passes -C: the recording has samples of the CPUs "),
        (&["report", "--tid", "1"], "no sample passes --tid: the recording has samples of the threads "),
        (
            &["report", "--pid", "1", "--folded"],
            "no sample passes --pid: the recording has samples of the processes ",
        ),
        (&["report", "--time", "0,1e-9"], "no sample passes --time: the recording has samples from "),
        (
            &["report", "-c", "nobody"],
            "no row passes -c, which takes whole names: the recording has threads named ",
        ),
        (
            &["report", "-d", "nothing.so"],
            "no row passes -d, which takes whole names: the recording has the modules ",
        ),
        (
            &["report", "-S", "nowhere"],
            "no row passes -S, which takes whole names: the recording has the functions ",
        ),
        (&["script", "-C", "77"], "no sample passes -C: the recording has samples of the CPUs "),
    ];
    for (words, sentence) in cases {
        let said = kymo().succeed(words.iter().copied().chain(["-i", text(&path)]));
        if words[0] == "report" && !words.contains(&"--folded") {
            // A remark of the table, where a script that looks for words on stderr finds none.
            said.prints(&format!("# {sentence}"));
            assert_eq!(said.stderr, "");
        } else {
            said.says(sentence);
        }
    }
}
