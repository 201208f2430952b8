//! The same file read by both.
//!
//! Three things in perf's answers are no rows of kymo:
//! - perf forgets a thread at its EXIT record. What the thread does after that, its last switch at
//!   least, is of a new thread to `timehist`, without waits, and in some releases without a number
//!   (`:-1`); the thread is missing in the summary.
//! - perf takes any switch on a CPU as the beginning of what leaves it next, even if that is
//!   another thread: events are missing then, and kymo says so and counts no run time.
//! - perf 6.1 does not know the state of a task that lost its CPU (`R+`), and takes it for a sleep.

use std::collections::{BTreeMap, BTreeSet};
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
    // Without its build-id cache (-N): perf 6.12 can die of an assertion of its own there.
    perf.succeed(["sched", "record", "-N", "-B", "-o", text(&file), "--", "sh", "-c", LOAD]);
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

/// Threads of which the first event is the kernel's account of their run time. perf takes that for
/// the beginning of a wait, even if they sleep before they get a CPU again.
fn accounted_first(file: &Path) -> BTreeSet<String> {
    let said = kymo().succeed(["script", "-i", text(file), "-F", "event,trace"]).stdout;
    let (mut seen, mut accounted) = (BTreeSet::new(), BTreeSet::new());
    for line in said.lines() {
        let tids = line.split_whitespace().filter_map(|word| {
            let (key, tid) = word.split_once('=')?;
            ["pid", "prev_pid", "next_pid"].contains(&key).then_some(tid)
        });
        for tid in tids {
            if seen.insert(tid.to_owned()) && line.contains("sched_stat_runtime") {
                accounted.insert(tid.to_owned());
            }
        }
    }
    accounted
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
                let tid = |line: &String| line.split(' ').next().unwrap_or("").to_owned();
                let accounted = accounted_first(&file);
                let differ = |a: &[String], b: &[String]| -> Vec<String> {
                    a.iter().filter(|line| !b.contains(line)).map(&tid).collect()
                };
                // These only: without them, the lines and their order are the same.
                let mut left_out = [differ(&theirs, &ours), differ(&ours, &theirs)].concat();
                left_out.retain(|tid| accounted.contains(tid));
                let keep = |lines: Vec<String>| -> Vec<String> {
                    lines.into_iter().filter(|line| !left_out.contains(&tid(line))).collect()
                };
                let (theirs, ours) = (keep(theirs), keep(ours));
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

/// A line with tasks called by their numbers: perf calls a thread of the kernel by its maker's name
/// until a record tells another one, and one without a name by its number alone.
fn without_names(line: &str) -> String {
    let bracketed = |word: &str| match word.strip_prefix(':') {
        Some(number) if number.parse::<u32>().is_ok() => format!("[{number}]"),
        _ => word.to_owned(),
    };
    let line = line.split(' ').map(bracketed).collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    for part in line.split_inclusive(']') {
        let label = part.rfind('[').filter(|at| !part[*at..].starts_with("[0"));
        let words = ["] ", "awakened: ", "migrated: ", "next: "];
        let begin =
            label.map(|at| words.iter().filter_map(|word| Some(part[..at].rfind(word)? + word.len())).max());
        match (label, begin) {
            (Some(at), Some(begin)) => {
                text.push_str(&part[..begin.unwrap_or(0)]);
                text.push_str(&part[at..]);
            }
            _ => text.push_str(part),
        }
    }
    text
}

/// A line without the delay, which perf 6.1 does not count after a preemption.
fn without_delay(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let kept = words.iter().enumerate().filter(|(at, _)| at + 2 != words.len());
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

/// Lines of the first list that are not in the second, as often as they are there.
fn missing_in<'a>(lines: &'a [String], others: &[String]) -> Vec<&'a String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    others.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    let is_there = |line: &&String| match counts.get_mut(*line) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    let mut is_there = is_there;
    lines.iter().filter(|line| !is_there(line)).collect()
}

