//! Disks that are full, files that may not grow, readers that go away, a recorder that is stopped: each ends with a sentence and the right
//! status, and what was written before opens. Both ways of writing are tried.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, perf, ready, run, skip};

/// A shell program that computes for a second or so.
const BUSY: &str = "i=0; while [ $i -lt 800000 ]; do i=$((i+1)); done";
/// One that computes until the recorder ends it, which it does when it cannot go on.
const ENDLESS: &str = "while :; do :; done";
/// Both ways of writing.
const WAYS: [&str; 2] = ["uring", "pwrite"];

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain name")
}

fn folder(test: &str) -> PathBuf {
    fresh_folder(&format!("faults-{test}"))
}

/// The samples that kymo and perf, where it is there, find in a file that must open.
fn samples(test: &str, path: &Path) -> u64 {
    let flags = ["--no-children", "-g", "none", "-F", "sample,sym"];
    let count = |stdout: &str| -> u64 {
        let sections = crate::table::sections(stdout);
        sections
            .iter()
            .flat_map(|section| &section.rows)
            .map(|row| row[0].parse::<u64>().expect("a count"))
            .sum()
    };
    let mut arguments = vec!["report", "-i", text(path)];
    arguments.extend(flags);
    let ours = count(&kymo().succeed(&arguments).stdout);
    if ready(test, &[Need::Perf]) {
        arguments.push("--stdio");
        assert_eq!(
            count(&perf().succeed(&arguments).stdout),
            ours,
            "perf sees the same in {}",
            path.display()
        );
    }
    ours
}

/// The samples that the recorder says are in its file.
fn said_samples(stderr: &str) -> u64 {
    let line = stderr.lines().find(|line| line.contains("Captured and wrote")).expect("the usual line");
    let count = line.rsplit_once('(').and_then(|(_, rest)| rest.split_once(" samples"));
    count.expect("a count").0.parse().expect("a number")
}

/// Checks full disks of several sizes: the offset, the reason and what to do are said, the status is 1, and the file holds as many samples
/// as the recorder says.
#[test]
fn full_disks() {
    let test = "faults::full_disks";
    if !ready(test, &[Need::Root, Need::Program("mount")]) {
        return;
    }
    for (way, kib) in [("uring", 64), ("pwrite", 64), ("uring", 200), ("pwrite", 200)] {
        let folder = folder(&format!("full-{way}-{kib}"));
        let size = format!("size={kib}k");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none", text(&folder)]).output();
        if !mounted.is_ok_and(|mount| mount.status.success()) {
            return skip(test, "a tmpfs cannot be mounted here");
        }
        let path = folder.join("perf.data");
        let arguments = ["record", "-F", "6000", "-o", text(&path), "--", "sh", "-c", ENDLESS];
        let said = run(kymo().command(arguments).env("KYMO_IO", way));
        let copy = folder.with_extension("data");
        fs::copy(&path, &copy).expect("the file is there");
        Command::new("umount").arg(text(&folder)).status().expect("umount runs");
        assert_eq!(said.code, Some(1), "{}", said.stderr);
        for words in [
            "perf.data at offset ",
            ": No space left on device",
            "what came before is complete; free some space",
        ] {
            assert!(said.stderr.contains(words), "{words}: {}", said.stderr);
        }
        assert!(said.stderr.contains(" not written"), "the account tells: {}", said.stderr);
        assert_eq!(samples(test, &copy), said_samples(&said.stderr), "{way} {kib}: {}", said.stderr);
    }
}

/// Checks a limit on the size of files: not the end of the recorder but of the recording, with a sentence.
#[test]
fn a_file_that_may_not_grow() {
    let test = "faults::a_file_that_may_not_grow";
    for way in WAYS {
        let path = folder(&format!("limit-{way}")).join("perf.data");
        let recorder = kymo();
        let script = format!(
            "ulimit -f 100; exec '{}' record -F 6000 -o '{}' -- sh -c '{ENDLESS}'",
            text(recorder.path()),
            text(&path)
        );
        let said = run(Command::new("sh").args(["-c", &script]).env("KYMO_IO", way));
        assert_eq!(said.code, Some(1), "{}", said.stderr);
        assert!(said.stderr.contains(": File too large"), "{}", said.stderr);
        assert!(said.stderr.contains("ulimit -f"), "{}", said.stderr);
        assert_eq!(samples(test, &path), said_samples(&said.stderr), "{way}: {}", said.stderr);
        assert!(fs::metadata(&path).expect("the file").len() <= 100 << 10);
    }
}

