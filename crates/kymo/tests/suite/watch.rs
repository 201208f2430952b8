//! `kymo watch` on a program whose accesses are known beforehand (`fixtures/programs/watched.c`).

use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::Signal;
use serde_json::Value;

use crate::programs;
use crate::tools::{self, Need, Running, Said, kymo, ready, require, skip};

fn program() -> PathBuf {
    programs::build("watched.c", &[])
}

/// The debug registers of the whole machine, for one test at a time.
pub(crate) fn registers() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to watch, for one test at a time: each takes registers of the whole machine. `None` where nothing can be watched, which is
/// said as the reason for skipping the test.
pub(crate) fn alone(test: &str) -> Option<MutexGuard<'static, ()>> {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let guard = registers();
    let refused = REFUSED.get_or_init(|| {
        let said = watch(&["total"], &["1", "1"]);
        (said.code != Some(3)).then_some(said.stderr)
    });
    if let Some(words) = refused {
        skip(test, words);
    }
    refused.is_none().then_some(guard)
}

/// `kymo watch OPTIONS -- watched ARGUMENTS`.
fn watch(options: &[&str], arguments: &[&str]) -> Said {
    let program = program();
    let mut words = vec!["watch"];
    words.extend(options);
    words.extend(["--", program.to_str().expect("a path in UTF-8")]);
    words.extend(arguments);
    kymo().run(words)
}

/// The lines of `--json`.
pub(crate) fn objects(said: &Said) -> Vec<Value> {
    said.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect()
}

fn summary(said: &Said) -> Value {
    let last =
        objects(said).pop().unwrap_or_else(|| panic!("{} said nothing: {}", said.command, said.stderr));
    assert_eq!(last["type"], "summary", "{last}");
    last
}

/// Whether hits are filtered in the kernel, so that values are those at the hit. Registers of CPUs may be held by other programs, other
/// tests among them: then the test is skipped.
pub(crate) fn filtered(test: &str, header: &Value) -> bool {
    let filtered = header["scope"] == "filtered";
    if !filtered {
        skip(test, "hits cannot be filtered in the kernel here and now");
    }
    filtered
}

pub(crate) fn hits(objects: &[Value], place: u64) -> Vec<&Value> {
    objects.iter().filter(|one| one["type"] == "hit" && one["place"] == place).collect()
}

/// A `watched` that waits for its line.
pub(crate) fn waiting(arguments: &[&str]) -> Running {
    let mut waiting = Running::start(Command::new(program()).args(arguments).arg("wait"));
    assert_eq!(waiting.line(), "ready\n");
    waiting
}

/// A `kymo watch -p` that has armed: its header line has come.
pub(crate) struct Armed {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    pub(crate) header: Value,
}

impl Armed {
    pub(crate) fn start(options: &[&str], pid: &str) -> Armed {
        Armed::try_start(options, pid).unwrap_or_else(|stderr| panic!("{stderr}"))
    }