/// Checks the lines of a history; those of threads after their EXIT record are kymo's alone.
fn compare_history(suite: &str, perf: &Tool, file: &Path, words: &[&str]) {
    let read = |tool: &Tool| -> Vec<String> {
        let lines = lines(tool, file, words).into_iter();
        let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        let lines = lines.map(|line| if suite == "bookworm" { without_delay(&line) } else { line });
        lines.map(|line| without_names(&line)).collect()
    };
    let (theirs, ours) = (read(perf), read(&kymo()));
    assert!(theirs.len() > 20, "{suite}: {theirs:?}");
    let exits = exits(file);
    // Where the recorder ends on one CPU after the other, it moves itself and leaves none.
    let allowed = mismatched(file) + 2;
    let has_ended = |line: &&&String| {
        let time: f64 = line.split(' ').next().and_then(|time| time.parse().ok()).expect("a time");
        let label = [" awakened: ", " migrated: ", " next: "]
            .iter()
            .fold(line.as_str(), |line, word| line.split(word).next().unwrap_or(line));
        exits.get(tid_of(label)).is_some_and(|exit| *exit <= time)
    };
    let (their_own, our_own) = (missing_in(&theirs, &ours), missing_in(&ours, &theirs));
    let ended = our_own.iter().filter(has_ended).count();
    // A woken thread without COMM record has no number in perf.
    let unexplained = our_own.len() - ended;
    assert!(
        unexplained <= allowed && their_own.len() <= ended + allowed,
        "{suite}: {words:?}: beside {allowed} switches and {ended} of threads that had ended:\nperf: {their_own:#?}\nkymo: {our_own:#?}"
    );
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
            let read = |tool: &Tool| -> Vec<String> {
                let tid = |line: &String| match line.find('[') {
                    Some(at) => line[at..].to_owned(),
                    None => line.clone(),
                };
                lines(tool, &file, words).iter().map(tid).collect()
            };
            let (theirs, ours) = (read(&perf), read(&kymo()));
            let exits = exits(&file);
            let (mismatched, mut missing) = (mismatched(&file), Vec::new());
            for line in theirs.iter().filter(|line| line.contains('[') || line.contains("idle for")) {
                let ended = exits.contains_key(tid_of(line)) || tid_of(line) == "-1";
                if !ended && !ours.contains(line) {
                    missing.push(line);
                }
            }
            assert!(missing.len() <= mismatched + 2, "{suite}: {words:?}: {missing:#?}\n{ours:#?}");
        }
    }
}

/// A line of the map as lines of one switch each: perf ends no line after a task that comes in
/// while one goes out that it never saw come in, if tasks are picked by name.
fn one_switch_each(line: String) -> Vec<String> {
    let Some((map, rest)) = line.split_once(" secs") else { return vec![line] };
    if !rest.contains(" secs") {
        return vec![line];
    }
    // The name of a new task, such as ` A0 => cat:12`, belongs to the first.
    let words = if rest.split(' ').nth(2) == Some("=>") { 4 } else { 1 };
    let end = rest.match_indices(' ').nth(words - 1).map_or(rest.len(), |(at, _)| at);
    let (own, next) = rest.split_at(end);
    [vec![format!("{map} secs{own}")], one_switch_each(next.trim_start().to_owned())].concat()
}

/// Checks that a line of two switches without an end of line between them is taken for two.
#[test]
fn lines_that_perf_does_not_end() {
    let lines = |line: &str| one_switch_each(line.to_owned());
    assert_eq!(lines("B0 *D0 1.5 secs"), ["B0 *D0 1.5 secs"]);
    assert_eq!(lines("B0 *D0 1.5 secs D0 => sh:7"), ["B0 *D0 1.5 secs D0 => sh:7"]);
    assert_eq!(lines("B0 *D0 1.5 secs *- D0 1.6 secs"), ["B0 *D0 1.5 secs", "*- D0 1.6 secs"]);
    assert_eq!(
        lines("B0 *D0 1.5 secs D0 => sh:7 *- D0 1.6 secs D0 => sh:8 *A0 D0 1.7 secs"),
        ["B0 *D0 1.5 secs D0 => sh:7", "*- D0 1.6 secs D0 => sh:8", "*A0 D0 1.7 secs"]
    );
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
                let lines = lines(tool, &file, words).into_iter().flat_map(one_switch_each);
                lines.map(|line| named(&line)).collect()
            };
            let (mut theirs, mut ours) = (read(&perf), read(&kymo()));
            // Each of the load's 30 processes comes in once at least. A quiet machine's map has no more
            // than 100 lines, one that is busy has a thousand.
            assert!(theirs.len() > 30, "{suite}: {theirs:?}");
            // perf gives the letters for a second time after 260 tasks; kymo has more.
            let is_new = |line: &String| {
                line.split(' ').any(|cell| {
                    let cell = cell.trim_start_matches('*').as_bytes();
                    cell.len() == 2 && cell.iter().all(u8::is_ascii_alphabetic)
                })
            };
            if let Some(end) = ours.iter().position(is_new) {
                ours.truncate(end);
                theirs.truncate(end);
            }
            let first = theirs.iter().zip(&ours).find(|(a, b)| a != b);
            assert!(theirs == ours, "{suite}: {words:?}: the first that differ: {first:?}");
        }
    }
}
