//! Python's functions in the call chains of `record`: a program whose stacks are known, run by
//! every CPython that is here.
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::matrix::unpacked;
use crate::programs::{build, sources};
use crate::tools::{Need, Running, Tool, find, kymo, perf, ready, require, run, skip, text};

/// All stacks of `fixtures/programs/pystacks.py` at their deepest, outermost first.
const STACKS: [&[&str]; 10] = [
    &["<module>", "main", "recursed", "recursed", "recursed", "recursed", "recursed", "spin"],
    &["<module>", "main", "consumed", "numbers", "spin"],
    &["<module>", "main", "ordered", "key", "spin"],
    &["<module>", "main", "folded", "add", "spin"],
    &["<module>", "main", "area", "spin"],
    &["<module>", "main", "compared", "__lt__", "spin"],
    &["<module>", "main", "driven", "outer", "inner", "spin"],
    &["<module>", "main", "made", "<module>", "made_", "spin"],
    &["<module>", "main", "<lambda>", "spin"],
    &["_bootstrap", "_bootstrap_inner", "run", "threaded", "spin"],
];

/// One frame: function without what qualifies it, file, and line.
type PythonFrame = (String, String, usize);

/// A CPython of this version that is no script: pyenv's, the unpacked one, or one in the path.
fn interpreter(version: &str) -> Option<PathBuf> {
    let is_elf = |path: &Path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let homes = [std::env::var_os("PYENV_ROOT").map(PathBuf::from), Some("/root/.pyenv".into())];
    let versions =
        homes.into_iter().flatten().filter_map(|home| std::fs::read_dir(home.join("versions")).ok());
    let own = versions.flatten().flatten().filter_map(|entry| {
        let name = entry.file_name();
        let same = name.to_str()?.strip_prefix(version)?.starts_with('.');
        same.then(|| entry.path().join("bin").join(format!("python{version}")))
    });
    let name = format!("python{version}");
    let others = [Some(unpacked(&name).join("bin").join(&name)), find(&name)];
    own.chain(others.into_iter().flatten()).find(|path| is_elf(path))
}

/// The stacks of a recording, each outermost first, and whether native frames are left that run
/// Python.
fn stacks(recording: &Path) -> Vec<(Vec<PythonFrame>, bool)> {
    let said = kymo().succeed(["script", "-i", text(recording), "-F", "time,ip,sym,dso", "--no-inline"]);
    let frame = |line: &str| {
        let (name, file) = line.trim().split_once(' ')?.1.rsplit_once(" (")?;
        let (file, number) = file.strip_suffix(')')?.rsplit_once(':')?;
        let name = name.rsplit('.').next()?.to_owned();
        Some((name, file.to_owned(), number.parse().ok()?))
    };
    let sample = |block: &str| {
        let mut frames: Vec<PythonFrame> = block.lines().filter_map(frame).collect();
        frames.reverse();
        (frames, block.contains("_PyEval_EvalFrameDefault"))
    };
    said.stdout.split("\n\n").map(sample).collect()
}

/// Whether these functions call each other so.
fn is_known(frames: &[PythonFrame]) -> bool {
    let same = |(found, wanted): (&PythonFrame, &&str)| {
        found.0 == **wanted || wanted.ends_with('_') && found.0.starts_with(*wanted) && found.0.len() == 6
    };
    STACKS.iter().any(|stack| frames.len() <= stack.len() && frames.iter().zip(*stack).all(same))
}

/// Whether each line of the program names the function that it calls.
fn lines_fit(frames: &[PythonFrame], program: &[&str]) -> bool {
    frames.windows(2).all(|pair| {
        let [(caller, file, line), (callee, ..)] = pair else { return true };
        if let Some(number) = caller.strip_prefix("made_") {
            let number: usize = number.parse().unwrap_or(99);
            return *line == number + 1 && file.ends_with(&format!("made_{number}.py"));
        }
        !file.ends_with("/pystacks.py")
            || program.get(line - 1).is_some_and(|text| text.contains(callee.as_str()))
    })
}

