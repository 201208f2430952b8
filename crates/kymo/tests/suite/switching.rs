//! A recording in several files, by signal, time and size, and a flight recorder's snapshots: on programs that run on meanwhile. Nothing here waits for
//! a time; files are waited for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, perf, ready, require, signal, skip, text};

/// How long a file is waited for before it is certain that it does not come.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);

/// A recorder and a program that computes until it is told to stop.
struct Recorder {
    child: Child,
    folder: PathBuf,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Where a test has failed: neither is to go on for ever.
        let _ = fs::write(self.folder.join("stop"), "");
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
    }
}

impl Recorder {
    /// Starts it and waits until the program computes: then signals are caught, and it is recorded.
    fn start(test: &str, flags: &[&str]) -> Recorder {
        let folder = fresh_folder(&format!("switching-{test}"));
        let (begun, stop) = (folder.join("begun"), folder.join("stop"));
        let script = format!(
            "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done; : > '{}'; while [ ! -e '{}' ]; do i=0; while [ $i -lt 500 ]; do i=$((i+1)); done; done",
            begun.display(),
            stop.display()
        );
        let output = folder.join("perf.data");
        let mut arguments = vec!["record", "-e", "cpu-clock", "-o", text(&output)];
        arguments.extend_from_slice(flags);
        arguments.extend(["--", "sh", "-c", &script]);
        let child = kymo().command(arguments).stderr(Stdio::piped()).spawn().expect("the recorder starts");
        let recorder = Recorder { child, folder };
        recorder.wait(|recorder| recorder.folder.join("begun").exists());
        recorder
    }

    /// Polls until it is so.
    fn wait(&self, so: impl Fn(&Recorder) -> bool) {
        let until = Instant::now() + FILE_TIMEOUT;
        while !so(self) {
            assert!(Instant::now() < until, "it does not come: {:?}", self.files());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The files that are done, the oldest first.
    fn files(&self) -> BTreeSet<PathBuf> {
        let all = fs::read_dir(&self.folder).expect("the folder").map(|file| file.expect("a file").path());
        all.filter(|path| path.extension().is_some_and(|time| time.len() == 16)).collect()
    }

    fn signal(&self) {
        signal(&self.child, Signal::USR2);
    }

    /// Asks for one more file, and waits for it; the recorder must still run then.
    fn another(&mut self) -> PathBuf {
        let before = self.files();
        self.signal();
        self.wait(|recorder| recorder.files().len() > before.len());
        assert!(self.child.try_wait().expect("its state").is_none(), "it goes on");
        self.files().difference(&before).next().expect("one more").clone()
    }

    /// Ends the program; what the recorder said.
    fn end(mut self) -> String {
        fs::write(self.folder.join("stop"), "").expect("the folder is writable");
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut stderr, &mut said).expect("text");
        assert!(self.child.wait().expect("it ends").success(), "{said}");
        said
    }
}

/// The times of a file's samples, in seconds, which must be in order and all of the program; perf must read the same without a complaint.
fn times(test: &str, path: &Path) -> Vec<f64> {
    let arguments = ["script", "-i", text(path), "-F", "comm,time"];
    let parse = |stdout: &str| -> Vec<f64> {
        let lines = stdout.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| {
                let (comm, time) = line.trim().split_once(char::is_whitespace).expect("a name and a time");
                // Between fork and exec it is still the recorder that runs.
                assert!(["sh", "kymo"].contains(&comm), "{}: {line}", path.display());
                time.trim().trim_end_matches(':').parse().expect("a time")
            })
            .collect()
    };
    let times = parse(&kymo().read(arguments).stdout);
    assert!(times.is_sorted(), "{}", path.display());
    if ready(test, &[Need::Perf]) {
        let said = perf().succeed(arguments);
        assert_eq!(parse(&said.stdout), times, "{}", path.display());
        // Of a file without samples perf says so, and guesses at reasons.
        if times.is_empty() {
            return times;
        }
        let said = perf().succeed(["report", "-i", text(path), "--stdio", "--no-children", "-g", "none"]);
        for complaint in ["out of order", "Warning", "lost", "incomplete"] {
            assert!(!said.stderr.contains(complaint), "{}: {}", path.display(), said.stderr);
        }
        assert!(!said.stdout.contains("[unknown]"), "{}: {}", path.display(), said.stdout);
    }
    times
}

