//! Whatever the scope, a recording holds the same samples. The program is `storm.c`: each of its processes and threads touches fresh
//! pages at known addresses and writes down which, so that page faults with a period of 1 tell exactly who was seen.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, ready, require, run, skip, text};

/// Where the pages are; nothing else of a program is there.
const BASE: u64 = 0x7000_0000_0000;
const PAGES: u64 = 4;

/// How often each (thread, page) is.
type Touched = BTreeMap<(u32, u64), u32>;

struct Storm {
    folder: PathBuf,
    program: PathBuf,
}

impl Storm {
    fn new(test: &str) -> Option<Storm> {
        require(test, &[Need::Program("cc")])?;
        Some(Storm { folder: fresh_folder(test), program: build("storm.c", &["-pthread"]) })
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    fn arguments(&self, role: &str, name: &str, count: u32) -> Vec<String> {
        let words = [text(&self.program), role, text(&self.log(name))].map(str::to_owned);
        [&words[..], &[format!("{BASE:x}"), count.to_string()]].concat()
    }

    /// What the program wrote down.
    fn touched(&self, name: &str) -> Touched {
        let mut touched = Touched::new();
        let log = fs::read_to_string(self.log(name)).expect("the storm touched something");
        for line in log.lines() {
            let (tid, page) = line.split_once(' ').expect("two words");
            let page = u64::from_str_radix(page, 16).expect("an address");
            for at in 0..PAGES {
                *touched.entry((tid.parse().expect("an id"), page + 4096 * at)).or_default() += 1;
            }
        }
        touched
    }

    /// Records a role as a command; `None` if the scope cannot be had here.
    fn record(&self, test: &str, scope: &str, role: &str, count: u32) -> Option<(Touched, Touched)> {
        let file = self.folder.join(format!("{scope}.data"));
        let mut arguments: Vec<String> =
            ["record", "-e", "page-faults:u", "-c", "1", "-d", "--scope", scope, "-o"]
                .map(String::from)
                .into();
        arguments.extend([text(&file).into(), "--".into()]);
        arguments.extend(self.arguments(role, scope, count));
        let mut recorder = kymo().command(arguments);
        recorder.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = recorder.spawn().expect("kymo starts");
        // It may have refused already.
        let _ = child.stdin.take().expect("a pipe").write_all(b"g");
        let said = child.wait_with_output().expect("kymo ends");
        let words = String::from_utf8_lossy(&said.stderr);
        if words.contains("is not possible here") {
            skip(&format!("{test} ({scope})"), words.lines().last().unwrap_or_default());
            return None;
        }
        assert!(said.status.success(), "{words}");
        Some((self.touched(scope), seen(&file)))
    }
}

/// The samples at the storm's pages.
fn seen(file: &Path) -> Touched {
    let said = kymo().succeed(["script", "-F", "tid,addr", "-i", text(file)]);
    let mut seen = Touched::new();
    for line in said.stdout.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [tid, addr] = words[..] else { panic!("not a thread and an address: {line}") };
        let addr = u64::from_str_radix(addr, 16).expect("an address");
        if addr & !0xff_ffff == BASE {
            *seen.entry((tid.parse().expect("an id"), addr)).or_default() += 1;
        }
    }
    seen
}

/// Checks that no scope loses a child of a command that forks, makes threads and executes without pause, from threads that are not the first,
/// too: every page that was touched is a sample, once, and there are no others.
#[test]
fn a_command_and_all_its_children() {
    let test = "a_command_and_all_its_children";
    let Some(storm) = Storm::new(test) else { return };
    for scope in ["cgroup", "filtered", "inherit"] {
        let Some((touched, seen)) = storm.record(test, scope, "burst", 40) else { continue };
        assert_eq!(touched.len(), 40 * 4 * PAGES as usize);
        assert_eq!(touched, seen, "{scope}");
    }
}

/// Checks that all four scopes give the same samples for a program that stays alone, over an exec.
#[test]
fn all_four_scopes() {
    let Some(storm) = Storm::new("all_four_scopes") else { return };
    for scope in ["cgroup", "filtered", "inherit", "thread-cpu"] {
        let Some((touched, seen)) = storm.record("all_four_scopes", scope, "hold", 1) else { continue };
        assert_eq!(touched.len(), 2 * PAGES as usize);
        assert_eq!(touched, seen, "{scope}");
    }
}