/// The shared library of a CPython that is here.
fn library() -> Option<String> {
    let known = Command::new("ldconfig").arg("-p").output().ok()?;
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let line = known.lines().find(|line| line.trim().starts_with("libpython3."))?;
    Some(line.rsplit(" => ").next()?.to_owned())
}

/// Checks that a program which maps CPython is none of Python's until it begins an interpreter, and
/// is one from then on: perf and gdb link it, and each of their switches ran a program for Python.
#[test]
fn a_program_that_begins_python_later() {
    const TEST: &str = "python::a_program_that_begins_python_later";
    if !ready(TEST, &[Need::Program("cc"), Need::Root, Need::X86]) {
        return;
    }
    let Some(library) = library() else { return skip(TEST, "no shared library of CPython is installed") };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let program = build("latepython.c", &["-ldl"]);
    let record = ["record", "-q", "-F", "999", "-g", "-e", "cpu-clock:u", "-o", text(&file), "--"];
    kymo().succeed(record.into_iter().chain([text(&program), &library]));
    let said = kymo().succeed(["script", "-i", text(&file), "-F", "comm,ip,sym"]).stdout;
    let samples = |name: &str| said.split("\n\n").filter(|sample| sample.contains(name)).count();
    let (native, python) = (samples("work_without_python"), samples("work_in_python"));
    let unnamed = said.split("\n\n").filter(|sample| sample.contains("PyRun_SimpleStringFlags"));
    let unnamed = unnamed.filter(|sample| !sample.contains("work_in_python")).count();
    // It is looked at each tenth of a second.
    assert!(native > 100 && python > 200 && unnamed < python, "{native} {python} {unnamed}");
}

/// What part of a recording shows: samples in Python, and those whose stack is not known.
struct Shown {
    all: usize,
    wrong: BTreeMap<String, usize>,
}

impl Shown {
    /// Of samples of `pystacks.py`.
    fn of(samples: &[(Vec<PythonFrame>, bool)]) -> Shown {
        let source = std::fs::read_to_string(sources().join("pystacks.py")).unwrap();
        let source: Vec<&str> = source.lines().collect();
        let mut shown = Shown { all: 0, wrong: BTreeMap::new() };
        // How the library starts a thread differs between versions.
        let starts = |frames: &[PythonFrame]| {
            frames.iter().any(|(name, file, _)| name == "start" && file.ends_with("/threading.py"))
        };
        let counts = |(frames, is_native): &&(Vec<PythonFrame>, bool)| {
            (*is_native || !frames.is_empty()) && !starts(frames)
        };
        for (frames, is_native) in samples.iter().filter(counts) {
            shown.all += 1;
            if frames.is_empty() || !is_known(frames) || !lines_fit(frames, &source) {
                *shown.wrong.entry(format!("{frames:?} {is_native}")).or_default() += 1;
            }
        }
        shown
    }

    /// At least 99.5 % are known, of enough.
    fn is_right(&self, test: &str) {
        let wrong: usize = self.wrong.values().sum();
        assert!(self.all >= 100, "{test}: {} samples in Python", self.all);
        assert!(wrong * 1000 <= self.all * 5, "{test}: {wrong} of {}: {:#?}", self.all, self.wrong);
    }
}

/// Records the program by this interpreter: while its main function runs, 99.5 % of all samples in
/// Python have a stack that is known, with the lines of the calls.
fn known_stacks(test: &str, python: &Path) {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let program = sources().join("pystacks.py");
    let command = [text(python), text(&program), "1.2"];
    let record = ["record", "-F", "997", "-o", text(&recording), "--"];
    kymo().succeed(record.iter().chain(&command));
    let samples = stacks(&recording);
    let runs_main = |(frames, _): &(Vec<PythonFrame>, bool)| {
        frames.iter().any(|(name, file, _)| name == "main" && file.ends_with("/pystacks.py"))
    };
    let (Some(first), Some(last)) = (samples.iter().position(runs_main), samples.iter().rposition(runs_main))
    else {
        panic!("{test}: no functions of the program in {} samples", samples.len());
    };
    Shown::of(&samples[first..=last]).is_right(test);
    // The deepest stack of each kind was seen: nothing is always missing.
    for stack in STACKS {
        let seen = samples.iter().any(|(frames, _)| frames.len() == stack.len() && is_known(frames));
        assert!(seen, "{test}: {stack:?} was never seen in {} samples", samples.len());
    }
}

