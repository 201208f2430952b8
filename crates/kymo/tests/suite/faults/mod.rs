//! What goes wrong around a recorder: disks, its own end or standstill, the programs that it records, clocks. Nothing hangs, each run ends with
//! a sentence and the right status, and what it leaves opens in kymo and perf.
//!
//! | what fails | where |
//! |---|---|
//! | disks, file limits, readers at the other end of a pipe | `disks.rs`, `fuse.rs` (a file system that fails as it is told) |
//! | what a system refuses to each verb: threads, memory, descriptors, system calls, stderr and stdout | `limits.rs` |
//! | what changes around a run: slow and frozen disks, terminals, clocks, CPUs | `surroundings.rs` |
//! | memory and file systems that do not answer | `mute.rs` |
//! | the recorder: killed, stopped, moved to another CPU | `recorder.rs` |
//! | the programs: they end before, during and after the attach; they fork without end | `targets.rs` |
//!
//! Random moments come from a seed that each test prints; `KYMO_SEED=N` repeats it. `KYMO_SOAK` asks for many more.

mod disks;
mod fuse;
mod limits;
mod mute;
mod recorder;
mod surroundings;
mod targets;

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use targets::Limited;

use rustix::process::{Pid, Signal, kill_process};

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, perf, ready, text};

/// A shell program that computes for a second or so.
const BUSY: &str = "i=0; while [ $i -lt 800000 ]; do i=$((i+1)); done";
/// One that computes until the recorder ends it, which it does when it cannot go on.
const ENDLESS: &str = "while :; do :; done";
/// A shell program that computes until whoever started it is gone, or for half a minute or so.
const WHILE_RECORDED: &str = "n=0; while [ $n -lt 30000000 ] && kill -0 $PPID 2>/dev/null; do i=$((n+3000)); while [ $n -lt $i ]; do n=$((n+1)); done; done";
/// Both ways of writing.
const WAYS: [&str; 2] = ["uring", "pwrite"];
/// So long nothing here takes, on any machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

fn folder(test: &str) -> PathBuf {
    fresh_folder(&format!("faults-{test}"))
}

/// How many rounds: few each time, many in the long mode.
fn rounds(few: u64, many: u64) -> u64 {
    if std::env::var_os("KYMO_SOAK").is_some() { many } else { few }
}

/// Random numbers that can be had again.
pub(crate) struct Dice(u64);

impl Dice {
    /// Of a seed that is printed: `KYMO_SEED`, or another one each time.
    pub(crate) fn of(test: &str) -> Dice {
        let given = std::env::var("KYMO_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(test) % 1_000_000);
        eprintln!("{test}: KYMO_SEED={seed}");
        Dice(seed)
    }

    /// A number from 0 to `limit - 1`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    pub(crate) fn of_all<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// `kymo record` of a shell program, with one of both ways of writing.
fn recorder(way: &str, options: &[&str], path: &Path, program: &str) -> Command {
    let arguments = [&["record"], options, &["-o", text(path), "--", "sh", "-c", program]].concat();
    let mut command = kymo().command(arguments);
    command.env("KYMO_IO", way).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A recording of a program that has said "started", computes when it is sent a line, says "done", and computes once
/// more after another line.
fn works_when_told(options: &[&str], path: &Path, way: &str) -> (Child, ChildStdin, ChildStdout) {
    let program = format!("echo started; read x; {BUSY}; echo done; read x; {BUSY}");
    let mut child =
        recorder(way, options, path, &program).stdin(Stdio::piped()).spawn().expect("kymo starts");
    let (to, mut from) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let mut line = [0; 8];
    from.read_exact(&mut line).expect("the program starts");
    assert_eq!(&line, b"started\n");
    (child, to, from)
}

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

/// Waits until a child has ended, and all who hold its outputs; that it hangs is an error.
fn ended(what: &str, mut child: Child) -> Output {
    let pid = Pid::from_child(&child);
    let (tell, told) = mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let (stdout, stderr) = (child.stdout.take().map(read), child.stderr.take().map(read));
        // Before the pipes are at their end: what the child started may hold them until it sees that the child is gone.
        let status = child.wait();
        let all =
            |pipe: Option<JoinHandle<Vec<u8>>>| pipe.and_then(|pipe| pipe.join().ok()).unwrap_or_default();
        let (stdout, stderr) = (all(stdout), all(stderr));
        tell.send(status.map(|status| Output { status, stdout, stderr }))
    });
    match told.recv_timeout(TEST_TIMEOUT) {
        Ok(output) => {
            waiter.join().expect("it told").expect("we listen");
            output.expect("a child can be waited for")
        }
        Err(_) => {
            // It may have ended, while something else holds its pipes.
            let _ = kill_process(pid, Signal::KILL);
            panic!(
                "{what}: it has not ended after {TEST_TIMEOUT:?}, or something that it started holds its pipes"
            );
        }
    }
}

/// What a recorder said on stderr.
fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The samples that kymo and perf, where it is there, find in a file that must open.
fn samples(test: &str, path: &Path) -> u64 {
    let count = crate::table::samples;
    let mut arguments = vec!["report", "-i", text(path), "--no-children", "-g", "none", "-F", "sample,sym"];
    let ours = count(&kymo().read(&arguments).stdout);
    if ready(test, &[Need::Perf]) {
        arguments.push("--stdio");
        let theirs = perf().succeed(&arguments);
        // Of a file whose header tells of no records yet perf reads nothing; kymo reads what is there.
        if is_published(path) {
            assert_eq!(count(&theirs.stdout), ours, "perf sees the same in {}", path.display());
        }
    }
    ours
}

/// Whether the header tells of records.
fn is_published(path: &Path) -> bool {
    let bytes = fs::read(path).expect("a recording");
    bytes.get(48..56).is_some_and(|size| size != [0; 8])
}

/// The samples that the recorder says are in its file.
fn said_samples(stderr: &str) -> u64 {
    let line = stderr.lines().find(|line| line.contains("Captured and wrote")).expect("the usual line");
    let count = line.rsplit_once('(').and_then(|(_, rest)| rest.split_once(" samples"));
    count.expect("a count").0.parse().expect("a number")
}
