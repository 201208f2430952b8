//! What is recorded ends at the wrong moment, or multiplies without end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Dice, ended, folder, rounds, said_samples, samples, words};
use crate::programs::build;
use crate::tools::{Need, kymo, require, skip, text};

/// A recording of a running process, or of one of its threads.
fn attach(path: &Path, options: &[&str]) -> Child {
    let mut arguments = vec!["record", "-F", "999", "-o", text(path)];
    arguments.extend(options);
    kymo().start(arguments)
}

/// Checks processes and threads that are gone before kymo comes: a sentence that names them, status 1, and no file.
#[test]
fn gone_before_the_attach() {
    let test = "faults::targets::gone_before_the_attach";
    let mut child = Command::new("true").spawn().expect("true starts");
    let gone = child.id().to_string();
    child.wait().expect("it ends");
    let path = folder("gone").join("perf.data");
    let own = std::process::id().to_string();
    for options in [["-p", &gone], ["-t", &gone], ["-p", &format!("{own},{gone}")]] {
        let output = ended(test, attach(&path, &options));
        let said = words(&output);
        if output.status.code() == Some(0) {
            return skip(test, format!("process id {gone} is in use again"));
        }
        assert_eq!(output.status.code(), Some(1), "{options:?}: {said}");
        assert!(said.contains(&gone) && said.contains("may have ended"), "{options:?}: {said}");
        assert!(!path.exists(), "{options:?}");
    }
}

/// Checks a process that has ended but that nobody has waited for: there is nothing to record, and nothing to wait for.
#[test]
fn ended_but_not_waited_for() {
    let test = "faults::targets::ended_but_not_waited_for";
    let mut zombie = Command::new("true").spawn().expect("true starts");
    let fd = rustix::process::pidfd_open(
        rustix::process::Pid::from_child(&zombie),
        rustix::process::PidfdFlags::empty(),
    );
    let fd = fd.expect("it is there until it is waited for");
    rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)], None)
        .expect("it ends");
    let path = folder("zombie").join("perf.data");
    let output = ended(test, attach(&path, &["-p", &zombie.id().to_string()]));
    let said = words(&output);
    zombie.wait().expect("it has ended");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    if output.status.code() == Some(0) {
        assert_eq!(samples(test, &path), 0, "{said}");
    } else {
        assert!(said.contains("may have ended"), "{said}");
    }
}

/// Checks processes that end at random moments of an attach, while kymo starts, opens events, or records, one at a time and among others that
/// stay: the recording ends when the last of them has, with status 0, or 1 and a sentence if it came too late, and opens.
#[test]
fn ends_while_attaching() {
    let test = "faults::targets::ends_while_attaching";
    let mut dice = Dice::of(test);
    let (mut attached, mut late) = (0, 0);
    for round in 0..rounds(10, 100) {
        let path = folder(&format!("ends-{round}")).join("perf.data");
        // Threads too: they end one by one.
        let program = build("threads.c", &[]);
        let count = 1 + dice.below(3);
        let targets: Vec<Child> = (0..count)
            .map(|_| {
                let mut program = Command::new(&program);
                program.args(["6", "400"]).stdout(Stdio::null()).spawn().expect("the program starts")
            })
            .collect();
        let ids: Vec<String> = targets.iter().map(|target| target.id().to_string()).collect();
        let recorder = attach(&path, &["-p", &ids.join(",")]);
        for mut target in targets {
            std::thread::sleep(Duration::from_micros(dice.below(150_000)));
            target.kill().expect("it is ours");
            target.wait().expect("it ends");
        }
        let output = ended(test, recorder);
        let said = words(&output);
        match output.status.code() {
            Some(0) => {
                attached += 1;
                assert_eq!(samples(test, &path), said_samples(&said), "{said}");
            }
            Some(1) => {
                late += 1;
                assert!(said.contains("may have ended") || said.contains("No such process"), "{said}");
            }
            code => panic!("status {code:?}: {said}"),
        }
    }
    eprintln!("{test}: {attached} attached, {late} came too late");
}

