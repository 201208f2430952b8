//! What others can put in kymo's way: libraries, names that are no text, programs that do not
//! answer.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::copied::Program;
use crate::probe_inside::waiting;
use crate::tools::{Need, Said, kymo, ready, require, run};

fn program(test: &str, needs: &[Need]) -> Option<Program> {
    require(test, &[needs, &[Need::X86, Need::Program("cc")]].concat()).map(|()| Program::of("probed.c", &[]))
}

/// The first probe of a document: its hits and its engine.
fn first(said: &Said) -> (u64, String) {
    let probe = &said.json()["probes"][0];
    (probe["hits"].as_u64().expect("a number"), probe["engine"].as_str().expect("a word").to_owned())
}

/// Checks that a library which others put beside kymo, above it, or into its environment is not
/// loaded, by `-p` nor into a command: the agent comes out of kymo itself.
#[test]
fn no_library_of_others() {
    const TEST: &str = "trust::no_library_of_others";
    let Some(program) = program(TEST, &[Need::Root]) else { return };
    let shared = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o777)).expect("its mode");
    let (folder, owned) = (shared.path().join("x"), shared.path().join("owned"));
    std::fs::create_dir_all(folder.join("deps")).expect("a folder");
    let (source, evil) = (shared.path().join("evil.c"), shared.path().join("libkymo_agent.so"));
    let text = "#include <stdio.h>\n__attribute__((constructor)) static void begin(void) { FILE *f = fopen(OWNED, \"w\"); if (f) fclose(f); }\nint kymo_agent_start(int d) { (void)d; begin(); return 0; }\n";
    std::fs::write(&source, text).expect("a source");
    let name = format!("-DOWNED=\"{}\"", owned.display());
    let compiled = Command::new("cc").args(["-shared", "-fPIC", &name, "-o"]).args([&evil, &source]).status();
    assert!(compiled.expect("cc").success());
    for place in [folder.join("libkymo_agent.so"), folder.join("deps/libkymo_agent.so")] {
        std::fs::copy(&evil, place).expect("a copy");
    }
    // By another process: see `copied`.
    let copied = Command::new("cp").arg(kymo().path()).arg(folder.join("kymo")).status().expect("cp");
    assert!(copied.success());
    // Kymos of other tests leave theirs in /run when they are killed: this one sees a folder of its own there.
    let run_folder = shared.path().join("run");
    std::fs::create_dir(&run_folder).expect("a folder");
    let probe = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount --bind \"$0\" /run && exec \"$@\""]);
        command.arg(&run_folder).arg(folder.join("kymo"));
        command.env("KYMO_AGENT", &evil).args(["probe", "--json", "--engine", "inproc", "probed_outer"]);
        command
    };
    let said = run(probe().args(["--", program.text(), "10"]));
    assert_eq!(first(&said), (10, "inproc".to_owned()), "{}", said.stderr);
    let mut child = waiting(&program.path, &["10"]);
    let pid = child.pid();
    let said = run(probe().args(["--duration", "0.2", "-p", &pid]));
    assert_eq!(first(&said), (0, "inproc".to_owned()), "{}", said.stderr);
    child.end();
    assert!(!owned.exists(), "the library of others was loaded");
    let left: Vec<_> = std::fs::read_dir(&run_folder).expect("it is there").flatten().collect();
    assert!(left.is_empty(), "a library was left behind: {left:?}");
}

/// A copy of the program whose path is no text, and whose name the kernel cuts inside of a letter.
fn oddly_named(program: &Program) -> std::path::PathBuf {
    let folder = program.path.parent().expect("a folder").join(OsStr::from_bytes(b"no\xfftext"));
    std::fs::create_dir(&folder).expect("a folder");
    let path = folder.join("Größenänderüng");
    let copied = Command::new("cp").arg(&program.path).arg(&path).status().expect("cp");
    assert!(copied.success());
    path
}

