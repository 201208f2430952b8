//! `record --control`: the same conversations with kymo and with perf.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::scenario::fresh_folder;
use crate::tools::{Need, Tool, kymo, perf, ready, require, text};

/// Says that it is there, waits for a line on its standard input, then computes for some tenths of a second,
/// forks once, and ends.
const WAITS: &str = "echo there; read line; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; (:)";

/// A recorder under control, and the program that it records.
struct Controlled {
    child: Child,
    commands: File,
    acks: File,
    file: PathBuf,
}

fn fifo(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a fifo");
    File::options().read(true).write(true).open(path).expect("a fifo opens for both")
}

impl Controlled {
    /// Starts `record` of a program that waits, with commands that lie in the fifo already.
    fn start(tool: &Tool, test: &str, options: &[&str], first: &str) -> Controlled {
        Controlled::start_events(tool, test, &[&["-e", "cpu-clock", "-F", "999"], options].concat(), first)
    }

    fn start_events(tool: &Tool, test: &str, options: &[&str], first: &str) -> Controlled {
        let folder = fresh_folder(&format!("control-{test}-{}", tool.name));
        let (commands, acks) = (fifo(&folder.join("commands")), fifo(&folder.join("acks")));
        let file = folder.join("perf.data");
        let control = format!("fifo:{},{}", folder.join("commands").display(), folder.join("acks").display());
        let mut arguments = vec!["record", "-o", text(&file), "--control", &control];
        arguments.extend_from_slice(options);
        arguments.extend(["--", "sh", "-c", WAITS]);
        (&commands).write_all(first.as_bytes()).expect("room in the fifo");
        let mut recorder = tool.command(arguments);
        recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = recorder.spawn().expect("the recorder starts");
        Controlled { child, commands, acks, file }
    }

    fn send(&mut self, command: &str) {
        self.commands.write_all(command.as_bytes()).expect("room in the fifo");
    }

    /// Waits for one acknowledgement.
    fn ack(&mut self) {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            // Long enough for any machine; nothing waits that long when it works.
            let long = Timespec { tv_sec: 600, tv_nsec: 0 };
            let mut fds = [PollFd::new(&self.acks, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&long)), Ok(1), "no acknowledgement for ten minutes");
            let mut byte = [0];
            self.acks.read_exact(&mut byte).expect("readable");
            line.extend(byte);
        }
        // perf's have a zero byte after the newline.
        assert_eq!(String::from_utf8_lossy(&line).trim_matches('\0'), "ack\n");
    }

    /// Sends a command and waits until it is done.
    fn does(&mut self, command: &str) {
        self.send(&format!("{command}\n"));
        self.ack();
    }

    /// Waits until the program does nothing but wait.
    fn idle(&mut self) {
        let mut line = [0; 6];
        self.child.stdout.as_mut().expect("a pipe").read_exact(&mut line).expect("a line");
        assert_eq!(&line, b"there\n");
    }

    /// Lets the program compute, waits for the end; how many samples there are and what was said on stderr.
    fn end(self, compute: bool) -> (u64, String) {
        let (stats, said) = self.finish(compute);
        (count(&stats), said)
    }

    /// As above; what `report --stats` prints and what was said on stderr.
    fn finish(mut self, compute: bool) -> (String, String) {
        let stdin = self.child.stdin.take();
        if compute {
            stdin.as_ref().expect("a pipe").write_all(b"go\n").expect("the program reads");
        }
        let said = self.child.wait_with_output().expect("the recorder ends");
        drop(stdin);
        let stats = kymo().succeed(["report", "-i", text(&self.file), "--stats"]).stdout;
        (stats, String::from_utf8_lossy(&said.stderr).into_owned())
    }
}

/// The first count of samples in statistics.
fn count(stats: &str) -> u64 {
    let line = stats.lines().find(|line| line.contains("SAMPLE events:"));
    line.and_then(|line| line.split_whitespace().nth(2)).map_or(0, |n| n.parse().expect("a count"))
}

fn tools(test: &str) -> Vec<Tool> {
    if !ready(test, &[Need::Root]) {
        return Vec::new();
    }
    if ready(test, &[Need::Perf]) { vec![kymo(), perf()] } else { vec![kymo()] }
}

/// Checks that with `-D -1` nothing is sampled before `enable`, and everything after it.
#[test]
fn enable() {
    for tool in tools("control::enable") {
        let mut off = Controlled::start(&tool, "off", &["-D", "-1"], "ping\n");
        off.ack();
        assert_eq!(off.end(true).0, 0, "{}: nothing enabled the events", tool.name);
        let mut on = Controlled::start(&tool, "on", &["-D", "-1"], "ping\n");
        on.ack();
        on.does("enable");
        assert!(on.end(true).0 > 0, "{}: events were enabled", tool.name);
    }
}