/// Checks a command that ends before kymo has looked at it twice, and one that kills itself at its start.
#[test]
fn commands_that_end_at_once() {
    let test = "faults::targets::commands_that_end_at_once";
    let path = folder("at-once").join("perf.data");
    for (program, status) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137)] {
        let output = ended(test, attach(&path, &["--", "sh", "-c", program]));
        let said = words(&output);
        use std::os::unix::process::ExitStatusExt;
        let code = output.status.code().or_else(|| output.status.signal().map(|signal| 128 + signal));
        assert_eq!(code, Some(status), "{said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{said}");
    }
}

/// A cgroup that permits so many processes, removed again when it goes away.
pub(crate) struct Limited(PathBuf);

impl Limited {
    /// A cgroup of this controller below the test's own. Errors: the reason why none can be made here.
    pub(crate) fn of(controller: &str, name: &str) -> Result<Limited, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let v1 = Path::new("/sys/fs/cgroup").join(controller);
        let group = own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let root = if controllers == controller {
                v1.as_path()
            } else if controllers.is_empty() && !v1.exists() {
                Path::new("/sys/fs/cgroup")
            } else {
                return None;
            };
            Some(root.join(path.trim_start_matches('/')))
        });
        let folder = group.ok_or(format!("no cgroup here limits {controller}"))?.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Limited(folder))
    }

    /// One that permits so many threads and processes.
    pub(super) fn new(name: &str, most: u32) -> Result<Limited, String> {
        let limited = Limited::of("pids", name)?;
        limited.permit(most)?;
        Ok(limited)
    }

    /// Has it permit so many from now on.
    pub(super) fn permit(&self, most: u32) -> Result<(), String> {
        self.set("pids.max", most.into())
    }

    /// Has it permit so much memory from now on, by either version's name of the limit.
    pub(crate) fn permit_memory(&self, most_bytes: u64) -> Result<(), String> {
        self.set("memory.max", most_bytes).or_else(|_| self.set("memory.limit_in_bytes", most_bytes))
    }

    fn set(&self, limit: &str, value: u64) -> Result<(), String> {
        let limit = self.0.join(limit);
        if !limit.exists() {
            return Err(format!("{} is missing", limit.display()));
        }
        fs::write(&limit, value.to_string()).map_err(|error| format!("{}: {error}", limit.display()))
    }

    /// The file by which a process enters it.
    pub(crate) fn door(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Processes that were killed leave it a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        eprintln!("cannot remove {}", self.0.display());
    }
}

/// Checks a program whose children all have children, as many as a cgroup permits, for thousands of forks: the recording ends with it, loses
/// nothing that it does not tell of, and opens.
#[test]
fn a_fork_bomb_within_a_limit() {
    let test = "faults::targets::a_fork_bomb_within_a_limit";
    let Some(()) = require(test, &[Need::Root, Need::Program("cc")]) else { return };
    let name = format!("kymo-test-bomb-{}", std::process::id());
    let limited = match Limited::new(&name, 40) {
        Ok(limited) => limited,
        Err(reason) => return skip(test, &reason),
    };
    let bomb = build("bomb.c", &[]);
    let forks = rounds(1500, 20_000);
    let procs = limited.0.join("cgroup.procs");
    let program = format!("echo $$ >{} && exec {} {forks}", text(&procs), text(&bomb));
    for options in [&["-F", "2000"][..], &["-F", "2000", "--scope", "inherit"], &["-F", "2000", "-a"]] {
        let path = folder(&format!("bomb-{}", options.join(""))).join("perf.data");
        let mut arguments = vec!["record", "-o", text(&path)];
        arguments.extend(options);
        arguments.extend(["--", "sh", "-c", &program]);
        let recorder = kymo().start(arguments);
        let output = ended(test, recorder);
        let said = words(&output);
        assert_eq!(output.status.code(), Some(0), "{options:?}: {said}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.contains("refused") && !told.contains(", 0 refused"), "the limit is met: {told}");
        assert!(said.contains("lost "), "{options:?}: {said}");
        assert_eq!(samples(test, &path), said_samples(&said), "{options:?}: {said}");
    }
}
