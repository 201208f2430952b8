//! `kymo top`: on a screen, printed, in JSON, and whatever ends it.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::at_terminal::AtTerminal;
use crate::programs::build;
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, require, run, skip, text};

/// Work for longer than any test.
const ENDLESS: &str = "100000000";

/// A program that computes until it is dropped.
fn spinning() -> Running {
    Running::start(Command::new(build("spin.c", &[])).arg(ENDLESS))
}

fn is_ready(test: &str) -> bool {
    require(test, &[Need::Program("cc")]).is_some()
}

fn has_terminal(test: &str) -> bool {
    require(test, &[Need::Program("script"), Need::Program("stty"), Need::Program("cc")]).is_some()
}

/// Checks that a table is printed at each refresh, so many times, that percentages are of the
/// window, and that the command is ended then.
#[test]
fn tables() {
    if !is_ready("top::tables") {
        return;
    }
    let program = build("spin.c", &[]);
    let words = ["top", "-n", "3", "-d", "300ms", "-e", "cpu-clock:u", "--", text(&program), ENDLESS];
    let said = kymo().succeed(words);
    let heads: Vec<&str> = said.stdout.lines().filter(|line| line.starts_with("# +")).collect();
    assert_eq!(heads.len(), 3, "{}", said.stdout);
    assert!(heads.iter().all(|head| head.contains("the last ") && head.contains("spin")), "{heads:?}");
    let last = said.stdout.lines().rfind(|line| line.contains("spin  (spin)")).expect("a row");
    let share: f64 = last.trim().split('%').next().and_then(|word| word.parse().ok()).expect("a share");
    assert!(share > 50.0, "{last}");
}

/// Checks that `-g` counts what functions called: one that only calls has most of the time, too.
#[test]
fn call_chains() {
    if !is_ready("top::call_chains") {
        return;
    }
    let program = build("spin.c", &["-fno-omit-frame-pointer"]);
    let words = ["top", "-g", "--json", "-n", "1", "-d", "500ms", "-e", "cpu-clock:u", "--"];
    let said = kymo().succeed(words.into_iter().chain([text(&program), ENDLESS]));
    let top = &said.json()["events"][0]["top"];
    let number = |value: &Value| value.as_u64().expect("a number");
    let calls_only = |row: &Value| {
        number(&row["self_samples"]) == 0 && 2 * number(&row["total_samples"]) > number(&top["samples"])
    };
    assert!(top["rows"].as_array().expect("rows").iter().any(calls_only), "{}", said.stdout);
}

/// Checks that each line of JSON is a document, that the window grows up to `--window` and no
/// further, and that docs/reference/formats/top-json.md lists every key and no other.
#[test]
fn json_lines() {
    if !is_ready("top::json_lines") {
        return;
    }
    let program = build("spin.c", &[]);
    let words = ["top", "--json", "-n", "4", "-d", "200ms", "--window", "500ms", "-e", "cpu-clock:u", "--"];
    let said = kymo().succeed(words.into_iter().chain([text(&program), ENDLESS]));
    let lines: Vec<Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).expect("a document")).collect();
    assert_eq!(lines.len(), 4, "{}", said.stdout);
    let number = |line: &Value, key: &str| line[key].as_u64().expect("a number");
    for (line, next) in lines.iter().zip(&lines[1..]) {
        assert!(number(line, "elapsed_ns") < number(next, "elapsed_ns"));
        assert!(number(line, "unix_ns") < number(next, "unix_ns"));
    }
    let last = lines.last().expect("a line");
    // What comes while a snapshot is taken is a little later than its window.
    assert!(number(last, "elapsed_ns") > number(last, "window_ns"), "{last}");
    assert!(number(last, "window_ns") >= 500_000_000, "{last}");
    assert_eq!(last["events"][0]["top"]["rows"][0]["name"], "spin", "{last}");
    let document = include_str!("../../../../docs/reference/formats/top-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    let mut found = BTreeSet::new();
    lines.iter().for_each(|line| keys(line, "", &mut found));
    assert_eq!(found, listed);
}

