//! What a system refuses to each verb: threads, memory, descriptors, locked memory, system calls, and a stderr or stdout to write to. Each verb
//! ends in bounded time, with a documented status and, where it failed, a sentence; what it was pointed at runs on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::targets::Limited;
use super::{ended, folder, rounds, words};
use crate::copied::Program;
use crate::tools::{Need, Running, kymo, require, run, skip, text};

/// A recording to read, a program that runs to be attached to, and a folder for what is written.
struct Around {
    recording: PathBuf,
    running: Running,
    program: Program,
    out: PathBuf,
}

impl Around {
    fn new(name: &str) -> Around {
        let out = folder(name);
        let recording = out.join("read.data");
        let program = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
        kymo().succeed(["record", "-q", "-F", "999", "-o", text(&recording), "--", "sh", "-c", program]);
        let program = Program::of("probed.c", &[]);
        let running = Running::start(Command::new("sleep").arg("1000"));
        Around { recording, running, program, out }
    }

    /// Each verb, as briefly as it can be run.
    fn verbs(&self) -> Vec<Vec<String>> {
        let (read, out) = (text(&self.recording), self.out.join("written.data"));
        let (out, pid, program) = (text(&out), self.running.pid(), self.program.text());
        let main = format!("{program}:main");
        let verbs: [&[&str]; 14] = [
            &["record", "-F", "999", "-o", out, "--", "true"],
            &["record", "-F", "999", "--call-graph", "dwarf", "-o", out, "--", "true"],
            &["record", "-F", "999", "--overwrite", "-o", out, "-p", &pid, "--", "true"],
            &["report", "-i", read],
            &["report", "-i", read, "--json"],
            &["script", "-i", read],
            &["stat", "--", "true"],
            &["stat", "-p", &pid, "--", "true"],
            &["stat", "-e", "page-faults", "-r", "2", "--", "true"],
            &["probe", "--engine", "kernel", &main, "--", program],
            &["probe", "--engine", "inproc", &main, "--", program],
            &["watch", "--json", "0x10:4", "--", "true"],
            &["list", "software"],
            &["doctor"],
        ];
        verbs.iter().map(|verb| verb.iter().map(|word| (*word).to_owned()).collect()).collect()
    }

    /// Runs each verb as `wrap` has it run, and checks its end. `speaks`: there is a stderr.
    fn each(&self, what: &str, speaks: bool, wrap: impl Fn(&[String]) -> Command) -> Vec<(String, Output)> {
        let mut all = Vec::new();
        for verb in self.verbs() {
            let what = format!("{what}: {}", verb.join(" "));
            let mut command = wrap(&verb);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            if speaks {
                command.stderr(Stdio::piped());
            }
            let output = ended(&what, command.spawn().unwrap_or_else(|error| panic!("{what}: {error}")));
            let said = words(&output);
            // 2 is what the probed program ends with where it can make no threads.
            assert!(
                matches!(output.status.code(), Some(0..=2 | 129 | 255)),
                "{what}: {:?}: {said}",
                output.status
            );
            assert!(!said.contains("panicked") && !said.contains("memory allocation"), "{what}: {said}");
            assert!(
                !speaks || output.status.success() || said.contains("kymo"),
                "{what}: no sentence: {said}"
            );
            let alive = fs::read_to_string(format!("/proc/{}/stat", self.running.pid())).expect("it runs");
            assert!(alive.contains(") S "), "{what}: the target sleeps on: {alive}");
            all.push((what, output));
        }
        all
    }
}

/// kymo as the shell executes it after `before`.
fn shell(before: &str, verb: &[String]) -> Command {
    let tool = kymo();
    let mut command = tool.command(Vec::<String>::new());
    let mut all = Command::new("sh");
    all.args(["-c", &format!("{before}exec \"$@\""), "sh"]).arg(tool.path()).args(verb);
    for (name, value) in command.env("RUST_BACKTRACE", "0").get_envs() {
        match value {
            Some(value) => all.env(name, value),
            None => all.env_remove(name),
        };
    }
    all
}

