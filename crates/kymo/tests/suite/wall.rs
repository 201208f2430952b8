//! `kymo record --wall` and `kymo report --wall`: threads that wait in known ways, by their own
//! clocks, and the kernel's own account.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::programs::build;
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, perf, require, run, skip, text};

/// A recording of `waits` in these modes, and what the program said: what, thread, ns.
struct Waits {
    file: PathBuf,
    said: Vec<(String, i64, u64)>,
    lost: bool,
    /// Switches that the kernel has left out.
    unseen: u64,
}

fn record(folder: &str, modes: &[&str]) -> Option<Waits> {
    record_with(folder, &[], modes)
}

fn record_with(folder: &str, more: &[&str], modes: &[&str]) -> Option<Waits> {
    let file = fresh_folder(folder).join("wall.data");
    let program = build("waits.c", &[]);
    let options = ["record", "--wall", "-e", "cpu-clock", "-o", text(&file)];
    let mut command = kymo().command([&options[..], more, &["--", text(&program)], modes].concat());
    let said = run(command.env("KYMO_LOG", "kymo_record=debug"));
    if said.code == Some(77) {
        skip(folder, "priorities are not permitted here");
        return None;
    }
    let said = said.ends(0);
    let line = |line: &str| {
        let mut words = line.split(' ');
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    // What has no record of its own is with another one; sums stay right, the number of places may
    // not.
    let lost = !said.stderr.contains("lost 0 samples");
    let unseen = unseen_switches(&said.stderr);
    Some(Waits { file, said: said.stdout.lines().filter_map(line).collect(), lost, unseen })
}

/// How many switches the kernel has left out, by the log of a recorder.
pub(crate) fn unseen_switches(log: &str) -> u64 {
    let line = log.lines().find(|line| line.contains("left out by the kernel"));
    let count = line.and_then(|line| line.split("switches=").nth(1)?.trim().parse().ok());
    count.unwrap_or_else(|| panic!("no count of switches: {log}"))
}

/// The same, again until the kernel has told all switches of the threads that had waited: one
/// that is left out costs a stack, and a chain of few waits needs each. `None`: it never told all.
fn record_whole(folder: &str, more: &[&str], modes: &[&str]) -> Option<Waits> {
    const TIMES: u32 = 8;
    for _ in 0..TIMES {
        let waits = record_with(folder, more, modes)?;
        if waits.unseen == 0 {
            return Some(waits);
        }
        eprintln!("{folder}: the kernel has left out {} switches: again", waits.unseen);
    }
    skip(folder, "this kernel leaves out switches all the time");
    None
}

impl Waits {
    fn report(&self, options: &[&str]) -> Value {
        kymo().succeed([&["report", "--wall", "--json", "-i", text(&self.file)], options].concat()).json()
    }

    /// What the program measured of a kind of wait, over all its threads.
    fn measured(&self, what: &str) -> u64 {
        self.said.iter().filter(|(said, ..)| said == what).map(|(.., ns)| ns).sum()
    }
}

/// The time of a state at a function, over all places.
fn waited(report: &Value, state: &str, function: &str) -> u64 {
    let places = report["places"].as_array().expect("a list");
    let is = |place: &&Value| place["state"] == state && place["functions"][0] == function;
    places.iter().filter(is).filter_map(|place| place["time_ns"].as_u64()).sum()
}

fn place<'a>(report: &'a Value, state: &str, function: &str) -> &'a Value {
    let places = report["places"].as_array().expect("a list");
    let found = places.iter().find(|place| place["state"] == state && place["functions"][0] == function);
    found.unwrap_or_else(|| panic!("no {state} in {function}: {report:#}"))
}

/// The time of a state on the critical path.
fn on_path(report: &Value, state: &str) -> (u64, u64) {
    let path = &report["critical_path"];
    let parts = path["parts"].as_array().expect("a list");
    let of = |part: &&Value| part["state"] == state;
    let sum = parts.iter().filter(of).filter_map(|part| part["time_ns"].as_u64()).sum();
    (sum, path["total_ns"].as_u64().expect("a number"))
}

