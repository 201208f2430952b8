//! kymo's own recordings, the kernel's counts, and recordings that are not whole.

use std::path::Path;

use serde_json::Value;

use super::{EVENTS, LOAD, recorded_by_kymo, view};
use crate::tools::{Need, kymo, ready, text};

/// Three shells on one CPU that count for about a second each; at its end each prints its number,
/// what the kernel says of its times, and its switches.
const COMPETING: &str = "for n in 1 2 3; do taskset -c 0 sh -c 'i=0; while [ $i -lt 600000 ]; do i=$((i + 1)); done; \
     read -r times < /proc/self/schedstat; \
     while read -r key count; do case $key in voluntary*) own=$count;; nonvoluntary*) lost=$count;; esac; done < /proc/self/status; \
     echo $$ $times $own $lost' & done; wait";

/// The row of a thread in a list of a JSON document.
fn row<'a>(json: &'a Value, list: &str, tid: i64) -> &'a Value {
    let rows = json[list].as_array().expect("a list");
    rows.iter().find(|row| row["tid"] == tid).unwrap_or_else(|| panic!("no thread {tid}: {json}"))
}

/// Checks run time, time in the run queue and switches of threads against the kernel's own counts:
/// the times to one percent, the switches but for the few after the thread has asked. Some kernels
/// leave out a few switches away from an idle CPU or from their own threads, for perf as for kymo:
/// each costs the next thread an arrival with its wait.
#[test]
fn counts_are_those_of_the_kernel() {
    let test = "sched::counts_are_those_of_the_kernel";
    if !ready(test, &[Need::Root, Need::Tracepoints, Need::Program("taskset")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kymo.data");
    let words = ["record", "-a", "-q", "-e", EVENTS, "-o", text(&file), "--", "sh", "-c", COMPETING];
    let said = kymo().succeed(words).stdout;
    let stats = view(&kymo(), &file, &["stats", "--json"]).json();
    let latency = view(&kymo(), &file, &["latency", "-p", "--json"]).json();
    let mut threads = 0;
    for line in said.lines() {
        let counts: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let &[tid, run, delay, arrivals, own, lost] = &counts[..] else { continue };
        let (stats, latency) = (row(&stats, "threads", tid as i64), row(&latency, "rows", tid as i64));
        let count = |key: &str| stats[key].as_u64().expect("a count");
        // Each switch away follows an arrival.
        let left_out = (count("voluntary") + count("involuntary")).saturating_sub(count("pcount"));
        assert!(left_out * 20 <= arrivals, "{line}: {stats}");
        // Three times a usual turn, or wait, for each arrival that was left out.
        let most_off = |kernel: u64| kernel / 100 + 3 * left_out * kernel / arrivals.max(1);
        let close = |found: &Value, kernel: u64| {
            let found = found.as_u64().expect("a time");
            assert!(
                found.abs_diff(kernel) <= most_off(kernel),
                "{line}: {found} is not {kernel}: {stats} {latency}"
            );
        };
        close(&latency["runtime_ns"], run);
        // The kernel takes interrupts, and what the host has stolen, from a thread's run time;
        // between switches they are.
        let between = stats["rq_cpu_time_ns"].as_u64().expect("a time");
        assert!(between + most_off(run) >= run, "{line}: {stats}");
        close(&stats["run_delay_ns"], delay);
        close(&latency["delay_ns"], delay);
        // Some follow after it has asked: when it has ended, it leaves the CPU for the last time.
        let more = |key: &str, kernel: u64| count(key).wrapping_sub(kernel);
        let (own, lost) = (more("voluntary", own), more("involuntary", lost));
        assert!((1..=5).contains(&own) && lost <= 5, "{line}: {stats}");
        threads += 1;
    }
    assert_eq!(threads, 3, "{said}");
}

/// Checks a recording with switch records only: run times, preemptions, and a sentence that says
/// what is missing.
#[test]
fn switch_records() {
    if !ready("sched::switch_records", &[Need::Root]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded_by_kymo(&folder, &["-e", "dummy", "--switch-events"], LOAD);
    let said = view(&kymo(), &file, &["latency", "--json"]);
    said.says("who woke a task up");
    let json = said.json();
    let rows = json["rows"].as_array().expect("rows");
    let shell = rows.iter().find(|row| row["task"] == "sh").unwrap_or_else(|| panic!("no shell: {json}"));
    assert!(shell["runtime_ns"].as_u64() > Some(10_000_000), "{shell}");
    assert!(shell["delay_ns"].as_u64() > Some(0), "{shell}");
    let map = view(&kymo(), &file, &["map"]);
    assert!(map.stdout.lines().count() > 50, "{}", map.stdout);
}

/// Checks switch records of single tasks, made by perf: three threads, their preemptions, and that
/// a map needs CPUs.
#[test]
fn switch_records_of_tasks() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/switch.data");
    let json = view(&kymo(), &file, &["stats", "--json"]).json();
    let threads = json["threads"].as_array().expect("threads");
    let spinning: Vec<&Value> = threads.iter().filter(|thread| thread["task"] == "spin").collect();
    assert_eq!(spinning.len(), 3, "{json}");
    let sum = |key: &str| spinning.iter().filter_map(|thread| thread[key].as_u64()).sum::<u64>();
    assert_eq!((sum("voluntary"), sum("involuntary"), sum("pcount")), (2, 13, 17), "{json}");
    view(&kymo(), &file, &["latency"]).says("switch records only").prints("  spin:(3) ");
    view(&kymo(), &file, &["map"]).says("does not tell CPUs");
}

/// Checks that all views are JSON of the documented schema, and say the same as their tables.
#[test]
fn json() {
    if !ready("sched::json", &[Need::Root, Need::Tracepoints]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded_by_kymo(&folder, &["-e", EVENTS], LOAD);
    for name in ["latency", "timehist", "map", "stats"] {
        let json = view(&kymo(), &file, &[name, "--json"]).json();
        assert_eq!((&json["schema"], &json["schema_version"]), (&Value::from("kymo-sched"), &Value::from(1)));
        assert_eq!((&json["view"], &json["malformed"]), (&Value::from(name), &Value::from(0)));
        assert!(json["events"].as_u64() > Some(100), "{json}");
    }
    let lines = |words: &[&str]| {
        let json = view(&kymo(), &file, &[&["timehist", "--json"], words].concat()).json();
        json["lines"].as_array().expect("lines").clone()
    };
    let (all, switches) = (lines(&["-w", "-M"]), lines(&[]));
    let of = |kind: &str| all.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!(of("switch"), switches.len());
    assert!(of("wakeup") > 10, "{all:?}");
    assert!(all.iter().any(|line| line["in_interrupt"] == true), "nothing was woken up by an interrupt");
    let table = view(&kymo(), &file, &["timehist"]).stdout;
    assert_eq!(table.lines().count() - 3, switches.len());
    let picked = lines(&["--cpu", "0"]);
    assert!(!picked.is_empty() && picked.iter().all(|line| line["cpu"] == 0));
}

/// Checks call chains: they lead into the scheduler's callers, and are cut where it is asked for.
#[test]
fn call_chains() {
    if !ready("sched::call_chains", &[Need::Root, Need::Tracepoints]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = recorded_by_kymo(&folder, &["-g", "-e", "sched:sched_switch"], "sleep 0.1");
    let said = view(&kymo(), &file, &["timehist"]).stdout;
    let sleeper = said.lines().find(|line| line.contains(" sleep[") && line.contains("nanosleep"));
    let sleeper = sleeper.unwrap_or_else(|| panic!("no sleep: {said}"));
    assert!(!sleeper.contains(" schedule ") && sleeper.matches(" <- ").count() <= 4, "{sleeper}");
    let none = view(&kymo(), &file, &["timehist", "-G"]).stdout;
    assert!(!none.contains(" <- "), "{none}");
}

/// Checks that recordings which are cut off, or have wrong bytes, are read as far as they go,
/// without a panic.
#[test]
fn damage_does_no_harm() {
    if !ready("sched::damage_does_no_harm", &[Need::Root, Need::Tracepoints]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file =
        recorded_by_kymo(&folder, &["-e", EVENTS], "for i in 1 2 3; do echo hi | cat >/dev/null; done");
    let whole = std::fs::read(&file).expect("the recording");
    let damaged = folder.path().join("damaged.data");
    let views: [&[&str]; 5] =
        [&["latency"], &["timehist", "-S", "-w", "-M"], &["map"], &["stats"], &["stats", "--json"]];
    for round in 0..24_usize {
        let mut bytes = whole.clone();
        // Every 97th byte of a part, or the end.
        match round % 3 {
            0 => bytes.truncate(whole.len() * (round + 1) / 25),
            _ => bytes.iter_mut().skip(500 + round * 131).step_by(97 * round).for_each(|byte| *byte ^= 0x5a),
        }
        std::fs::write(&damaged, &bytes).expect("a file");
        let said = kymo().run([&["sched"], views[round % views.len()], &["-i", text(&damaged)]].concat());
        assert!(matches!(said.code, Some(0..=2)), "round {round}: {}", said.stderr);
        assert!(!said.stderr.contains("panicked"), "round {round}: {}", said.stderr);
    }
}

/// Checks what is said of recordings and words that are no use: the reason, and what helps.
#[test]
fn refusals() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/callgraph.data");
    for name in ["latency", "timehist", "map", "stats"] {
        kymo().run(["sched", name, "-i", text(&file)]).ends(1).says("has no switches of tasks");
    }
    kymo().run(["sched", "replay"]).ends(129).says("`perf sched replay` does");
    kymo().run(["sched", "record", "--", "true"]).ends(129).says("kymo record -a -e");
    kymo().run(["sched", "nonsense"]).ends(129).says("latency, timehist, map and stats");
    kymo().run(["sched", "latency", "-C", "0"]).ends(129).says("timehist -C");
    kymo().run(["sched", "latency", "--sort", "size"]).ends(129).says("runtime, switch, avg, max");
}
