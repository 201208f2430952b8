//! Waits against the account that programs keep of them: sums, longest waits, places and states of
//! `record --wall`, for programs in C, Python, Go, Java and node, run by kymo or attached to.
//!
//! No time is asserted but against the program's own clock, which runs from before the wait until
//! the thread has a CPU again. kymo counts that last part apart, as `runnable`.

mod account;
mod outputs;

use account::{Account, Case, Mode, Recorded};

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, skip, text};
use outputs::by_state;
use serde_json::Value;

/// Sums may differ by a fiftieth, longest waits by a twentieth; what the program does between its
/// clock and the wait is less than this.
const SUM_PART: u64 = 50;
const LONGEST_PART: u64 = 20;
const BESIDE_NS: u64 = 2_000_000;

/// The time, the longest wait and the number of waits of the places that a filter leaves.
struct Places {
    ns: u64,
    longest: u64,
    waits: u64,
}

fn places(report: &Value, filter: impl Fn(&Value) -> bool) -> Places {
    let list = report["places"].as_array().expect("a list").iter().filter(|place| filter(place));
    let mut sum = Places { ns: 0, longest: 0, waits: 0 };
    for place in list {
        let number = |key: &str| place[key].as_u64().expect("a number");
        sum.ns += number("time_ns");
        sum.longest = sum.longest.max(number("longest_ns"));
        sum.waits += number("waits");
    }
    sum
}

fn is_in(place: &Value, function: &str) -> bool {
    let functions = place["functions"].as_array().expect("a list").iter().filter_map(Value::as_str);
    // Some have a package before them, or marks and a file around them: `JS:~reads FILE:5:1`.
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    functions.flat_map(|name| name.split(move |c| !is_word(c))).any(|word| word == function)
}

/// Places of threads whose names begin so, of functions that have no names.
fn of_threads(report: &Value, names: &str, state: &str) -> u64 {
    let threads = report["threads"].as_array().expect("a list").iter();
    let of = threads.filter(|thread| thread["name"].as_str().is_some_and(|name| name.starts_with(names)));
    of.filter_map(|thread| thread["states"].get(state)?.as_u64()).sum()
}

/// The same of an account of threads, not of functions.
fn differences_of_threads(account: &Account, report: &Value) -> Vec<String> {
    let Account { state, function: names, ns: own, .. } = account;
    let of = |state: &str| of_threads(report, names, state);
    let (waited, ready, ran) = (of(state), of("runnable"), of("running"));
    let mut found = Vec::new();
    if waited > own + own / SUM_PART + BESIDE_NS {
        found.push(format!("{names} {state}: {waited} ns, their own sum is {own}"));
    }
    if waited + ready + ran + BESIDE_NS + own / SUM_PART < *own {
        found.push(format!("{names} {state}: {waited} ns, ready {ready}, their own sum is {own}"));
    }
    found
}

fn of_state(report: &Value, state: &str) -> u64 {
    report["states"].get(state).and_then(Value::as_u64).unwrap_or(0)
}

/// What of a report is not as the program has it: sentences.
fn differences(account: &Account, has_no_runtime: bool, report: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            found.push(format!("{} in {}: {what}", account.state, account.function));
        }
    };
    if account.is_of_threads {
        return differences_of_threads(account, report);
    }
    let here = |place: &Value| is_in(place, &account.function);
    let waited = places(report, |place| here(place) && place["state"] == *account.state);
    let ready = places(report, |place| here(place) && place["state"] == "runnable");
    let (own, beside) = (account.ns, BESIDE_NS + of_state(report, "running"));
    let whole = waited.ns + ready.ns + beside + own / SUM_PART;
    check(waited.ns <= own + own / SUM_PART, format!("{} ns, its own sum is {own}", waited.ns));
    check(whole >= own, format!("{} ns and ready {}, its own sum is {own}", waited.ns, ready.ns));
    let own = account.longest;
    check(
        waited.longest <= own + own / LONGEST_PART,
        format!("the longest is {} ns, its own {own}", waited.longest),
    );
    let least = account.least - account.least / LONGEST_PART;
    check(waited.longest >= least, format!("the longest is {} ns, that took {least}", waited.longest));
    // A thread that is kept from its CPU as it begins to sleep may never wait.
    let most = account.waits + account.waits / 2 + 3;
    let is_counted = waited.waits <= most && waited.waits * 10 >= account.waits * 7;
    check(
        !has_no_runtime || account.state != "timer" || is_counted,
        format!("{} waits, not {}", waited.waits, account.waits),
    );
    // Runtimes take locks of their own in the same functions.
    let wrong_states: &[&str] = if has_no_runtime {
        &["lock", "unknown", "other", "running", "child", "stopped"]
    } else {
        &["unknown", "other", "running", "stopped"]
    };
    for state in wrong_states {
        let wrong = places(report, |place| here(place) && place["state"] == **state);
        let is_exact = has_no_runtime && *state == "lock";
        let most = if is_exact { 0 } else { account.ns / SUM_PART };
        check(*state == account.state || wrong.ns <= most, format!("{} ns are called {state}", wrong.ns));
    }
    let idle = places(report, |place| here(place) && place["idle"] == true);
    check(account.may_be_idle() || idle.ns == 0, format!("{} ns are called idle", idle.ns));
    found
}