/// Checks that a running process is seen the same way in every scope: from the moment that the recorder says so, with children where
/// they are followed.
#[test]
fn a_running_process() {
    let test = "a_running_process";
    let Some(storm) = Storm::new(test) else { return };
    for (scope, role, touchers) in
        [("filtered", "burst", 4 * 20), ("inherit", "burst", 4 * 20), ("thread-cpu", "hold", 2)]
    {
        let mut target =
            Running::start(Command::new(&storm.program).args(&storm.arguments(role, scope, 20)[1..]));
        let file = storm.folder.join(format!("{scope}.data"));
        let fifo = storm.folder.join(format!("{scope}.ack"));
        run(Command::new("mkfifo").arg(&fifo)).ends(0);
        let control = storm.folder.join(format!("{scope}.ctl"));
        assert_eq!(run(Command::new("mkfifo").arg(&control)).code, Some(0));
        let pid = target.pid();
        let channel = format!("fifo:{},{}", text(&control), text(&fifo));
        let recorder = kymo()
            .command(
                format!(
                    "record -e page-faults:u -c 1 -d --scope {scope} --control {channel} -o {} -p {pid}",
                    text(&file)
                )
                .split(' '),
            )
            .stderr(Stdio::piped())
            .spawn()
            .expect("kymo starts");
        // Opening for reading and writing waits for nobody, so a refusal does not hang the test.
        let mut commands = fs::OpenOptions::new().read(true).write(true).open(&control).expect("the fifo");
        commands.write_all(b"ping\n").expect("a fifo takes a word");
        let answered = std::thread::spawn(move || {
            let mut line = [0; 4];
            let mut file = fs::File::open(fifo).expect("the fifo");
            std::io::Read::read_exact(&mut file, &mut line).is_ok_and(|()| &line == b"ack\n")
        });
        if !answered.join().expect("no panic") {
            let said = recorder.wait_with_output().expect("kymo ends");
            let words = String::from_utf8_lossy(&said.stderr);
            assert!(words.contains("is not possible here"), "{words}");
            skip(&format!("{test} ({scope})"), words.lines().last().unwrap_or_default());
            continue;
        }
        target.tell("g");
        assert_eq!(target.end().1, Some(0));
        let said = recorder.wait_with_output().expect("kymo ends");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let touched = storm.touched(scope);
        assert_eq!(touched.len(), touchers * PAGES as usize, "{scope}");
        assert_eq!(touched, seen(&file), "{scope}");
    }
}

/// Checks that the plan says which scope it takes, weighs all four, and refuses one that cannot be had with the reason and status 1.
#[test]
fn scopes_are_explained() {
    let said = kymo().succeed(["record", "--dry-run", "-e", "cpu-clock", "--", "true"]);
    for words in
        ["scope: ", "cgroup: ", "filtered: ", "inherit: ", "- thread-cpu: children are to be followed"]
    {
        said.prints(words);
    }
    let own = std::process::id().to_string();
    let said = kymo().run(["record", "--dry-run", "--scope", "cgroup", "-p", &own]).ends(1);
    said.says("--scope cgroup is not possible here: only a command that kymo starts");
    let said = kymo().run(["record", "--scope", "everything", "--", "true"]).ends(129);
    said.says("expected cgroup, filtered, inherit or thread-cpu");
}

/// Checks that perf reads recordings of the scopes that it does not have, without a word on stderr, and sees as many samples.
#[test]
fn perf_reads_them() {
    let test = "perf_reads_them";
    let Some(storm) = Storm::new(test) else { return };
    let Some(()) = require(test, &[Need::Perf]) else { return };
    for scope in ["cgroup", "filtered"] {
        let Some((touched, _)) = storm.record(test, scope, "burst", 10) else { continue };
        let file = storm.folder.join(format!("{scope}.data"));
        let said = perf().succeed(["script", "-F", "tid,addr", "-i", text(&file)]);
        assert_eq!(said.stderr, "", "{scope}");
        let at_pages = said.stdout.lines().filter(|line| line.contains("7000000"));
        assert_eq!(at_pages.count(), touched.len(), "{scope}");
    }
}

