//! What becomes of a program that is probed from inside when kymo ends, killed or not, and what the next kymo finds.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::programs::build;
use crate::tools::{Need, Running, kymo, require, signal, skip};

/// `fixtures/programs/many.c`, started in its own copy: the kernel's probes of other tests are in every process of one file.
pub(crate) struct Many {
    running: Running,
    /// The program itself, which may be a child of what was started.
    pid: u32,
    program: PathBuf,
    _folder: tempfile::TempDir,
}

impl Many {
    /// `None`, loudly, where nothing can be compiled or entered.
    pub(crate) fn start(test: &str) -> Option<Many> {
        let (program, folder) = Many::copy(test)?;
        Some(Many::run(&mut Command::new(&program), &program, folder))
    }

    /// The program in a folder of its own.
    pub(crate) fn copy(test: &str) -> Option<(PathBuf, tempfile::TempDir)> {
        let folder = Many::folder(test)?;
        let program = folder.path().canonicalize().expect("a path").join("many");
        kymo_testing::copy_program(&build("many.c", &[]), &program);
        Some((program, folder))
    }

    pub(crate) fn folder(test: &str) -> Option<tempfile::TempDir> {
        // Root: where /proc/sys/kernel/yama/ptrace_scope is 1, others cannot enter what runs already.
        require(test, &[Need::X86, Need::Program("cc"), Need::Root])?;
        let folder = tempfile::tempdir().expect("a folder");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("our folder");
        Some(folder)
    }

    /// Runs a command that ends up executing `program`.
    pub(crate) fn run(command: &mut Command, program: &Path, folder: tempfile::TempDir) -> Many {
        let running = Running::start(command);
        let pid = running.child.id();
        Many { running, pid, program: program.to_owned(), _folder: folder }
    }

    /// With the process that is meant, if that is a child.
    pub(crate) fn of(mut self, pid: u32) -> Many {
        self.pid = pid;
        self
    }

    pub(crate) fn pid(&self) -> String {
        self.pid.to_string()
    }

    pub(crate) fn line(&mut self) -> String {
        let line = self.running.line();
        assert!(line.ends_with('\n'), "the program ended: {:?}", self.running.child.wait());
        line
    }

    /// Asks for so many calls of all functions, in one write: what reads without a library would take two for two requests.
    fn begin(&mut self, times: u32) {
        self.running.tell(&format!("{times}\n"));
    }

    /// Has it make a child that waits; its number.
    pub(crate) fn fork(&mut self) -> String {
        self.running.tell("fork\n");
        self.line().trim().to_owned()
    }

    /// Has all functions called so many times; what the program makes of it.
    pub(crate) fn call(&mut self, times: u32) -> String {
        self.begin(times);
        self.line()
    }

    /// The code of a file in its memory is the file's.
    pub(crate) fn is_untouched(&self, file: &str) -> bool {
        is_untouched(self.pid, file)
    }

    pub(crate) fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).expect("tasks");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
    }

    pub(crate) fn program(&self) -> &str {
        self.program.file_name().and_then(|name| name.to_str()).expect("a name")
    }
}

/// The code of a file in a process's memory is the file's.
pub(crate) fn is_untouched(pid: u32, file: &str) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let lines: Vec<&str> =
        maps.lines().filter(|line| line.contains(" r-xp ") && line.contains(file)).collect();
    assert!(!lines.is_empty(), "{file} in {maps}");
    lines.into_iter().all(|line| {
        let mut words = line.split_whitespace();
        let (begin, end) = words.next().and_then(|range| range.split_once('-')).expect("a range");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
        let mut text = vec![0; (hex(end) - hex(begin)) as usize];
        let memory = File::open(format!("/proc/{pid}/mem")).expect("memory");
        memory.read_exact_at(&mut text, hex(begin)).expect("code");
        let path = words.nth(4).expect("a path");
        let inside = format!("/proc/{pid}/root{path}");
        // A process that only changed its root has paths from ours.
        let file = File::open(inside).or_else(|_| File::open(path)).expect("the file");
        let mut code = vec![0; text.len()];
        let bytes = file.read_at(&mut code, hex(words_offset(line))).expect("bytes");
        text[..bytes] == code[..bytes]
    })
}

fn words_offset(line: &str) -> &str {
    line.split_whitespace().nth(2).expect("an offset")
}