/// Checks that a flight recorder makes a whole recording of the latest samples for each signal while the program goes on, and one at the end; and that it says how far back each reaches.
#[test]
fn flight_recorder() {
    let test = "switching::flight_recorder";
    let Some(()) = require(test, &[Need::Root]) else { return };
    for pack in [&[][..], &["-z"][..]] {
        let flags = [&["--overwrite", "-F", "8000", "-m", "4"], pack].concat();
        let mut recorder = Recorder::start(&format!("flight-{}", pack.len()), &flags);
        let first = recorder.another();
        let second = recorder.another();
        let path = recorder.folder.join("perf.data");
        let said = recorder.end();
        let all = [first, second, path].map(|path| times(test, &path));
        assert!(all.iter().all(|times| !times.is_empty()), "{said}");
        let last = all.each_ref().map(|times| times[times.len() - 1]);
        assert!(last.is_sorted() && last[0] < last[2], "{last:?}: {said}");
        assert_eq!(said.matches("Dump ").count(), 2, "{said}");
        assert_eq!(said.matches(" samples of ").count(), 3, "{said}");
        assert!(said.contains("lost 0 samples"), "{said}");
    }
}

/// Checks that `--snapshot` leaves what was asked for, of which the latest are kept, and nothing at the end, unless `=e` asks for it; and that without a
/// single one it says so.
#[test]
fn snapshots_only() {
    let test = "switching::snapshots_only";
    let Some(()) = require(test, &[Need::Root]) else { return };
    for (flag, at_end) in [("--snapshot", false), ("--snapshot=e", true)] {
        let mut recorder = Recorder::start(&format!("snapshot-{at_end}"), &[flag, "--switch-max-files", "2"]);
        let (first, second) = (recorder.another(), {
            recorder.signal();
            recorder.wait(|recorder| recorder.files().len() == 2);
            recorder.files().last().expect("two").clone()
        });
        // The third makes the first go.
        recorder.signal();
        let gone = first.clone();
        recorder.wait(|_| !gone.exists());
        let (folder, before) = (recorder.folder.clone(), recorder.files());
        assert!(before.contains(&second));
        let said = recorder.end();
        assert!(!folder.join("perf.data").exists(), "{said}");
        assert_eq!(said.matches("Dump ").count(), 3 + usize::from(at_end), "{said}");
        assert_eq!(second.exists(), !at_end, "the latest two are kept: {said}");
        // What the last words say was written is what is there.
        let gone = format!("--switch-max-files removed {} older files", 1 + usize::from(at_end));
        assert!(said.contains(&gone) && said.contains("perf.data.<time> ("), "{said}");
        let left = fs::read_dir(&folder).expect("the folder").map(|file| file.expect("a file").path());
        let left = left.filter(|path| path.extension().is_some_and(|time| time.len() == 16));
        let left: usize = left.map(|path| times(test, &path).len()).sum();
        assert!(said.contains(&format!("perf.data.<time> ({left} samples)")), "{left}: {said}");
        for path in before.iter().filter(|path| path.exists()) {
            assert!(!times(test, path).is_empty(), "{said}");
        }
    }
    let recorder = Recorder::start("snapshot-none", &["--snapshot"]);
    let folder = recorder.folder.clone();
    let said = recorder.end();
    assert!(said.contains("no snapshot was asked for: SIGUSR2 asks for one"), "{said}");
    assert!(!folder.join("perf.data").exists(), "{said}");
}