/// Within a tenth and 10 ms: what lies between the program's clock and the kernel's is other
/// programs' work.
fn is_about(found: u64, measured: u64, what: &str) {
    let margin = measured / 10 + 10_000_000;
    assert!(found.abs_diff(measured) <= margin, "{what}: {found} ns, by the program's clock {measured} ns");
}

pub(crate) const NEEDS: [Need; 2] = [Need::Root, Need::Program("cc")];

/// Whether all waits have the stacks of those that waited: from Linux 6.16 on.
fn has_stacks() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}

pub(crate) fn ready(test: &str) -> bool {
    if require(test, &NEEDS).is_none() {
        return false;
    }
    if !has_stacks() {
        skip(test, "waits have no stacks before Linux 6.16");
    }
    has_stacks()
}

/// Checks a convoy at a lock: the lock's waiters by function and time, and that those that hold it
/// end their waits.
#[test]
fn convoy() {
    if !ready("wall::convoy") {
        return;
    }
    let Some(waits) = record("wall-convoy", &["convoy"]) else { return };
    let report = waits.report(&[]);
    let lock = place(&report, "lock", "wants_lock");
    // Who gives it back may take it again at once, and never wait.
    assert!(lock["threads"].as_u64() >= Some(3), "{report:#}");
    assert!(lock["ended_by"]["thread"] == "waits", "{report:#}");
    // Ready time counts for the program's clock, too.
    let all = waited(&report, "lock", "wants_lock") + waited(&report, "runnable", "wants_lock");
    is_about(all, waits.measured("convoy"), "the lock");
    let (sleeping, total) = on_path(&report, "timer");
    // On a busy machine they are also ready for long.
    let (ready, _) = on_path(&report, "runnable");
    assert!((sleeping + ready) * 10 > total * 7, "most of the path is what the holders do: {report:#}");
}

/// Checks a program that sleeps more often than waits have records of their own: its time is a
/// timer's in the table and on the critical path, the longest sleep is no sum of several, and
/// `kymo query` says the same.
#[test]
fn many_short_sleeps() {
    if !ready("wall::many_short_sleeps") {
        return;
    }
    let Some(waits) = record("wall-dozes", &["dozes"]) else { return };
    let report = waits.report(&[]);
    let sleeps = place(&report, "timer", "sleeps");
    let ns = |value: &Value| value.as_u64().expect("a number");
    let (asleep, ready) = (ns(&sleeps["time_ns"]), waited(&report, "runnable", "sleeps"));
    is_about(asleep + ready, waits.measured("dozes"), "sleeps");
    // This kernel leaves a switch out now and then, and two sleeps are one.
    let unseen = 3000 - ns(&sleeps["waits"]).min(3000);
    assert!(unseen <= 6 && ns(&sleeps["waits"]) <= 3000, "{report:#}");
    let longest = ns(&sleeps["longest_ns"]);
    // Both read a clock, which are not quite the same: 0.3 % was seen.
    let most = waits.measured("longest") * (1 + unseen) * 51 / 50;
    assert!((400_000..=most).contains(&longest), "{longest} of {most}: {report:#}");
    let (on_path, all) = on_path(&report, "timer");
    assert!(on_path.abs_diff(asleep) * 50 < all, "{on_path} ns of {all} are asleep: {report:#}");
    let query = kymo().succeed(["query", "--json", text(&waits.file), "waits"]).json();
    let rows = query["waits"]["rows"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["state"] == "timer").expect("it sleeps");
    for key in ["time_ns", "waits", "longest_ns"] {
        assert_eq!(row[key], sleeps[key], "{key}: {query:#}");
    }
}

