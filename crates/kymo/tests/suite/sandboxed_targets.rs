//! Programs that restrict themselves, or are restricted, while they are observed: filters of system
//! calls, credentials that are given up, limits, no /sys. What is observed goes on as ever.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::probe::KERNEL;
use crate::probe_lifetimes::{Probing, soon};
use crate::programs::{build, sources};
use crate::tools::{Need, Running, kymo, ready, run, skip, text};

/// `fixtures/programs/sandboxed.c`, which waits for the word.
struct Sandboxed(Running);

/// What a filter does, how it is put on, and whether on all threads.
type Kind = (&'static str, &'static str, bool);

const KINDS: [Kind; 19] = [
    ("process", "seccomp", false),
    ("thread", "seccomp", false),
    ("trap", "seccomp", false),
    ("errno", "seccomp", false),
    ("trace", "seccomp", false),
    ("log", "seccomp", false),
    ("process", "seccomp", true),
    ("thread", "seccomp", true),
    ("trap", "seccomp", true),
    ("errno", "seccomp", true),
    ("trace", "seccomp", true),
    ("log", "seccomp", true),
    ("process", "prctl", false),
    ("process", "raw", false),
    ("trap", "raw", true),
    ("process", "raw", true),
    ("process", "twice", true),
    ("process", LATER, false),
    ("process", LATER, true),
];

/// By a library that is loaded when the filter is put on.
const LATER: &str = "later";

fn arguments((action, way, all): Kind) -> Vec<String> {
    let way = match way {
        LATER => text(&build("sandboxed.c", &["-DLATER", "-shared", "-fPIC"])).to_owned(),
        way => way.to_owned(),
    };
    [action.to_owned(), way].into_iter().chain(all.then(|| "all".to_owned())).collect()
}

impl Sandboxed {
    fn start(kind: Kind) -> Sandboxed {
        let mut running = Running::start(Command::new(build("sandboxed.c", &[])).args(arguments(kind)));
        assert_eq!(running.line(), "here\n");
        Sandboxed(running)
    }

    fn restrict(&mut self) {
        self.0.tell("now\n");
        assert_eq!(self.0.line(), "restricted\n");
    }

    fn ends_well(mut self, what: &str) {
        // A thread that was let go runs on: it has made some calls by then.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(self.0.child.try_wait().expect("a child"), None, "{what}");
        assert_eq!(self.0.end(), (String::new(), Some(0)), "{what}");
    }
}

/// Runs what is to be seen of each kind, some at a time.
fn each(kinds: &[Kind], body: impl Fn(Kind) + Sync) {
    let body = &body;
    for some in kinds.chunks(4) {
        std::thread::scope(|scope| {
            for &kind in some {
                scope.spawn(move || body(kind));
            }
        });
    }
}

fn hits(found: &Value) -> u64 {
    found["probes"][0]["hits"].as_u64().expect("hits")
}

/// Checks that a program which restricts its own system calls while its functions are counted
/// lives on when kymo leaves it, whatever the filter does, and that it is said where counting ended
/// before.
#[test]
fn seccomp_after_entry() {
    if !ready("sandboxed_targets::seccomp_after_entry", &[Need::X86, Need::Root, Need::Program("cc")]) {
        return;
    }
    each(&KINDS, |kind @ (.., all)| {
        let mut program = Sandboxed::start(kind);
        let pid = program.0.pid();
        let probe = ["probe", "--json", "--engine", "inproc", "-p", &pid, "boxed"];
        let probing = Probing::by(&mut kymo().command(probe));
        program.restrict();
        let (found, said) = probing.end();
        assert!(hits(&found) > 0, "{kind:?}: {found}");
        program.ends_well(&format!("{kind:?}: {said}"));
        let is_said = said.contains("restricted its own system calls (seccomp)");
        // A library that comes late may be faster than who looks at it: then counting goes on.
        assert!(is_said == all || all && kind.1 == LATER, "{kind:?}: {said}");
    });
}