/// Checks that a signal divides a recording into files that together hold every sample once.
#[test]
fn by_signal() {
    let test = "switching::by_signal";
    let mut recorder = Recorder::start("signal", &["--switch-output"]);
    let (first, second) = (recorder.another(), recorder.another());
    let folder = recorder.folder.clone();
    let early = [times(test, &first), times(test, &second)].concat();
    let said = recorder.end();
    assert_eq!(said.matches("Dump ").count(), 3, "{said}");
    // Each file is in order. Between two files a ring that is read late can bring samples that are older than some of the file before.
    assert!(!folder.join("perf.data").exists(), "{said}");
    let third: Vec<PathBuf> =
        dumped(&said).into_iter().filter(|path| *path != first && *path != second).collect();
    let all = early.len() + third.iter().map(|path| times(test, path).len()).sum::<usize>();
    assert!(said.contains(&format!("({all} samples)")), "{all}: {said}");
}

/// The files that the recorder says are done.
fn dumped(said: &str) -> Vec<PathBuf> {
    let names = said.lines().filter_map(|line| line.split_once("Dump ")?.1.strip_suffix(" ]"));
    names.map(PathBuf::from).collect()
}

/// Checks that files come by themselves as time goes, of a recording and of a flight recorder, and that the latest are kept.
#[test]
fn by_time() {
    let test = "switching::by_time";
    for flags in [&["--switch-output=1s"][..], &["--switch-output=1s", "--overwrite", "-m", "4"][..]] {
        let flags = [flags, &["--switch-max-files", "2"]].concat();
        let recorder = Recorder::start(&format!("time-{}", flags.len()), &flags);
        recorder.wait(|recorder| !recorder.files().is_empty());
        let first = recorder.files().first().expect("one").clone();
        recorder.wait(|_| !first.exists());
        let folder = recorder.folder.clone();
        let said = recorder.end();
        let dumped = dumped(&said);
        assert!(dumped.len() >= 3 && dumped.is_sorted(), "{said}");
        let (old, kept) = dumped.split_at(dumped.len() - 2);
        assert!(old.iter().all(|path| !path.exists()) && !folder.join("perf.data").exists(), "{said}");
        // The last one may have begun just before the end, and hold nothing: it opens.
        assert!(!times(test, &kept[0]).is_empty(), "{said}");
        times(test, &kept[1]);
    }
}

/// Checks that files of a size come one after the other, none much larger, and that the latest are kept.
#[test]
fn by_size() {
    let test = "switching::by_size";
    let flags = ["--switch-output=40K", "-F", "8000", "-m", "4", "--switch-max-files", "3"];
    let recorder = Recorder::start("size", &flags);
    recorder.wait(|recorder| recorder.files().len() == 3);
    let first = recorder.files().first().expect("one").clone();
    recorder.wait(|_| !first.exists());
    let said = recorder.end();
    let dumped = dumped(&said);
    assert!(dumped.len() > 3, "{said}");
    let (old, kept) = dumped.split_at(dumped.len() - 3);
    assert!(old.iter().all(|path| !path.exists()), "{said}");
    for path in kept {
        times(test, path);
    }
    for path in &kept[..2] {
        let bytes = path.metadata().expect("it is there").len();
        assert!(bytes >= 40 << 10, "{bytes}: {said}");
    }
}

/// Checks that names and mappings are in every file, also those that were told on a CPU on which nothing else happened: its ring wakes nobody for a
/// quarter of a second, while file after file was begun that could not name its samples.
#[test]
fn told_on_a_quiet_cpu() {
    let test = "switching::told_on_a_quiet_cpu";
    let Some(()) = require(test, &[Need::Root, Need::Program("taskset")]) else { return };
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2) {
        return skip(test, "one CPU");
    }
    let folder = fresh_folder("switching-quiet-cpu");
    let output = folder.join("perf.data");
    // Executed on one CPU, it computes on the other.
    let script = "taskset -cp 0 $$ >&2; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let mut recorder = std::process::Command::new("taskset");
    recorder.args(["-c", "1"]).arg(kymo().path()).args("record -e cpu-clock -F 8000 -m 4".split(' '));
    recorder.args(["--switch-output=20K", "-o", text(&output), "--", "sh", "-c", script]);
    let said = crate::tools::run(&mut recorder).ends(0);
    let dumped = dumped(&said.stderr);
    assert!(dumped.len() > 1, "{}", said.stderr);
    // In the first one, what was before the exec may be without.
    for path in &dumped[1..] {
        let report = kymo()
            .succeed(["report", "-i", text(path), "--stdio", "--no-children", "-g", "none", "-s", "comm,dso"])
            .stdout;
        assert!(!report.contains("[unknown]") && !report.contains("kymo"), "{}: {report}", path.display());
    }
}

