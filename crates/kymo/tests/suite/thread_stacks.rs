//! `kymo stacks`: the stacks of all threads of programs that hang, run, have ended or are stopped.
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::programs::{build, sources};
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, ready, skip, text};

const NEEDS: [Need; 3] = [Need::X86, Need::Root, Need::Program("cc")];

fn hung() -> Running {
    let mut running = Running::start(&mut Command::new(build("hung.c", &["-g", "-O1"])));
    assert_eq!(running.line(), "hung\n");
    running
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no {name}: {value:#}"))
}

/// The stack with this function.
fn with_function<'a>(found: &'a Value, function: &str) -> &'a Value {
    let has = |stack: &&Value| list(stack, "frames").iter().any(|frame| frame["function"] == function);
    list(found, "stacks").iter().find(has).unwrap_or_else(|| panic!("no {function}: {found:#}"))
}

fn of(pid: &str) -> Value {
    kymo().succeed(["stacks", "--json", "-p", pid]).json()
}

/// Checks a program with a deadlock, sleepers at one place, a reader of a pipe and a thread that
/// computes: each stack is whole and named, with what is waited for, and the deadlock is told; and
/// that nothing of it has changed in the program.
#[test]
fn a_program_that_hangs() {
    if !ready("thread_stacks::a_program_that_hangs", &NEEDS) {
        return;
    }
    let mut running = hung();
    let pid = running.pid();
    let found = of(&pid);
    for stack in list(&found, "stacks") {
        assert_eq!(stack["extent"], "whole", "{stack:#}");
    }
    let [deadlock] = list(&found, "deadlocks") else { panic!("one deadlock: {found:#}") };
    assert_eq!(list(deadlock, "threads").len(), 2);
    let sentence = deadlock["sentence"].as_str().expect("a sentence");
    for words in ["(left) waits for lock right_lock, which thread", "(right) waits for lock left_lock"] {
        assert!(sentence.contains(words), "{sentence}");
    }
    let waits = with_function(&found, "transfer");
    assert_eq!((&waits["activity"], &waits["waits_for"]), (&"waiting".into(), &"lock".into()), "{waits:#}");
    let place = list(waits, "frames").iter().find(|frame| frame["function"] == "transfer").expect("it");
    assert!(place["file"].as_str().is_some_and(|file| file.ends_with("hung.c")), "{place:#}");
    let rests = with_function(&found, "rests");
    assert_eq!(rests["count"], 3, "{rests:#}");
    let since = |thread: &Value| thread["off_cpu_ns"].as_u64().expect("a time");
    assert!(list(rests, "threads").iter().all(|thread| since(thread) > 200_000_000), "{rests:#}");
    let reads = with_function(&found, "reads");
    let object = reads["threads"][0]["object"].as_str().expect("a pipe");
    assert!(object.starts_with("pipe") && object.contains(&format!("process {pid} (hung)")), "{object}");
    assert_eq!(reads["waits_for"], "pipe", "{reads:#}");
    assert_eq!(with_function(&found, "computes")["activity"], "running");
    assert_eq!(with_function(&found, "main")["waits_for"], "pipe");
    assert_eq!(running.end().1, Some(0), "it goes on");
}

/// Checks that `record --wall` of a program that hangs says of each thread that waits what `stacks`
/// says, though none of the waits begins or ends meanwhile, and where: a read of a pipe was
/// `other`.
#[test]
fn the_wall_report_says_the_same() {
    const TEST: &str = "thread_stacks::the_wall_report_says_the_same";
    if !crate::wall::ready(TEST) || !ready(TEST, &NEEDS) {
        return;
    }
    let mut running = hung();
    let (pid, file) = (running.pid(), fresh_folder("stacks-wall").join("perf.data"));
    let found = of(&pid);
    kymo().succeed(["record", "--wall", "-o", text(&file), "-p", &pid, "--", "sleep", "0.5"]);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    assert_eq!(running.end().1, Some(0), "it goes on");
    let mut compared = 0;
    for stack in list(&found, "stacks").iter().filter(|stack| stack["activity"] == "waiting") {
        let state = stack["waits_for"].as_str().expect("a state");
        for thread in list(stack, "threads") {
            let is_it = |row: &&Value| row["tid"] == thread["tid"];
            let row = list(&report, "threads").iter().find(is_it).expect("the thread");
            let states: Vec<&String> = row["states"].as_object().expect("states").keys().collect();
            assert_eq!(states, [state], "{row:#} {stack:#}");
            compared += 1;
        }
    }
    assert!(compared >= 7, "{compared}");
    let in_pipe =
        |place: &&Value| place["state"] == "pipe" && place["functions"].to_string().contains("reads");
    assert!(list(&report, "places").iter().any(|place| in_pipe(&place)), "{report:#}");
}