/// Checks that a process whose name the kernel cut inside of a letter, of a file whose path is no
/// UTF-8, is probed inside, counted by thread and recorded as any other, and is not "gone".
#[test]
fn names_that_are_no_text() {
    const TEST: &str = "trust::names_that_are_no_text";
    let Some(program) = program(TEST, &[Need::Root]) else { return };
    let path = oddly_named(&program);
    let mut child = waiting(&path, &["10"]);
    let pid = child.pid();
    let comm = std::fs::read(format!("/proc/{pid}/comm")).expect("its name");
    assert!(String::from_utf8(comm).is_err(), "the kernel cuts it otherwise by now");
    for engine in ["inproc", "kernel"] {
        if engine == "kernel" && !ready(TEST, &[Need::Tracepoints]) {
            continue;
        }
        let said = kymo().succeed(
            format!("probe --json --engine {engine} --duration 0.1 probed_outer -p {pid}").split(' '),
        );
        assert_eq!(first(&said).1, engine, "{}", said.stderr);
    }
    let said = kymo().succeed(["stat", "--per-thread", "-e", "task-clock", "-p", &pid, "--", "true"]);
    said.says("Größenänder");
    let recording = program.beside("perf.data");
    kymo().succeed(["record", "-o", &recording, "-p", &pid, "--", "true"]);
    child.tell("x");
    child.line();
    assert_eq!(child.end().1, Some(0));
    let command = ["probe", "--json", "probed_outer", "--"].map(OsString::from);
    let said = kymo().succeed(command.into_iter().chain([path.clone().into(), "10".into()]));
    assert_eq!(first(&said), (10, "inproc".to_owned()), "{}", said.stderr);
    let odd = path.with_file_name(OsStr::from_bytes(b"recording-\xfe.data"));
    let command =
        ["record".into(), "-o".into(), odd.clone().into_os_string(), "--".into(), path.into(), "10".into()];
    kymo().succeed::<OsString>(command);
    let said = kymo().succeed(["script".into(), "-i".into(), odd.into_os_string()]);
    assert!(said.stderr.is_empty(), "{}", said.stderr);
}

/// Checks that a program of a command which knocks and then never says a word keeps no other one
/// from
/// being counted: it waits for the other one's end before it goes on.
#[test]
fn a_mute_program_holds_up_nobody() {
    const TEST: &str = "trust::a_mute_program_holds_up_nobody";
    let Some(program) = program(TEST, &[Need::Program("python3")]) else { return };
    let script = program.beside("mute.py");
    let text = format!(
        "import os, socket, subprocess\n\
         name, password = os.environ['KYMO_AGENT_AT'].split('.')[:2]\n\
         mute = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
         mute.connect('\\0' + name)\n\
         mute.send(password.encode())\n\
         for _ in range(3):\n    subprocess.run(['{}', '10'], check=True)\n",
        program.text()
    );
    std::fs::write(&script, text).expect("a script");
    let said = kymo().succeed([
        "probe",
        "--json",
        "--engine",
        "inproc",
        &format!("{}:probed_outer", program.text()),
        "--",
        "python3",
        &script,
    ]);
    assert_eq!(first(&said), (30, "inproc".to_owned()), "{}", said.stderr);
}

/// Address space and memory of a process, in KiB.
fn memory(pid: &str) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    (of("VmSize:"), of("VmRSS:"))
}

/// Checks that the memory of probes goes back when kymo leaves: of all functions of the C library
/// less stays than the counters alone took, and a second kymo adds little to it.
#[test]
fn memory_goes_back() {
    const TEST: &str = "trust::memory_goes_back";
    let Some(program) = program(TEST, &[Need::Root]) else { return };
    let mut child = waiting(&program.path, &["10"]);
    let pid = child.pid();
    let (virtual_before, resident_before) = memory(&pid);
    let round = || {
        let probes = ["probe", "--json", "--engine", "inproc", "--duration", "0.1", "libc.so.6:*", "-p"];
        let said = kymo().succeed(probes.iter().copied().chain([pid.as_str()]));
        let document = said.json();
        assert!(document["probes"].as_array().expect("a list").len() > 1000, "{}", said.stderr);
        let (virtual_now, resident_now) = memory(&pid);
        (virtual_now.saturating_sub(virtual_before), resident_now.saturating_sub(resident_before))
    };
    let first = round();
    // The agent itself with its stubs, and what the allocator reserves for its thread (64 MiB).
    assert!(first.0 < 110 << 10 && first.1 < 40 << 10, "{first:?} KiB stay");
    let second = round();
    assert!(second.0 < first.0 + (16 << 10) && second.1 < first.1 + (16 << 10), "{first:?}, {second:?} KiB");
    assert_eq!(child.end().1, Some(0));
}
