//! Sums of waits, thread by thread: against the kernel's own account, against all switches, and
//! against what another program adds up.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, skip, text};
use crate::wall::NEEDS;

/// Checks the sums of many threads: the states of each are its wall time, run and ready time are
/// the kernel's own account, and so are the times of any recording of switches only.
fn sums(test: &str, threads: &str) {
    if require(test, &NEEDS).is_none() {
        return;
    }
    let file = fresh_folder(&test.replace("::", "-")).join("wall.data");
    let options = ["record", "--wall", "-e", "cpu-clock", "-F", "99", "-o", text(&file), "--"];
    let program = build("waits.c", &[]);
    let said = kymo().run([&options[..], &[text(&program), "crowd", threads]].concat());
    assert!(said.stdout.lines().count() > 0, "{}", said.stderr);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let list = report["threads"].as_array().expect("a list");
    let known: BTreeMap<u64, &Value> =
        list.iter().filter_map(|thread| Some((thread["tid"].as_u64()?, thread))).collect();
    let (mut found, mut kernel, mut inexact, mut all_turns) = ([0, 0, 0], [0, 0, 0], 0, 0);
    for line in said.stdout.lines() {
        let words: Vec<u64> =
            line.split_whitespace().skip(1).map(|word| word.parse().expect("a number")).collect();
        let [tid, wall, run, ready, turns] = words[..] else { panic!("{line}") };
        let thread = known.get(&tid).unwrap_or_else(|| panic!("thread {tid} has no rows"));
        let state = |name: &str| thread["states"][name].as_u64().unwrap_or(0);
        let mine = [thread["total_ns"].as_u64().unwrap_or(0), state("running"), state("runnable")];
        for (sum, part) in found.iter_mut().zip(mine).chain(kernel.iter_mut().zip([wall, run, ready])) {
            *sum += part;
        }
        // Each wait, and each time that it was ready, ends with a turn on a CPU, but for the last.
        let count = |key: &str| thread[key].as_u64().unwrap_or(0);
        let off = (count("waits") + count("preemptions")).abs_diff(turns + 1);
        // One that had not come to rest when the program looked has one more, or one less.
        assert!(off <= 1, "{line}: {thread:#}");
        inexact += off;
        all_turns += turns;
        // From when it began to run to when the program looked, beside from when it was made to its
        // end.
        assert!(mine[0] + 1_000_000 >= wall, "{line}: {thread:#}");
    }
    let off = |at: usize| found[at].abs_diff(kernel[at]) as f64 / kernel[at].max(1) as f64;
    let all = format!("wall, run and ready time: {found:?}, by the kernel {kernel:?}");
    assert!(off(2) < 0.01, "{all}");
    // The kernel's account leaves out interrupts, and what the machine's host takes. A turn begins
    // in it when the scheduler looks at its clock, before it chooses a thread and switches.
    let until_switched = all_turns * 1000;
    assert!((found[1] + until_switched) * 100 >= kernel[1] * 99, "{all_turns} turns: {all}");
    assert!(inexact * 20 <= known.len() as u64, "{inexact} of {} threads: {all}", known.len());
}

/// Checks them with 100 threads.
#[test]
fn kernel_account_100_threads() {
    sums("wall_sums::kernel_account_100_threads", "100");
}

/// Checks them with 2,000 threads.
#[test]
fn kernel_account_2000_threads() {
    if std::env::var_os("KYMO_SOAK").is_none() {
        return skip("wall_sums::kernel_account_2000_threads", "KYMO_SOAK is not set");
    }
    sums("wall_sums::kernel_account_2000_threads", "2000");
}

/// Keeps a CPU from being idle while others wait, until it is dropped: some kernels leave out
/// switches away from their idle tasks.
struct Busy(std::process::Child);

