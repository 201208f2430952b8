//! Waits against the account that programs keep of them: sums, longest waits, places and states of
//! `record --wall`, for programs in C, Python, Go, Java and node, run by kymo or attached to.
//!
//! No time is asserted but against the program's own clock, which runs from before the wait until
//! the thread has a CPU again. kymo counts that last part apart, as `runnable`.

mod account;
mod judge;
mod outputs;

use account::{Case, Mode};
use judge::{differences, impossible};

use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, skip, text};
use outputs::by_state;
use serde_json::Value;

/// Records a case, and compares: sentences, and how many switches the kernel has left out.
fn differences_of(test: &str, case: &Case) -> (Vec<String>, u64) {
    let folder = fresh_folder(&format!("{}-{}", test.replace("::", "-"), case.label()));
    let recorded = case.record(&folder);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&recorded.file)]).json();
    assert!(!recorded.accounts.is_empty(), "{} has no account", case.label());
    let all = recorded.accounts.iter().flat_map(|account| differences(account, &recorded, &report));
    (all.chain(impossible(&recorded, &report)).collect(), recorded.unseen)
}

/// Records each case and says what is wrong with any of them.
///
/// One that is wrong is recorded once more only where the kernel has left out switches (kymo-perf,
/// `bpf/waits`), of which the count is said.
fn hold(test: &str, cases: &[Case]) {
    if !crate::wall::ready(test) {
        return;
    }
    let mut wrong = Vec::new();
    for case in cases {
        let (mut found, mut unseen) = differences_of(test, case);
        if !found.is_empty() && unseen > 0 {
            eprintln!(
                "{} is recorded once more: {unseen} switches were left out:\n  {}",
                case.label(),
                found.join("\n  ")
            );
            (found, unseen) = differences_of(test, case);
        }
        if !found.is_empty() {
            let label = case.label();
            wrong.push(format!("{label}: {unseen} switches were left out:\n  {}", found.join("\n  ")));
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

/// Checks programs in C where few waits have stacks, as before Linux 6.16: what each is for is
/// known by another one at its place. One of which there is only one may be unknown.
#[test]
fn few_stacks_before_linux_6_16() {
    const TEST: &str = "waits_truth::few_stacks_before_linux_6_16";
    if !crate::wall::ready(TEST) {
        return;
    }
    for kind in ["lock", "condition", "semaphore", "pipe"] {
        let case = Case::of_c((kind, 16, 10, 5000), Mode::RunAtSwitch);
        let recorded = case.record(&fresh_folder(&format!("before-6-16-{kind}")));
        let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&recorded.file)]).json();
        let places = report["places"].as_array().expect("a list");
        let waits = |states: &[&str]| -> u64 {
            let of = |place: &&Value| place["state"].as_str().is_some_and(|state| states.contains(&state));
            places.iter().filter(of).filter_map(|place| place["waits"].as_u64()).sum()
        };
        let (unknown, known) = (waits(&["unknown", "other"]), waits(&[kind]));
        let known = known + if kind == "semaphore" { waits(&["condition"]) } else { 0 };
        assert!(known >= 100 && unknown <= 10, "{kind}: {known} and {unknown} unknown: {report:#}");
    }
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

/// Checks more waits a second than have records: two threads that take turns, and threads that wait
/// for a lock, or on a condition, and sleep in turns.
#[test]
fn of_many_waits() {
    let kinds = [("turns", 2, 20_000, 0), ("lock", 4, 3000, 50), ("condition", 4, 2000, 100)];
    hold("waits_truth::of_many_waits", &kinds.map(|kind| Case::of_c(kind, Mode::Run)));
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

/// Checks that waits of Python have its functions in each output.
#[test]
fn names_of_python_in_all_outputs() {
    let test = "waits_truth::names_of_python_in_all_outputs";
    let needs = [Need::Program("python3"), Need::X86];
    if !crate::wall::ready(test) || require(test, &needs).is_none() {
        return;
    }
    let folder = fresh_folder("waits-truth-python-names");
    let file = Case::of_python(("sleep", 2, 20, 10_000), Mode::Attach).record(&folder).file;
    let printed = kymo().succeed(["report", "--wall", "-i", text(&file)]).stdout;
    assert!(
        printed.lines().any(|line| line.contains(" timer ") && line.contains("naps < waits")),
        "{printed}"
    );
    let folded = kymo().succeed(["export", "-q", "--to", "folded", "--wall", text(&file)]).stdout;
    let is_nap = |line: &str| line.contains(";waits;naps;") && line.contains(";timer ");
    assert!(folded.lines().any(is_nap), "{folded}");
    let asked = kymo().succeed(["query", "--json", text(&file), "waits where state=timer"]).stdout;
    assert!(asked.contains("\"naps"), "{asked}");
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
    // Where the kernel leaves out switches, that is told of either.
    assert!(!of_c.contains("goroutines"), "{of_c}");
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
