//! `kymo bench`: what it measures and how it says so. How long anything takes is no matter of tests.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::tools::{Need, kymo, perf, ready, skip};

const EVLIST: [&str; 5] = ["bench", "internals", "evlist-open-close", "-i", "2"];

/// A process of one thread that is there until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().expect("sleep"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let said = kymo().succeed(["bench"]);
    assert!(said.stdout.contains("     internals: "), "{}", said.stdout);
    let said = kymo().succeed(["bench", "internals"]);
    assert!(said.stdout.contains("evlist-open-close: "), "{}", said.stdout);
}

/// Checks that first line, counts and last line are those of perf for the same options, in the same shape.
#[test]
fn counts_are_perfs() {
    if !ready("bench::counts_are_perfs", &[Need::Perf, Need::Root]) {
        return;
    }
    let sleeper = Sleeper::start();
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
    if !ready("bench::engines_and_phases", &[Need::Root]) {
        return;
    }
    let sleeper = Sleeper::start();
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
    if !ready("bench::scopes_on_cpus", &[Need::Root]) {
        return;
    }
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    let on_cpus = |found: Value, scope: &str| {
        assert_eq!(found["descriptors"], found["cpus"], "{scope}");
        assert_eq!(found["scope"], scope);
    };
    on_cpus(json(&["-p", &pid, "--scope", "filtered"]), "filtered");
    let said = kymo().succeed(evlist(&["-p", &pid, "--scope", "filtered"]));
    assert!(said.stdout.contains("without a filter: these events never sample"), "{}", said.stdout);
    match kymo_perf::bpf::Follower::available() {
        Ok(()) => {
            for target in [["-p", &pid], ["-t", &pid], ["-u", "0"]] {
                on_cpus(
                    json(&[&target[..], &["-e", "cpu-clock", "--scope", "filtered"]].concat()),
                    "filtered",
                );
            }
        }
        Err(reason) => skip("bench::scopes_on_cpus: filtered", &reason.to_string()),
    }
    match kymo_perf::cgroup::available() {
        Ok(_) => on_cpus(json(&["--scope", "cgroup"]), "cgroup"),
        Err(reason) => skip("bench::scopes_on_cpus: cgroup", &reason.to_string()),
    }
}

/// Checks that a target that is gone, or not permitted, is said in words that name it.
#[test]
fn refusals() {
    let said = kymo().run(evlist(&["-p", "2147483647"]));
    assert_eq!(said.code, Some(1));
    assert!(said.stderr.contains("there is no process 2147483647"), "{}", said.stderr);
}