fn by_version(version: &str) {
    let test = format!("python::python_{}", version.replace('.', "_"));
    let Some(()) = require(&test, &[Need::X86, Need::Root]) else { return };
    match interpreter(version) {
        Some(python) => known_stacks(&test, &python),
        None => skip(&test, format!("no CPython {version} here")),
    }
}

#[test]
fn python_3_8() {
    by_version("3.8");
}

#[test]
fn python_3_9() {
    by_version("3.9");
}

#[test]
fn python_3_10() {
    by_version("3.10");
}

#[test]
fn python_3_11() {
    by_version("3.11");
}

#[test]
fn python_3_12() {
    by_version("3.12");
}

#[test]
fn python_3_13() {
    by_version("3.13");
}

#[test]
fn python_3_14() {
    by_version("3.14");
}

/// Checks the system's own interpreter, which is one stripped file in Debian.
#[test]
fn python_of_the_system() {
    let test = "python::python_of_the_system";
    let Some(()) = require(test, &[Need::X86, Need::Root]) else { return };
    match Path::new("/usr/bin/python3").canonicalize() {
        Ok(python) => known_stacks(test, &python),
        Err(error) => skip(test, format!("/usr/bin/python3: {error}")),
    }
}

/// Checks that `--no-python` leaves the native frames.
#[test]
fn native_frames_on_request() {
    let test = "python::native_frames_on_request";
    let Some(()) = require(test, &[Need::X86, Need::Root, Need::Program("/usr/bin/python3")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let output = ["record", "--no-python", "-o", text(&recording), "--", "/usr/bin/python3", "-c"];
    kymo().succeed(output.iter().chain(&["sum(i * i for i in range(2000000))"]));
    let samples = stacks(&recording);
    assert!(samples.iter().all(|(frames, _)| frames.is_empty()));
    assert!(samples.iter().any(|(_, is_native)| *is_native));
}

/// Checks that a process that runs already is attached to, with its threads.
#[test]
fn running_processes() {
    let test = "python::running_processes";
    let Some(()) = require(test, &[Need::X86, Need::Root, Need::Program("/usr/bin/python3")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let mut command = Command::new("/usr/bin/python3");
    let program = Running::start(command.args([text(&sources().join("pystacks.py")), "60"]));
    // Until it has imported all that it needs.
    while std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap().count() < 2 {
        std::thread::yield_now();
    }
    let record = ["record", "-F", "997", "-o", text(&recording), "-p", &program.pid(), "--", "sleep", "0.7"];
    kymo().succeed(record);
    let samples = stacks(&recording);
    let found = samples.iter().position(|(frames, _)| !frames.is_empty()).unwrap_or(0);
    Shown::of(&samples[found..]).is_right(test);
}

/// Checks that a process of one thread, whose own events would cost least, is recorded with names.
#[test]
fn one_thread() {
    let test = "python::one_thread";
    let Some(()) = require(test, &[Need::X86, Need::Root, Need::Program("/usr/bin/python3")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let mut command = Command::new("/usr/bin/python3");
    let source = "def turn():\n while True: sum(range(1000))\nprint('ready', flush=True)\nturn()";
    let mut program = Running::start(command.args(["-c", source]));
    program.line();
    let record = ["record", "-F", "4999", "-o", text(&recording), "-p", &program.pid(), "--", "sleep", "0.4"];
    kymo().succeed(record);
    let samples = stacks(&recording);
    let named = samples.iter().filter(|(frames, _)| frames.iter().any(|frame| frame.0 == "turn")).count();
    assert!(named > 100, "{named} of {}", samples.len());
}

/// Checks that a program of another name that holds CPython is found, and that a child that it forks
/// is, too.
#[test]
fn other_names_and_children() {
    let test = "python::other_names_and_children";
    let Some(()) = require(test, &[Need::X86, Need::Root, Need::Program("/usr/bin/python3")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (recording, program) = (folder.path().join("perf.data"), folder.path().join("service"));
    std::fs::copy("/usr/bin/python3", &program).unwrap();
    let forks = "import os, time\n\
        def turn(end):\n while time.process_time() < end: sum(range(1000))\n\
        def child(): turn(time.process_time() + 0.4)\n\
        turn(time.process_time() + 0.4)\n\
        if os.fork() == 0: child()\n\
        else: os.wait()\n";
    let mut command =
        kymo().command(["record", "-F", "997", "-o", text(&recording), "--", text(&program), "-c"]);
    let said = run(command.arg(forks).env("PYTHONHOME", "/usr"));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let samples = stacks(&recording);
    let named =
        |name: &str| samples.iter().filter(|(frames, _)| frames.iter().any(|frame| frame.0 == name)).count();
    assert!(named("turn") > 100 && named("child") > 100, "{} {}", named("turn"), named("child"));
}

/// Checks that each file of a divided recording has the names of its functions.
#[test]
fn several_files() {
    let test = "python::several_files";
    let Some(()) = require(test, &[Need::X86, Need::Root, Need::Program("/usr/bin/python3")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let record = ["record", "-F", "997", "--switch-output=1s", "-o", text(&recording), "--"];
    let program = sources().join("pystacks.py");
    kymo().succeed(record.iter().chain(&["/usr/bin/python3", text(&program), "2.2"]));
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    // The first has the start of the program, and the last its end.
    assert!(files.len() >= 3, "{files:?}");
    let last = stacks(&files[1]);
    Shown::of(&last).is_right(test);
}

/// Checks that a user without the right to load programs is told what would help.
#[test]
fn without_rights() {
    let test = "python::without_rights";
    let needs = [Need::X86, Need::Root, Need::Program("/usr/bin/python3"), Need::Program("setpriv")];
    let Some(()) = require(test, &needs) else { return };
    let folder =
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o777)).tempdir().unwrap();
    let (recording, own) = (folder.path().join("perf.data"), folder.path().join("kymo"));
    std::fs::copy(&kymo().path, &own).unwrap();
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        text(&own),
        "record",
        "-o",
        text(&recording),
    ]);
    let said = run(command.args(["--", "/usr/bin/python3", "-c", "sum(range(10**7))"]));
    if said.code != Some(0) {
        return skip(test, format!("no recording without rights here: {}", said.stderr));
    }
    said.says("Python's functions are shown as native frames").says("CAP_BPF").says("-X perf");
}

/// Checks that perf reads such a recording without a word, with as many samples, and shows the
/// functions as addresses of a module.
#[test]
fn read_by_perf() {
    let test = "python::read_by_perf";
    let needs = [Need::X86, Need::Root, Need::Perf, Need::Program("/usr/bin/python3")];
    let Some(()) = require(test, &needs) else { return };
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("perf.data");
    let program = sources().join("pystacks.py");
    kymo().succeed(["record", "-o", text(&recording), "--", "/usr/bin/python3", text(&program), "0.5"]);
    let rows = |tool: Tool| {
        let said =
            tool.succeed(["report", "--stdio", "-i", text(&recording), "-g", "none", "-n", "--sort", "comm"]);
        let rows = said.stdout.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let rows: Vec<String> =
            rows.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        (rows, said.stderr)
    };
    let (by_perf, words) = rows(perf());
    assert_eq!((by_perf, words.as_str()), (rows(kymo()).0, ""));
    perf()
        .succeed(["report", "--stdio", "-i", text(&recording), "-g", "none", "--sort", "dso"])
        .prints("[python]");
}
