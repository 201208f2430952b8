//! The same file read by both.
//!
//! Three things in perf's answers are no rows of kymo:
//! - perf forgets a thread at its EXIT record. What the thread does after that, its last switch at
//!   least, is of a new thread to `timehist`, without waits, and in some releases without a number
//!   (`:-1`); the thread is missing in the summary.
//! - perf takes any switch on a CPU as the beginning of what leaves it next, even if that is
//!   another thread: events are missing then, and kymo says so and counts no run time.
//! - perf 6.1 does not know the state of a task that lost its CPU (`R+`), and takes it for a sleep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{LOAD, view};
use crate::matrix::perf_of;
use crate::tools::{Need, Tool, kymo, ready, skip, text};

/// A recording by the perf of a release, if that is here.
fn recorded(test: &str, suite: &str, folder: &Path) -> Option<(Tool, PathBuf)> {
    if !ready(test, &[Need::Root, Need::Tracepoints]) {
        return None;
    }
    let Some(perf) = perf_of(suite) else {
        skip(test, format!("no perf of Debian {suite} here (make setup)"));
        return None;
    };
    let file = folder.join(format!("{suite}.data"));
    perf.succeed(["sched", "record", "-o", text(&file), "--", "sh", "-c", LOAD]);
    Some((perf, file))
}

/// Words of each line, without what perf does not print: whether an interrupt woke a task up.
fn lines(tool: &Tool, file: &Path, words: &[&str]) -> Vec<String> {
    let said = view(tool, file, words).stdout.replace(" (interrupt)", "");
    let lines = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty() && !line.starts_with("INFO:")).collect()
}

/// A task without COMM record is called by its number in perf, and by the scheduler's events in
/// kymo: the number stays.
fn without_name(line: &str) -> String {
    let (label, rest) = line.split_once(" | ").unwrap_or((line, ""));
    format!("{} | {rest}", label.rsplit(':').next().unwrap_or(label))
}

/// Checks the delays of each thread.
#[test]
fn latency() {
    for suite in ["bookworm", "trixie", "sid"] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some((perf, file)) = recorded("sched::latency", suite, folder.path()) else { continue };
        for words in [&["latency", "-p"][..], &["latency", "-p", "--sort", "runtime,switch"]] {
            let read = |tool: &Tool| -> Vec<String> {
                let lines = lines(tool, &file, words);
                lines.iter().filter(|line| line.contains(" ms |")).map(|line| without_name(line)).collect()
            };
            let (theirs, ours) = (read(&perf), read(&kymo()));
            assert!(theirs.len() > 10, "{suite}: {theirs:?}");
            if suite == "bookworm" {
                // perf 6.1 takes lost CPUs for sleeps: no delay is counted for them. Run times are
                // right.
                let runtimes = |lines: &[String]| -> BTreeMap<String, String> {
                    let cells = lines.iter().filter(|line| !line.starts_with(" |"));
                    cells
                        .map(|line| {
                            let mut cells = line.split(" | ").map(str::to_owned);
                            (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
                        })
                        .collect()
                };
                let (theirs, ours) = (runtimes(&theirs), runtimes(&ours));
                let differ =
                    |(tid, time): &(&String, &String)| ours.get(*tid).is_some_and(|own| own != *time);
                assert_eq!(theirs.iter().find(differ), None, "{suite}: {ours:?}");
            } else {
                let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
                assert!(theirs == ours, "{suite}: {words:?}: the first that differ: {first:?}");
            }
        }
    }
}

/// When each thread ended, in seconds.
fn exits(file: &Path) -> BTreeMap<String, f64> {
    let words = ["script", "--show-task-events", "-F", "time", "-i", text(file)];
    let said = kymo().succeed(words).stdout;
    let exit = |line: &str| {
        let (time, record) = line.split_once(": PERF_RECORD_EXIT(")?;
        let tid = record.split_once(')')?.0.split_once(':')?.1;
        Some((tid.to_owned(), time.trim().parse().ok()?))
    };
    said.lines().filter_map(exit).collect()
}

/// The number in `name[12]` or `name[12/3]`.
fn tid_of(line: &str) -> &str {
    let inside = line.rfind('[').map_or("", |at| &line[at + 1..]);
    inside.split(['/', ']']).next().unwrap_or("")
}