/// The command of a user without rights.
fn as_user(command: &Path) -> Command {
    let mut user = Command::new("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]).arg(command);
    user
}

/// Checks that what an ordinary user cannot know of his own process is unknown, and the rest is
/// there.
#[test]
fn of_an_ordinary_user() {
    let needs = [NEEDS[0], NEEDS[1], NEEDS[2], Need::Program("setpriv")];
    if !ready("thread_stacks::of_an_ordinary_user", &needs) {
        return;
    }
    let folder = fresh_folder("stacks-user");
    let program = folder.join("hung");
    kymo_testing::copy_program(&build("hung.c", &["-g", "-O1"]), &program);
    let mut running = Running::start(&mut as_user(&program));
    assert_eq!(running.line(), "hung\n");
    let pid = running.pid();
    let mut stacks = as_user(kymo().path());
    let said = crate::tools::run(stacks.args(["stacks", "--json", "-p", &pid])).ends(0);
    let found = said.json();
    assert_eq!(list(&found, "deadlocks").len(), 1, "{found:#}");
    let rests = with_function(&found, "rests");
    assert!(rests["count"] == 3 && rests["threads"][0]["off_cpu_ns"].is_null(), "{rests:#}");
    assert_eq!(running.end().1, Some(0), "it goes on");
}

/// Checks a process that is stopped, and one that has ended and whose parent does not ask.
#[test]
fn stopped_and_ended() {
    if !ready("thread_stacks::stopped_and_ended", &NEEDS) {
        return;
    }
    let mut running = hung();
    let id = Pid::from_child(&running.child);
    kill_process(id, Signal::STOP).expect("stopped");
    let pid = running.pid();
    let is_stopped = |found: &Value| list(found, "stacks").iter().all(|stack| stack["activity"] == "stopped");
    crate::probe_lifetimes::soon("that all threads stop", || is_stopped(&of(&pid)));
    let found = of(&pid);
    assert_eq!(with_function(&found, "rests")["count"], 3, "{found:#}");
    kill_process(id, Signal::CONT).expect("continued");
    assert_eq!(running.end().1, Some(0), "it goes on");

    let mut child = Command::new("true").stdout(Stdio::null()).spawn().expect("true");
    let pid = child.id().to_string();
    let is_zombie = |found: &Value| found["stacks"][0]["activity"] == "zombie";
    crate::probe_lifetimes::soon("a zombie", || is_zombie(&of(&pid)));
    let said = kymo().succeed(["stacks", "-p", &pid]);
    said.prints("has ended, and its parent has not asked for its result");
    child.wait().expect("true");
}

/// Checks that threads of Python are told by Python's functions and lines, waiting and running.
#[test]
fn python() {
    let needs = [Need::X86, Need::Root, Need::Program("/usr/bin/python3")];
    if !ready("thread_stacks::python", &needs) {
        return;
    }
    let mut running = Running::start(Command::new("/usr/bin/python3").arg(sources().join("hung.py")));
    assert_eq!(running.line(), "hung\n");
    let found = of(&running.pid());
    assert_eq!(line_of(&found, "takes"), (Some(14), Some(3)), "{found:#}");
    assert_eq!(line_of(&found, "waits_for"), (Some(25), Some(1)), "{found:#}");
    assert_eq!(with_function(&found, "Computer.computes")["activity"], "running", "{found:#}");
    assert_eq!(running.end().1, Some(0), "it goes on");
}

/// Line and number of threads of the stack with this function.
fn line_of(found: &Value, function: &str) -> (Option<u64>, Option<u64>) {
    let stack = with_function(found, function);
    let frame = list(stack, "frames").iter().find(|frame| frame["function"] == function).expect("it");
    (frame["line"].as_u64(), stack["count"].as_u64())
}

/// Checks that an ordinary user sees Python's functions of his own process: the kernel does not
/// tell him `pthread_self`.
#[test]
fn python_of_an_ordinary_user() {
    let needs = [Need::X86, Need::Root, Need::Program("/usr/bin/python3"), Need::Program("setpriv")];
    if !ready("thread_stacks::python_of_an_ordinary_user", &needs) {
        return;
    }
    let folder = fresh_folder("stacks-python-user");
    let script = folder.join("hung.py");
    std::fs::copy(sources().join("hung.py"), &script).expect("copied");
    let mut running = Running::start(as_user(Path::new("/usr/bin/python3")).arg(&script));
    assert_eq!(running.line(), "hung\n");
    let mut stacks = as_user(kymo().path());
    let found = crate::tools::run(stacks.args(["stacks", "--json", "-p", &running.pid()])).ends(0).json();
    assert_eq!(line_of(&found, "takes"), (Some(14), Some(3)), "{found:#}");
    assert_eq!(line_of(&found, "waits_for"), (Some(25), Some(1)), "{found:#}");
    assert_eq!(running.end().1, Some(0), "it goes on");
}

/// Checks that a deadlock of Java's monitors is told, with the functions of Java.
#[test]
fn java() {
    let needs = [Need::X86, Need::Root, Need::Program("java"), Need::Program("javac")];
    if !ready("thread_stacks::java", &needs) {
        return;
    }
    let folder = fresh_folder("stacks-java");
    let compiled = Command::new("javac").arg("-d").arg(&folder).arg(sources().join("Hung.java")).status();
    assert!(compiled.expect("javac").success());
    let mut running = Running::start(Command::new("java").arg("-cp").arg(&folder).arg("Hung"));
    assert_eq!(running.line(), "hung\n");
    let found = of(&running.pid());
    let [deadlock] = list(&found, "deadlocks") else { panic!("one deadlock: {found:#}") };
    let sentence = deadlock["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains("(left)") && sentence.contains("(a Hung$Account)"), "{sentence}");
    let waits = with_function(&found, "Hung.transfer");
    assert_eq!(waits["waits_for"], "lock", "{waits:#}");
    assert_eq!(running.end().1, Some(0), "it goes on");
}

fn hung_go_program(test: &str) -> PathBuf {
    let program = fresh_folder(&format!("{}-program", test.replace("::", "-"))).join("hung");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&program).arg(sources().join("hung.go")).env("GO111MODULE", "off");
    assert!(build.status().expect("go").success());
    program
}

/// A program of Go that hangs, which writes its errors into a file.
fn hung_go(test: &str) -> Option<(Running, PathBuf)> {
    if !ready(test, &[Need::X86, Need::Root, Need::Program("go")]) {
        return None;
    }
    let program = hung_go_program(test);
    let errors = program.with_file_name("errors");
    let mut command = Command::new(&program);
    command.env("GOTRACEBACK", "system").stderr(File::create(&errors).expect("a file"));
    let mut running = Running::start(&mut command);
    assert_eq!(running.line(), "hung\n");
    Some((running, errors))
}

/// Checks that goroutines which wait are told with what for, in Go's words, though no thread is
/// theirs.
#[test]
fn goroutines() {
    let Some((mut running, _)) = hung_go("thread_stacks::goroutines") else { return };
    let found = of(&running.pid());
    assert_eq!(running.end().1, Some(0), "it goes on");
    let takes = with_function(&found, "main.takes");
    assert_eq!((&takes["count"], &takes["activity"]), (&3.into(), &"goroutine".into()), "{found:#}");
    assert_eq!(takes["threads"][0]["object"], "chan receive", "{takes:#}");
    assert!(takes["threads"][0]["tid"].is_null(), "{takes:#}");
    let last = list(takes, "frames").last().expect("a frame");
    assert_eq!(last["function"], "runtime.goexit.abi0", "{takes:#}");
    let wants = with_function(&found, "main.wantsLock");
    assert_eq!(wants["threads"][0]["object"], "sync.Mutex.Lock", "{wants:#}");
}

/// Checks functions and lines of all goroutines that wait against what Go tells of them itself: the
/// innermost line was the one behind the call, and of a recursion the inlined calls were missing.
#[test]
fn goroutines_as_go_tells_them() {
    let Some((mut running, errors)) = hung_go("thread_stacks::goroutines_as_go_tells_them") else { return };
    let found = of(&running.pid());
    assert_eq!(running.end_by(Signal::QUIT), Some(2), "it ends with its stacks");
    let told = std::fs::read_to_string(errors).expect("text");
    let mut compared = 0;
    for stack in list(&found, "stacks").iter().filter(|stack| stack["activity"] == "goroutine") {
        let ours: Vec<(String, u64)> = list(stack, "frames").iter().map(frame_of_goroutine).collect();
        for thread in list(stack, "threads") {
            let theirs = dumped(&told, thread["goroutine"].as_u64().expect("a number"));
            assert_eq!(ours, theirs, "{thread:#}");
            compared += 1;
        }
    }
    assert!(compared >= 9, "{compared}: {found:#}");
    let calls = list(with_function(&found, "main.deep"), "frames").iter();
    assert_eq!(calls.filter(|frame| frame["function"] == "main.deep").count(), 41);
}

fn frame_of_goroutine(frame: &Value) -> (String, u64) {
    let function = frame["function"].as_str().expect("a name").trim_end_matches(".abi0");
    (function.to_owned(), frame["line"].as_u64().expect("a line"))
}

/// Functions and lines of a goroutine in Go's own dump: a line `main.deep(0x1, ...)`, and one with
/// a tab, a path, a colon and the line, for each frame.
fn dumped(told: &str, goroutine: u64) -> Vec<(String, u64)> {
    let head = format!("goroutine {goroutine} ");
    let mut lines = told.lines().skip_while(|line| !line.starts_with(&head)).skip(1);
    let mut frames = Vec::new();
    while let Some(call) = lines.next().filter(|line| !line.is_empty() && !line.starts_with("created by")) {
        let place = lines.next().expect("a place").split(' ').next().unwrap_or("");
        let line = place.rsplit(':').next().and_then(|line| line.parse().ok()).expect("a line");
        let arguments = call.rfind('(').expect("arguments");
        frames.push((call[..arguments].to_owned(), line));
    }
    frames
}

/// The core file that the kernel writes of this program, aborted when it has said that it hangs.
fn core_of(test: &str, program: &Path, arguments: &[&Path]) -> Option<PathBuf> {
    let folder = fresh_folder(&test.replace("::", "-"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c unlimited; exec \"$0\" \"$@\""]).arg(program).args(arguments);
    let mut running = Running::start(shell.current_dir(&folder).env("GOTRACEBACK", "crash"));
    assert_eq!(running.line(), "hung\n");
    running.end_by(Signal::ABORT);
    let mut files = std::fs::read_dir(&folder).expect("the folder").flatten();
    let core = files.find(|file| file.file_name().to_string_lossy().starts_with("core"));
    if core.is_none() {
        skip(test, "the kernel writes core files elsewhere (core_pattern)");
    }
    core.map(|file| file.path())
}

fn of_core(core: &Path) -> Value {
    kymo().succeed(["stacks", "--json", "--core", text(core)]).json()
}

/// Checks a core file that the kernel has written: all stacks are whole, the deadlock is told, and
/// what ended the program.
#[test]
fn of_a_core_file() {
    const TEST: &str = "thread_stacks::of_a_core_file";
    if !ready(TEST, &NEEDS) {
        return;
    }
    let program = build("hung.c", &["-g", "-O1"]);
    let Some(core) = core_of(TEST, &program, &[]) else { return };
    let found = of_core(&core);
    for stack in list(&found, "stacks") {
        assert_eq!(stack["extent"], "whole", "{stack:#}");
    }
    let [deadlock] = list(&found, "deadlocks") else { panic!("one deadlock: {found:#}") };
    let sentence = deadlock["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains("waits for lock right_lock"), "{sentence}");
    assert_eq!(with_function(&found, "rests")["count"], 3, "{found:#}");
    assert_eq!(with_function(&found, "computes")["activity"], "dumped", "{found:#}");
    assert_eq!(with_function(&found, "main")["threads"][0]["object"], "signal 6", "{found:#}");
    assert!(with_function(&found, "rests")["threads"][0]["object"].is_null(), "it has ended no other");
    kymo().run(["stacks", "--core", text(&program)]).ends(1).says("it is no core file");
}

/// Checks that threads in a core file of Python are told by Python's functions and lines.
#[test]
fn of_a_core_file_of_python() {
    const TEST: &str = "thread_stacks::of_a_core_file_of_python";
    let python = Path::new("/usr/bin/python3");
    if !ready(TEST, &[Need::X86, Need::Program("/usr/bin/python3")]) {
        return;
    }
    let Some(core) = core_of(TEST, python, &[&sources().join("hung.py")]) else { return };
    let found = of_core(&core);
    assert_eq!(line_of(&found, "takes"), (Some(14), Some(3)), "{found:#}");
    assert_eq!(line_of(&found, "waits_for"), (Some(25), Some(1)), "{found:#}");
    assert_eq!(with_function(&found, "Computer.computes")["activity"], "dumped", "{found:#}");
}

/// Checks that core files of a hostile program are answered: bytes that are damaged everywhere,
/// pointers that lead elsewhere, a file that ends early.
#[test]
fn of_hostile_core_files() {
    const TEST: &str = "thread_stacks::of_hostile_core_files";
    let python = Path::new("/usr/bin/python3");
    if !ready(TEST, &[Need::X86, Need::Program("/usr/bin/python3")]) {
        return;
    }
    let Some(core) = core_of(TEST, python, &[&sources().join("hung.py")]) else { return };
    let whole = std::fs::read(&core).expect("the core file");
    let mut state = 1_u64;
    // Knuth's generator: its upper bits are random enough.
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..12 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => (0..2000).for_each(|_| {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }),
            1 => (0..4000).for_each(|_| {
                // The lowest byte of a word: a pointer leads beside what it meant.
                let at = random(bytes.len() / 8) * 8;
                bytes[at] = bytes[at].wrapping_add(8);
            }),
            _ => bytes.truncate(random(bytes.len())),
        }
        std::fs::write(&core, bytes).expect("written");
        let said = kymo().run(["stacks", "--json", "--core", text(&core)]);
        assert!(matches!(said.code, Some(0 | 1)), "round {round}: {:?}: {}", said.code, said.stderr);
    }
}