/// Checks 400 threads that sleep some times each, of which few have records of their own: their
/// time is a timer's, none is put where they ended, and none is unknown.
#[test]
fn threads_that_end_soon() {
    if !ready("wall::threads_that_end_soon") {
        return;
    }
    let Some(waits) = record("wall-nappers", &["nappers"]) else { return };
    let report = waits.report(&[]);
    let time = |state: &str| report["states"][state].as_u64().unwrap_or(0);
    let all = report["total_ns"].as_u64().expect("a number");
    let (asleep, ready) = (time("timer"), time("runnable") + time("running"));
    is_about(asleep + ready, waits.measured("naps") + time("running"), "naps");
    assert!((time("other") + time("unknown")) * 50 < all, "{:#}", report["states"]);
}

/// Checks threads that wait on a condition, or at a semaphore, since before the recording and until
/// after it: their stacks are read where they stand, so that they are known, idle, and no wait for
/// a lock. The program goes on.
#[test]
fn waits_that_began_before() {
    if !ready("wall::waits_that_began_before") {
        return;
    }
    let file = fresh_folder("wall-idles").join("wall.data");
    let mut idles = Running::start(Command::new(build("waits.c", &[])).arg("idles"));
    assert!(idles.line().starts_with("idles"));
    let record = ["record", "--wall", "-e", "cpu-clock", "-o", text(&file), "-p", &idles.pid(), "--"];
    let said = kymo().succeed([&record[..], &["sleep", "1"]].concat());
    assert_eq!(idles.end().1, Some(0), "it goes on");
    // Nothing ran: what the threads did is said all the same.
    said.says("the time of all threads:").says("%  condition").says("more: kymo report --wall");
    kymo().run(["report", "--stdio", "-i", text(&file)]).says("--wall shows the time of all threads");
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    for state in ["lock", "unknown"] {
        assert!(report["states"].get(state).is_none(), "{report:#}");
    }
    for function in ["waits_for_never", "waits_for_room"] {
        let place = place(&report, "condition", function);
        assert!(place["threads"] == 2 && place["idle"] == true, "{report:#}");
        assert!(place["time_ns"].as_u64() > Some(1_800_000_000), "{report:#}");
    }
}

/// Checks that docs/reference/formats/wall-json.md lists every key of the JSON and no other.
#[test]
fn the_document_lists_every_key() {
    if !ready("wall::the_document_lists_every_key") {
        return;
    }
    let document = include_str!("../../../../docs/reference/formats/wall-json.md");
    let listed: BTreeSet<String> = document
        .lines()
        .filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned()))
        .collect();
    let Some(waits) = record_whole("wall-keys", &["--request", "waits_for"], &["chain"]) else { return };
    let mut found = BTreeSet::new();
    keys(&waits.report(&["--request", "waits_for"]), "states", &mut found);
    assert_eq!(found, listed);
}

/// Checks that before Linux 6.16, where records are written at the switch, sums are the same, and
/// that threads which wait again and again have their own stacks, not those of the threads that
/// leave the CPU for them.
#[test]
fn stacks_that_are_written_before_the_wait() {
    if require("wall::stacks_that_are_written_before_the_wait", &NEEDS).is_none() {
        return;
    }
    let Some(waits) = record_with("wall-before", &["--wall-at-switch"], &["pipe"]) else { return };
    let report = waits.report(&[]);
    let all = waited(&report, "pipe", "reads_pipe") + waited(&report, "runnable", "reads_pipe");
    assert!(all * 2 > waits.measured("pipe"), "most waits follow a long one: {report:#}");
    let asleep = waited(&report, "timer", "sleeps");
    assert!(asleep > 50_000_000, "the writer sleeps 150 ms: {report:#}");
}

