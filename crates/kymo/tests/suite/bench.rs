//! `kymo bench`: what it measures and how it says so. How long anything takes is no matter of tests.

use std::process::Command;

use serde_json::Value;

use crate::tools::{Need, Running, kymo, perf, require, skip};

const EVLIST: [&str; 5] = ["bench", "internals", "evlist-open-close", "-i", "2"];

/// A process of one thread that is there until it is dropped.
fn sleeper() -> Running {
    Running::start(Command::new("sleep").arg("1000"))
}

fn evlist<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&EVLIST[..], more].concat()
}

fn json(more: &[&str]) -> Value {
    let said = kymo().succeed(evlist(&[more, &["--json"]].concat()));
    serde_json::from_str(&said.stdout).expect("JSON")
}

/// Checks that without a collection, and without a benchmark, the names are listed on stdout.
#[test]
fn lists() {
    kymo().succeed(["bench"]).prints("     internals: ");
    kymo().succeed(["bench", "internals"]).prints("evlist-open-close: ");
    kymo().succeed(["bench", "sched"]).prints("     messaging: ").prints("          pipe: ");
    let said = kymo().succeed(["bench", "record"]);
    assert!(said.stdout.contains("storm: ") && !said.stdout.contains("load: "), "{}", said.stdout);
}