/// What of a whole report cannot be, whatever the program.
fn impossible(recorded: &Recorded, report: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let total = report["total_ns"].as_u64().expect("a number");
    let unknown = of_state(report, "unknown");
    if unknown > total / SUM_PART {
        found.push(format!("{unknown} of {total} ns are unknown: {:#}", report["states"]));
    }
    let wants_locks = recorded.accounts.iter().any(|account| account.state == "lock");
    // Runtimes have locks of their own. A program in C has those that it makes, and the kernel's.
    let locks = of_state(report, "lock");
    if !wants_locks && recorded.has_no_runtime && locks > total / 500 {
        found.push(format!("{locks} ns are called lock"));
    }
    // Of children the program knows no CPU time.
    let has_children = recorded.accounts.iter().any(|account| account.state == "child");
    let (ran, own) = (of_state(report, "running"), recorded.ran_ns.filter(|_| !has_children));
    if own.is_some_and(|own| ran > own + own / 10 + 20_000_000) {
        found.push(format!("{ran} ns are called running, its own CPU time is {own:?}"));
    }
    found
}

/// Records each case and says what is wrong with any of them.
fn hold(test: &str, cases: &[Case]) {
    if !crate::wall::ready(test) {
        return;
    }
    let mut wrong = Vec::new();
    for case in cases {
        let folder = fresh_folder(&format!("{}-{}", test.replace("::", "-"), case.label()));
        let recorded = case.record(&folder);
        let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&recorded.file)]).json();
        assert!(!recorded.accounts.is_empty(), "{} has no account", case.label());
        let has_no_runtime = recorded.has_no_runtime;
        let of_account = |account| differences(account, has_no_runtime, &report);
        let all = recorded.accounts.iter().flat_map(of_account);
        let all: Vec<String> = all.chain(impossible(&recorded, &report)).collect();
        if !all.is_empty() {
            wrong.push(format!("{} ({}):\n  {}", case.label(), text(&recorded.file), all.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks programs in C that kymo runs: every kind of wait, with few threads and with many.
#[test]
fn of_c() {
    let kinds = [
        ("sleep", 1, 40, 5000),
        ("sleep", 200, 5, 20_000),
        ("churn", 50, 8, 3000),
        ("lock", 8, 10, 2000),
        ("rwlock", 8, 10, 5000),
        ("condition", 16, 10, 5000),
        ("semaphore", 16, 10, 5000),
        ("barrier", 8, 10, 5000),
        ("pipe", 16, 10, 5000),
        ("local", 16, 10, 5000),
        ("tcp", 16, 10, 5000),
        ("poll", 16, 10, 5000),
        ("epoll", 16, 10, 5000),
        ("child", 4, 5, 5000),
        ("disk", 4, 25, 0),
    ];
    hold("waits_truth::of_c", &kinds.map(|kind| Case::of_c(kind, Mode::Run)));
}

/// Checks programs in C that run already, and begin to wait once kymo is there.
#[test]
fn of_c_attached() {
    let kinds = [
        ("sleep", 50, 10, 10_000),
        ("churn", 50, 8, 3000),
        ("lock", 8, 10, 2000),
        ("condition", 16, 10, 5000),
        ("semaphore", 16, 10, 5000),
        ("pipe", 16, 10, 5000),
        ("epoll", 16, 10, 5000),
    ];
    hold("waits_truth::of_c_attached", &kinds.map(|kind| Case::of_c(kind, Mode::Attach)));
}

/// Checks more waits a second than have records: two threads that take turns.
#[test]
fn of_many_waits() {
    hold("waits_truth::of_many_waits", &[Case::of_c(("turns", 2, 20_000, 0), Mode::Run)]);
}

/// Checks many threads, long-lived and short-lived ones.
#[test]
fn of_many_threads() {
    let soak = std::env::var_os("KYMO_SOAK").is_some();
    let most = if soak { 10_000 } else { 2000 };
    let kinds = [("sleep", most, 3, 100_000), ("churn", most, 2, 20_000), ("pipe", 400, 5, 50_000)];
    hold("waits_truth::of_many_threads", &kinds.map(|kind| Case::of_c(kind, Mode::Run)));
}

/// Checks threads of Python, whose places are functions of Python.
#[test]
fn of_python() {
    if require("waits_truth::of_python", &[Need::Program("python3"), Need::X86]).is_none() {
        return;
    }
    let kinds = ["sleep", "lock", "condition", "queue", "pipe", "tcp", "child"];
    let run = kinds.map(|kind| Case::of_python((kind, 4, 10, 10_000), Mode::Run));
    let attached =
        ["sleep", "lock", "queue"].map(|kind| Case::of_python((kind, 4, 10, 10_000), Mode::Attach));
    hold("waits_truth::of_python", &[&run[..], &attached].concat());
}

/// Checks threads of Go.
#[test]
fn of_go() {
    if require("waits_truth::of_go", &[Need::Program("go")]).is_none() {
        return;
    }
    let kinds = ["sleep", "pipe", "child"].map(|kind| Case::of_go((kind, 4, 10, 10_000), Mode::Run));
    let attached = [Case::of_go(("sleep", 4, 10, 10_000), Mode::Attach)];
    hold("waits_truth::of_go", &[&kinds[..], &attached].concat());
}

/// Checks threads of Java.
#[test]
fn of_java() {
    if require("waits_truth::of_java", &[Need::Program("javac"), Need::Program("java")]).is_none() {
        return;
    }
    let kinds = ["sleep", "monitor", "signal", "queue"];
    let run = kinds.map(|kind| Case::of_java((kind, 4, 10, 10_000), Mode::Run));
    let attached = [Case::of_java(("monitor", 4, 10, 10_000), Mode::Attach)];
    hold("waits_truth::of_java", &[&run[..], &attached].concat());
}

/// Checks a program of node that names its code.
#[test]
fn of_node() {
    if require("waits_truth::of_node", &[Need::Program("node")]).is_none() {
        return;
    }
    hold(
        "waits_truth::of_node",
        &["sleep", "pipe"].map(|kind| Case::of_node((kind, 1, 10, 10_000), Mode::Run)),
    );
}

/// Checks that all outputs have the same sums by state of one recording.
#[test]
fn of_all_outputs() {
    let test = "waits_truth::of_all_outputs";
    if !crate::wall::ready(test) {
        return;
    }
    let folder = fresh_folder("waits-truth-outputs");
    let recorded = Case::of_c(("lock", 8, 10, 3000), Mode::Run).record(&folder);
    let expected = by_state::of_json(&recorded.file);
    assert!(expected.len() > 3, "{expected:?}");
    assert_eq!(by_state::of_query(&recorded.file), by_state::waiting(&expected), "query waits");
    assert_eq!(by_state::of_folded(&recorded.file), expected, "folded");
    assert_eq!(by_state::of_parquet(&recorded.file, &folder), expected, "Parquet");
    assert_eq!(by_state::of_otlp(&recorded.file), expected, "OTLP");
    assert_eq!(by_state::of_view(&recorded.file, &folder), expected, "view");
    by_state::is_printed(&recorded.file, &expected);
}

/// Checks that a report of Go says that waits of goroutines are not seen, as text and as JSON, and
/// that one of C does not.
#[test]
fn goroutines_are_not_seen() {
    let test = "waits_truth::goroutines_are_not_seen";
    if !crate::wall::ready(test) {
        return;
    }
    if require(test, &[Need::Program("go")]).is_none() {
        return skip(test, "no Go here");
    }
    let notes = |case: Case, name: &str| {
        let file = case.record(&fresh_folder(name)).file;
        let printed = kymo().succeed(["report", "--wall", "-i", text(&file)]).stdout;
        let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
        let notes: Vec<String> = serde_json::from_value(report["notes"].clone()).expect("sentences");
        notes.iter().for_each(|note| assert!(printed.contains(note), "{note}: {printed}"));
        notes.join("\n")
    };
    let of_go = notes(Case::of_go(("sleep", 2, 5, 5000), Mode::Run), "waits-truth-go");
    assert!(of_go.contains("not those of its goroutines"), "{of_go}");
    let of_c = notes(Case::of_c(("sleep", 2, 5, 5000), Mode::Run), "waits-truth-no-go");
    assert_eq!(of_c, "");
}

/// Checks that waits of node below code without names bring the advice.
#[test]
fn node_without_names() {
    let test = "waits_truth::node_without_names";
    if !crate::wall::ready(test) || require(test, &[Need::Program("node")]).is_none() {
        return;
    }
    let case = Case::of_node_without_names(("pipe", 1, 20, 10_000), Mode::Run);
    let file = case.record(&fresh_folder("waits-truth-nameless")).file;
    kymo().succeed(["report", "--wall", "-i", text(&file)]).prints("--perf-basic-prof");
}

/// Checks that the threads of Java's collector are one row, that none of them waits for a lock, and
/// that the critical path is not theirs.
#[test]
fn collectors_of_java() {
    let test = "waits_truth::collectors_of_java";
    if !crate::wall::ready(test) || require(test, &[Need::Program("javac")]).is_none() {
        return;
    }
    let file =
        Case::of_java(("queue", 2, 10, 10_000), Mode::Run).record(&fresh_folder("waits-truth-gc")).file;
    kymo().succeed(["report", "--wall", "-i", text(&file)]).prints("of that GC: ").prints("GC (");
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let threads = report["threads"].as_array().expect("a list");
    let collectors: Vec<&Value> = threads.iter().filter(|of| of["collects_garbage"] == true).collect();
    assert!(!collectors.is_empty(), "{report:#}");
    for collector in collectors {
        assert!(collector["states"].get("lock").is_none(), "{collector:#}");
        assert_ne!(report["critical_path"]["tid"], collector["tid"], "{report:#}");
    }
}
