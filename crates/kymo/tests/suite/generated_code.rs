//! Names of generated code in recordings: from programs that write them, and from Java virtual machines, which are
//! asked. Whoever must not be asked is not, and notices nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::programs::sources;
use crate::tools::{Need, Running, kymo, ready, run, signal, skip, text};

/// The folder with a compiled `Collects.java`; nothing, loudly, where that cannot be.
fn classes(test: &str) -> Option<tempfile::TempDir> {
    if !ready(test, &[Need::Root, Need::Program("java"), Need::Program("javac")]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let compiled =
        run(Command::new("javac").arg("-d").arg(folder.path()).arg(sources().join("Collects.java")));
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

/// Checks that the compiled code of a running machine has names, which stay when the machine and its files are gone, and
/// that the machine is as before: it prints what it would, and nothing of the question is left.
#[test]
fn a_java_machine_is_asked() {
    let Some(classes) = classes("generated_code::a_java_machine_is_asked") else { return };
    let mut java = machine(classes.path(), &[]);
    let (pid, file) = (java.pid(), classes.path().join("java.data"));
    kymo().succeed(["record", "-o", text(&file), "-p", &pid, "--", "sleep", "1"]);
    assert_eq!(left(&pid), [] as [PathBuf; 0]);
    assert_eq!(java.end(), ("right\n".to_owned(), Some(3)));
    let (named, unnamed, names) = shares(&file);
    assert!(named > 20 && unnamed * 50 <= named, "{named} named, {unnamed} not: {names:?}");
    assert!(names.keys().any(|name| name.contains("Collects.work")), "{names:?}");
}

/// Checks that a machine which does not permit to be attached to, stands still, or is not to be asked is not, and that the
/// reason is said; and that one which does not catch the signal, but has its socket from the start, is asked there.
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
        assert_eq!(left(&pid), [] as [PathBuf; 0], "{name}");
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

/// Checks that a program which only looks like a virtual machine, and would die of the question, is not asked.
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

/// Checks that a perf map is read to its end while it grows, by the process's own number and folder, and that its names stay
/// when it is removed; and that code which is replaced has its name at each time.
#[test]
fn a_perf_map_stays_with_the_recording() {
    const TEST: &str = "generated_code::a_perf_map_stays_with_the_recording";
    // A function that spins so often as its argument says is called at one address under two names.
    const SCRIPT: &str = "import ctypes, mmap, os, time\n\
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
        code.write(bytes.fromhex('4883ef0175fac3'))\n\
        start = ctypes.addressof(ctypes.c_char.from_buffer(code))\n\
        spin = ctypes.CFUNCTYPE(None, ctypes.c_long)(start)\n\
        map = open(f'/tmp/perf-{os.getpid()}.map', 'w')\n\
        for name in ['first_name', 'second_name']:\n\
        \x20   map.write(f'{start:x} 7 {name}\\n'); map.flush()\n\
        \x20   end = time.time() + 1.2\n\
        \x20   while time.time() < end: spin(3000000)\n\
        map.close(); os.unlink(map.name)\n";
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("python3")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    kymo().succeed(["record", "-o", text(&file), "--", "python3", "-c", SCRIPT]);
    let (named, unnamed, names) = shares(&file);
    let count = |name: &str| names.get(name).copied().unwrap_or(0);
    assert!(unnamed * 50 <= named, "{named} named, {unnamed} not: {names:?}");
    // The second name was seen with a visit, half of the time between two visits after it came.
    assert!(count("first_name") * 4 > named && count("second_name") * 4 > named, "{names:?}");
    let table = kymo().succeed(["report", "-i", text(&file), "--stdio", "-g", "none"]);
    table.prints("first_name").prints("second_name");
}