/// Checks that waits which have no stacks there are at their places even so: their system calls,
/// and from where these were made, tell it.
#[test]
fn places_of_waits_without_stacks() {
    const TEST: &str = "wall::places_of_waits_without_stacks";
    const NAPS: &str = "
import time
for _ in range(10):
    for _ in range(5): time.sleep(0.000001)
    time.sleep(0.1)
";
    if require(TEST, &[Need::Root, Need::Program("python3")]).is_none() {
        return;
    }
    let file = fresh_folder("wall-places").join("wall.data");
    let record = ["record", "-q", "--wall", "--wall-at-switch", "-e", "cpu-clock", "-o", text(&file)];
    kymo().succeed([&record[..], &["--", "python3", "-c", NAPS]].concat());
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let timers =
        report["places"].as_array().expect("a list").iter().filter(|place| place["state"] == "timer");
    let (known, unknown): (Vec<&Value>, Vec<&Value>) =
        timers.partition(|place| place["functions"].as_array().is_some_and(|names| !names.is_empty()));
    let waits = |places: &[&Value]| places.iter().filter_map(|place| place["waits"].as_u64()).sum::<u64>();
    assert!(waits(&known) >= 50 && waits(&unknown) < 10, "{report:#}");
}

/// Checks a chain: the first thread waits for one that waits for one that sleeps; its path is the
/// sleep of the last.
#[test]
fn chain_over_two_threads_to_a_timer() {
    if !ready("wall::chain") {
        return;
    }
    let Some(waits) = record_whole("wall-chain", &[], &["chain"]) else { return };
    let report = waits.report(&[]);
    assert_eq!(place(&report, "condition", "waits_for")["ended_by"]["functions"][0], "opens", "{report:#}");
    assert_eq!(place(&report, "timer", "sleeps")["ended_by"]["interrupt"], "a timer", "{report:#}");
    let (sleeping, _) = on_path(&report, "timer");
    // The last thread may have begun to sleep before the first one looked at the clock.
    is_about(sleeping, 150_000_000, "the path");
    // The page has the same waits in its timeline, and what ended them.
    let page = waits.file.with_file_name("page.html");
    kymo().succeed(["report", "--wall", "--html", text(&page), "-i", text(&waits.file)]);
    let page = std::fs::read_to_string(page).expect("the page");
    let data = page.split("id=\"profile\">").nth(1).and_then(|rest| rest.split("</script>").next());
    let data: Value = serde_json::from_str(data.expect("the data")).expect("JSON");
    let event = &data["events"][0];
    assert!(event["timeline"]["count"].as_u64() > Some(2), "{event:#}");
    assert!(event["links"]["words"].as_array().expect("words").contains(&"a timer".into()), "{event:#}");
}

/// Checks the calls of a server's function: as many as there were, as long as by the program's
/// clock, divided without remainder, and decided by the worker's sleep and their own computing.
#[test]
fn requests_of_a_server() {
    if !ready("wall::requests") {
        return;
    }
    let Some(waits) = record_with("wall-requests", &["--request", "handle_request"], &["serve"]) else {
        return;
    };
    let said = kymo().run(["report", "--wall", "--request", "waits:handle_request", "-i", text(&waits.file)]);
    assert!(said.ends(0).stdout.starts_with("# 20 calls of waits:handle_request in 1 thread: "));
    let report = waits.report(&["--request", "handle_request"]);
    let calls = &report["calls"];
    let number = |key: &str| calls[key].as_u64().unwrap_or_else(|| panic!("no {key}: {report:#}"));
    assert_eq!((number("count"), number("threads"), number("unfinished")), (20, 1, 0), "{calls:#}");
    is_about(number("total_ns"), waits.measured("serve"), "the requests");
    assert!(number("p50_ns") >= 13_000_000 && number("p99_ns") <= number("max_ns"), "{calls:#}");
    let states = calls["states"].as_object().expect("states");
    assert_eq!(states.values().filter_map(Value::as_u64).sum::<u64>(), number("total_ns"), "{calls:#}");
    // What lies between the worker's sleep and the server is other programs' work.
    assert!(calls["states"]["condition"].as_u64() >= Some(20 * 10_000_000), "{calls:#}");
    let part = |state: &str| {
        let parts = calls["critical_parts"].as_array().expect("a list");
        let of = parts.iter().filter(|part| part["state"] == state);
        of.filter_map(|part| part["time_ns"].as_u64()).sum::<u64>()
    };
    // A wake-up that the kernel does not tell, from an idle CPU, ends the path of that call.
    assert!(part("timer") >= 18 * 9_000_000, "{calls:#}");
    assert!(part("running") >= 20 * 2_000_000, "{calls:#}");
    assert!(part("condition") * 8 < number("total_ns"), "{calls:#}");
    let parts = calls["critical_parts"].as_array().expect("a list").iter();
    let path: u64 = parts.filter_map(|part| part["time_ns"].as_u64()).sum();
    assert_eq!(path, number("total_ns"), "{calls:#}");
    let said = kymo().run(["report", "--wall", "--request", "other", "-i", text(&waits.file)]);
    said.ends(129).says("no call of other returned").says("waits:handle_request");
}