    /// As `start`; where nothing can be armed, what kymo says.
    fn try_start(options: &[&str], pid: &str) -> Result<Armed, String> {
        let mut command = kymo().command(["watch", "--json", "-p", pid].iter().chain(options));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kymo starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        if out.read_line(&mut line).expect("a line") == 0 {
            let output = child.wait_with_output().expect("it ends");
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let header: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(header["type"], "header");
        Ok(Armed { child, out, header })
    }

    /// What it says until its end, on stdout and stderr, and its status.
    pub(crate) fn end(mut self) -> (Vec<Value>, String, Option<i32>) {
        let lines = self.out.by_ref().lines().map(|line| line.expect("UTF-8"));
        let objects = lines.map(|line| serde_json::from_str(&line).expect("JSON")).collect();
        let output = self.child.wait_with_output().expect("it ends");
        (objects, String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
    }
}

/// Checks that every write by every thread is seen, of threads made before others ended and after, and of a forked child, and that the
/// command's status is passed on.
#[test]
fn every_write_of_every_thread() {
    let Some(_alone) = alone("every_write_of_every_thread") else { return };
    let said = watch(&["--json", "-q", "counter", "total"], &["20", "50", "late", "fork"]).ends(3);
    let summary = summary(&said);
    let found = summary["places"][0]["hits"].as_u64().expect("a number")
        + summary["lost"].as_u64().expect("a number");
    assert_eq!(found, 20 * 50 + 1, "{summary}");
    assert_eq!(summary["places"][1]["hits"], 1);
    let threads: usize = summary["places"][0]["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["threads"].as_array().expect("threads").len())
        .sum();
    assert!(threads == 21 || summary["lost"] != 0, "{summary}");
}

/// Checks the old and new values of a single thread's writes, one by one, and who made them: function, file, line and the name of the
/// thread.
#[test]
fn values_and_sites() {
    let Some(_alone) = alone("values_and_sites") else { return };
    let said = watch(&["--json", "counter", "flag"], &["1", "4"]);
    let objects = objects(&said);
    if !filtered("values_and_sites", &objects[0]) {
        return;
    }
    let values: Vec<_> =
        hits(&objects, 0).iter().map(|hit| (hit["old"].clone(), hit["new"].clone())).collect();
    let expected = (0..4).map(|i| (i.to_string().into(), (i + 1).to_string().into()));
    assert_eq!(values, expected.collect::<Vec<(Value, Value)>>());
    let flag = hits(&objects, 1);
    assert_eq!(flag.len(), 1);
    assert_eq!((&flag[0]["comm"], &flag[0]["site"]["function"]), (&"culprit".into(), &"clear_flag".into()));
    let line = std::fs::read_to_string(programs::sources().join("watched.c"))
        .expect("the source")
        .lines()
        .position(|line| line.contains("flag = 0;"))
        .expect("the line");
    assert_eq!(flag[0]["site"]["line"], line + 1);
    assert!(flag[0]["site"]["file"].as_str().is_some_and(|file| file.ends_with("watched.c")));
}

/// Checks on a process that runs already that threads of later are seen, that the watch ends with the process, and that text says the same.
#[test]
fn a_process_that_runs() {
    let Some(_alone) = alone("a_process_that_runs") else { return };
    let mut waiting = waiting(&["4", "10"]);
    let armed = Armed::start(&["-q", "counter"], &waiting.pid());
    waiting.tell("go\n");
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    let summary = objects.last().expect("a summary");
    assert_eq!(summary["hits"].as_u64().expect("a number") + summary["lost"].as_u64().expect("a number"), 40);
    let said = watch(&["counter"], &["2", "3"]);
    said.prints("counter (")
        .prints(": 6 hits")
        .prints("bump (watched.c:")
        .says("6 hits by 2 threads, none lost");
}

/// Checks that only hits that meet the condition are shown and counted, and that a count ends the watch.
#[test]
fn conditions_and_counts() {
    let Some(_alone) = alone("conditions_and_counts") else { return };
    let said = watch(&["--json", "--if", "new >= 3 && new < 5", "counter"], &["1", "10"]);
    if !filtered("conditions_and_counts", &objects(&said)[0]) {
        return;
    }
    let values: Vec<_> = hits(&objects(&said), 0).iter().map(|hit| hit["new"].clone()).collect();
    assert_eq!(values, ["3", "4"]);
    let said = watch(&["--json", "--count", "3", "counter"], &["1", "10"]);
    assert_eq!(hits(&objects(&said), 0).len(), 3, "{}", said.stdout);
    watch(&["--if", "new is 3", "counter"], &["1", "1"]).ends(129).says("compares nothing");
}

/// Checks that the last line of a watch with a condition counts hits, not threads: "2 of 10 hits
/// met the condition".
#[test]
fn a_condition_counts_hits() {
    let Some(_alone) = alone("a_condition_counts_hits") else { return };
    let said = watch(&["--if", "new >= 3 && new < 5", "counter"], &["1", "10"]);
    if said.stderr.contains("--if") {
        return skip("a_condition_counts_hits", "hits cannot be filtered in the kernel here and now");
    }
    said.says("2 of 10 hits met the condition, by 1 thread, none lost");
}

/// Checks that a watch ends by the signal that killed the command, as `record`, `stat` and `probe`
/// do, and with 0 where kymo itself ended it.
#[test]
fn a_watch_ends_as_its_command() {
    let Some(_alone) = alone("a_watch_ends_as_its_command") else { return };
    let program = program();
    let of = |options: &[&str], arguments: &[&str]| {
        let mut command = kymo().command([&["watch", "-q"], options].concat());
        let output = command.arg("--").arg(&program).args(arguments).output().expect("kymo starts");
        (output.status, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, words) = of(&["counter"], &["1", "1", "abort"]);
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{words}");
    // It would write for hours where each write is reported.
    let (status, words) = of(&["--count", "1", "counter"], &["1", "4000000000"]);
    assert_eq!(status.code(), Some(0), "{words}");
}

/// Checks that a process is stopped at the access that was asked for, not before and not after, and goes on when it is let.
#[test]
fn stops_at_the_access() {
    let Some(_alone) = alone("stops_at_the_access") else { return };
    let mut waiting = waiting(&["1", "1000"]);
    let pid = waiting.pid();
    let armed = Armed::start(&["--stop", "--if", "new == 7", "counter"], &pid);
    waiting.tell("go\n");
    if !filtered("stops_at_the_access", &armed.header) {
        armed.end();
        return;
    }
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains(&format!("gdb -p {pid}")) && stderr.contains("kill -CONT"), "{stderr}");
    let found = hits(&objects, 0);
    assert_eq!((found.len(), &found[0]["new"]), (1, &"7".into()));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    assert!(status.contains("State:\tT"), "{status}");
    tools::run(Command::new("kill").args(["-CONT", &pid]));
    assert_eq!(waiting.child.wait().expect("it ends").code(), Some(3));
}

/// Checks that neighbours share a register and are told apart by what changed, and that nothing needs turns then.
#[test]
fn neighbours_share_registers() {
    let Some(_alone) = alone("neighbours_share_registers") else { return };
    let places = ["counter", "flag", "total", "pair:4", "pair+4:4"];
    let said = watch(&[&["--json", "--no-rotate"], &places[..]].concat(), &["1", "1"]);
    let objects = objects(&said);
    if objects.is_empty() && said.stderr.contains("held by") {
        return skip("neighbours_share_registers", said.stderr);
    }
    if !filtered("neighbours_share_registers", &objects[0]) {
        return;
    }
    assert_eq!((&objects[0]["registers"], &objects[0]["turns"]), (&4.into(), &1.into()), "{}", said.stderr);
    for (place, value) in [(3, "1"), (4, "2")] {
        let found = hits(&objects, place);
        assert_eq!(found.iter().map(|hit| &hit["new"]).collect::<Vec<_>>(), [value], "{}", said.stdout);
    }
}

/// Checks that more than fits takes turns, with every place covered for a share of the time, or is refused where that is asked for.
#[test]
fn turns() {
    let Some(_alone) = alone("turns") else { return };
    let mut waiting = waiting(&["1", "1"]);
    let pid = waiting.pid();
    let places: Vec<String> = (0..12).step_by(2).map(|at| format!("spread+{}:8", 8 * at)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let armed = Armed::start(&[&["--rotate", "5", "-d", "400ms"], &places[..]].concat(), &pid);
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("6 registers are needed") && stderr.contains("turns of 5 ms"), "{stderr}");
    let summary = objects.last().expect("a summary");
    for place in summary["places"].as_array().expect("places") {
        let share = place["coverage"].as_f64().expect("a share");
        assert!(share > 0.0 && share < 0.95, "{summary}");
    }
    let said = kymo().run([&["watch", "-p", &pid, "--no-rotate"], &places[..]].concat()).ends(1);
    said.says("6 registers are needed and each CPU has 4");
    waiting.tell("go\n");
}

/// The first write was shown with the value from before the watch, and the first one of a turn with
/// that of the turn before, though nobody had watched what came between. Each value of this program
/// is one more than the one before.
#[test]
fn old_values_are_those_before_the_write() {
    let Some(_alone) = alone("old_values_are_those_before_the_write") else { return };
    // On one CPU: its ring tells of losses in order.
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program()).args(["1", "4000000000", "wait"]);
    let mut waiting = Running::start(&mut command);
    assert_eq!(waiting.line(), "ready\n");
    waiting.tell("go\n");
    let strangers: Vec<String> = (0..10).step_by(2).map(|at| format!("spread+{}:8", 8 * at)).collect();
    let strangers: Vec<&str> = strangers.iter().map(String::as_str).collect();
    for places in [&[][..], &strangers] {
        let options = [&["--rotate", "5", "-d", "200ms", "counter"], places].concat();
        let armed = Armed::start(&options, &waiting.pid());
        if !filtered("old_values_are_those_before_the_write", &armed.header) {
            return;
        }
        let (objects, stderr, code) = armed.end();
        assert_eq!(code, Some(0), "{stderr}");
        let number = |value: &Value| value.as_str().map(|text| text.parse::<u64>().expect("a number"));
        let values = hits(&objects, 0);
        let known = values.iter().filter(|hit| !hit["old"].is_null());
        let wrong: Vec<_> = known
            .clone()
            .filter(|hit| number(&hit["old"]) != number(&hit["new"]).map(|new| new - 1))
            .collect();
        assert!(wrong.is_empty(), "{} of {}: {:?}", wrong.len(), values.len(), wrong[0]);
        assert!(known.count() > 10, "{stderr}");
    }
}

/// Checks the sentence for each thing that cannot be watched, that it is one, and that the command was not run.
#[test]
fn refusals() {
    let mut cases = vec![
        (vec!["no_such_symbol_here"], 1, "no symbol or variable 'no_such_symbol_here'"),
        (vec!["countre"], 1, "counter"),
        (vec!["0x1001:4"], 1, "aligned"),
        (vec!["counter:3"], 1, "3"),
        (vec!["counter:zz"], 129, "zz"),
        (vec!["--duration", "never", "counter"], 129, "expected a time"),
    ];
    if cfg!(target_arch = "x86_64") {
        cases.push((
            vec!["--no-rotate", "spread:8", "spread+16:8", "spread+32:8", "spread+48:8", "spread+64:8"],
            1,
            "5 registers are needed",
        ));
    }
    for (options, code, words) in cases {
        let said = watch(&options, &["1", "1"]).ends(code);
        said.says(words);
        assert!(said.stdout.is_empty(), "{}: {}", said.command, said.stdout);
    }
    kymo().run(["watch", "-p", "2147483646", "counter"]).ends(1).says("there is no process 2147483646");
    kymo().run(["watch", "counter"]).ends(129);
    let said = kymo().run(["watch", "counter", "--", "/no/such/program"]).ends(255);
    said.says("failed to execute /no/such/program");
}

/// Regression: a variable of a stripped program was taken for a local one of the C library where that has its debug information, and compilers were
/// blamed. The sentence says that the program is stripped, and what to do.
#[test]
fn a_stripped_program() {
    let Some(_alone) = alone("a_stripped_program") else { return };
    let program = programs::build("watched.c", &["-pthread", "-s"]);
    for name in ["spread", "a", "no_such_symbol_here"] {
        let said = kymo().run(["watch", name, "--", program.to_str().expect("a plain name"), "1", "1"]);
        assert_eq!(said.code, Some(1), "{name}: {}", said.stderr);
        assert!(
            said.stderr.contains("is stripped: install its debug symbols, or watch an address"),
            "{name}: {}",
            said.stderr
        );
    }
}

/// Checks that `-o` makes a file that kymo and perf read, with an event for each watchpoint, each access once, and who made it.
#[test]
fn recordings() {
    let Some(_alone) = alone("recordings") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("watch.data");
    let path = path.to_str().expect("a path in UTF-8");
    watch(&["-q", "-g", "-o", path, "counter", "flag"], &["2", "5"]).ends(3);
    let mut readers = vec![kymo()];
    if ready("recordings (perf)", &[Need::Perf]) {
        readers.push(tools::perf());
    }
    for reader in readers {
        let said = reader.succeed(["script", "-i", path]);
        let count = |words: &str| said.stdout.lines().filter(|line| line.contains(words)).count();
        assert_eq!(count(" mem:counter/4:w:"), 10, "{}:\n{}", said.command, said.stdout);
        assert_eq!(count(" mem:flag/1:w:"), 1, "{}:\n{}", said.command, said.stdout);
        said.prints("culprit ").prints("clear_flag");
        reader.succeed(["report", "--stdio", "-i", path]).prints("bump");
    }
    watch(&["-o", "/no/such/folder/x.data", "counter"], &["1", "1"]).ends(1).says("/no/such/folder/x.data");
}

/// Checks that an ordinary user can watch a program of his own, thread by thread, is told that values are read after the access, and may
/// not watch the kernel.
#[test]
fn an_ordinary_user() {
    let test = "an_ordinary_user";
    let Some(_alone) = alone(test) else { return };
    let Some(()) = require(test, &[Need::Root, Need::Program("setpriv")]) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("our own folder");
    let (tool, watched) = (folder.path().join("kymo"), folder.path().join("watched"));
    kymo_testing::copy_program(kymo().path(), &tool);
    kymo_testing::copy_program(&program(), &watched);
    let run = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&tool).args(words);
        tools::run(command.arg("--").arg(&watched).args(["3", "4", "fork"]).current_dir("/"))
    };
    let said = run(&["watch", "--json", "counter"]);
    if said.stderr.contains("setpriv: ")
        || said.code != Some(3) && said.stderr.contains("perf_event_paranoid")
    {
        return skip(test, said.stderr.trim());
    }
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    said.says("read after the access");
    let summary = summary(&said);
    let found = summary["hits"].as_u64().expect("a number") + summary["lost"].as_u64().expect("a number");
    assert_eq!(found, 3 * 4 + 1, "{summary}");
    let said = run(&["watch", "0xffffffff81000000:8"]).ends(1);
    said.says("is the kernel's memory, which only a privileged user may watch");
}