impl Busy {
    fn start() -> Busy {
        let spins = ["-n", "19", "sh", "-c", "while :; do :; done"];
        Busy(Command::new("nice").args(spins).spawn().expect("nice runs"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Checks the programs in the kernel against the replay of all switches and wake-ups of the same
/// threads in the same second: as many waits and preemptions of each thread, and the same times
/// within 1 %. Each time that a thread comes or goes, both look at the clock one after the other,
/// and the first of them writes a record in between (3 to 5 us on a busy machine).
#[test]
fn replayed_switches() {
    const TEST: &str = "wall_sums::replayed_switches";
    if require(TEST, &NEEDS).is_none() {
        return;
    }
    let folder = fresh_folder("wall-switches");
    let (all, file) = (folder.join("sched.data"), folder.join("wall.data"));
    let program = build("waits.c", &[]);
    let events = "sched:sched_switch,sched:sched_waking,sched:sched_wakeup_new";
    let busy: Vec<Busy> = kymo_perf::sys::online_cpus().iter().map(|_| Busy::start()).collect();
    let inside = kymo();
    let outer = ["record", "-q", "-a", "-m", "4M", "-e", events, "-o", text(&all), "--", text(inside.path())];
    let inner = ["record", "-q", "--wall", "-e", "cpu-clock", "-F", "99", "-o", text(&file), "--"];
    kymo().succeed([&outer[..], &inner, &[text(&program), "restless", "20", "1"]].concat());
    drop(busy);
    let switches = kymo().run(["sched", "stats", "--json", "-i", text(&all)]).json();
    let number = |value: &Value, key: &str| value[key].as_u64().unwrap_or(0);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let (mut turns, mut untold, mut apart) = (0, 0, Vec::new());
    let list = report["threads"].as_array().expect("a list");
    // The first thread was there before, and another program then.
    for thread in list.iter().filter(|thread| thread["tid"] != thread["pid"]) {
        let of = |other: &&Value| other["tid"] == thread["tid"];
        let other = switches["threads"].as_array().expect("a list").iter().find(of).expect("the thread");
        if number(other, "pcount") != number(other, "voluntary") + number(other, "involuntary") {
            untold += 1;
            continue;
        }
        // A new thread comes from nowhere, and goes there at its end.
        let counts = (number(thread, "waits") + 1, number(thread, "preemptions"));
        assert_eq!(counts, (number(other, "voluntary"), number(other, "involuntary") + 1), "{thread:#}");
        turns += counts.0 + counts.1;
        // A host that stops the CPU between the looks of both spoils a thread's times.
        for (state, key) in [("running", "rq_cpu_time_ns"), ("runnable", "run_delay_ns")] {
            let (found, expected) = (number(&thread["states"], state), number(other, key));
            if found.abs_diff(expected) > expected / 100 + 10_000 * (counts.0 + counts.1) {
                apart.push(format!("{} {state}: {found} ns for {expected} ns, {counts:?}", thread["tid"]));
            }
        }
    }
    if number(&switches, "lost_records") > 0 || untold > 10 {
        return skip(TEST, format!("the kernel leaves out switches of {untold} of 20 threads"));
    }
    assert!(turns > 200, "{report:#}");
    assert!(apart.len() <= 4, "{apart:#?}");
}

/// What somebody else's program at the same tracepoints adds up: for each thread of these programs,
/// how long it was off every CPU from its first turn to its last.
const OFF_CPU: &str = r#"
BEGIN { printf("begun\n"); }
tracepoint:sched:sched_switch {
    if (@last[cpu] != args->prev_pid) { @unseen[args->prev_pid]++; }
    @last[cpu] = args->next_pid;
    if (args->prev_comm == "waits") { @out[args->prev_pid] = nsecs; }
    if (args->next_comm == "waits" && @out[args->next_pid] != 0) {
        @off[args->next_pid] += nsecs - @out[args->next_pid];
        @out[args->next_pid] = 0;
    }
}
END { clear(@out); clear(@last); }
"#;

/// Checks the time off the CPU of each thread against an independent script in the same seconds:
/// within 1 % and what both spend at each turn.
#[test]
fn bpftrace_agrees() {
    const TEST: &str = "wall_sums::bpftrace_agrees";
    if require(TEST, &[Need::Root, Need::Program("cc"), Need::Program("bpftrace")]).is_none() {
        return;
    }
    let folder = fresh_folder("wall-bpftrace");
    let (file, output) = (folder.join("wall.data"), folder.join("said"));
    let program = build("waits.c", &[]);
    let heard = || std::fs::read_to_string(&output).expect("what it said");
    let output = std::fs::File::create(&output).expect("a file");
    let mut script =
        Command::new("bpftrace").args(["-e", OFF_CPU]).stdout(output).spawn().expect("it starts");
    let begins = std::time::Instant::now();
    while !heard().contains("begun") {
        if script.try_wait().expect("a child").is_some() || begins.elapsed().as_secs() > 60 {
            _ = script.kill();
            _ = script.wait();
            return skip(TEST, "bpftrace does not run here");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let wall = ["record", "-q", "--wall", "-e", "cpu-clock", "-F", "99", "-o", text(&file), "--"];
    let done = kymo().run([&wall[..], &[text(&program), "restless", "20", "2"]].concat());
    let pid = rustix::process::Pid::from_child(&script);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    script.wait().expect("it ends");
    done.ends(0);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let number = |line: &str, map: &str| -> Option<(i64, u64)> {
        let (tid, ns) = line.strip_prefix(map)?.split_once("]: ")?;
        Some((tid.parse().ok()?, ns.trim().parse().ok()?))
    };
    let said = heard();
    let all = |map| said.lines().filter_map(move |line| number(line, map));
    let mut theirs: BTreeMap<i64, u64> = all("@off[").collect();
    let count = theirs.len();
    // The kernel has left out a switch to them: the script does not know for how long they waited.
    all("@unseen[").for_each(|(tid, _)| _ = theirs.remove(&tid));
    if theirs.len() * 2 < count {
        return skip(TEST, format!("the kernel leaves out switches of most of {count} threads"));
    }
    let (mut compared, mut differ) = (0, Vec::new());
    for thread in report["threads"].as_array().expect("a list") {
        let tid = thread["tid"].as_i64().expect("a number");
        // The first thread was another program before.
        let Some(theirs) = theirs.get(&tid).filter(|_| thread["tid"] != thread["pid"]) else { continue };
        let of = |key: &str| thread[key].as_u64().expect("a number");
        let ours = of("total_ns") - thread["states"]["running"].as_u64().unwrap_or(0);
        compared += 1;
        // Behind its making, before its first turn: only ours.
        let margin = theirs / 100 + 2_000 * (of("waits") + of("preemptions"));
        if ours.abs_diff(*theirs) > margin {
            differ.push((tid, ours, *theirs));
        }
    }
    assert!(compared >= 10, "{compared} threads: {said}");
    // A host that stops the CPU between the looks of both spoils a thread's time.
    assert!(differ.len() * 10 <= compared, "of {compared} threads (thread, ours, theirs): {differ:?}");
}