/// Checks an inversion of priorities: what the thread waits for is a lock, and its path says that
/// the holder was ready and had no CPU.
#[test]
fn inversion_of_priorities() {
    if !ready("wall::inversion") {
        return;
    }
    let Some(waits) = record_whole("wall-inversion", &[], &["inversion"]) else { return };
    let report = waits.report(&[]);
    let measured = waits.measured("inversion");
    let all = waited(&report, "lock", "wants_lock") + waited(&report, "runnable", "wants_lock");
    is_about(all, measured, "the lock");
    let (ready, _) = on_path(&report, "runnable");
    assert!(ready * 2 > measured, "the holder has no CPU: {report:#}");
}

/// Checks a pipe: who reads it waits for who writes it.
#[test]
fn pipe_of_a_slow_writer() {
    if !ready("wall::pipe") {
        return;
    }
    let Some(waits) = record("wall-pipe", &["pipe"]) else { return };
    let report = waits.report(&[]);
    assert_eq!(place(&report, "pipe", "reads_pipe")["ended_by"]["functions"][0], "writes_pipe", "{report:#}");
    let all = waited(&report, "pipe", "reads_pipe") + waited(&report, "runnable", "reads_pipe");
    is_about(all, waits.measured("pipe"), "the pipe");
}

/// Checks waits for a disk: for writes that are to reach it, and for pages that are to come from
/// it. How much of the time that is depends on the disk; what is not waiting for it is running, or
/// being ready to.
#[test]
fn disk_and_page_faults() {
    if !ready("wall::disk") {
        return;
    }
    let folder = fresh_folder("wall-disk-files");
    let folder = text(&folder);
    for (what, modes, state, function) in
        [("disk", ["disk", folder], "disk", "syncs"), ("faults", ["faults", folder], "page fault", "touches")]
    {
        let Some(waits) = record(&format!("wall-{what}"), &modes) else { return };
        let report = waits.report(&[]);
        if waited(&report, state, function) == 0 {
            skip(&format!("wall::disk_and_page_faults ({what})"), "this file system makes nobody wait");
            continue;
        }
        let all = waited(&report, state, function) + waited(&report, "runnable", function);
        assert!(all <= waits.measured(what) + 10_000_000, "{report:#}");
    }
}

/// Checks that a pool of 64 workers with nothing to do is folded: it is idle, and none of its
/// stacks is among the first lines of places.
#[test]
fn idle_pool_is_folded() {
    if !ready("wall::pool") {
        return;
    }
    let Some(waits) = record("wall-pool", &["pool"]) else { return };
    let report = waits.report(&[]);
    let idle = |place: &&Value| place["idle"] == true && place["state"] == "condition";
    let places = report["places"].as_array().expect("a list");
    let pool = places.iter().find(idle).unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(pool["threads"], 64, "{report:#}");
    assert!(pool["time_ns"].as_u64() > Some(64 * 200_000_000), "{report:#}");
    let said = kymo().succeed(["report", "--wall", "-i", text(&waits.file)]).stdout;
    let first = said.split("#    waited").nth(1).expect("places").lines().skip(1).take(10);
    let waiting = first.filter(|line| line.contains("condition") && !line.starts_with("# idle"));
    assert_eq!(waiting.count(), 0, "{said}");
    assert!(said.contains("# idle: ") && said.contains("of 64 threads (condition)"), "{said}");
}