/// Checks every number of threads and processes that a cgroup permits, from none beside kymo's first thread on: no verb panics or waits for a
/// thread that there is not, and with enough of them all work.
#[test]
fn threads_that_cannot_be_made() {
    let test = "faults::limits::threads_that_cannot_be_made";
    let Some(()) = require(test, &[Need::Root, Need::Program("cc")]) else { return };
    let around = Around::new("threads");
    let limited = match Limited::new(&format!("kymo-test-threads-{}", std::process::id()), 1) {
        Ok(limited) => limited,
        Err(reason) => return skip(test, &reason),
    };
    let procs = text(&limited.door()).to_owned();
    let mut refused = 0;
    for most in (1..=rounds(4, 12)).chain([100]) {
        limited.permit(most as u32).expect("a limit of our own cgroup");
        let all = around
            .each(&format!("{most} threads"), true, |verb| shell(&format!("echo $$ >{procs} && "), verb));
        for (what, output) in all {
            let said = words(&output);
            refused += u32::from(said.contains("Resource temporarily unavailable"));
            assert!(most < 100 || !said.contains("Resource temporarily unavailable"), "{what}: {said}");
        }
    }
    assert!(refused > 0, "the limit was met");
}

/// Checks a kernel that makes processes and no threads: reports are the same as with threads, and a recorder says what it lacks.
#[test]
fn processes_and_no_threads() {
    let test = "faults::limits::processes_and_no_threads";
    let Some(refuse) = refuse(test) else { return };
    let around = Around::new("no-threads");
    let command = |verb: &[String]| refusing(&refuse, "11", "thread", verb);
    let all = around.each("no threads", true, command);
    for (what, output) in &all {
        let reads =
            ["report", "script", "list", "doctor"].iter().any(|verb| what.contains(&format!(": {verb}")));
        assert!(!reads || output.status.success(), "{what}: {}", words(output));
        if what.contains(": record") {
            let said = words(output);
            assert!(
                said.contains("failed to start a thread of the recorder") && said.contains("ulimit -u"),
                "{what}: {said}"
            );
        }
    }
    let verb = ["report", "-i", text(&around.recording)].map(str::to_owned);
    let with = kymo().succeed(&verb);
    assert_eq!(run(&mut command(&verb)).stdout, with.stdout, "the same report on one thread");
}

/// The program that has system calls refused; `None`, said, where that is not possible.
fn refuse(test: &str) -> Option<PathBuf> {
    require(test, &[Need::Program("cc")])?;
    let program = crate::programs::build("refuse.c", &[]);
    let works = Command::new(&program).args(["1", "io_uring_setup", "true"]).status();
    if works.is_ok_and(|status| status.success()) {
        return Some(program);
    }
    skip(test, "seccomp filters cannot be used here");
    None
}

