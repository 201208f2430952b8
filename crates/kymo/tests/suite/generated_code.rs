//! Names of generated code in recordings: from programs that write them, and from Java virtual
//! machines, which are asked. Whoever must not be asked is not, and notices nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::programs::sources;
use crate::tools::{Need, Running, kymo, ready, run, signal, skip, text};

/// The folder with a compiled `Collects.java`; nothing, loudly, where that cannot be.
fn classes(test: &str) -> Option<tempfile::TempDir> {
    compiled(test, "Collects.java")
}

/// The same of another program.
fn compiled(test: &str, source: &str) -> Option<tempfile::TempDir> {
    if !ready(test, &[Need::Root, Need::Program("java"), Need::Program("javac")]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let compiled = run(Command::new("javac").arg("-d").arg(folder.path()).arg(sources().join(source)));
    if compiled.code != Some(0) {
        skip(test, format!("javac: {}", compiled.stderr));
        return None;
    }
    Some(folder)
}

fn machine(classes: &Path, options: &[&str]) -> Running {
    let mut java = Command::new("java");
    java.args(["-Xmx64m", "-XX:+UseSerialGC"]).args(options).arg("-cp").arg(classes).arg("Collects");
    let mut machine = Running::start(&mut java);
    assert_eq!(machine.line(), "ready\n");
    // One of this number that was killed may have left them.
    left(&machine.pid()).iter().for_each(|file| _ = std::fs::remove_file(file));
    machine
}

/// What is in /tmp of a machine: its map, and what attaching leaves.
fn left(pid: &str) -> Vec<PathBuf> {
    let names = [format!("perf-{pid}.map"), format!(".attach_pid{pid}")];
    names.iter().map(|name| Path::new("/tmp").join(name)).filter(|path| path.exists()).collect()
}

/// Samples of generated code with names and without, of a recording.
fn shares(recording: &Path) -> (usize, usize, BTreeMap<String, usize>) {
    let said = kymo().succeed(["script", "-i", text(recording), "--hide-call-graph", "-F", "ip,sym,dso"]);
    let (mut named, mut unnamed, mut names) = (0, 0, BTreeMap::new());
    for line in said.stdout.lines().filter(|line| line.contains("(/tmp/perf-")) {
        let name = line.trim().split_once(' ').map_or("", |(_, rest)| rest);
        let name = name.rsplit_once(" (").map_or(name, |(name, _)| name);
        if name == "[unknown]" {
            unnamed += 1;
        } else {
            named += 1;
            *names.entry(name.to_owned()).or_default() += 1;
        }
    }
    (named, unnamed, names)
}

/// Checks that the compiled code of a running machine has names, which stay when the machine and
/// its files are gone, and that the machine is as before: it prints what it would, and nothing of
/// the question is left.
#[test]
fn a_java_machine_is_asked() {
    let Some(classes) = classes("generated_code::a_java_machine_is_asked") else { return };
    let mut java = machine(classes.path(), &[]);
    let (pid, file) = (java.pid(), classes.path().join("java.data"));
    kymo().succeed(["record", "-o", text(&file), "-p", &pid, "--", "sleep", "1"]);
    assert_eq!(left(&pid), [] as [PathBuf; 0]);
    assert_eq!(java.end(), ("right\n".to_owned(), Some(3)));
    let (named, unnamed, names) = shares(&file);
    // A busy machine gives Java a tenth of the second.
    assert!(named > 5 && unnamed * 50 <= named, "{named} named, {unnamed} not: {names:?}");
    assert!(names.keys().any(|name| name.contains("Collects.work")), "{names:?}");
}

/// Checks that a machine which does not permit to be attached to, stands still, or is not to be
/// asked is not, and that the reason is said; and that one which does not catch the signal, but has
/// its socket from the start, is asked there.
#[test]
fn machines_that_are_not_asked() {
    let Some(classes) = classes("generated_code::machines_that_are_not_asked") else { return };
    let check = |name: &str, options: &[&str], more: &[&str], reason: &str| {
        let mut java = machine(classes.path(), options);
        let (pid, file) = (java.pid(), classes.path().join(name));
        if name == "stopped" {
            signal(&java.child, Signal::STOP);
        }
        let mut words = vec!["record", "-o", text(&file), "-p", &pid];
        words.extend(more);
        words.extend(["--", "sleep", "0.6"]);
        let said = kymo().succeed(words);
        // A busy machine answers after the end of the recording, which says so then.
        for file in left(&pid) {
            said.says(text(&file)).says("did not answer in time");
        }
        if reason.is_empty() {
            assert!(!said.stderr.contains("has no names"), "{name}: {}", said.stderr);
        } else {
            said.says(&format!("the Java code of process {pid} has no names: {reason}"));
            assert!(!Path::new(&format!("/tmp/.java_pid{pid}")).exists(), "{name}");
        }
        if name == "stopped" {
            signal(&java.child, Signal::CONT);
        }
        assert_eq!(java.end(), ("right\n".to_owned(), Some(3)), "{name}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check("uncaught", &["-Xrs"], &[], ""));
        let options = ["-XX:+DisableAttachMechanism"];
        scope.spawn(move || check("disabled", &options, &[], "it runs with -XX:+DisableAttachMechanism"));
        scope.spawn(|| check("stopped", &[], &[], "it is stopped"));
        scope.spawn(|| check("refused", &[], &["--no-jvm"], "--no-jvm was given"));
    });
}

/// Checks that a program which only looks like a virtual machine, and would die of the question, is
/// not asked.
#[test]
fn an_impostor_is_not_asked() {
    const TEST: &str = "generated_code::an_impostor_is_not_asked";
    const SCRIPT: &str = "import mmap, sys\n\
        file = open(sys.argv[1], 'rb')\n\
        code = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\n\
        print('ready', flush=True)\n\
        sys.stdin.read()\n\
        print('right')\n";
    if !ready(TEST, &[Need::Root, Need::Program("python3")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (library, file) = (folder.path().join("libjvm.so"), folder.path().join("file"));
    std::fs::write(&library, [0; 4096]).expect("a file");
    let mut python = Running::start(Command::new("python3").args(["-c", SCRIPT, text(&library)]));
    assert_eq!(python.line(), "ready\n");
    let pid = python.pid();
    let said = kymo().succeed(["record", "-o", text(&file), "-p", &pid, "--", "sleep", "0.6"]);
    said.says("it does not catch SIGQUIT");
    assert_eq!(left(&pid), [] as [PathBuf; 0]);
    assert_eq!(python.end(), ("right\n".to_owned(), Some(0)));
}

/// A program that spins so often as its argument says, at one address under two names, and removes
/// its map.
const MAPS: &str = "
import ctypes, mmap, os, time
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex('4883ef0175fac3'))
start = ctypes.addressof(ctypes.c_char.from_buffer(code))
spin = ctypes.CFUNCTYPE(None, ctypes.c_long)(start)
map = open(f'/tmp/perf-{os.getpid()}.map', 'w')
for name in ['first_name', 'second_name']:
    map.write(f'{start:x} 7 {name}\\n'); map.flush()
    end = time.time() + 1.2
    while time.time() < end: spin(3000000)
map.close(); os.unlink(map.name)
";

/// Checks that a perf map is read to its end while it grows, by the process's own number and
/// folder, and that its names stay when it is removed; and that code which is replaced has its name
/// at each time. The second time in a container: other numbers, another /tmp.
#[test]
fn a_perf_map_stays_with_the_recording() {
    const TEST: &str = "generated_code::a_perf_map_stays_with_the_recording";
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("python3")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let inside = ["sh", "-c", "mount -t tmpfs none /tmp && cd / && exec \"$@\"", "sh"];
    let container = [&["unshare", "--pid", "--fork", "--mount"][..], &inside].concat();
    let may_contain =
        run(Command::new("unshare").args(["--pid", "--fork", "--mount"]).args(inside).arg("true"));
    if may_contain.code != Some(0) {
        skip(&format!("{TEST} (in a container)"), may_contain.stderr);
    }
    let all: &[&[&str]] = if may_contain.code == Some(0) { &[&[], &container] } else { &[&[]] };
    std::thread::scope(|scope| {
        for (number, start) in all.iter().enumerate() {
            let file = folder.path().join(format!("{number}.data"));
            scope.spawn(move || {
                let mut words = vec!["record", "-F", "999", "-o", text(&file), "--"];
                words.extend(*start);
                words.extend(["python3", "-c", MAPS]);
                kymo().succeed(words);
                let (named, unnamed, names) = shares(&file);
                let count = |name: &str| names.get(name).copied().unwrap_or(0);
                let is_named = named > 100 && unnamed * 50 <= named;
                assert!(is_named, "{start:?}: {named} named, {unnamed} not: {names:?}");
                // Half of the time between two visits has the other name.
                let are_near = count("first_name") * 4 > named && count("second_name") * 4 > named;
                assert!(are_near, "{start:?}: {names:?}");
                let table = kymo().succeed(["report", "-i", text(&file), "--stdio", "-g", "none"]);
                table.prints("first_name").prints("second_name");
            });
        }
    });
}

/// Checks node: with the option that writes a perf map, at least 98 of 100 samples in generated
/// code have names, and without it a sentence says how many have none and what the option is.
#[test]
fn node_names_its_code() {
    const TEST: &str = "generated_code::node_names_its_code";
    const SCRIPT: &str =
        "function collatz(n) { let s = 0; while (n !== 1) { n = n % 2 ? 3 * n + 1 : n / 2; s++; } return s; }
        let sum = 0;
        for (let i = 1; i < 1500000; i++) sum += collatz(i);
        console.log(sum);";
    if !ready(TEST, &[Need::Root, Need::Program("node")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let record = |options: &[&str]| {
        let mut words = vec!["record", "-F", "999", "-o", text(&file), "--", "node"];
        words.extend(options);
        // Else the function may become a part of the loop around it, which bears the script's name.
        words.extend(["--no-turbo-inlining", "-e", SCRIPT]);
        // node writes a log where it runs.
        let said = run(kymo().command(words).current_dir(folder.path())).ends(0);
        (said, shares(&file))
    };
    let (said, (named, unnamed, _)) = record(&[]);
    assert!(named == 0 && unnamed > 50, "{named} named, {unnamed} not");
    // The first samples of a new piece of memory may be counted before it is known.
    let is_near = |count: usize| said.stderr.contains(&format!(": {count} samples ("));
    assert!((unnamed - unnamed / 50..=unnamed).any(is_near), "{unnamed} of {}", said.stderr);
    said.says("start it as `node --perf-basic-prof` (or `--perf-prof`)");
    let (said, (named, unnamed, names)) = record(&["--perf-basic-prof"]);
    assert!(named > 50 && unnamed * 50 <= named, "{named} named, {unnamed} not: {names:?}");
    assert!(names.keys().any(|name| name.contains("collatz")), "{names:?}");
    assert!(!said.stderr.contains("without names"), "{}", said.stderr);
    let map = names_of_maps(&file);
    map.iter().for_each(|map| std::fs::remove_file(map).expect("node leaves it"));
}

/// The perf maps of the processes of a recording, as far as they are still there.
fn names_of_maps(recording: &Path) -> Vec<PathBuf> {
    let said = kymo().succeed(["script", "-i", text(recording), "--hide-call-graph", "-F", "pid,ip,dso"]);
    let mut maps: Vec<PathBuf> = (said.stdout.lines())
        .filter_map(|line| line.split_once('(')?.1.strip_suffix(')'))
        .filter(|dso| dso.starts_with("/tmp/perf-"))
        .map(PathBuf::from)
        .collect();
    maps.sort();
    maps.dedup();
    maps.retain(|map| map.exists());
    maps
}

/// A program that replaces its code, and moves it, and writes a jitdump about it. Prints when the
/// code was replaced, ns of `CLOCK_MONOTONIC`.
pub(crate) const DUMPS: &str = "
import ctypes, mmap, os, struct, time
code = bytes.fromhex('4883ef0175fac3')
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory[0:7] = code
memory[64:71] = code
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
now = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)
pid = os.getpid()
dump = open(f'jit-{pid}.dump', 'w+b')
dump.write(struct.pack('<IIIIIIQQ', 0x4A695444, 1, 40, 62, 0, pid, now(), 0))
dump.flush()
marker = mmap.mmap(dump.fileno(), 40, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
def record(kind, rest):
    time = now()
    dump.write(struct.pack('<IIQ', kind, 16 + len(rest), time) + rest)
    dump.flush()
    return time
def load(index, name):
    rest = struct.pack('<IIQQQQ', pid, pid, address, address, len(code), index) + name + bytes(1) + code
    return record(0, rest)
def spin(at):
    loop, end = ctypes.CFUNCTYPE(None, ctypes.c_long)(at), time.thread_time() + 0.1
    while time.thread_time() < end: loop(2000000)
load(1, b'early_name')
spin(address)
print(load(2, b'late_name'))
spin(address)
record(1, struct.pack('<IIQQQQQ', pid, pid, address + 64, address, address + 64, len(code), 2))
print(load(3, b'other_name'))
spin(address + 64)
spin(address)
";

/// Checks that `script` and `report` read a jitdump by themselves, with each name at its time and
/// place: by the clock of the dump, by kymo's own, and in a recording of perf's.
#[test]
fn a_jitdump_is_read_with_its_times() {
    const TEST: &str = "generated_code::a_jitdump_is_read_with_its_times";
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("python3")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let perfs = ready(&format!("{TEST} (perf's)"), &[Need::Perf]);
    let tools = [(kymo(), &["-k", "mono"][..]), (kymo(), &[]), (crate::tools::perf(), &["-k", "mono"])];
    for (tool, clock) in tools.iter().take(if perfs { 3 } else { 2 }) {
        let file = folder.path().join("perf.data");
        let mut record = tool.command(["record", "-F", "499", "-e", "cpu-clock:u", "-o", text(&file)]);
        record.args(*clock).args(["--", "python3", "-c", DUMPS]).current_dir(folder.path());
        let said = run(&mut record).ends(0);
        let replaced: Vec<f64> =
            said.stdout.lines().map(|line| line.parse::<f64>().expect("ns") / 1e9).collect();
        let fields = ["script", "-i", text(&file), "--hide-call-graph", "-F", "time,ip,sym"];
        let samples = kymo().succeed(fields).stdout;
        let mut counts = BTreeMap::new();
        let is_own =
            |line: &&str| ["early_name", "late_name", "other_name"].iter().any(|name| line.ends_with(name));
        for line in samples.lines().filter(is_own) {
            let (time, rest) = line.trim().split_once(": ").expect("a time");
            let name = rest.rsplit(' ').next().expect("a name");
            *counts.entry(name).or_insert(0) += 1;
            // Times are printed in microseconds, and the code runs for a moment before the compiler
            // says so.
            let (time, slack) = (time.parse::<f64>().expect("seconds"), 0.001);
            let (from, to) = match name {
                "early_name" => (0.0, replaced[0]),
                "late_name" => (replaced[0], f64::MAX),
                _ => (replaced[1], f64::MAX),
            };
            let is_right = time > from - slack && time < to + slack;
            assert!(is_right || clock.is_empty(), "{name} at {time}: {replaced:?}");
        }
        // Each loop has as much time on a CPU, and one name has two of them.
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        let (early, late, other) = (count("early_name"), count("late_name"), count("other_name"));
        let all = early + late + other;
        assert!(all > 50, "{} {clock:?}: {counts:?}\n{samples}", tool.name);
        let is_near = |count: i32, quarters: i32| (4 * count - quarters * all).abs() < all / 2;
        assert!(
            is_near(early, 1) && is_near(late, 2) && is_near(other, 1),
            "{} {clock:?}: {counts:?}",
            tool.name
        );
        let table = kymo().succeed(["report", "-i", text(&file), "--stdio", "-g", "none"]);
        table.prints("early_name").prints("late_name").prints("other_name");
    }
}

/// The user frames of each sample, innermost first: name and module.
fn frames(recording: &Path) -> Vec<Vec<(String, String)>> {
    let said = kymo().succeed(["script", "-i", text(recording), "-F", "ip,sym,dso"]);
    let frame = |line: &str| {
        let (name, module) = line.trim().split_once(' ')?.1.rsplit_once(" (")?;
        Some((name.to_owned(), module.trim_end_matches(')').to_owned()))
    };
    let samples = said.stdout.split("\n\n").map(|sample| sample.lines().filter_map(frame).collect());
    samples.filter(|frames: &Vec<_>| !frames.is_empty()).collect()
}

/// Checks the callers of Java's methods, compiled and interpreted: where a chain comes from Java to the
/// machine's library, it is where Java was called from, and no address that an earlier call left;
/// most chains reach the thread's start; and between the work and `main` there are as many frames as
/// calls.
#[test]
fn callers_of_java_methods() {
    const TEST: &str = "generated_code::callers_of_java_methods";
    let Some(classes) = compiled(TEST, "Descends.java") else { return };
    let options: [&[&str]; 3] = [&[], &["-XX:+PreserveFramePointer"], &["-Xint"]];
    for options in options {
        let file = classes.path().join("java.data");
        let mut words = vec!["record", "-F", "499", "-e", "cpu-clock:u", "-o", text(&file), "--", "java"];
        words.extend([
            "-XX:+UseSerialGC",
            "-XX:CompileCommand=quiet",
            "-XX:CompileCommand=dontinline,Descends*::*",
        ]);
        words.extend(options);
        words.extend(["-cp", text(classes.path()), "Descends", "2000"]);
        kymo().succeed(words).prints("done");
        let is_java = |frame: &&(String, String)| frame.1.starts_with("/tmp/perf-");
        let (mut all, mut whole, mut exact) = (0, 0, 0);
        for chain in frames(&file) {
            let Some(innermost) = chain.iter().position(|frame| is_java(&frame)) else { continue };
            let java = chain[innermost..].iter().take_while(is_java).count();
            // Stubs of generated code that the machine itself calls have other callers.
            let is_method = |(name, _): &(String, String)| name.contains("Descends") || name == "Interpreter";
            if !chain[innermost..innermost + java].iter().any(is_method) {
                continue;
            }
            all += 1;
            let Some((caller, module)) = chain.get(innermost + java) else { continue };
            assert_eq!(caller, "JavaCalls::call_helper", "{options:?}: ({module}) of {chain:?}");
            let is_whole = chain.last().is_some_and(|(name, _)| name.starts_with("clone"));
            whole += usize::from(is_whole);
            // The work, ten steps, eleven calls of `down`, `main` and the stub through which Java is entered.
            exact += usize::from(innermost == 0 && java == 1 + 10 + 11 + 1 + 1);
        }
        // Java works for two seconds of CPU time, so that a busy machine has the time to ask it.
        assert!(all > 50, "{options:?}: {all} samples in Java");
        let counts = format!("{options:?}: {whole} whole, {exact} exact of {all}");
        // On a loaded machine a thread of Java without a CPU may hold the lock of its mappings, and
        // the reader of the code cache comes too late for all that was sampled meanwhile.
        assert!(whole * 10 > all * 4 && exact * 10 > all * 3, "{counts}");
    }
}