/// Checks that every write of 2,000 threads to four places at once is told or counted as lost, and that arming needs no descriptor for
/// each thread.
#[test]
fn two_thousand_threads() {
    let Some(_alone) = alone("two_thousand_threads") else { return };
    let (threads, writes) = (2000, 10);
    let mut waiting = waiting(&[&threads.to_string(), &writes.to_string(), "crowd", "four"]);
    let places = ["spread:8", "spread+8:8", "spread+16:8", "spread+24:8"];
    let options = ["-q", "--scope", "filtered", "--no-rotate"];
    let armed = match Armed::try_start(&[&options[..], &places].concat(), &waiting.pid()) {
        Ok(armed) => armed,
        // No right to filter, or registers that others hold.
        Err(words) => return skip("two_thousand_threads", words),
    };
    waiting.tell("go\n");
    let (objects, stderr, code) = armed.end();
    assert_eq!(code, Some(0), "{stderr}");
    let summary = objects.last().expect("a summary");
    let number = |key: &str| summary[key].as_u64().expect("a number");
    assert_eq!(number("hits") + number("lost"), threads * writes, "{stderr}");
    let rows =
        summary["places"].as_array().expect("places").iter().flat_map(|place| place["rows"].as_array());
    let told: usize = rows.flatten().map(|row| row["threads"].as_array().map_or(0, Vec::len)).sum();
    assert!(told == threads as usize || number("lost") > 0, "{told} threads");
}

/// Checks that what the kernel writes for a program (read(2) into a variable) is left out, and seen where it is asked for.
#[test]
fn accesses_by_the_kernel() {
    let Some(_alone) = alone("accesses_by_the_kernel") else { return };
    for (options, expected) in [(&["--kernel"][..], 1), (&[], 0)] {
        let mut waiting = waiting(&["1", "1", "read"]);
        let armed = Armed::start(&[options, &["inbox:8"]].concat(), &waiting.pid());
        let header = armed.header.clone();
        waiting.tell("go\n");
        let (objects, stderr, code) = armed.end();
        assert_eq!(code, Some(0), "{stderr}");
        if !filtered("accesses_by_the_kernel", &header) {
            return;
        }
        let found = hits(&objects, 0);
        // A copy of several bytes may be several accesses.
        assert_eq!(found.len().min(1), expected, "{found:?}");
        if let Some(hit) = found.last() {
            assert_eq!(hit["new"], u64::from_le_bytes(*b"eight by").to_string(), "{hit}");
        }
    }
}