/// Checks that a command's output and status are those of the command, that it is ended by itself,
/// and what is said of one that cannot be started.
#[test]
fn a_command_that_ends() {
    let words = ["top", "-d", "30", "--", "sh", "-c", "echo said; exit 3"];
    kymo().run(words).ends(3).prints("said");
    kymo().run(["top", "-n", "1", "--", "/nowhere"]).ends(255).says("failed to execute /nowhere");
}

/// Checks that CPU time of samples is held against what the kernel accounts: what a command started
/// and did not wait for is in the samples alone, and that is said; of a command that computes by
/// itself nothing is.
#[test]
fn cpu_time_that_is_not_the_commands() {
    const TEST: &str = "top::cpu_time_that_is_not_the_commands";
    if require(TEST, &[Need::Program("cc"), Need::Program("setsid")]).is_none() {
        return;
    }
    let program = build("spin.c", &[]);
    let top = ["top", "-n", "5", "-d", "400ms", "-e", "cpu-clock:uk", "--"];
    let detached = format!("(setsid timeout 6 {} {ENDLESS} & ); exec sleep 6", text(&program));
    let words = [&top[..], &["sh", "-c", &detached]].concat();
    kymo().run(words).ends(0).says("for which it did not wait");
    let said = kymo().succeed([&top[..], &[text(&program), ENDLESS]].concat());
    assert!(!said.stderr.contains("the kernel accounts"), "{}", said.stderr);
}

/// Checks that a process which ends, ends the tables, long before the next refresh is due; and that
/// its last table has its functions by name.
#[test]
fn a_process_that_ends() {
    if !is_ready("top::a_process_that_ends") {
        return;
    }
    let mut program = Running::start(Command::new(build("spin.c", &[])).arg("2000"));
    let pid = program.pid();
    let said = kymo().succeed(["top", "-d", "1000", "-e", "cpu-clock:u", "-p", &pid]);
    assert_eq!(program.end().1, Some(0));
    let count = said.stdout.lines().filter(|line| line.starts_with("# +")).count();
    assert_eq!(count, 1, "{}", said.stdout);
    said.prints("spin  (spin)");
    kymo().run(["top", "-n", "1", "-p", &pid]).ends(1).says("no process");
}

/// Checks that thousands of threads are attached to, and that one that computes is found.
#[test]
fn thousands_of_threads() {
    if !is_ready("top::thousands_of_threads") {
        return;
    }
    let mut sleepers = Running::start(Command::new(build("sleepers.c", &[])).args(["3000", "600"]));
    assert_eq!(sleepers.line().trim(), "ready");
    let other = spinning();
    let pids = format!("{},{}", sleepers.pid(), other.pid());
    let said = kymo().succeed(["top", "-n", "2", "-d", "500ms", "-e", "cpu-clock:u", "-p", &pids]);
    said.prints("spin  (spin)");
}

/// Checks that a pipe whose reader has gone ends it without a word, as other verbs.
#[test]
fn the_reader_has_gone() {
    let words = format!("{} top -q -d 100ms -e cpu-clock | head -n 1", kymo().path().display());
    let said = run(Command::new("sh").args(["-c", &words]).stdin(Stdio::null())).ends(0);
    assert!(said.stdout.starts_with("# +") && !said.stderr.contains("kymo"), "{}", said.stderr);
}

/// A word without `--` before it is a process that runs, never a command to start.
fn top_starts_no_program_by_name() {
    let made = fresh_folder("top-name").join("made");
    let said = kymo().run(["top", "-n", "1", "touch"]).ends(129);
    said.says("there is no process touch");
    kymo().run(["top", "-n", "1", "touch", text(&made)]).ends(129);
    assert!(!made.exists());
}

