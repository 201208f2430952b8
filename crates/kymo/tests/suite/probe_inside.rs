//! What probes inside a program do besides counting: conditions, one in N, callers, and recordings of each hit.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::programs::build;
use crate::tools::{Need, kymo, ready, skip};

/// A copy of the program whose functions are called a known number of times, in a folder of its own: the kernel's probes of other tests are in every
/// process of one file.
struct Program {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn program(test: &str) -> Option<Program> {
    if !cfg!(target_arch = "x86_64") {
        skip(test, "programs are patched on x86-64 only");
        return None;
    }
    // Root: where /proc/sys/kernel/yama/ptrace_scope is 1, others cannot enter what runs already.
    if !ready(test, &[Need::Program("cc"), Need::Root]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().canonicalize().expect("a path").join("probed");
    std::fs::copy(build("probed.c", &[]), &path).expect("a copy");
    Some(Program { path, _folder: folder })
}

/// The program in two threads, waiting to begin, and waiting again when all is done.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Path, calls: &str, threads: &str) -> Running {
        let mut command = Command::new(program);
        let mut child = command
            .args(["-w", calls, threads])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let exe = format!("/proc/{}/exe", child.id());
        while std::fs::read_link(&exe).ok().as_deref() != Some(program) {
            std::thread::yield_now();
        }
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Running { child, output }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Lets it make its calls; what it says it counted.
    fn work(&mut self) -> String {
        self.child.stdin.as_mut().expect("its input").write_all(b"x").expect("it waits");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("its end").success());
    }
}

fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
}

/// Runs `kymo probe` on the program from before its calls until they are done; its JSON.
fn probe(program: &Path, calls: &str, arguments: &[&str]) -> Value {
    let mut running = Running::start(program, calls, "2");
    let mut probing = kymo()
        .command(["probe", "--engine", "inproc", "--json", "-p", &running.pid()].iter().chain(arguments))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kymo");
    let mut words = BufReader::new(probing.stderr.take().expect("its words")).lines().map_while(Result::ok);
    let said: Vec<String> = words.by_ref().take_while(|line| !line.contains("patched in")).collect();
    if probing.try_wait().expect("kymo").is_none() {
        running.work();
        interrupt(&probing);
    }
    let output = probing.wait_with_output().expect("kymo's end");
    running.end();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said:?}"))
}

fn of<'a>(document: &'a Value, name: &str) -> &'a Value {
    let probes = document["probes"].as_array().expect("a list");
    let probe = probes.iter().find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{document}"));
    assert_eq!(probe["engine"], "inproc");
    probe
}

/// Checks conditions on arguments and on what a function returns, and one in N, by the engine inside the program: as exact as the kernel's.
#[test]
fn only_some_hits() {
    let Some(program) = program("probe_inside::only_some_hits") else { return };
    let hits = |condition: &str, name: &str| {
        let found = probe(&program.path, "100", &["--if", condition, name]);
        (of(&found, name)["hits"].clone(), of(&found, name)["latencies"]["count"].clone())
    };
    assert_eq!(hits("arg1 >= 90", "probed_outer").0, 20);
    assert_eq!(hits("arg1:s32 < 10 && arg1:u8 != 3 || $rdi == 50", "probed_outer").0, 20);
    assert_eq!(hits("ret:s32 > 5", "probed_deep"), (11.into(), 6.into()));
    let some = probe(&program.path, "1000", &["--ret", "--every", "10", "probed_outer"]);
    let timed = of(&some, "probed_outer")["latencies"]["count"].as_u64().expect("a count");
    // On each CPU by itself, and each began at 0.
    let cpus = std::thread::available_parallelism().map_or(64, usize::from) as u64;
    assert!(timed <= 200 && timed + cpus >= 200, "{some}");
    assert_eq!(of(&some, "probed_outer")["hits"], 2000);
}
