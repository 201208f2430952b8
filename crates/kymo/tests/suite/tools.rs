//! The tools that the tests run: the kymo under test, the perf to compare with, and what else a machine may lack.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

pub(crate) use kymo_testing::skip;
use kymo_testing::{kill_hung_children, perf_command, perf_works, without_user};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What a test needs from the machine; without it the test skips, loudly.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    /// Debian's linux-perf.
    Perf,
    /// The superuser.
    Root,
    /// tracefs with the scheduler's tracepoints.
    Tracepoints,
    /// A program in `PATH`.
    Program(&'static str),
    /// A processor whose programs kymo patches, and whose functions' arguments it knows.
    X86,
    /// The kernel's own probes in programs.
    Uprobes,
}

impl Need {
    /// Why the machine does not have it, or nothing when it does.
    fn missing(self) -> Option<String> {
        match self {
            Self::Perf if perf_works() => None,
            Self::Perf => Some("no working perf here (Debian: apt-get install linux-perf)".into()),
            Self::Root => (!rustix::process::geteuid().is_root()).then(|| "needs root".into()),
            Self::Tracepoints => (!tracepoints_work()).then(|| "tracefs is not readable here".into()),
            Self::Program(name) => find(name).is_none().then(|| format!("{name} is not installed")),
            Self::X86 => {
                (!cfg!(target_arch = "x86_64")).then(|| "programs are entered on x86-64 only".into())
            }
            Self::Uprobes => no_uprobes(),
        }
    }
}

/// Why the kernel cannot probe programs here.
fn no_uprobes() -> Option<String> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        // `true` has no symbols; what is asked is whether it comes to that.
        let said = kymo().run(["probe", "--engine", "kernel", "main", "--", "true"]).stderr;
        (said.contains("BPF") || said.contains("uprobes")).then_some(said)
    };
    REFUSED.get_or_init(ask).clone()
}

/// `None` when the machine lacks something: that is said, and the test returns.
pub(crate) fn require(test: &str, needs: &[Need]) -> Option<()> {
    ready(test, needs).then_some(())
}

/// True when the machine has everything; otherwise says what is missing.
pub(crate) fn ready(test: &str, needs: &[Need]) -> bool {
    let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
    if !missing.is_empty() {
        skip(test, missing.join(", "));
    }
    missing.is_empty()
}

/// A program of `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn tracepoints_work() -> bool {
    Path::new("/sys/kernel/tracing/events/sched/sched_switch/id").exists()
}

/// The kymo under test. `KYMO_BIN` names another one, to test an installed program.
pub(crate) fn kymo() -> Tool {
    kill_hung_children();
    let path = std::env::var_os("KYMO_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_kymo").into());
    Tool { name: "kymo", path: path.into() }
}

/// The perf to compare with.
pub(crate) fn perf() -> Tool {
    Tool { name: "perf", path: "perf".into() }
}

/// The option with which kymo names what perf names, and nothing else.
pub(crate) fn names_of_perf(tool: &Tool) -> &'static [&'static str] {
    if tool.name == "kymo" { &["--no-entry-names"] } else { &[] }
}

/// A profiler's executable.
#[derive(Clone)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Sends a signal to a child that has not been waited for.
pub(crate) fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child is there");
}

/// A process with pipes to its input and output. It is killed when this is dropped.
pub(crate) struct Running {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Running { child, output }
    }

    pub(crate) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// The next line that it prints, with its end; empty when it prints nothing more.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line
    }

    /// The next line, if it comes in time.
    pub(crate) fn line_within(&mut self, time: Duration) -> Option<String> {
        let ready = || {
            let output = PollFd::new(self.output.get_ref(), PollFlags::IN);
            poll(&mut [output], Some(&time.try_into().expect("a short time"))).expect("a pipe") > 0
        };
        (!self.output.buffer().is_empty() || ready()).then(|| self.line())
    }

    /// Writes to its input.
    pub(crate) fn tell(&mut self, words: &str) {
        self.child.stdin.as_mut().expect("a pipe").write_all(words.as_bytes()).expect("it reads");
    }

    /// Sends it a signal, and waits for its end while its input is open: a program that handles the
    /// signal could end by the end of its input first. The status, if it was not the signal's.
    pub(crate) fn end_by(&mut self, signal: Signal) -> Option<i32> {
        let input = self.child.stdin.take();
        self::signal(&self.child, signal);
        self.output.read_to_end(&mut Vec::new()).expect("its output");
        let status = self.child.wait().expect("its end");
        drop(input);
        status.code()
    }

    /// Ends its input; what it prints until its end, and the status.
    pub(crate) fn end(&mut self) -> (String, Option<i32>) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("text");
        (rest, self.child.wait().expect("its end").code())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What one run of a tool said.
pub(crate) struct Said {
    /// The command, to be repeated by hand.
    pub(crate) command: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Checks the status.
    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Said {
        assert_eq!(self.code, Some(code), "{}:\n{}{}", self.command, self.stdout, self.stderr);
        self
    }

    /// Checks that stderr has these words.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) -> &Said {
        assert!(self.stderr.contains(words), "no {words:?}: {}:\n{}", self.command, self.stderr);
        self
    }

    /// Checks that stdout has these words.
    #[track_caller]
    pub(crate) fn prints(&self, words: &str) -> &Said {
        let Said { command, stdout, stderr, .. } = self;
        assert!(stdout.contains(words), "no {words:?}: {command}:\n{stdout}{stderr}");
        self
    }

    /// The document on stdout, behind what a command has printed before it.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let begin = self.stdout.find('{').unwrap_or(0);
        serde_json::from_str(&self.stdout[begin..]).unwrap_or_else(|error| {
            panic!("{error}: {}:\n{}{}", self.command, self.stdout, self.stderr);
        })
    }
}

impl Tool {
    /// Where the executable is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A command of this tool that neither pages, asks the network, waits for a terminal, nor knows its user.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.name {
            "perf" => perf_command(&self.path),
            _ => Command::new(&self.path),
        };
        without_user(&mut command).args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs the tool to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        run(&mut self.command(arguments))
    }

    /// Runs the tool, which must succeed.
    #[track_caller]
    pub(crate) fn succeed<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        self.run(arguments).ends(0)
    }

    /// Runs a verb that reads a recording, which may have ended badly: then it says so, and ends
    /// with 2.
    #[track_caller]
    pub(crate) fn read<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let said = self.run(arguments);
        let ended_badly =
            ["did not finish", "could not write"].iter().any(|words| said.stderr.contains(words));
        said.ends(if ended_badly { 2 } else { 0 })
    }

    /// Starts the tool, with pipes from its stdout and stderr.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the tool starts")
    }
}

/// Runs a command to its end and keeps what it said.
pub(crate) fn run(command: &mut Command) -> Said {
    let shown = show(command);
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("{shown}: {error}"));
    Said {
        command: shown,
        code: status.code(),
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

fn show(command: &Command) -> String {
    let mut shown = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        let argument = argument.to_string_lossy();
        let plain = argument.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:,=+".contains(c));
        let quote = if plain && !argument.is_empty() { "" } else { "'" };
        shown += &format!(" {quote}{argument}{quote}");
    }
    shown
}