/// Checks that the filtered scope's recording says nothing about a program that forks and executes all the time beside the observed one, and
/// that perf and kymo name the observed functions of every process from it.
#[test]
fn strangers_are_left_out() {
    let test = "strangers_are_left_out";
    let Some(()) = require(test, &[Need::Perf, Need::Program("cc")]) else { return };
    let (folder, program) = (fresh_folder(test), build("forkexec.c", &[]));
    let (file, outsider) = (folder.join("filtered.data"), folder.join("outsider"));
    let file = text(&file);
    kymo_testing::copy_program(&crate::tools::find("true").expect("every system has it"), &outsider);
    let script = format!("while :; do {}; done", text(&outsider));
    let _stranger = Running::start(Command::new("sh").args(["-c", &script]));
    // Stack copies are unwound while recording: records take another way then.
    for graph in ["fp", "dwarf"] {
        let arguments =
            ["record", "-e", "cpu-clock", "--scope", "filtered", "--call-graph", graph, "-o", file];
        if !left_out(test, file, &[&arguments[..], &["--", text(&program), "4"]].concat()) {
            return;
        }
    }
}

fn left_out(test: &str, file: &str, arguments: &[&str]) -> bool {
    let said = kymo().run(arguments);
    if said.stderr.contains("is not possible here") {
        skip(test, said.stderr.lines().last().unwrap_or_default());
        return false;
    }
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let listed = perf().succeed(
        format!("script -F comm,tid,time,event --show-mmap-events --show-task-events -i {file}").split(' '),
    );
    assert!(!listed.stdout.contains("outsider"), "{}", listed.stdout);
    for kind in ["PERF_RECORD_FORK", "PERF_RECORD_EXIT", "PERF_RECORD_COMM exec:"] {
        assert!(listed.stdout.lines().filter(|line| line.contains(kind)).count() >= 4, "{kind}");
    }
    for tool in [perf(), kymo()] {
        let said = tool.succeed(
            format!("report --stdio --no-inline -g none --sort comm,dso,symbol -i {file}").split(' '),
        );
        for comm in (0..4).map(|child| format!("after-{child}")) {
            let named =
                |line: &str| line.contains(&comm) && line.contains("forkexec") && line.contains("after_");
            assert!(said.stdout.lines().any(named), "{}: {comm}\n{}", tool.name, said.stdout);
        }
    }
    true
}

/// Checks that a real process of 10,000 threads is recorded in whatever way is permitted, with every thread named in the recording; and
/// that one descriptor for each either works or is refused with the number needed and the command that permits it.
#[test]
fn ten_thousand_threads() {
    const THREADS: usize = 10_000;
    let test = "ten_thousand_threads";
    let Some(()) = require(test, &[Need::Program("cc")]) else { return };
    let folder = fresh_folder(test);
    let mut sleepers = Command::new(build("sleepers.c", &["-pthread"]));
    let mut target = Running::start(sleepers.args([&THREADS.to_string(), "600"]).stderr(Stdio::piped()));
    if target.line() != "ready\n" {
        let said = target.child.stderr.take().map(std::io::read_to_string).expect("a pipe");
        return skip(test, said.expect("text"));
    }
    let pid = target.pid();
    let (file, one_each) = (folder.join("default.data"), folder.join("inherit.data"));
    let (file, one_each) = (text(&file), text(&one_each));
    let said = kymo().run(["record", "-e", "cpu-clock", "-o", file, "-p", &pid, "--", "true"]);
    let inherit =
        kymo().run(format!("record -e cpu-clock --scope inherit -o {one_each} -p {pid} -- true").split(' '));
    drop(target);
    if inherit.code != Some(0) {
        let words = &inherit.stderr;
        assert_eq!(inherit.code, Some(1), "{words}");
        assert!(words.contains("are needed") && words.contains("--nofile="), "{words}");
        assert!(!Path::new(one_each).exists(), "nothing was recorded");
    }
    if said.code != Some(0) {
        said.says("--nofile=");
        skip(test, "no permission to follow tasks in the kernel, and too few descriptors");
        return;
    }
    if ready(test, &[Need::Perf]) {
        let script = perf().succeed(["script", "--show-task-events", "-i", file]);
        let names =
            script.stdout.lines().filter(|line| line.contains(&format!("PERF_RECORD_COMM: sleepers:{pid}/")));
        assert_eq!(names.count(), THREADS + 1);
    }
}