/// Checks perf's example of the time that the whole took, a tenth as long: one thread alone for
/// nine tenths of it, 128 at once for the rest. They have most of the time of all threads, and a
/// tenth of the time that passed.
#[test]
fn latency_of_one_thread_and_of_128() {
    if !ready("wall::latency") {
        return;
    }
    let Some(waits) = record("wall-latency", &["latency"]) else { return };
    let share = |options: &[&str]| {
        let report = waits.report(options);
        let threads = report["threads"].as_array().expect("a list");
        let first = threads.iter().find(|thread| thread["tid"] == thread["pid"]).expect("a first thread");
        let all = report["total_ns"].as_u64().expect("a number");
        let states: u64 =
            report["states"].as_object().expect("states").values().filter_map(Value::as_u64).sum();
        assert!(states.abs_diff(all) < 1000, "{report:#}");
        (first["total_ns"].as_u64().expect("a number") * 100 / all, all)
    };
    let (of_threads, all) = share(&[]);
    let (of_passed, passed) = share(&["--latency"]);
    // It waits for the others, too.
    assert!(of_threads < 50, "{of_threads} % of {all} ns");
    // By the program's own clock: on a busy machine the others take longer.
    let own = |what: &str| waits.said.iter().find(|said| said.0 == what).expect("it says so").2;
    let (alone, whole) = (own("alone"), own("whole"));
    let expected = alone * 100 / whole;
    assert!(
        of_passed.abs_diff(expected) <= 6,
        "{of_passed} % of {passed} ns, by itself {expected} % of {whole}"
    );
    assert!((whole..all / 2).contains(&passed), "{passed} of {all} ns, by itself {whole}");
    let folded =
        kymo().succeed(["report", "--wall", "--latency", "--folded", "-i", text(&waits.file)]).stdout;
    let at = |function: &str| {
        let lines = folded.lines().filter(|line| line.contains(function));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    assert!(at(";spins;") > 5 * at(";at_once;"), "{folded}");
    let table = kymo().succeed(["report", "--wall", "--latency", "-i", text(&waits.file)]).stdout;
    assert!(table.contains("took together"), "{table}");
}

/// A cgroup with a quota of a fifth of a CPU.
struct Quota(PathBuf);

impl Quota {
    fn make() -> Option<Quota> {
        let name = format!("kymo-test-{}", std::process::id());
        for (root, file, words) in [
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "20000"),
            ("/sys/fs/cgroup", "cpu.max", "20000 100000"),
            ("/sys/fs/cgroup/unified", "cpu.max", "20000 100000"),
        ] {
            let quota = Quota(Path::new(root).join(&name));
            if std::fs::create_dir(&quota.0).is_ok() && std::fs::write(quota.0.join(file), words).is_ok() {
                return Some(quota);
            }
        }
        None
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        _ = std::fs::remove_dir(&self.0);
    }
}