/// Checks a reader that goes away: the recording ends as any program at the other end of a pipe does, with a word about it.
#[test]
fn a_reader_that_goes_away() {
    let mut child = kymo()
        .command(["record", "-F", "6000", "-o", "-", "--", "sh", "-c", ENDLESS])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kymo starts");
    let mut some = [0; 4096];
    child.stdout.take().expect("a pipe").read_exact(&mut some).expect("a recording begins");
    let out = child.wait_with_output().expect("kymo ends");
    assert_eq!(out.status.signal(), Some(Signal::PIPE.as_raw()), "{out:?}");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("whoever read the recording has gone"), "{said}");
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child is there");
}

/// Checks a recorder that is stopped for a while and goes on: what the kernel dropped meanwhile is in the account, and the file opens.
#[test]
fn a_stopped_recorder() {
    let test = "faults::a_stopped_recorder";
    for way in WAYS {
        let path = folder(&format!("stopped-{way}")).join("perf.data");
        // The command tells when it has done something while the recorder stood still.
        let program = format!("echo started; read x; {BUSY}; echo done; read x; {BUSY}");
        let mut child = kymo()
            .command(["record", "-F", "6000", "-m", "1", "-o", text(&path), "--", "sh", "-c", &program])
            .env("KYMO_IO", way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kymo starts");
        let (mut to, mut from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut line = [0; 8];
        from.read_exact(&mut line).expect("the program starts");
        assert_eq!(&line, b"started\n");
        signal(&child, Signal::STOP);
        let stopped = waitpid(Some(Pid::from_child(&child)), WaitOptions::UNTRACED).expect("it stops");
        assert!(stopped.is_some_and(|(_, status)| status.stopped()));
        std::io::Write::write_all(&mut to, b"go\n").expect("the program reads");
        from.read_exact(&mut line[..5]).expect("the program goes on");
        signal(&child, Signal::CONT);
        std::io::Write::write_all(&mut to, b"go\n").expect("the program reads");
        let out = child.wait_with_output().expect("kymo ends");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(0), "{said}");
        assert!(!said.contains("lost 0 samples"), "a ring of one page was full meanwhile: {said}");
        assert!(said.contains("ring full"), "{said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{said}");
    }
}

/// Checks that a recording which goes on in other files, by size and packed too, loses nothing on the way: each file opens in kymo and perf,
/// names the program's functions, and together they hold as many samples as the recorder says.
#[test]
fn a_recording_in_several_files() {
    let test = "faults::a_recording_in_several_files";
    for pack in [&[][..], &["-z"][..]] {
        let folder = folder(&format!("series-{}", pack.len()));
        let path = folder.join("perf.data");
        let mut arguments = vec!["record", "-F", "6000", "-m", "8", "--switch-output=20K", "-o", text(&path)];
        arguments.extend(pack);
        arguments.extend(["--", "sh", "-c", BUSY]);
        let said = kymo().succeed(&arguments);
        let files: Vec<PathBuf> =
            fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file").path()).collect();
        assert!(files.len() > 1 && !path.exists(), "{files:?}: {}", said.stderr);
        assert_eq!(said.stderr.matches("Dump ").count(), files.len(), "{}", said.stderr);
        assert_eq!(files.iter().map(|file| samples(test, file)).sum::<u64>(), said_samples(&said.stderr));
        for file in files {
            let said = kymo().succeed([
                "report",
                "-i",
                text(&file),
                "--no-children",
                "-g",
                "none",
                "-F",
                "sample,comm,dso,sym",
            ]);
            let rows = crate::table::sections(&said.stdout).into_iter().flat_map(|section| section.rows);
            for row in rows.filter(|row| row[0].parse::<u64>().is_ok_and(|count| count > 50)) {
                assert!(row[1] == "sh" && !row[2].contains("unknown"), "{}: {row:?}", file.display());
            }
        }
    }
}

/// Checks that a recording ends where its size is limited, with a sentence, and opens.
#[test]
fn a_limited_size() {
    let test = "faults::a_limited_size";
    let path = folder("max-size").join("perf.data");
    let said = kymo().run([
        "record",
        "-F",
        "6000",
        "--max-size",
        "60K",
        "-o",
        text(&path),
        "--",
        "sh",
        "-c",
        ENDLESS,
    ]);
    assert!(said.stderr.contains("the size limit of 60 KiB was reached"), "{}", said.stderr);
    assert_eq!(samples(test, &path), said_samples(&said.stderr));
}