/// Checks that `disable` stops the samples, by name, too, and that `enable` lets them go on.
#[test]
fn disable() {
    for tool in tools("control::disable") {
        for command in ["disable", "disable cpu-clock"] {
            let test = command.replace(' ', "-");
            let mut recorder = Controlled::start(&tool, &test, &["-D", "-1"], "ping\n");
            recorder.ack();
            recorder.idle();
            recorder.does("enable");
            recorder.does(command);
            let (samples, said) = recorder.end(true);
            assert!(samples < 30, "{}: {samples} samples after {command}; {said}", tool.name);
            let mut again = Controlled::start(&tool, &format!("{test}-again"), &[], "ping\n");
            again.ack();
            again.does(command);
            again.does(&command.replace("disable", "enable"));
            let (samples, said) = again.end(true);
            assert!(samples >= 30, "{}: {samples} samples when enabled again; {said}", tool.name);
        }
    }
}

/// Checks that an event is disabled by its name alone, also the first of a list so long that the list would switch all in one go.
#[test]
fn one_of_many() {
    let Some(()) = require("control::one_of_many", &[Need::Root]) else { return };
    let events = "page-faults,minor-faults,major-faults,cs,migrations,alignment-faults,emulation-faults,cgroup-switches";
    let options = ["-e", events, "-c", "1", "-D", "-1"];
    let mut recorder = Controlled::start_events(&kymo(), "many", &options, "ping\n");
    recorder.ack();
    recorder.idle();
    recorder.does("enable");
    recorder.does("disable page-faults");
    let (stats, said) = recorder.finish(true);
    let of = |name: &str| stats.split_once(&format!("{name} stats:")).map_or(0, |(_, rest)| count(rest));
    assert!(of("minor-faults") > of("page-faults"), "{stats}{said}");
}

/// Checks that every known command is acknowledged, also one that finds nothing to do, and others are not; that `evlist` lists, and that
/// `stop` ends the recording and the program.
#[test]
fn commands() {
    for tool in tools("control::commands") {
        let mut recorder = Controlled::start(&tool, "commands", &[], "ping\n");
        recorder.ack();
        for command in
            ["snapshot", "enable nothing-of-this-name", "evlist", "evlist -v", "evlist -g", "evlist -F"]
        {
            recorder.does(command);
        }
        recorder.send("bogus\nping\nping\n");
        recorder.ack();
        recorder.ack();
        recorder.does("stop");
        let (_, said) = recorder.end(false);
        assert!(said.contains("cpu-clock"), "{said}");
        if tool.name == "kymo" {
            for words in [
                "unknown command \"bogus\"",
                "no snapshot: this recording writes everything as it comes into one file",
                "there is no event nothing-of-this-name to enable; `evlist` lists them",
                "cpu-clock: type: 1, config: 0x0, sample_freq: 999",
                "cpu-clock: sample_freq=999",
            ] {
                assert!(said.contains(words), "{words} is in {said}");
            }
        }
    }
}

/// Checks that the commands' pipe may close: the recording goes on to its end. (perf 6.1 fails then.)
#[test]
fn the_other_side_goes() {
    let Some(()) = require("control::the_other_side_goes", &[Need::Root]) else { return };
    let folder = fresh_folder("control-gone");
    let file = folder.join("perf.data");
    // The shell's `echo` is the only writer of descriptor 0, and gone at once.
    let script = format!(
        "echo ping | {} record -e cpu-clock -o {} --control fd:0 -- sh -c '{}'",
        kymo().path().display(),
        file.display(),
        WAITS.replace("echo there; read line; ", "")
    );
    let done = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let samples: u64 = said
        .split('(')
        .find_map(|part| part.split_once(" samples)"))
        .map(|(count, _)| count.parse().expect("a count"))
        .expect("the last words");
    assert!(samples > 0, "{said}");
}

/// Checks that a channel that cannot work is refused before anything is recorded, with what to do.
#[test]
fn wrong_channels() {
    let folder = fresh_folder("control-wrong");
    let missing = format!("fifo:{}", folder.join("missing").display());
    for (control, words) in [
        ("fd:987654", "descriptor 987654: is not open"),
        ("fd:x", "expected numbers of descriptors"),
        ("nonsense", "expected fd:CTL[,ACK] or fifo:PATH[,PATH]"),
        (missing.as_str(), "is not there; make it: `mkfifo PATH`"),
    ] {
        let said = kymo().run(["record", "--control", control, "--", "true"]).ends(129);
        assert!(said.stderr.contains(words), "{} has {words}", said.stderr);
    }
}