/// Checks that first line, counts and last line are those of perf for the same options, in the same shape.
#[test]
fn counts_are_perfs() {
    let Some(()) = require("bench::counts_are_perfs", &[Need::Perf, Need::Root]) else { return };
    let sleeper = sleeper();
    let pid = sleeper.pid();
    for (both, own) in [
        (&["-n", "3"][..], &[][..]),
        (&["-e", "{cs,cpu-clock}", "-n", "2"], &[]),
        (&["-C", "0"], &[]),
        (&["-p", &pid, "-e", "cs,cpu-clock"], &["--scope", "inherit"]),
        (&["-t", &pid], &["--scope", "thread-cpu"]),
        (&["-p", &pid, "--per-thread"], &[]),
    ] {
        let theirs = perf().succeed(evlist(both));
        let ours = kymo().succeed(evlist(&[both, own].concat()));
        let counts = |text: &str| {
            let number = |line: &&str| line.starts_with('#') || line.contains("Number of ");
            let lines = text.lines().filter(number).filter(|line| !line.contains("workers"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(counts(&ours.stdout), counts(&theirs.stdout), "{}", ours.command);
        let last = ours.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("  Average open-close took: ") && last.ends_with(" usec)"), "{last}");
    }
}

/// Checks that all engines open the same list, that the phases add up to the whole, and that both are in the JSON form.
#[test]
fn engines_and_phases() {
    let Some(()) = require("bench::engines_and_phases", &[Need::Root]) else { return };
    let sleeper = sleeper();
    let pid = sleeper.pid();
    let target = ["-p", &pid, "-e", "{cs,cpu-clock},dummy", "-n", "5", "--scope", "inherit"];
    let auto = json(&target);
    assert_eq!((auto["schema"].as_str(), auto["schema_version"].as_u64()), (Some("kymo-bench"), Some(1)));
    for (engine, name) in [(&["--model"][..], "serial"), (&["-j"], "parallel"), (&["-j", "3"], "parallel")] {
        let found = json(&[&target[..], engine].concat());
        assert_eq!(found["engine"], name);
        assert!(found["workers"].as_u64() >= Some(1), "{engine:?}: {}", found["workers"]);
        for count in ["cpus", "threads", "events", "descriptors", "iterations"] {
            assert_eq!(found[count], auto[count], "{engine:?}: {count}");
        }
        let phases = found["phases"].as_object().expect("phases");
        let sum: f64 = phases.values().map(|phase| phase["average_us"].as_f64().expect("a number")).sum();
        let whole = found["average_us"].as_f64().expect("a number");
        assert!((sum - whole).abs() < 0.01, "{sum} and {whole}");
    }
    assert_eq!(auto["events"], 15);
    let said = kymo().succeed(evlist(&["-d"]));
    for phase in ["init", "open", "mmap", "enable", "disable", "munmap", "close", "fini"] {
        assert!(said.stdout.contains(&format!("    {phase} took:\t")), "{phase}");
    }
}

/// Checks that on CPUs there are as many descriptors as CPUs, however many tasks there are and however they are named, and that the
/// shape is said.
#[test]
fn scopes_on_cpus() {
    let Some(()) = require("bench::scopes_on_cpus", &[Need::Root]) else { return };
    let sleeper = sleeper();
    let pid = sleeper.pid();
    let on_cpus = |found: Value, scope: &str| {
        assert_eq!(found["descriptors"], found["cpus"], "{scope}");
        assert_eq!(found["scope"], scope);
    };
    on_cpus(json(&["-p", &pid, "--scope", "filtered"]), "filtered");
    let said = kymo().succeed(evlist(&["-p", &pid, "--scope", "filtered"]));
    said.prints("without a filter: these events never sample");
    match kymo_perf::bpf::Follower::available() {
        Ok(()) => {
            for target in [["-p", &pid], ["-t", &pid], ["-u", "0"]] {
                on_cpus(
                    json(&[&target[..], &["-e", "cpu-clock", "--scope", "filtered"]].concat()),
                    "filtered",
                );
            }
        }
        Err(reason) => skip("bench::scopes_on_cpus: filtered", reason),
    }
    match kymo_perf::cgroup::available() {
        Ok(_) => on_cpus(json(&["--scope", "cgroup"]), "cgroup"),
        Err(reason) => skip("bench::scopes_on_cpus: cgroup", reason),
    }
}

/// What a benchmark of `sched` prints, in perf's form: whose it is, how many of what, and the numbers with their units.
#[derive(Debug, PartialEq)]
struct Printed {
    /// The lines with `#`, that say what was run.
    head: Vec<String>,
    /// Units in the order printed.
    units: Vec<String>,
    numbers: Vec<f64>,
}

/// Reads perf's output and kymo's; `None` if it has another form.
fn printed(text: &str) -> Option<Printed> {
    let mut found = Printed { head: Vec::new(), units: Vec::new(), numbers: Vec::new() };
    for line in text.lines().filter(|line| !line.is_empty()) {
        if line.starts_with("# ") {
            found.head.push(line.into());
            continue;
        }
        let (number, unit) = line.trim_start().trim_start_matches("Total time: ").split_once(' ')?;
        found.numbers.push(number.parse().ok()?);
        found.units.push(unit.into());
    }
    Some(found)
}

/// What the two tools print for the same options: the same, apart from the times. Returns kymo's numbers.
fn as_perf(options: &[&str]) -> Vec<f64> {
    let (theirs, ours) =
        (perf().succeed([&["bench"], options].concat()), kymo().succeed([&["bench"], options].concat()));
    let blank =
        |text: &str| text.lines().map(|line| if line.is_empty() { '-' } else { '=' }).collect::<String>();
    assert_eq!(blank(&ours.stdout), blank(&theirs.stdout), "{options:?}: where empty lines are");
    let read = |text: &str| printed(text).unwrap_or_else(|| panic!("{options:?}: {text}"));
    let (theirs, ours) = (read(&theirs.stdout), read(&ours.stdout));
    assert_eq!((&ours.head, &ours.units), (&theirs.head, &theirs.units), "{options:?}");
    ours.numbers
}

/// Checks that `sched pipe` prints what perf's prints, that the three numbers are of one time, and that JSON has the same.
#[test]
fn pipe_as_perf() {
    let Some(()) = require("bench::pipe_as_perf", &[Need::Perf]) else { return };
    for how in [&[][..], &["-T"], &["--threaded"]] {
        let numbers = as_perf(&[&["sched", "pipe", "-l", "500"], how].concat());
        let [total_s, each_us, per_second] = numbers[..] else { panic!("{numbers:?}") };
        // The whole is printed in milliseconds, the rate as an integer: both cut off.
        assert!((each_us * 500.0 / 1e6 - total_s).abs() < 0.001_001, "{numbers:?}");
        assert!((1e6 / each_us - per_second).abs() <= 1.0, "{numbers:?}");
    }

    for tool in [kymo(), perf()] {
        let said = tool.succeed(["bench", "-f", "simple", "sched", "pipe", "-l", "10"]);
        assert!(said.stdout.trim_end().parse::<f64>().is_ok(), "only the seconds: {}", said.stdout);
    }
    let json = kymo().succeed(["bench", "sched", "pipe", "-l", "300", "--json"]).json();
    assert_eq!((json["benchmark"].as_str(), json["operations"].as_u64()), (Some("sched/pipe"), Some(300)));
    assert_eq!(json["tasks"], "processes");
    assert!(json["total_ns"].as_u64() > Some(0), "{json}");
}

/// Checks that `sched messaging` prints what perf's prints for each of its options, and counts its tasks and messages.
#[test]
fn messaging_as_perf() {
    let Some(()) = require("bench::messaging_as_perf", &[Need::Perf]) else { return };
    for how in [&["-g", "1"][..], &["-g", "1", "-p"], &["-g", "1", "-t"], &["-g", "2", "-p", "-t"]] {
        let numbers = as_perf(&[&["sched", "messaging", "-l", "2"], how].concat());
        assert_eq!(numbers.len(), 1, "{how:?}");
    }
    let json = kymo().succeed(["bench", "sched", "messaging", "-g", "2", "-l", "3", "--json"]).json();
    let field = |name: &str| json[name].as_u64();
    assert_eq!((field("count"), field("messages")), (Some(80), Some(2 * 20 * 20 * 3)), "{json}");
    assert_eq!((json["through"].as_str(), json["tasks"].as_str()), (Some("sockets"), Some("processes")));
}

/// Checks that each variant of `sched tasks` is measured in each round with each number of events, and what they do at a hand-over: the
/// eager one stops and starts every event, the engine touches none. That they count what the tasks did is checked by the benchmark itself.
#[test]
fn tasks() {
    const TASKS: [&str; 9] = ["bench", "sched", "tasks", "-l", "50", "-n", "3", "-e", "1,5"];
    let json = kymo().succeed([&TASKS[..], &["--json"]].concat()).json();
    assert_eq!((json["benchmark"].as_str(), json["operations"].as_u64()), (Some("sched/tasks"), Some(50)));
    let variants = json["variants"].as_array().expect("variants");
    let found: Vec<_> = variants
        .iter()
        .map(|one| (one["variant"].as_str(), one["events"].as_u64(), one["counter_reads"].as_f64()))
        .collect();
    let expected =
        [("bare", 0, 0.0), ("eager", 1, 2.0), ("lazy", 1, 0.0), ("eager", 5, 10.0), ("lazy", 5, 0.0)];
    assert_eq!(found, expected.map(|(name, events, reads)| (Some(name), Some(events), Some(reads))));
    for one in variants {
        assert_eq!(one["rounds_ns"].as_array().map(Vec::len), Some(3), "{one}");
        assert_eq!(one["to_bare"].is_null(), one["variant"] == "bare", "{one}");
        let exchanged = if one["variant"] == "lazy" { 1.0 } else { 0.0 };
        assert_eq!(one["exchanged_share"], exchanged, "{one}");
    }
    let said = kymo().succeed([&TASKS[..], &["--per-task"]].concat());
    assert_eq!(said.stdout.lines().filter(|line| line.contains(" .. ")).count(), 4, "{}", said.stdout);
}

/// Checks that `breakpoint thread` and `enable` print what perf's print, and that their numbers are of one time.
#[test]
fn breakpoints_as_perf() {
    let Some(()) = require("bench::breakpoints_as_perf", &[Need::Perf]) else { return };
    let works =
        |tool: crate::tools::Tool| tool.run(["bench", "-r", "1", "breakpoint", "thread"]).code == Some(0);
    if !works(perf()) {
        return skip("bench::breakpoints_as_perf", "perf cannot set a watchpoint on its own process here");
    }
    for options in
        [&["-r", "7", "breakpoint", "thread", "-b", "2", "-p", "3", "-t", "5"][..], &["breakpoint", "thread"]]
    {
        let numbers = as_perf(options);
        let [total_s, each_us, per_worker_us] = numbers[..] else { panic!("{numbers:?}") };
        let (threads, workers) = if options.len() > 2 { (35.0, 3.0) } else { (10.0, 1.0) };
        // The whole is printed in milliseconds, cut off.
        assert!((each_us * threads / 1e6 - total_s).abs() < 0.001_001, "{numbers:?}");
        assert!((each_us * workers - per_worker_us).abs() < 1e-3, "{numbers:?}");
    }
    for options in [&["-r", "3", "breakpoint", "enable", "-p", "2", "-a", "1"][..], &["breakpoint", "enable"]]
    {
        let numbers = as_perf(options);
        let [total_s, each_us] = numbers[..] else { panic!("{numbers:?}") };
        let times = if options.len() > 2 { 3.0 } else { 10.0 };
        assert!((each_us * times / 1e6 - total_s).abs() < 0.001_001, "{numbers:?}");
    }
    let json =
        kymo().succeed(["bench", "breakpoint", "thread", "-r", "4", "-b", "0", "-t", "3", "--json"]).json();
    let field = |name: &str| json[name].as_u64();
    assert_eq!(
        (field("batches"), field("threads"), field("breakpoints")),
        (Some(4), Some(3), Some(0)),
        "{json}"
    );
    let each = json["total_ns"].as_f64().expect("a number") / 12e3;
    assert!((json["operation_us"].as_f64().expect("a number") - each).abs() < 1e-6, "{json}");
    let said = kymo().run(["bench", "breakpoint", "thread", "-b", "5"]);
    assert_eq!(said.code, Some(1), "no machine of these tests has five");
    said.says("all debug registers are in use");
}

/// Checks that `breakpoint ledger` runs ledger and model with the same work in one run, with requests for CPUs too, and from one thread to
/// all cores; and that a model that would take for ever is left out and said to be.
#[test]
fn ledger() {
    const LEDGER: [&str; 3] = ["bench", "breakpoint", "ledger"];
    const SMALL: [&str; 8] = ["--cpus", "8", "-b", "2", "-p", "3", "-t", "4"];
    let json = kymo().succeed([&LEDGER[..], &SMALL, &["--tasks", "5", "--json"]].concat()).json();
    assert_eq!((json["benchmark"].as_str(), json["batches"].as_u64()), (Some("breakpoint/ledger"), Some(10)));
    for (which, percent) in [("ledger", 0), ("mixed", 1), ("model", 0)] {
        assert_eq!(json[which]["for_cpus_percent"], percent, "{which}");
        let rounds = json[which]["rounds_us"].as_array().expect("rounds");
        assert_eq!(rounds.len() == 1, which == "model", "{which}: {rounds:?}");
        assert!(json[which]["operation_us"].as_f64() > Some(0.0), "{which}");
    }
    let number = |value: &Value| value.as_f64().expect("a number");
    let ratio = number(&json["model"]["operation_us"]) / number(&json["ledger"]["operation_us"]);
    assert!((ratio - number(&json["faster_than_model"])).abs() < 1e-6 * ratio, "{json}");
    let scaling = json["scaling"].as_array().expect("rows");
    assert_eq!(
        (scaling[0]["threads"].as_u64(), scaling[0]["of_linear_percent"].as_f64()),
        (Some(1), Some(100.0))
    );
    let cores = std::thread::available_parallelism().expect("cores").get() as u64;
    assert_eq!(scaling.last().and_then(|row| row["threads"].as_u64()), Some(cores));

    let said = kymo().succeed([&LEDGER[..], &SMALL].concat());
    assert!(
        said.stdout.starts_with("# Running 'breakpoint/ledger' benchmark:\n# 10 batches of 4 tasks with 2"),
        "{}",
        said.stdout
    );
    assert_eq!(said.stdout.matches(" usecs/op\n").count(), 3, "{}", said.stdout);
    said.prints(" times faster than the model\n");
    let json = kymo()
        .succeed([&LEDGER[..], &["--cpus", "4096", "--tasks", "20000", "--for-cpus", "0", "--json"]].concat())
        .json();
    assert!(
        json["model_left_out"].as_str().is_some_and(|words| words.contains("--model runs it all the same")),
        "{json}"
    );
    assert!(
        json["model"].is_null() && json["mixed"].is_null() && json["faster_than_model"].is_null(),
        "{json}"
    );
    kymo().run([&LEDGER[..], &["-b", "5", "--slots", "4"]].concat()).ends(129).says("not --slots 4");
}

/// Checks that a target that is gone, or not permitted, is said in words that name it.
#[test]
fn refusals() {
    kymo().run(evlist(&["-p", "2147483647"])).ends(1).says("there is no process 2147483647");
}

const STORM: [&str; 7] = ["bench", "record", "storm", "--seconds", "0.2", "--rate", "2000"];

/// Checks that each try of the storm accounts for every context switch of its load, that its figures fit together, and that the ceiling is
/// one of the tries.
#[test]
fn storm() {
    let Some(()) = require("bench::storm", &[Need::Root]) else { return };
    let found = kymo().succeed([&STORM[..], &["--size", "0,8K", "--json"]].concat()).json();
    assert_eq!((found["schema"].as_str(), found["schema_version"].as_u64()), (Some("kymo-bench"), Some(1)));
    let kinds = found["kinds"].as_array().expect("kinds");
    assert_eq!(kinds.len(), 3, "no stack, reduced, raw");
    for kind in kinds {
        let steps = kind["steps"].as_array().expect("steps");
        assert_eq!(steps.len(), 1, "one rate was asked for");
        let step = &steps[0];
        let number = |name: &str| step[name].as_f64().unwrap_or_else(|| panic!("{name}: {step}"));
        assert_eq!((number("asked_per_s"), number("unaccounted")), (2000.0, 0.0));
        assert!(number("samples") + number("lost") >= 2.0 * number("operations"), "two an operation: {step}");
        let bytes = kind["ring_bytes_per_sample"].as_f64().expect("bytes");
        // A task that ends has no stack any more, and in so short a time some end.
        assert!(bytes > kind["stack_bytes"].as_f64().expect("bytes") / 2.0, "{kind}");
        assert!((number("mb_per_s") - number("samples_per_s") * bytes / 1e6).abs() < 1e-6, "{step}");
        let ceiling = if number("lost") == 0.0 { step.clone() } else { Value::Null };
        assert_eq!(kind["ceiling"], ceiling);
    }
    let said = kymo().succeed([&STORM[..], &["--size", "0"]].concat());
    assert!(said.stdout.starts_with("# Running 'record/storm' benchmark:\n"), "{}", said.stdout);
    said.prints("  Highest rate without loss, per CPU:\n");
}

/// Checks that a load that cannot run ends the storm with the load's own words, and that sizes that no sample has are refused.
#[test]
fn storm_refusals() {
    let said = kymo().run([&STORM[..], &["--size", "0", "--cpu", "1000"]].concat()).ends(1);
    said.says("failed to move to CPU 1000");
    kymo().run([&STORM[..], &["--size", "12"]].concat()).ends(129).says("expected a multiple of 8 bytes");
}

/// Checks that the registry of probes and its model are measured at each number of threads, in the kernel benches' line and as JSON, with
/// both kinds of fences.
#[test]
fn probe_registry() {
    const REGISTRY: [&str; 9] =
        ["bench", "probe", "registry", "-p", "1,2", "--round-ms", "5", "--rounds", "2"];
    for more in [&[][..], &["--no-membarrier"]] {
        let said = kymo().succeed([&REGISTRY[..], more].concat());
        let lines: Vec<_> = said.stdout.lines().filter(|line| line.contains("M/s/cpu)")).collect();
        assert_eq!(lines.len(), 4, "{}", said.stdout);
        assert!(lines[2].starts_with("registry-entry"), "{}", said.stdout);
        assert!(lines[3].contains("( 2 cpus): "), "{}", said.stdout);
    }
    let found = kymo().succeed([&REGISTRY[..], &["--json"]].concat()).json();
    assert_eq!(found["benchmark"], "probe/registry");
    let results = found["results"].as_array().expect("results");
    assert_eq!(results.len(), 2);
    for result in results {
        for subject in ["registry", "locked"] {
            assert!(result[subject]["ns_per_hit"].as_f64().expect("a number") > 0.0, "{result}");
        }
    }
}

/// Checks that every engine that works here counts each hit of each function, by two threads, and that the document has what it measured.
#[test]
fn probe_trigger() {
    let document = kymo()
        .succeed(
            "bench probe trigger --json -r 1 --round-ms 5 -p 1,2 --function nop,push,ret,nop5".split(' '),
        )
        .json();
    assert_eq!(
        (&document["schema"], &document["benchmark"]),
        (&"kymo-bench".into(), &"probe/trigger".into())
    );
    let results = document["results"].as_array().expect("a list");
    assert_eq!(results.len(), 8);
    for result in results {
        assert!(result["bare"]["ns_per_hit"].as_f64().is_some_and(|ns| ns > 0.0), "{result}");
        let inproc = ["count", "ret", "latency", "record", "record-args", "if", "callers"];
        for engine in inproc.map(|engine| format!("inproc-{engine}")) {
            assert!(
                result["engines"][&engine]["ns_per_hit"].as_f64().is_some_and(|ns| ns > 0.0),
                "{engine}: {result}"
            );
        }
        if rustix::process::geteuid().is_root() {
            assert!(result["engines"]["uretprobe"]["millions_per_s"].is_f64(), "{result}");
        }
    }
}
