//! The tools that the tests run: the kymo under test, the perf to compare with, and what else a machine may lack.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(crate) use kymo_testing::skip;
use kymo_testing::{kill_hung_children, perf_command, perf_works, without_user};

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
        }
    }
}

/// True when the machine has everything; otherwise says what is missing and the test returns.
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

/// A profiler's executable.
#[derive(Clone)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) path: PathBuf,
}

/// What one run of a tool said.
pub(crate) struct Said {
    /// The command, to be repeated by hand.
    pub(crate) command: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
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
    pub(crate) fn succeed<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Said {
        let said = self.run(arguments);
        assert_eq!(said.code, Some(0), "{} failed:\n{}", said.command, said.stderr);
        said
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
        write!(shown, " {quote}{argument}{quote}").expect("a String takes everything");
    }
    shown
}