/// Checks a program in a cgroup that has a fifth of a CPU: what it does not run, it is throttled.
#[test]
fn throttled_by_its_cgroup() {
    const TEST: &str = "wall::throttled_by_its_cgroup";
    if !ready(TEST) {
        return;
    }
    let Some(quota) = Quota::make() else { return skip(TEST, "no cgroup with a quota can be made here") };
    let file = fresh_folder("wall-throttled").join("wall.data");
    let script = format!(
        "echo $$ >{}/cgroup.procs && exec {} busy",
        quota.0.display(),
        build("waits.c", &[]).display()
    );
    let said =
        kymo().run(["record", "--wall", "-e", "cpu-clock", "-o", text(&file), "--", "sh", "-c", &script]);
    let said = said.ends(0);
    let measured: u64 = said.stdout.split_whitespace().nth(2).expect("a number").parse().expect("a number");
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let state = |name: &str| report["states"][name].as_u64().unwrap_or(0);
    // It has a quarter of a second of CPU time at most, and other programs' work makes it wait,
    // too.
    assert!(state("running") < measured * 4 / 10, "{report:#}");
    assert!(state("throttled") + state("runnable") > measured / 2, "{report:#}");
    if state("runnable") > measured / 2 {
        return skip(TEST, "other programs leave it no CPU, so that it does not use up its quota");
    }
    assert!(state("throttled") > measured / 8, "{report:#}");
}

/// Checks that perf reads the recording, and that the event of waits has the same samples and the
/// same sum of times there.
#[test]
fn perf_reads_it() {
    const TEST: &str = "wall::perf_reads_it";
    if !ready(TEST) || require(TEST, &[Need::Perf]).is_none() {
        return;
    }
    let Some(waits) = record("wall-perf", &["pipe"]) else { return };
    let sums = |text: &str| -> Option<(String, String)> {
        let of = text.split("of event 'offcpu-time'").next()?.lines().last()?.trim().to_owned();
        let count =
            text.split("of event 'offcpu-time'").nth(1)?.lines().find(|line| line.contains("approx"))?;
        Some((of, count.to_owned()))
    };
    let options = ["report", "--stdio", "-g", "none", "--no-children", "-i", text(&waits.file)];
    let (ours, theirs) = (kymo().succeed(options), perf().succeed(options));
    let found = sums(&ours.stdout);
    assert!(found.is_some(), "{}", ours.stdout);
    assert_eq!(found, sums(&theirs.stdout), "{}\n{}", ours.stdout, theirs.stdout);
    let fields = perf().succeed(["script", "-F", "tid,event,trace", "-i", text(&waits.file)]).stdout;
    assert!(fields.contains("offcpu-time:") && fields.contains(" blocked="), "{fields}");
    assert!(!waits.lost || !fields.is_empty());
}

/// Checks an ordinary user, who gets switches and a sentence that says what is missing, and a
/// recording without waits.
#[test]
fn without_rights_and_without_waits() {
    const TEST: &str = "wall::without_rights";
    let Some(()) = require(TEST, &NEEDS) else { return };
    let folder = fresh_folder("wall-user");
    let file = folder.join("wall.data");
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("its own folder");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(kymo().path());
    command.args(["record", "--wall", "-e", "cpu-clock:u", "-o", text(&file), "--", "sleep", "0.3"]);
    let said = run(&mut command);
    if said.code != Some(0) {
        skip(TEST, format!("an ordinary user cannot record here: {}", said.stderr));
    } else {
        said.says("--wall records context switches only");
        let report = kymo().run(["report", "--wall", "--json", "-f", "-i", text(&file)]).ends(0);
        report.says("the recording has context switches only");
        let report = report.json();
        assert!(report["states"]["unknown"].as_u64() > Some(250_000_000), "{report:#}");
        let threads = report["threads"].as_array().expect("a list");
        assert!(threads.iter().all(|thread| thread["idle_ns"] == 0), "{report:#}");
    }
    let said = kymo().run(["record", "--wall", "-e", "sched:sched_switch", "-o", text(&file), "--", "true"]);
    assert_ne!(said.code, Some(0), "{}", said.stderr);
    said.says("--wall is not possible with what else is asked for: sched:sched_switch is a tracepoint");
    let plain = folder.join("plain.data");
    kymo().succeed(["record", "-e", "cpu-clock", "-o", text(&plain), "--", "true"]);
    let said = kymo().run(["report", "--wall", "-i", text(&plain)]);
    said.ends(129).says("record with `kymo record --wall`");
}