/// Checks what is refused: events that programs write, wrong numbers, and the whole machine for an
/// ordinary user, in the words of `kymo record`.
#[test]
fn refusals() {
    const TEST: &str = "top::refusals";
    kymo().run(["top", "-e", "probe:main", "-n", "1"]).ends(129).says("`kymo probe` has a live table");
    kymo().run(["top", "-n", "0"]).ends(129);
    kymo().run(["top", "-d", "0"]).ends(129);
    top_starts_no_program_by_name();
    let Some(()) = require(TEST, &[Need::Root, Need::Program("setpriv")]) else { return };
    let folder = fresh_folder("top-user");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("our folder");
    let reachable =
        folder.ancestors().all(|up| fs::metadata(up).is_ok_and(|it| it.permissions().mode() & 0o001 != 0));
    if !reachable {
        return skip(TEST, "an ordinary user cannot reach the build folder");
    }
    let binary = folder.join("kymo");
    kymo_testing::copy_program(kymo().path(), &binary);
    let as_user = |words: &[&str]| {
        let user = ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
        let mut command = Command::new("setpriv");
        run(command.args(user).arg(&binary).args(words).current_dir(&folder).env("HOME", &folder)).ends(1)
    };
    let said = as_user(&["top", "-a", "-n", "1"]);
    said.says("perf_event_paranoid");
    assert_eq!(
        said.stderr,
        as_user(&["record", "-a", "--", "true"]).stderr.replace("kymo record", "kymo top")
    );
}

/// Checks that it opens at a terminal, refreshes, freezes, goes on, shows the keys and the code of
/// a function, and ends with the terminal as it was.
#[test]
fn at_a_terminal() {
    if !has_terminal("top::at_a_terminal") {
        return;
    }
    let program = spinning();
    let words = format!("top -q -d 300ms -e cpu-clock:u -p {}", program.pid());
    let mut terminal = AtTerminal::start(&words, ["", ""]);
    terminal.shows("spin  (spin)");
    terminal.shows(&format!("of process {}", program.pid()));
    // The window grows: another refresh.
    terminal.shows("the last 1.");
    terminal.press("p");
    terminal.shows("| frozen");
    let frozen = terminal.emulator.screen();
    terminal.press("?");
    terminal.shows("p or Space freezes the list");
    terminal.press("\x1b");
    terminal.until("the same list", |emulator| emulator.screen() == frozen);
    terminal.press(" ");
    terminal.until("newer samples", |emulator| {
        let screen = emulator.screen();
        !screen.contains("frozen") && screen.lines().next() != frozen.lines().next()
    });
    terminal.press("a");
    terminal.shows("xor ");
    terminal.press("q5");
    terminal.shows(&format!("spin  {}", program.pid()));
    drop(program);
    terminal.shows("| it has ended");
    terminal.press("pq");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that a command's output does not come to the screen, and that one that ended is said to
/// have ended.
#[test]
fn a_command_at_a_terminal() {
    if !has_terminal("top::a_command_at_a_terminal") {
        return;
    }
    let mut terminal = AtTerminal::start("top -q -d 200ms -- sh -c 'echo LOUD; sleep 0.5'", ["", ""]);
    terminal.shows("it has ended");
    assert!(!terminal.emulator.screen().contains("LOUD"));
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
    assert!(!terminal.emulator.usual.contains("LOUD"), "{}", terminal.emulator.usual);
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("our folder").next().is_none()
}

/// Checks that signals end it with the terminal as it was and the status of the signal, and that
/// whatever ends it, also SIGKILL, it leaves no file.
#[test]
fn ends_by_signals() {
    if !has_terminal("top::ends_by_signals") {
        return;
    }
    let program = spinning();
    let folder = fresh_folder("top-signals");
    let words = format!("top -q -d 100ms -e cpu-clock:u -p {}", program.pid());
    let before = format!("cd {}; TMPDIR={} ", text(&folder), text(&folder));
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::KILL, 137)]
    {
        let mut terminal = AtTerminal::start(&words, [&before, ""]);
        terminal.shows("the last ");
        terminal.shows("spin  (spin)");
        kill_process(terminal.pid(), signal).expect("it is there");
        terminal.until("the status", |emulator| {
            let words = format!("status={status}");
            emulator.usual.contains(&words) || emulator.screen().contains(&words)
        });
        if signal != Signal::KILL {
            terminal.says("restored");
        }
        assert!(is_empty(&folder), "{signal:?} left a file");
    }
    let mut printed = kymo().command(["top", "-d", "100ms", "-e", "cpu-clock:u", "-p", &program.pid()]);
    let mut printed = Running::start(printed.current_dir(&folder).env("TMPDIR", &folder));
    assert!(printed.line().starts_with("# +"));
    kill_process(rustix::process::Pid::from_child(&printed.child), Signal::TERM).expect("it is there");
    let (_, code) = printed.end();
    assert_eq!(code, None, "it ends by the signal");
    assert!(is_empty(&folder));
}
