//! Which scope is chosen, for what and why not.
use super::{Facts, Whom, choose, rank};
use crate::options::{Options, Rate, TargetSpec};
use crate::output::Output;
use crate::scope::Scope;
use kymo_perf::machine::Machine;
use kymo_perf::selector;

fn options(selector: &str) -> Options {
    let groups = selector::parse(selector).unwrap();
    let events = selector::resolve(&groups, &Machine::here()).unwrap();
    Options::new(events, TargetSpec::default(), Output::Stdout)
}

const COMMAND: Whom = Whom { command: true, tasks: 1, follow: true, python: false };

fn process(tasks: usize) -> Whom {
    Whom { command: false, tasks, follow: true, python: false }
}

fn root(cpus: usize) -> Facts {
    Facts { cpus, cpu_events: Ok(()), cgroup: Ok(()), follower: Ok(()) }
}

fn user(cpus: usize) -> Facts {
    let no = || Err("no privilege".to_string());
    Facts { cpus, cpu_events: no(), cgroup: no(), follower: no() }
}

fn chosen(options: &Options, whom: Whom, facts: &Facts) -> Scope {
    choose(&rank(options, whom, facts), None).unwrap()
}

/// Checks that a clock on a command is filtered on few CPUs, and that on many, where others would
/// be interrupted most of the time, it gets a cgroup; without privilege it is inherited.
#[test]
fn a_command() {
    let clock = options("cpu-clock");
    assert_eq!(chosen(&clock, COMMAND, &root(2)), Scope::Filtered);
    assert_eq!(chosen(&clock, COMMAND, &root(256)), Scope::Cgroup);
    assert_eq!(chosen(&clock, COMMAND, &Facts { follower: Err("no BPF".into()), ..root(2) }), Scope::Cgroup);
    assert_eq!(chosen(&clock, COMMAND, &user(2)), Scope::Inherit);
}

/// Checks that few threads on many CPUs are opened one by one, and many are filtered.
#[test]
fn a_process() {
    let clock = options("cpu-clock");
    assert_eq!(chosen(&clock, process(2000), &root(2)), Scope::Filtered);
    assert_eq!(chosen(&clock, process(2000), &root(512)), Scope::Filtered);
    assert_eq!(chosen(&clock, process(1), &root(512)), Scope::Inherit);
    assert_eq!(chosen(&clock, process(2000), &user(512)), Scope::Inherit);
}

/// Checks that what a filter would falsify or hide is not filtered: tracepoints, counts, switch
/// records.
#[test]
fn not_filtered() {
    let many = process(2000);
    let with = |change: fn(&mut Options)| {
        let mut options = options("cpu-clock");
        change(&mut options);
        chosen(&options, many, &root(2))
    };
    assert_eq!(with(|_| {}), Scope::Filtered);
    assert_eq!(with(|options| options.counts = true), Scope::Inherit);
    assert_eq!(with(|options| options.no_samples = true), Scope::Inherit);
    assert_eq!(with(|options| options.switch_events = true), Scope::Inherit);
    assert_eq!(chosen(&options("{cpu-clock,page-faults}:S"), many, &root(2)), Scope::Inherit);
    // A fixed period of an event that others cause, too, would be shared with them; each single one
    // is not.
    assert_eq!(chosen(&options("page-faults"), many, &root(2)), Scope::Inherit);
    let each = Options { rate: Rate::Period(1), ..options("page-faults") };
    assert_eq!(chosen(&each, many, &root(2)), Scope::Filtered);
}

/// Checks that threads whose children are not followed get no copies and no cgroup.
#[test]
fn not_followed() {
    let alone = |tasks, command| Whom { command, tasks, follow: false, python: false };
    assert_eq!(chosen(&options("page-faults"), alone(1, true), &root(2)), Scope::ThreadCpu);
    assert_eq!(chosen(&options("cpu-clock"), alone(3, false), &user(2)), Scope::ThreadCpu);
    assert_eq!(chosen(&options("cpu-clock"), alone(5000, false), &root(64)), Scope::Filtered);
}

/// Checks that a scope that is asked for is taken, or refused with its reason.
#[test]
fn asked_for() {
    let scopes = rank(&options("cpu-clock"), process(10), &root(2));
    assert_eq!(choose(&scopes, Some(Scope::Filtered)).unwrap(), Scope::Filtered);
    let error = choose(&scopes, Some(Scope::Cgroup)).unwrap_err().to_string();
    assert!(error.starts_with("--scope cgroup is not possible here: only a command"), "{error}");
    let error = choose(&rank(&options("cpu-clock"), COMMAND, &user(2)), Some(Scope::Cgroup)).unwrap_err();
    assert!(error.to_string().contains("no privilege"), "{error}");
}

/// Checks that all four are weighed, the possible before the impossible, and that each can be
/// printed.
#[test]
fn all_are_weighed() {
    let scopes = rank(&options("cpu-clock"), process(10), &root(2));
    assert_eq!(scopes.len(), 4);
    let possible = scopes.iter().map(|choice| choice.verdict.is_ok());
    assert!(possible.is_sorted_by(|a, b| a >= b), "{scopes:?}");
    assert!(scopes[0].verdict.as_ref().unwrap().to_string().contains(" descriptors, about "));
    for scope in Scope::CHOICES {
        assert_eq!(Scope::parse(scope.name()), Some(scope));
    }
    assert_eq!(Scope::parse("cpus"), None);
}