/// Checks that goroutines without a thread are found in a core file, with what they wait for: the
/// words for that are in the program's file only.
#[test]
fn of_a_core_file_of_go() {
    const TEST: &str = "thread_stacks::of_a_core_file_of_go";
    if !ready(TEST, &[Need::X86, Need::Program("go")]) {
        return;
    }
    let Some(core) = core_of(TEST, &hung_go_program(TEST), &[]) else { return };
    let found = of_core(&core);
    let takes = with_function(&found, "main.takes");
    assert_eq!((&takes["count"], &takes["activity"]), (&3.into(), &"goroutine".into()), "{found:#}");
    assert_eq!(takes["threads"][0]["object"], "chan receive", "{takes:#}");
    let wants = with_function(&found, "main.wantsLock");
    assert_eq!(wants["threads"][0]["object"], "sync.Mutex.Lock", "{wants:#}");
    // A handler returns to the begin of a function that nobody has called.
    let handled = list(with_function(&found, "runtime.sigtramp.abi0"), "frames");
    let has = |name: &str| handled.iter().any(|frame| frame["function"] == name);
    assert!(has("runtime.sigreturn__sigaction.abi0"), "{handled:#?}");
}

/// Checks that stacks that were kept in a file are the same when it is read again, that other verbs
/// read it, and that a recording without stacks is refused in words.
#[test]
fn kept_in_a_file() {
    if !ready("thread_stacks::kept_in_a_file", &NEEDS) {
        return;
    }
    let mut running = hung();
    let folder = fresh_folder("stacks-kept");
    let file = folder.join("hung.data");
    let found = kymo().succeed(["stacks", "--json", "-p", &running.pid(), "-o", text(&file)]).json();
    assert_eq!(running.end().1, Some(0));
    assert_eq!(kymo().succeed(["stacks", "--json", "-i", text(&file)]).json(), found);
    kymo().succeed(["report", "-i", text(&file)]).prints("transfer");
    let plain = folder.join("plain.data");
    kymo().succeed(["record", "-e", "cpu-clock", "-o", text(&plain), "--", "true"]);
    kymo().run(["stacks", "-i", text(&plain)]).ends(129).says("`kymo stacks -o FILE` keeps them");
    kymo().run(["stacks", "-p", "999999999"]).ends(1).says("no process 999999999");
}

/// Checks that docs/reference/formats/stacks-json.md lists every key of the JSON and no other.
#[test]
fn the_document_lists_every_key() {
    if !ready("thread_stacks::the_document_lists_every_key", &NEEDS) {
        return;
    }
    let document = include_str!("../../../../docs/reference/formats/stacks-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    let mut running = hung();
    let mut of_json = BTreeSet::new();
    keys(&of(&running.pid()), "", &mut of_json);
    assert_eq!(running.end().1, Some(0));
    assert_eq!(of_json, listed);
}