/// Checks that a snapshot by command is acknowledged when its file is complete, and that commands behind it wait for it.
#[test]
fn by_command() {
    let test = "switching::by_command";
    let Some(()) = require(test, &[Need::Root]) else { return };
    for flags in [&["--snapshot", "-m", "4"][..], &["--switch-output"]] {
        let (mut commands, recorder_end) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let end = rustix::io::fcntl_dupfd_cloexec(&recorder_end, 0).expect("a copy");
        rustix::io::fcntl_setfd(&end, rustix::io::FdFlags::empty()).expect("it is passed on");
        let number = std::os::fd::AsRawFd::as_raw_fd(&end);
        let control = format!("fd:{number},{number}");
        let flags = [flags, &["--control", &control]].concat();
        let recorder = Recorder::start(&format!("command-{}", flags.len()), &flags);
        drop((end, recorder_end));
        commands.set_read_timeout(Some(FILE_TIMEOUT)).expect("a limit");
        std::io::Write::write_all(&mut commands, b"snapshot\nping\nsnapshot\n").expect("it reads");
        for count in [1, 1, 2] {
            let mut ack = [0; 4];
            std::io::Read::read_exact(&mut commands, &mut ack).expect("an acknowledgement");
            assert_eq!(&ack, b"ack\n");
            let files = recorder.files();
            assert!(files.len() >= count, "{files:?}");
            files.iter().for_each(|path| drop(times(test, path)));
        }
        recorder.end();
    }
}

/// Checks what is refused, with what to do.
#[test]
fn refused() {
    for (flags, words) in [
        (&["--overwrite", "--switch-output=1M"][..], "use --switch-output=TIME, or SIGUSR2"),
        (&["--overwrite", "--max-size=1M"], "cannot be used with"),
        (&["--snapshot", "-o", "-"], "--snapshot needs files"),
        (&["--switch-output", "-o", "/dev/null"], "--switch-output needs files"),
        (&["--switch-max-files=3"], "give --switch-output, --overwrite or --snapshot"),
        (&["-e", "page-faults/overwrite/"], "give both the term overwrite, or neither"),
    ] {
        let arguments = [&["record", "-e", "cpu-clock"], flags, &["--", "true"]].concat();
        let said = kymo().run(arguments);
        assert_ne!(said.code, Some(0), "{}", said.command);
        said.says(words);
    }
}

/// Checks that a snapshot which does not fit on the disk ends the recorder with a sentence, that what fits opens, and that each sample that was in the
/// rings is in the file or counted.
#[test]
fn no_room_for_a_snapshot() {
    let test = "switching::no_room_for_a_snapshot";
    let Some(()) = require(test, &[Need::Root]) else { return };
    let path = fresh_folder("switching-no-room").join("perf.data");
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let script = format!(
        "ulimit -f 60; exec {} record --overwrite -e cpu-clock -F 8000 -m 512 -o {} -- sh -c '{busy}'",
        kymo().path().display(),
        path.display()
    );
    let said = crate::tools::run(std::process::Command::new("sh").args(["-c", &script])).stderr;
    assert!(said.contains("failed to write") && said.contains("what came before is complete"), "{said}");
    let number = |before: &str, behind: &str| -> usize {
        let found =
            said.lines().find_map(|line| line.split_once(before)?.1.split_once(behind)?.0.parse().ok());
        found.unwrap_or_else(|| panic!("a number between {before:?} and {behind:?}: {said}"))
    };
    let kept = times(test, &path).len();
    assert_eq!(kept, number("(", " samples) ]"), "{said}");
    assert_eq!(number("record: ", " samples of"), kept + number("lost ", " samples of"), "{said}");
}