/// Waits for what happens soon, and fails if it does not.
pub(crate) fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !happened() {
        assert!(Instant::now() < until, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A kymo that probes; it has said that it does.
pub(crate) struct Probing {
    child: Child,
    words: BufReader<ChildStderr>,
    pub(crate) said: String,
}

impl Probing {
    pub(crate) fn start(many: &Many, arguments: &[&str]) -> Probing {
        let pid = many.pid();
        let all = [&["probe", "--json", "-p", &pid], arguments].concat();
        Probing::by(&mut kymo().command(all))
    }

    /// Of a command that probes processes.
    pub(crate) fn by(command: &mut Command) -> Probing {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kymo starts");
        let mut words = BufReader::new(child.stderr.take().expect("its words"));
        let mut said = String::new();
        // The first line says how many probes there are, when they are.
        words.read_line(&mut said).expect("a line");
        if !said.contains(" in process") {
            words.read_to_string(&mut said).expect("its words");
            panic!("{said}");
        }
        Probing { child, words, said }
    }

    /// As Ctrl-C does; what it counted.
    pub(crate) fn end(mut self) -> (Value, String) {
        signal(&self.child, Signal::INT);
        // Beside its document, which may be longer than a pipe.
        let words = std::thread::spawn(move || {
            self.words.read_to_string(&mut self.said).expect("its words");
            self.said
        });
        let output = self.child.wait_with_output().expect("kymo's end");
        (serde_json::from_slice(&output.stdout).expect("JSON"), words.join().expect("its words"))
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("its end");
    }
}

/// The hits of all functions of the program, each of which must have the same, and their engine.
pub(crate) fn hits_of_all(found: &Value) -> (u64, String) {
    let probes = found["probes"].as_array().expect("a list");
    let all: Vec<_> = probes
        .iter()
        .filter(|probe| probe["name"].as_str().is_some_and(|name| name.starts_with("many_")))
        .collect();
    let of = |probe: &Value| {
        (probe["hits"].as_u64().expect("hits"), probe["engine"].as_str().expect("an engine").to_owned())
    };
    assert_eq!(all.len(), 64, "{found}");
    assert!(all.iter().all(|probe| of(probe) == of(all[0])), "{found}");
    of(all[0])
}

/// Checks that a program goes on, with the same results and its own code, when the kymo that has 64 probes in it is killed, and that the next one counts
/// exactly and leaves nothing behind. Twice, and with calls while it is killed.
#[test]
fn killed_with_probes() {
    let Some(mut many) = Many::start("probe_lifetimes::killed_with_probes") else { return };
    let plain = many.call(1000);
    for calling in [false, true] {
        let probing = Probing::start(&many, &["--engine", "inproc", "--ret", "many_*"]);
        assert!(!many.is_untouched("/many"));
        assert_eq!(many.call(1000), plain);
        if calling {
            many.begin(1_000_000);
            probing.kill();
            many.line();
        } else {
            probing.kill();
        }
        assert_eq!(many.call(1000), plain);
        soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
        // Where nobody can hold the threads, sites may stay that count for nobody, until the next one comes.
        let probing = Probing::start(&many, &["--engine", "inproc", "many_*"]);
        assert_eq!(many.call(777), many.call(777));
        let (found, _) = probing.end();
        assert_eq!(hits_of_all(&found), (2 * 777, "inproc".to_owned()));
        assert!(many.is_untouched("/many"), "code is not the file's");
        assert_eq!(many.call(1000), plain);
    }
    soon("the end of the agent's thread", || many.threads() == ["many"]);
}

/// Checks the same with probes in the C library, which a kymo that is killed cannot take away at once: the program goes on, and when the next
/// one has left, every byte of the library is the file's.
#[test]
fn killed_with_probes_in_libc() {
    let Some(mut many) = Many::start("probe_lifetimes::killed_with_probes_in_libc") else { return };
    let plain = many.call(1000);
    let probing =
        Probing::start(&many, &["--engine", "inproc", "libc.so.6:f*", "libc.so.6:s*", "libc.so.6:_IO_*"]);
    for _ in 0..3 {
        assert_eq!(many.call(1000), plain);
    }
    probing.kill();
    for _ in 0..10 {
        assert_eq!(many.call(1000), plain);
    }
    soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
    let probing = Probing::start(&many, &["--engine", "inproc", "many_*", "libc.so.6:fgets"]);
    assert_eq!(many.call(1000), plain);
    let (found, said) = probing.end();
    assert_eq!(hits_of_all(&found), (1000, "inproc".to_owned()), "{said}");
    assert!(many.is_untouched("/many") && many.is_untouched("/libc.so.6"), "code is not the file's");
    assert_eq!(many.call(1000), plain);
}

/// Checks that kymo's own end leaves the program with the file's code and without a thread, ten times.
#[test]
fn ended() {
    let Some(mut many) = Many::start("probe_lifetimes::ended") else { return };
    let plain = many.call(1000);
    for _ in 0..10 {
        let probing = Probing::start(&many, &["--engine", "inproc", "many_*"]);
        assert_eq!(many.call(1000), plain);
        assert_eq!(hits_of_all(&probing.end().0).0, 1000);
        assert!(many.is_untouched("/many"));
        soon("the end of the agent's thread", || many.threads() == ["many"]);
    }
}

/// Checks that a program with threads which call probed functions all the time goes on, with the same results, when kymos are killed at any moment of their
/// lives, from before they enter the program to their end; and that the next one counts exactly and leaves the file's code. `KYMO_KILLS` says how often.
#[test]
fn killed_at_any_moment() {
    const TEST: &str = "probe_lifetimes::killed_at_any_moment";
    let Some((program, folder)) = Many::copy(TEST) else { return };
    let mut many = Many::run(Command::new(&program).args(["threads", "2"]), &program, folder);
    let plain = many.call(100);
    let kills = std::env::var("KYMO_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(25);
    // How long a whole life takes here and now.
    let begun = Instant::now();
    Probing::start(&many, &["--engine", "inproc", "many_*"]).end();
    let life = begun.elapsed();
    for number in 0..kills {
        let pid = many.pid();
        let probes = ["many_*", "libc.so.6:f*", "libc.so.6:s*"];
        let mut arguments = vec!["probe", "--json", "-d", "0.001", "--engine", "inproc", "-p", &pid];
        arguments.extend(&probes[..1 + number % 3]);
        let mut child =
            kymo().command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kymo");
        // Not the same moments as the time before, and all of them in the end.
        std::thread::sleep(life.mul_f64((number as f64 * 0.618_034).fract() * 1.3));
        child.kill().expect("a child");
        child.wait().expect("its end");
        assert_eq!(many.call(100), plain, "kill {number}");
    }
    soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
    let probing = Probing::start(&many, &["--engine", "inproc", "many_*"]);
    assert_eq!(many.call(100), plain);
    let (found, said) = probing.end();
    assert!(found["probes"].as_array().expect("a list").iter().all(|probe| probe["hits"] != 0), "{said}");
    assert!(many.is_untouched("/many") && many.is_untouched("/libc.so.6"), "code is not the file's");
    soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
    assert_eq!(many.call(100), plain);
}

/// Checks that no trap of the kernel's stays in a program when kymo is killed, wherever it was in putting uprobes in
/// and taking them out: a kernel that is interrupted in this leaves them for good.
#[test]
fn a_kill_leaves_no_uprobe() {
    const TEST: &str = "probe_lifetimes::a_kill_leaves_no_uprobe";
    let rounds = if std::env::var_os("KYMO_SOAK").is_some() { 1000 } else { 60 };
    let Some(mut many) = Many::start(TEST) else { return };
    let pid = many.pid();
    let mut command = kymo().command(["probe", "-p", &pid, "-d", "0.01", "--engine", "kernel", "many_*"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let begin = Instant::now();
    let whole = command.output().expect("kymo");
    let life = begin.elapsed();
    let words = String::from_utf8_lossy(&whole.stderr);
    if words.contains("no uprobes") {
        return skip(TEST, words.trim());
    }
    assert!(whole.status.success(), "{words}");
    let plain = many.call(3);
    for round in 0..rounds {
        let mut child = command.stderr(Stdio::null()).spawn().expect("kymo");
        std::thread::sleep(life * round / rounds);
        child.kill().expect("it is ours");
        child.wait().expect("its end");
        assert_eq!(many.call(3), plain);
        let file = many.program().to_owned();
        soon("the program has its file's code again", || many.is_untouched(&file));
    }
}