/// Checks the lines of a history; those of threads after their EXIT record are kymo's alone.
fn compare_history(suite: &str, perf: &Tool, file: &Path, words: &[&str]) {
    let (theirs, ours) = (lines(perf, file, words), lines(&kymo(), file, words));
    assert!(theirs.len() > 20, "{suite}: {theirs:?}");
    assert_eq!(theirs.len(), ours.len(), "{suite}: {words:?}");
    let exits = exits(file);
    let mismatched = mismatched(file);
    let mut differing = Vec::new();
    let is_switch = |line: &String| line.starts_with(|c: char| c.is_ascii_digit());
    for (their, our) in theirs.iter().zip(&ours).filter(|(their, _)| is_switch(their)) {
        let time: f64 = our.split(' ').next().and_then(|time| time.parse().ok()).expect("a time");
        let label = our.split(" awakened: ").next().unwrap_or("");
        let label = label.split(" migrated: ").next().unwrap_or("");
        let label = label.split(" next: ").next().unwrap_or("");
        let ended = exits.get(tid_of(label)).is_some_and(|exit| *exit <= time);
        let woken = our.split(" awakened: ").nth(1);
        let woken = woken.is_some_and(|woken| their.contains(" awakened: ") && !their.ends_with(woken));
        // perf 6.1: times of runnable tasks are missing.
        let cut = |line: &str| match suite {
            "bookworm" => {
                let words: Vec<&str> = line.split(' ').collect();
                let delay = words.len().saturating_sub(2);
                let kept = words.iter().enumerate().filter(|(at, _)| *at != delay);
                kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
            }
            _ => line.to_owned(),
        };
        // A woken thread without COMM record has no number in perf.
        if !ended && !woken && cut(their) != cut(our) {
            differing.push(format!("perf: {their}\nkymo: {our}"));
        }
    }
    let found = differing.join("\n");
    assert!(differing.len() <= mismatched, "{suite}: {words:?}: beside {mismatched} switches:\n{found}");
}

/// Switches of which events before them are missing, as kymo says.
fn mismatched(file: &Path) -> usize {
    let said = view(&kymo(), file, &["stats"]).stderr;
    let line = said.lines().find(|line| line.contains("that had not got the CPU"));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}

/// Checks the history of switches.
#[test]
fn timehist() {
    for suite in ["bookworm", "trixie", "sid"] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some((perf, file)) = recorded("sched::timehist", suite, folder.path()) else { continue };
        compare_history(suite, &perf, &file, &["timehist"]);
        if suite == "bookworm" {
            continue;
        }
        compare_history(suite, &perf, &file, &["timehist", "--state"]);
        compare_history(suite, &perf, &file, &["timehist", "-n", "-V"]);
        compare_history(suite, &perf, &file, &["timehist", "-M", "-w"]);
        // The middle half of the recording: times that reach into it are cut.
        let said = view(&kymo(), &file, &["timehist", "--json"]).json();
        let times =
            said["lines"].as_array().expect("lines").iter().filter_map(|line| line["time_ns"].as_u64());
        let times: Vec<u64> = times.collect();
        let (first, last) = (times[0], times[times.len() - 1]);
        let quarter = (last - first) / 4;
        let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        let span = format!("{},{}", seconds(first + quarter), seconds(last - quarter));
        compare_history(suite, &perf, &file, &["timehist", "--time", &span]);
    }
}

/// Checks what the CPUs' idle times add up to; of threads, perf's summary has only those that have
/// not ended.
#[test]
fn summary() {
    for suite in ["trixie", "sid"] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some((perf, file)) = recorded("sched::summary", suite, folder.path()) else { continue };
        for words in [&["timehist", "-s", "-M"][..], &["timehist", "-s", "-M", "--state"]] {
            let (theirs, ours) = (lines(&perf, &file, words), lines(&kymo(), &file, words));
            let exits = exits(&file);
            let (mismatched, mut missing) = (mismatched(&file), Vec::new());
            for line in theirs.iter().filter(|line| line.contains('[') || line.contains("idle for")) {
                let ended = exits.contains_key(tid_of(line)) || tid_of(line) == "-1";
                if !ended && !ours.contains(line) {
                    missing.push(line);
                }
            }
            assert!(missing.len() <= mismatched, "{suite}: {words:?}: {missing:#?}\n{ours:#?}");
        }
    }
}

/// Checks the map, line by line, with all CPUs, in compact form, and of tasks by their names.
#[test]
fn map() {
    for suite in ["bookworm", "trixie", "sid"] {
        let folder = tempfile::tempdir().expect("a folder");
        let Some((perf, file)) = recorded("sched::map", suite, folder.path()) else { continue };
        for words in [&["map"][..], &["map", "--compact"], &["map", "--task-name", "sh,cat"]] {
            // perf 6.1 cannot pick tasks.
            if suite == "bookworm" && words.len() == 3 {
                continue;
            }
            let read = |tool: &Tool| -> Vec<String> {
                let named = |line: &String| match line.split_once(" => ") {
                    Some((cells, task)) => format!("{cells} {}", task.rsplit(':').next().unwrap_or(task)),
                    None => line.clone(),
                };
                lines(tool, &file, words).iter().map(named).collect()
            };
            let (theirs, ours) = (read(&perf), read(&kymo()));
            assert!(theirs.len() > 100, "{suite}: {theirs:?}");
            let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
            assert!(theirs == ours, "{suite}: {words:?}: the first that differ: {first:?}");
        }
    }
}