/// Checks the same where calls are timed, in a program that runs and in one that kymo has started,
/// and where locks are.
#[test]
fn seccomp_while_calls_are_timed() {
    if !ready(
        "sandboxed_targets::seccomp_while_calls_are_timed",
        &[Need::X86, Need::Root, Need::Program("cc")],
    ) {
        return;
    }
    let kinds: Vec<Kind> =
        KINDS.into_iter().filter(|(action, way, _)| *action == "process" && *way != "raw").collect();
    each(&kinds, |kind| {
        let mut program = Sandboxed::start(kind);
        let pid = program.0.pid();
        let probing = Probing::by(&mut kymo().command(["probe", "--json", "--ret", "-p", &pid, "boxed"]));
        program.restrict();
        let (_, said) = probing.end();
        program.ends_well(&format!("--ret -p, {kind:?}: {said}"));

        let built = build("sandboxed.c", &[]);
        let mut kymo_runs = kymo().command(["probe", "--ret", "boxed", "--", text(&built)]);
        kymo_runs.args(arguments(kind));
        let mut running = Running::start(kymo_runs.stderr(Stdio::null()));
        assert_eq!(running.line(), "here\n");
        running.tell("now\n");
        assert_eq!(running.line(), "restricted\n");
        let (_, code) = running.end();
        assert_eq!(code, Some(0), "--ret of a command, {kind:?}");
    });
}

/// Checks that the agent's thread does not wake up when a kymo is killed after a filter was put on
/// all threads, in whatever way: its next call would end the program.
#[test]
fn killed_after_a_filter() {
    if !ready("sandboxed_targets::killed_after_a_filter", &[Need::X86, Need::Root, Need::Program("cc")]) {
        return;
    }
    each(&KINDS, |kind| {
        for options in [&[][..], &["--ret"]] {
            let mut program = Sandboxed::start(kind);
            let pid = program.0.pid();
            let probe =
                [&["probe", "--json", "--engine", "inproc", "-p", &pid, "boxed"][..], options].concat();
            let probing = Probing::by(&mut kymo().command(probe));
            program.restrict();
            probing.kill();
            program.ends_well(&format!("killed, {kind:?}, {options:?}"));
        }
    });
}

/// Checks that a program of which one thread alone has a filter is not entered.
#[test]
fn a_filter_of_one_thread() {
    if !ready("sandboxed_targets::a_filter_of_one_thread", &[Need::X86, Need::Root, Need::Program("cc")]) {
        return;
    }
    let mut program = Sandboxed::start(("errno", "seccomp", false));
    program.restrict();
    let pid = program.0.pid();
    let said = kymo().run(["probe", "--engine", "inproc", "-d", "0.1", "-p", &pid, "boxed"]).ends(1);
    said.says("restricted its own system calls (seccomp mode 2)");
    program.ends_well("not entered");
}

