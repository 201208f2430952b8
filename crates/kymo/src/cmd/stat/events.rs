//! Which events to count: those that were asked for, or perf's default set.

use kymo_cli::parse::parse_events;
use kymo_perf::count::named_metrics::{self, NamedMetric};
use kymo_perf::machine::Machine;
use kymo_perf::selector::Selected;

use super::StatArgs;
use super::derived::Role;

/// perf's set, in its order. The first is `cpu-clock` where CPUs are counted on.
const DEFAULT: &[&str] = &["context-switches", "cpu-migrations", "page-faults", "cycles"];
const STALLED: &[&str] = &["stalled-cycles-frontend", "stalled-cycles-backend"];
const BRANCHES: &[&str] = &["instructions", "branches", "branch-misses"];

/// What `-d` adds, what `-d -d` adds to that, and `-d -d -d`.
const DETAILED: [&[&str]; 3] = [
    &["L1-dcache-loads", "L1-dcache-load-misses", "LLC-loads", "LLC-load-misses"],
    &[
        "L1-icache-loads",
        "L1-icache-load-misses",
        "dTLB-loads",
        "dTLB-load-misses",
        "iTLB-loads",
        "iTLB-load-misses",
    ],
    &["L1-dcache-prefetches", "L1-dcache-prefetch-misses"],
];

/// One event to count.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// As the selector found it.
    pub(super) selected: Selected,
    /// The cgroup that it is counted in, if it is one.
    pub(super) cgroup: Option<String>,
    /// What `-M` has printed behind its count.
    pub(super) metric: Option<&'static NamedMetric>,
}

impl Event {
    /// Whether it counts CPU time in nanoseconds.
    pub(super) fn is_clock(&self) -> bool {
        Role::of(&self.selected.attr) == Role::Clock
    }

    /// The unit that its counts are printed in; empty: just numbers.
    pub(super) fn unit(&self) -> &str {
        match &self.selected.unit {
            _ if self.is_clock() => "msec",
            _ if self.selected.tool.is_some() => "ns",
            Some(unit) => &unit.name,
            None => "",
        }
    }

    /// By what a count is multiplied to be in that unit.
    pub(super) fn scale(&self) -> f64 {
        if self.is_clock() { 1e-6 } else { self.selected.unit.as_ref().map_or(1.0, |unit| unit.scale) }
    }
}

/// The clock of the CPU time that is counted.
fn clock(args: &StatArgs) -> &'static str {
    if args.wide() { "cpu-clock" } else { "task-clock" }
}

/// Events that only a PMU has are left out of the default set where it does not name them, as perf does.
fn defaults(args: &StatArgs, machine: &Machine) -> Vec<String> {
    let clock = clock(args);
    let named =
        |event: &str| machine.core_pmus().any(|pmu| pmu.events.iter().any(|known| known.name == event));
    let stalled = STALLED.iter().copied().filter(|event| named(event));
    let detailed = DETAILED.iter().take(usize::from(args.detailed)).flat_map(|more| more.iter().copied());
    let all =
        std::iter::once(clock).chain(DEFAULT.iter().copied()).chain(stalled).chain(BRANCHES.iter().copied());
    all.chain(detailed).map(str::to_owned).collect()
}

/// The events, with their cgroups.
///
/// `texts`: those that stand for the arguments.
pub(super) fn select(args: &StatArgs, texts: &[String]) -> Result<Vec<Event>, String> {
    if args.null {
        return Ok(Vec::new());
    }
    let machine = Machine::here();
    let plain = args.events.texts.is_empty() && args.events.is_plain();
    let mut events = match plain {
        true if args.metrics.is_empty() => parse_events(&defaults(args, &machine), &machine)?,
        true => Vec::new(),
        false => args.events.select(texts, &machine)?,
    };
    let metrics = add_metrics(args, &machine, &mut events)?;
    if args.all_user || args.all_kernel {
        for event in &mut events {
            (event.attr.exclude_user, event.attr.exclude_kernel) = (args.all_kernel, args.all_user);
        }
    }
    let mut events = cgroups(args, events)?;
    // With --for-each-cgroup, the events are there once for each.
    for (event, metric) in events.iter_mut().zip(metrics.iter().cycle()) {
        event.metric = *metric;
    }
    Ok(events)
}

/// Adds the events that `-M` needs. Returns the metric of each event.
fn add_metrics(
    args: &StatArgs,
    machine: &Machine,
    events: &mut Vec<Selected>,
) -> Result<Vec<Option<&'static NamedMetric>>, String> {
    let metrics: Result<Vec<_>, String> = args.metrics.iter().map(|name| named_metrics::find(name)).collect();
    let mut of_events = vec![None; events.len()];
    for (name, metric) in named_metrics::events(&metrics?, clock(args)) {
        for selected in parse_events(&[name.to_owned()], machine)? {
            of_events.push(metric);
            let leader = events.len();
            events.push(Selected { leader, ..selected });
        }
    }
    Ok(of_events)
}

fn cgroups(args: &StatArgs, events: Vec<Selected>) -> Result<Vec<Event>, String> {
    let with = |selected: &Selected, cgroup: Option<&String>| Event {
        selected: selected.clone(),
        cgroup: cgroup.cloned(),
        metric: None,
    };
    if !args.for_each_cgroup.is_empty() {
        let mut all = Vec::new();
        for cgroup in &args.for_each_cgroup {
            let before = all.len();
            all.extend(events.iter().map(|event| {
                let event = Selected { leader: event.leader + before, ..event.clone() };
                with(&event, Some(cgroup))
            }));
        }
        return Ok(all);
    }
    match args.cgroups.len() {
        0 => Ok(events.iter().map(|event| with(event, None)).collect()),
        1 => Ok(events.iter().map(|event| with(event, args.cgroups.first())).collect()),
        count if count != events.len() => Err(format!(
            "-G names {count} cgroups for {} events: name one for all, or one for each (or --for-each-cgroup for every event in each)",
            events.len()
        )),
        _ => {
            let pairs = events.iter().zip(&args.cgroups);
            let all: Vec<Event> = pairs
                .map(|(event, cgroup)| with(event, Some(cgroup).filter(|name| !name.is_empty())))
                .collect();
            match all.iter().find(|event| all[event.selected.leader].cgroup != event.cgroup) {
                Some(event) => Err(format!(
                    "{} is in a group whose leader is counted in another cgroup",
                    event.selected.name
                )),
                None => Ok(all),
            }
        }
    }
}
