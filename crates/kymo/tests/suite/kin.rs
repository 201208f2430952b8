//! `-p` of a server's parent, and of a name.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, require, text};

/// A shell that has started two more, which count for some seconds at most.
struct Parent(Child);

impl Parent {
    fn start() -> Parent {
        const COUNTS: &str = "i=0; while [ $i -lt 9000000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{COUNTS}' & sh -c '{COUNTS}' & echo there; wait");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn().expect("sh starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("text");
        assert_eq!(line, "there\n");
        Parent(child)
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        _ = self.0.wait();
    }
}

/// The processes with samples, as `script` prints them.
fn processes(file: &str) -> Vec<String> {
    let printed = kymo().succeed(["script", "-F", "pid", "-i", file]).stdout;
    let mut pids: Vec<String> = printed.split_whitespace().map(str::to_owned).collect();
    pids.sort();
    pids.dedup();
    pids
}

/// Checks that the children of a process are recorded and counted with it, that this is said with their number, and that
/// `--no-children` leaves them out, as perf does.
#[test]
fn children_of_a_process() {
    const TEST: &str = "kin::children_of_a_process";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let parent = Parent::start();
    let file = fresh_folder("kin").join("perf.data");
    let pid = parent.0.id().to_string();
    for scope in ["inherit", "filtered"] {
        let options = ["record", "-e", "cpu-clock:u", "-o", text(&file), "--scope", scope, "-p", &pid];
        let said = kymo().run([&options[..], &["--", "sleep", "0.2"]].concat());
        if scope == "filtered" && said.code != Some(0) {
            continue;
        }
        let said = said.ends(0);
        said.says("the process has started 2 processes, which are recorded, too");
        assert_eq!(processes(text(&file)).len(), 2, "{scope}: {}", said.stderr);
        let alone = kymo().succeed([&options[..], &["--no-children", "--", "sleep", "0.2"]].concat());
        assert!(!alone.stderr.contains("has started"), "{}", alone.stderr);
        assert!(processes(text(&file)).is_empty());
    }
    let clock = |options: &[&str], tool: &crate::tools::Tool| {
        let stat = ["stat", "-x,", "-e", "task-clock", "-p", &pid];
        let said = tool.succeed([&stat[..], options, &["--", "sleep", "0.2"]].concat());
        let line = said.stderr.lines().find(|line| line.contains("task-clock")).expect("a count").to_owned();
        line.split(',').next().and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0)
    };
    assert!(clock(&[], &kymo()) > 10.0);
    assert_eq!(clock(&["--no-children"], &kymo()), 0.0);
    assert_eq!(clock(&[], &perf()), 0.0);
}

/// Checks that a process is found by its name, that of one and its children it is the first, that several are listed, and
/// that words which name none are refused in words.
#[test]
fn names() {
    let folder = fresh_folder("names");
    let program = folder.join("kymo-sleeper");
    std::fs::copy("/bin/sleep", &program).expect("a copy");
    let start = || {
        let mut command = Command::new(&program);
        command.arg("100");
        Running::start(&mut command)
    };
    let record = |name: &str| kymo().run(["record", "--dry-run", "-e", "cpu-clock:u", "-p", name]);
    let none = record("kymo-sleeper").ends(129);
    none.says("there is no process kymo-sleeper: `ps -e` lists processes");
    let one = start();
    // The name is that of the shell's copy until it has executed.
    while std::fs::read_to_string(format!("/proc/{}/comm", one.pid())).expect("it runs").trim()
        != "kymo-sleeper"
    {
        std::thread::yield_now();
    }
    let found = record("kymo-sleeper").ends(0);
    found.prints(&format!("tasks: 1 ({})", one.pid()));
    let other = start();
    while std::fs::read_to_string(format!("/proc/{}/comm", other.pid())).expect("it runs").trim()
        != "kymo-sleeper"
    {
        std::thread::yield_now();
    }
    let several = record("kymo-sleeper").ends(129);
    several
        .says("2 processes are called kymo-sleeper, name one by its number:")
        .says(&format!("\n  {} ", other.pid()));
    record("0").ends(129).says("at least 1");
    for verb in [&["stat"][..], &["probe", "main"], &["watch", "counter"]] {
        kymo().run([verb, &["-p", "kymo-nosuch"]].concat()).ends(129).says("there is no process kymo-nosuch");
    }
}

/// Regression: of processes that were forked while a recording began, after the processes were
/// listed and before forks were recorded, neither names nor mappings were known, or no samples.
#[test]
fn forked_while_a_recording_begins() {
    const TEST: &str = "kin::forked_while_a_recording_begins";
    let Some(()) = require(TEST, &[Need::Root]) else { return };
    let file = fresh_folder("kin-forks").join("perf.data");
    // One after the other; each counts to the end of the test, where nobody else wants the CPU.
    let script = "n=0; while [ $n -lt 120 ]; do n=$((n+1)); sleep 0.01
        nice -n 19 sh -c 'i=0; while [ $i -lt 90000000 ]; do i=$((i+1)); done' &
    done; wait";
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let parent = Parent(command.process_group(0).spawn().expect("sh starts"));
    std::thread::sleep(std::time::Duration::from_millis(200));
    let (parent_tid, pid) = (parent.0.id(), parent.0.id().to_string());
    let options = ["record", "-e", "cpu-clock:u", "-o", text(&file), "-p", &pid, "--", "sleep", "0.7"];
    kymo().run(options).ends(0);
    let wall = fresh_folder("kin-forks-wall").join("wall.data");
    let options =
        ["record", "--wall", "-e", "cpu-clock", "-o", text(&wall), "-p", &pid, "--", "sleep", "0.7"];
    let begun = std::time::Instant::now();
    kymo().run(options).ends(0);
    let took = begun.elapsed();
    drop(parent);
    // From which moment on time counts is tested where it is counted: kymo-perf, `bpf/waits`.
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&wall)]).json();
    let threads = report["threads"].as_array().expect("a list");
    let total = |thread: &serde_json::Value| thread["total_ns"].as_u64().expect("a number");
    assert!(threads.iter().any(|thread| thread["tid"] == parent_tid), "{report:#}");
    assert!(threads.iter().map(total).max() <= Some(took.as_nanos() as u64), "{took:?}: {report:#}");
    let printed = kymo().succeed(["script", "-F", "comm,pid", "-i", text(&file)]).stdout;
    let samples: Vec<&str> = printed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let nameless: Vec<&&str> = samples.iter().filter(|line| line.starts_with(':')).collect();
    assert!(samples.len() > 10, "few samples: {printed}");
    // Of a `sleep` that ended before it could be listed nobody knows the name.
    let few = nameless.len() * 20 <= samples.len();
    assert!(few, "of {} samples without a name: {nameless:?}", samples.len());
}