/// `fixtures/programs/dropped.c`.
fn dropped(options: &[&str]) -> Running {
    // Where its user finds it.
    let folder = std::env::temp_dir().join(format!("kymo-dropped-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let program = folder.join("dropped");
    if !program.exists() {
        kymo_testing::copy_program(&build("dropped.c", &[]), &program);
    }
    let mut running = Running::start(Command::new(&program).args(options));
    assert_eq!(running.line(), "here\n");
    running
}

fn serves(program: &mut Running) {
    program.tell("1000\n");
    assert_eq!(program.line(), "done\n");
}

/// Checks that a daemon which has given up root, so that its files in /proc are root's, is entered
/// each of 50 times, counted exactly, and left with its own code; also after a kymo that was
/// killed.
#[test]
fn not_dumpable_processes_are_entered() {
    const TEST: &str = "sandboxed_targets::not_dumpable_processes_are_entered";
    if !ready(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) {
        return;
    }
    let mut program = dropped(&["threads"]);
    let pid = program.pid();
    for round in 0..50 {
        let options = [&[][..], &["--ret"], &["-g"]][round % 3];
        let functions = ["-p", &pid, "served", "idles", "libc:str*"];
        let probe = [&["probe", "--json", "--engine", "inproc"][..], &functions[..], options].concat();
        let probing = Probing::by(&mut kymo().command(probe));
        serves(&mut program);
        if round % 10 == 9 {
            probing.kill();
        } else {
            let (found, said) = probing.end();
            assert_eq!(hits(&found), 1000, "round {round}: {said}");
            assert_eq!(found["probes"][0]["engine"], "inproc");
        }
        serves(&mut program);
    }
    assert_eq!(program.end().1, Some(0));
}

/// Checks that two processes are entered at once: their calls are added up, and what one of them
/// alone could have is left to the kernel in both.
#[test]
fn two_processes_are_entered() {
    const TEST: &str = "sandboxed_targets::two_processes_are_entered";
    if !ready(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) || !ready(TEST, KERNEL) {
        return;
    }
    let mut programs = [dropped(&["threads"]), dropped(&["threadless"]), dropped(&[])];
    let pids = |some: &[usize]| some.iter().map(|at| programs[*at].pid()).collect::<Vec<_>>().join(",");
    let (entered, refused) = (pids(&[0, 2]), pids(&[0, 1]));
    for (pids, engine, asked) in [(entered, "inproc", [0, 2]), (refused, "kernel", [0, 1])] {
        let probing = Probing::by(&mut kymo().command(["probe", "--json", "--ret", "-p", &pids, "served"]));
        asked.iter().for_each(|at| serves(&mut programs[*at]));
        let (found, said) = probing.end();
        let probe = &found["probes"][0];
        assert_eq!((hits(&found), &probe["engine"]), (2000, &Value::from(engine)), "{said}");
        assert_eq!(probe["latencies"]["count"], 2000, "{said}");
    }
    assert!(programs.iter_mut().all(|program| program.end().1 == Some(0)));
}

/// Checks that the limit is named which keeps a program from having the agent's thread, and that
/// the kernel counts instead.
#[test]
fn rlimit_nproc_is_named() {
    const TEST: &str = "sandboxed_targets::rlimit_nproc_is_named";
    if !ready(TEST, &[Need::X86, Need::Root, Need::Program("cc")]) || !ready(TEST, KERNEL) {
        return;
    }
    let mut program = dropped(&["threadless"]);
    let pid = program.pid();
    let said = kymo().run(["probe", "--engine", "inproc", "-d", "0.1", "-p", &pid, "served"]).ends(1);
    said.says("RLIMIT_NPROC is 0").says(&format!("prlimit --pid {pid} --nproc="));
    let said = kymo().succeed(["probe", "-d", "0.1", "-p", &pid, "served"]);
    said.says("by the kernel: the agent needs a thread in it").says("RLIMIT_NPROC is 0");
    serves(&mut program);
    assert_eq!(program.end().1, Some(0));
}

/// Checks that a command is counted in-process where there is no /sys, and all of it.
#[test]
fn probe_without_sys() {
    const TEST: &str = "sandboxed_targets::probe_without_sys";
    let needs =
        [Need::X86, Need::Root, Need::Program("cc"), Need::Program("unshare"), Need::Program("umount")];
    if !ready(TEST, &needs) {
        return;
    }
    let script = "umount -l /sys && exec \"$@\"";
    let program = build("dropped.c", &[]);
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh", text(kymo().path())]);
    command.args(["probe", "--json", "--engine", "inproc", "served", "--", text(&program)]);
    let mut running = Running::start(command.stderr(Stdio::null()));
    assert_eq!(running.line(), "here\n");
    serves(&mut running);
    let (rest, code) = running.end();
    assert_eq!(code, Some(0), "{rest}");
    let found: Value = serde_json::from_str(rest.trim()).unwrap_or_else(|error| panic!("{error}: {rest}"));
    assert_eq!((hits(&found), &found["probes"][0]["engine"]), (1000, &Value::from("inproc")), "{found}");
}

/// A pipe without room for another byte, of which nobody reads yet.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reading, mut writing) = std::io::pipe().expect("a pipe");
    let set = |flags| rustix::fs::fcntl_setfl(&writing, flags).expect("a flag");
    set(OFlags::NONBLOCK);
    while (&writing).write(&[b'.'; 512]).is_ok() {}
    set(OFlags::empty());
    writing.flush().expect("a pipe");
    (reading, writing)
}

/// Checks that a signal which comes while the kernel attaches probes ends that: the command is not
/// started, and nothing stays attached.
#[test]
fn attaching_obeys_term() {
    const TEST: &str = "sandboxed_targets::attaching_obeys_term";
    const WRITES_TO_STDERR: &str = "1 0x2 ";
    if !ready(TEST, KERNEL) || !ready(TEST, &[Need::X86]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let made = folder.path().join("made");
    // What it says before it attaches so many does not fit, so it waits there.
    let (mut reading, writing) = full_pipe();
    let mut command = kymo().command(["probe", "--engine", "kernel", "libc:*", "--", "touch", text(&made)]);
    let mut child = command.stderr(writing).stdout(Stdio::null()).spawn().expect("kymo starts");
    drop(command);
    let file =
        |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", child.id())).unwrap_or_default();
    soon("kymo is about to attach", || file("syscall").starts_with(WRITES_TO_STDERR));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
    soon("kymo has taken the signal", || file("status").contains("\nShdPnd:\t0000000000000000\n"));
    let mut said = String::new();
    reading.read_to_string(&mut said).expect("text");
    assert!(said.contains("a signal came before all were attached, and none is attached any more"), "{said}");
    assert_ne!(child.wait().expect("its end").code(), Some(0), "{said}");
    assert!(!made.exists(), "the command ran: {said}");
}

/// Checks that calls of 32-bit programs are timed, among them one that returns a structure and
/// takes the place of its address off the stack.
#[test]
fn ret_of_32_bit_programs() {
    const TEST: &str = "sandboxed_targets::ret_of_32_bit_programs";
    if !ready(TEST, KERNEL) || !ready(TEST, &[Need::X86, Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("narrow.c"), folder.path().join("narrow"));
    let code = "struct pair { int a, b, c; };\n\
                __attribute__((noinline)) int narrow_plain(int n) { __asm__ volatile(\"\" : \"+r\"(n)); return n * 3; }\n\
                __attribute__((noinline)) struct pair narrow_pair(int n) { struct pair p = {n, n, n}; __asm__ volatile(\"\"); return p; }\n\
                int main(void) { int sum = 0; for (int i = 0; i < 50; i++) sum += narrow_plain(i) + narrow_pair(i).b; return sum == 0; }\n";
    std::fs::write(&source, code).expect("a source");
    let compiled = run(Command::new("cc").args(["-m32", "-O1", "-o"]).args([&program, &source]));
    if compiled.code != Some(0) {
        return skip(TEST, compiled.stderr.lines().last().unwrap_or("cc -m32 does not work"));
    }
    let found = kymo().succeed(["probe", "--json", "--ret", "narrow_*", "--", text(&program)]).json();
    let probes = found["probes"].as_array().expect("a list");
    assert_eq!(probes.len(), 2, "{found}");
    for probe in probes {
        assert_eq!(
            (&probe["hits"], &probe["latencies"]["count"]),
            (&Value::from(50), &Value::from(50)),
            "{found}"
        );
    }
}

/// Checks that the functions of a program are found which a command has the dynamic linker load.
#[test]
fn programs_that_the_linker_loads() {
    const TEST: &str = "sandboxed_targets::programs_that_the_linker_loads";
    const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";
    if !ready(TEST, KERNEL) || !ready(TEST, &[Need::X86, Need::Program("cc")]) {
        return;
    }
    if !std::path::Path::new(LINKER).exists() {
        return skip(TEST, format!("there is no {LINKER}"));
    }
    let program = build("dropped.c", &[]);
    let mut command = kymo().command(["probe", "--json", "served", "--", LINKER, text(&program)]);
    let mut running = Running::start(command.stderr(Stdio::null()));
    assert_eq!(running.line(), "here\n");
    serves(&mut running);
    let (rest, code) = running.end();
    assert_eq!(code, Some(0), "{rest}");
    let found: Value = serde_json::from_str(rest.trim()).unwrap_or_else(|error| panic!("{error}: {rest}"));
    assert_eq!(hits(&found), 1000, "{found}");
}

/// Checks that functions of a stripped Go program, which its own table names, are places for
/// probes.
#[test]
fn stripped_go_places() {
    const TEST: &str = "sandboxed_targets::stripped_go_places";
    if !ready(TEST, &[Need::X86, Need::Root, Need::Program("go")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("busy");
    let mut go = Command::new("go");
    go.env("GOCACHE", std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
    go.env("CGO_ENABLED", "0").args(["build", "-ldflags=-s -w", "-o", text(&program)]);
    let built = run(go.arg(sources().join("busy.go")));
    if built.code != Some(0) {
        return skip(TEST, format!("go build: {}", built.stderr));
    }
    let listed = kymo().succeed(["list", "--probes", text(&program)]);
    listed.prints("main.main");
    for engine in ["auto", "kernel"] {
        let probe = ["probe", "--json", "--engine", engine, "main.main", "--", text(&program), "2", "2", "1"];
        assert_eq!(hits(&kymo().succeed(probe).json()), 1, "{engine}");
    }
}
