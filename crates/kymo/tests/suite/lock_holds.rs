//! `kymo locks --holds`: locks that a program holds for known times, by its own clock, from its
//! start and while it runs; what is not a hold; and that the program comes to no harm.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, require, text};

const NEEDS: [Need; 2] = [Need::Root, Need::Program("cc")];

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row:#}"))
}

/// The lock of this name.
fn named<'a>(locks: &'a Value, name: &str) -> &'a Value {
    let found = locks["locks"].as_array().expect("a list").iter().find(|row| row["name"] == name);
    found.unwrap_or_else(|| panic!("no lock {name}: {locks:#}"))
}

/// What a program said: lock, holds, ns.
fn said(text: &str) -> Vec<(String, u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// That a lock was held as often and as long as the program says: within a tenth and 5 ms, for what
/// lies between both clocks is other programs' work.
fn is_held(locks: &Value, (name, holds, ns): &(String, u64, u64)) {
    let held = &named(locks, name)["held"];
    assert_eq!(number(held, "holds"), *holds, "{name}: {held:#}");
    let found = number(held, "total_ns");
    assert!(found.abs_diff(*ns) <= ns / 10 + 5_000_000, "{name}: {found} ns, the program says {ns} ns");
    let [p50, p99, max] = ["p50_ns", "p99_ns", "max_ns"].map(|key| number(held, key));
    assert!(p50 <= p99 && p99 <= max && max <= found, "{name}: {held:#}");
}

/// Checks each kind of lock in a command: mutexes, locks for reading and writing, a wait on a
/// condition, which is no hold, attempts that fail, recursion, an owner that died, more locks than
/// a thread's list has room for; the places that take them; that the status is the program's; and
/// that the recording says the same again.
#[test]
fn every_kind_of_lock() {
    const TEST: &str = "lock_holds::every_kind_of_lock";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let program = build("held.c", &["-g"]);
    let file = fresh_folder("lock-holds").join("locks.data");
    let found = kymo().run(["locks", "--holds", "--json", "-o", text(&file), "--", text(&program), "all"]);
    let found = found.ends(7);
    let (before, json) = found.stdout.split_at(found.stdout.find("\n{").map_or(0, |at| at + 1));
    let locks: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let all = said(before);
    assert_eq!(all.len(), 6, "{before}");
    all.iter().for_each(|of| is_held(&locks, of));
    let mutex = named(&locks, "mutex");
    assert_eq!((number(mutex, "waits"), &mutex["kind"]), (0, &"lock".into()));
    assert_eq!(mutex["held"]["places"][0]["functions"][0], "holds_mutex", "{mutex:#}");
    assert_eq!(number(&mutex["held"]["places"][0], "holds"), 20);
    assert_eq!(number(&named(&locks, "shelf")["held"], "shared"), 15);
    // As many as there is room for.
    let is_nested = |row: &&Value| row["name"].as_str().is_some_and(|name| name.starts_with("nested"));
    assert_eq!(locks["locks"].as_array().expect("a list").iter().filter(is_nested).count(), 28);
    found.says("12 acquisitions were not timed");
    let again = kymo().succeed(["locks", "--json", "-i", text(&file)]).json();
    assert_eq!(again, locks);
    let table = kymo().succeed(["locks", "-i", text(&file)]).stdout;
    for words in
        ["locks were taken ", "  mutex  (held, process ", "taken in 100.00%  holds_mutex  (held)  [20 times"]
    {
        assert!(table.contains(words), "{words}: {table}");
    }
    if require(TEST, &[Need::Perf]).is_none() {
        return;
    }
    let fields = perf().succeed(["script", "-F", "tid,event,trace", "-i", text(&file)]).stdout;
    assert!(fields.contains("lock-holds:") && fields.contains(" holds=20 "), "{fields}");
}

/// Checks that children count that a command forks, under their own numbers, and not without them.
#[test]
fn forked_children() {
    const TEST: &str = "lock_holds::forked_children";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let program = build("held.c", &["-g"]);
    let observe = |options: &[&str]| {
        let words = [&["locks", "--holds", "--json"], options, &["--", text(&program), "fork"]].concat();
        let found = kymo().run(words).ends(0);
        let (before, json) = found.stdout.split_at(found.stdout.find("\n{").map_or(0, |at| at + 1));
        (said(before), serde_json::from_str::<Value>(json).expect("JSON"))
    };
    let (said, locks) = observe(&[]);
    is_held(&locks, &said[0]);
    let (_, locks) = observe(&["--no-children"]);
    let rows = locks["locks"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["name"] != "of_child"), "{locks:#}");
}

/// Checks a program that runs already: only what it does meanwhile counts; it ends as ever. Then
/// that a kymo which is killed meanwhile leaves it well, and that the next one observes it again.
#[test]
fn programs_that_run() {
    const TEST: &str = "lock_holds::programs_that_run";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let program = build("held.c", &["-g"]);
    let mut observed = Running::start(Command::new(&program).arg("wait"));
    let pid = observed.pid();
    assert_eq!(observed.line(), "ready\n");
    let mut turns = 0;
    let mut turn = |observed: &mut Running| {
        observed.tell("go\n");
        turns += 1;
        std::thread::sleep(std::time::Duration::from_millis(60));
    };
    turn(&mut observed);
    // The program takes its lock until kymo ends, which is two seconds after it has begun.
    let mut begin = kymo().command(["locks", "--holds", "-q", "--json", "-d", "2", "-p", &pid]);
    let mut locks = begin.stdout(Stdio::piped()).spawn().expect("kymo starts");
    let mut meanwhile = 0;
    while locks.try_wait().expect("it runs").is_none() {
        turn(&mut observed);
        meanwhile += 1;
    }
    let output = locks.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let held = number(&named(&json, "mutex")["held"], "holds");
    assert!((1..=meanwhile).contains(&held), "{json:#}");
    let mut killed = kymo().command(["locks", "--holds", "-q", "-p", &pid]).spawn().expect("kymo starts");
    for _ in 0..15 {
        turn(&mut observed);
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it ended");
    for _ in 0..3 {
        turn(&mut observed);
    }
    let mut next = kymo().command(["locks", "--holds", "-q", "--json", "-d", "2", "-p", &pid]);
    let mut next = next.stdout(Stdio::piped()).spawn().expect("kymo starts");
    while next.try_wait().expect("it runs").is_none() {
        turn(&mut observed);
    }
    let output = next.wait_with_output().expect("it ends");
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(number(&named(&json, "mutex")["held"], "holds") >= 1, "{json:#}");
    let (text, code) = observed.end();
    assert_eq!(code, Some(7), "{text}");
    assert_eq!(said(&text)[0].1, turns, "{text}");
}

/// Checks what is refused: the whole machine, a program without the C library's names.
#[test]
fn refusals() {
    const TEST: &str = "lock_holds::refusals";
    kymo().run(["locks", "--holds", "-a", "-d", "1"]).ends(129).says("--holds enters programs");
    kymo().run(["locks", "--holds", "-i", "x"]).ends(129);
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let program = build("held.c", &["-static"]);
    let refused = kymo().run(["locks", "--holds", "--", text(&program), "fork"]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    refused.says("holds of locks cannot be timed: ").says("without --holds waits for locks are shown");
}