/// kymo with these system calls refused.
fn refusing(refuse: &Path, errno: &str, calls: &str, verb: &[String]) -> Command {
    let tool = kymo();
    let mut command = Command::new(refuse);
    command.args([errno, calls]).arg(tool.path()).args(verb).env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

/// Checks seccomp filters, as containers have them: without `perf_event_open`, bpf, io_uring or ptrace, or without all of them, refused in
/// both usual ways. And one without `write`, by which threads are woken: no recorder sleeps for ever.
#[test]
fn system_calls_that_are_refused() {
    let test = "faults::limits::system_calls_that_are_refused";
    let Some(refuse) = refuse(test) else { return };
    let around = Around::new("calls");
    let [perf, bpf, uring, ptrace] = ["perf_event_open", "bpf", "io_uring_setup", "ptrace"];
    let all = [perf, bpf, uring, ptrace].join(",");
    let mut filters = vec![("1", perf), ("38", bpf), ("1", uring), ("1", ptrace), ("38", &all)];
    if rounds(0, 1) > 0 {
        filters.extend([("13", perf), ("1", bpf), ("38", uring), ("38", ptrace)]);
    }
    for (errno, calls) in filters {
        for (what, output) in
            around.each(&format!("{calls}: {errno}"), true, |verb| refusing(&refuse, errno, calls, verb))
        {
            let reads =
                ["report", "script", "list", "doctor"].iter().any(|verb| what.contains(&format!(": {verb}")));
            assert!(!reads || output.status.success(), "{what}: {}", words(&output));
        }
    }
    // Nothing can be said then.
    for (what, output) in around.each("no write", false, |verb| {
        let mut command = refusing(&refuse, "5", "write", verb);
        command.stderr(Stdio::null());
        command
    }) {
        assert!(!what.contains(": record") || output.status.code() == Some(1), "{what}: {:?}", output.status);
    }
}

/// Checks memory that is limited (`ulimit -v`), from what kymo hardly starts with on: a verb that needs more says so.
#[test]
fn memory_that_is_refused() {
    let test = "faults::limits::memory_that_is_refused";
    let around = Around::new("memory");
    // Less than that and the kernel cannot execute it.
    let least = (1..).map(|number| number * 2048).find(|kib| {
        let version = shell(&format!("ulimit -v {kib}; "), &["--version".to_owned()]).output();
        version.expect("sh runs").status.success()
    });
    let least = least.expect("some limit permits it");
    let mut refused = 0;
    let steps = rounds(6, 40);
    for step in 0..steps {
        let kib = least + step * (80 << 10) / steps;
        for (_, output) in
            around.each(&format!("{kib} KiB"), true, |verb| shell(&format!("ulimit -v {kib}; "), verb))
        {
            refused += u32::from(words(&output).contains("memory"));
        }
    }
    eprintln!("{test}: from {least} KiB on, {refused} ended for lack of memory");
    assert!(refused > 0, "so little is not enough for all");
}

/// Checks few descriptors (`ulimit -n`), from what a shell starts with on.
#[test]
fn few_descriptors() {
    let around = Around::new("descriptors");
    for most in [4, 6, 9, 14, 24, 48] {
        around.each(&format!("{most} descriptors"), true, |verb| shell(&format!("ulimit -n {most}; "), verb));
    }
}

/// Checks an ordinary user who may lock no memory: rings are memory of that kind, beyond what each user has for them.
#[test]
fn no_locked_memory() {
    let test = "faults::limits::no_locked_memory";
    let Some(()) = require(test, &[Need::Root, Need::Program("setpriv")]) else { return };
    let place = tempfile::tempdir().expect("a folder");
    fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("our own folder");
    let copy = place.path().join("kymo");
    kymo_testing::copy_program(kymo().path(), &copy);
    for size in ["1M", "64M"] {
        let script = format!(
            "ulimit -l 0; exec setpriv --reuid=65534 --regid=65534 --clear-groups -- {} record -m {size} -F 999 -o {}/{size} -- true",
            text(&copy),
            text(place.path())
        );
        let said = run(Command::new("sh").args(["-c", &script]));
        assert!(matches!(said.code, Some(0 | 1)), "{size}: {}", said.stderr);
        assert!(said.code == Some(0) || said.stderr.contains("kymo"), "{size}: {}", said.stderr);
        assert!(!said.stderr.contains("panicked"), "{size}: {}", said.stderr);
    }
}

/// Checks a stderr whose reader is gone, and one that is full: each verb's status is what it is with one, and its data on stdout too.
/// `stat` has its data there, and may fail.
#[test]
fn a_stderr_that_is_gone() {
    let around = Around::new("stderr");
    let with: Vec<Option<i32>> = around
        .each("with stderr", true, |verb| kymo().command(verb))
        .into_iter()
        .map(|(_, output)| output.status.code())
        .collect();
    for way in ["closed", "full", "none"] {
        let all = around.each(way, false, |verb| {
            if way == "none" {
                return shell("exec 2>&-; ", verb);
            }
            let mut command = kymo().command(verb);
            match way {
                "full" => {
                    command.stderr(fs::File::options().write(true).open("/dev/full").expect("the device"))
                }
                _ => {
                    let (reader, writer) = std::io::pipe().expect("a pipe");
                    drop(reader);
                    command.stderr(writer)
                }
            };
            command
        });
        for ((what, output), with) in all.into_iter().zip(&with) {
            assert!(
                what.contains(": stat") || output.status.code() == *with,
                "{what}: {:?}, {with:?}",
                output.status
            );
        }
    }
}

/// Checks a stdout that is full (status 1 and a sentence) and one whose reader is gone (status 0), for the verbs whose data goes there.
#[test]
fn a_stdout_that_is_full() {
    let around = Around::new("stdout");
    for verb in around.verbs() {
        if !["report", "script", "list", "doctor"].contains(&verb[0].as_str()) {
            continue;
        }
        let full = || fs::File::options().write(true).open("/dev/full").expect("the device");
        let output = kymo().command(&verb).stdout(full()).output().expect("kymo runs");
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", words(&output));
        assert!(words(&output).contains("No space left on device"), "{verb:?}: {}", words(&output));
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = kymo().command(&verb).stdout(writer).output().expect("kymo runs");
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {}", words(&output));
    }
    let bench = kymo()
        .command(["bench"])
        .stdout(fs::File::options().write(true).open("/dev/full").expect("the device"))
        .output();
    assert_eq!(bench.expect("kymo runs").status.code(), Some(1));
}
