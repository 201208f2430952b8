//! Chooses the scope: what each costs here, and why some are impossible.
//!
//! ```text
//!              descriptors      follows by       a new thread pays     a switch to others pays   needs
//!  cgroup      events x CPUs    its cgroup       nothing               stopping the events       a command, a cgroup, CPU events
//!  filtered    events x CPUs    BPF at fork      a look at a map       nothing                   BPF, CPU events
//!  inherit     .. x tasks       a copy at clone  a copy of each event  stopping the events       nothing
//!  thread-cpu  .. x tasks       (does not)       nothing               stopping the events       nothing
//! ```
//!
//! What each observes exactly, and what escapes it, is in `docs/internals/design/0003-scopes.md`.
use crate::error::PlanError;
use crate::options::{Delay, Options, Rate};
use crate::scope::Scope;
use kymo_perf::bpf::Follower;
use kymo_perf::explain::{self, Attempt};
use kymo_perf::selector::{Sampling, Selected};
use kymo_perf::sys::{self, ANY, EventTarget, Kernel, Perf, attr_zeroed};
use kymo_perf::user_probes;
use kymo_perf::{caps, cgroup};
use std::cmp::Ordering;
use std::fmt;

/// What a scope would cost here.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// Descriptors to open.
    pub descriptors: u64,
    /// Time from the start until everything is open and on, in microseconds.
    pub start_us: f64,
    /// What each thread or process that the target creates pays, in microseconds.
    pub per_child_us: f64,
    /// What the target pays each time it leaves a CPU to someone else, or to nobody, and comes
    /// back, in microseconds.
    pub per_switch_us: f64,
    /// CPU time that the whole machine spends each second on samples that are dropped, in
    /// microseconds.
    pub dropped_us_per_s: f64,
    /// What is different with its samples; scopes without come first.
    pub reservation: Option<String>,
}

impl Estimate {
    /// One number to compare by: microseconds spent on ten seconds of a target that creates
    /// `children` tasks.
    fn total_us(&self, children: f64) -> f64 {
        self.start_us
            + children * self.per_child_us
            + 10.0 * (Costs::SWITCHES_PER_S * self.per_switch_us + self.dropped_us_per_s)
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, about {:.1} ms to start", self.descriptors, self.start_us / 1000.0)?;
        write!(f, ", {:.1} us per new thread", self.per_child_us)?;
        write!(f, ", {:.1} us per switch to others", self.per_switch_us)?;
        if self.dropped_us_per_s > 0.0 {
            let ms = self.dropped_us_per_s / 1000.0;
            write!(f, ", {ms:.1} ms of CPU time per second for dropped samples")?;
        }
        if let Some(reservation) = &self.reservation {
            write!(f, "; but {reservation}")?;
        }
        Ok(())
    }
}

/// One scope, weighed.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Which.
    pub scope: Scope,
    /// What it would cost, or why it cannot be had.
    pub verdict: Result<Estimate, String>,
}

/// What things cost, in microseconds: from `bench/runs/2026-11-21-scopes.txt` (`kymo-perf`'s
/// examples `scope_cost` and `follow_cost`). Only their proportions matter here.
struct Costs;

impl Costs {
    /// One descriptor of a task: open, redirect, enable.
    const TASK_EVENT: f64 = 7.0;
    /// One descriptor of a CPU.
    const CPU_EVENT: f64 = 15.0;
    /// Making a cgroup, moving the command into it, removing it.
    const CGROUP: f64 = 220.0;
    /// Loading and attaching the programs that follow tasks.
    const FOLLOWER: f64 = 1200.0;
    /// One inherited event, at the clone and at the exit together.
    const COPY: f64 = 3.0;
    /// Following one new task by BPF.
    const FOLLOWED_CHILD: f64 = 0.5;
    /// Taking events off a CPU and putting them back, if none of them is driven by a timer.
    const SWITCH: f64 = 0.6;
    /// The same for one that is: timers are stopped and started.
    const SWITCH_TIMER: f64 = 5.0;
    /// And for each further event.
    const SWITCH_FURTHER: f64 = 0.9;
    /// One sample that the filter drops: the interrupt and the program.
    const DROPPED_SAMPLE: f64 = 1.0;
    /// How often a target leaves a CPU to others: not known beforehand; a program that waits for
    /// nothing hardly, a server often.
    const SWITCHES_PER_S: f64 = 2000.0;
    /// Tasks that a command is expected to create: not known either, and threads are what this is
    /// about.
    const CHILDREN_OF_COMMAND: f64 = 10_000.0;
    /// New tasks of a running process, for each that it has: as it made those, it will make more.
    const CHILDREN_PER_TASK: f64 = 10.0;

    fn switch(options: &Options) -> f64 {
        let timer = |event: &Selected| is_clock(event);
        let first = if options.events.iter().any(timer) { Costs::SWITCH_TIMER } else { Costs::SWITCH };
        first + options.events.len().saturating_sub(1) as f64 * Costs::SWITCH_FURTHER
    }
}

/// Whether the event takes samples: where none does, there is nothing to filter.
fn samples(event: &Selected) -> bool {
    let attr = event.attr.to_raw();
    !(attr.type_ == Perf::SOFTWARE && attr.config == Perf::SW_DUMMY)
}

/// Whether a software timer drives the event.
fn is_clock(event: &Selected) -> bool {
    let attr = event.attr.to_raw();
    attr.type_ == Perf::SOFTWARE && matches!(attr.config, Perf::SW_CPU_CLOCK | Perf::SW_TASK_CLOCK)
}

/// What this machine permits.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Online CPUs.
    pub(crate) cpus: usize,
    /// Events on CPUs.
    pub(crate) cpu_events: Result<(), String>,
    /// A cgroup of one's own.
    pub(crate) cgroup: Result<(), String>,
    /// BPF programs that follow tasks.
    pub(crate) follower: Result<(), String>,
}

impl Facts {
    /// Asked by trying, in some ten microseconds each.
    pub(crate) fn here() -> Facts {
        let cpu_events = cpu_events(&sys::Real);
        let after = |check: fn() -> Result<(), String>| cpu_events.clone().and_then(|()| check());
        Facts {
            cpus: sys::online_cpus().len(),
            cgroup: after(|| cgroup::available().map(|_| ()).map_err(|error| error.to_string())),
            cpu_events: cpu_events.clone(),
            follower: after(|| Follower::available().map_err(|error| error.to_string())),
        }
    }
}

fn cpu_events(kernel: &dyn Kernel) -> Result<(), String> {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = Perf::SW_DUMMY;
    let cpu = sys::online_cpus().first().map_or(0, |&cpu| cpu as i32);
    let place = EventTarget::new(ANY, cpu);
    match kernel.open(&attr, &place) {
        Ok(event) => {
            kernel.close(vec![event]);
            Ok(())
        }
        Err(error) => {
            let (errno, caps) = (error.raw_os_error().unwrap_or(0), caps::probe());
            if explain::refused_by_filter(errno, &caps) {
                let attempt = Attempt::new("dummy", &attr, ANY, cpu);
                return Err(explain::explain_open(errno, &attempt, &caps).to_string().replace("\n  ", "; "));
            }
            Err(format!(
                "events on CPUs need root, CAP_PERFMON or kernel.perf_event_paranoid of 0 or less ({error})"
            ))
        }
    }
}

/// Whom to observe, as far as it matters for the scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whom {
    /// A command that is started, not processes that run.
    pub(crate) command: bool,
    /// Tasks that exist (1 for a command).
    pub(crate) tasks: usize,
    /// Children are followed.
    pub(crate) follow: bool,
    /// Python runs in them, and its functions are wanted: only scopes of CPUs have them.
    pub(crate) python: bool,
}

/// The scopes that a user may choose from, cheapest permitted first, then the impossible ones.
pub(crate) fn rank(options: &Options, whom: Whom, facts: &Facts) -> Vec<Choice> {
    let events = options.events.len() as f64;
    let (cpus, tasks) = (facts.cpus as f64, whom.tasks as f64);
    let filter = options.events.iter().any(samples);
    let estimate = |scope| match scope {
        Scope::Cgroup => Estimate {
            descriptors: (events * cpus) as u64,
            start_us: Costs::CGROUP + events * cpus * Costs::CPU_EVENT,
            per_child_us: 0.0,
            per_switch_us: Costs::switch(options),
            dropped_us_per_s: 0.0,
            reservation: None,
        },
        Scope::Filtered => Estimate {
            descriptors: (events * cpus) as u64,
            start_us: if filter { Costs::FOLLOWER } else { 0.0 } + events * cpus * Costs::CPU_EVENT,
            per_child_us: if filter { Costs::FOLLOWED_CHILD } else { 0.0 },
            per_switch_us: 0.0,
            dropped_us_per_s: samples_per_second(options) * cpus * Costs::DROPPED_SAMPLE,
            reservation: reservation(options),
        },
        _ => Estimate {
            descriptors: (events * cpus * tasks) as u64,
            start_us: events * cpus * tasks * Costs::TASK_EVENT,
            per_child_us: if scope == Scope::Inherit { events * cpus * Costs::COPY } else { 0.0 },
            per_switch_us: Costs::switch(options),
            dropped_us_per_s: 0.0,
            reservation: whom.python.then(|| "Python's functions have no names".into()),
        },
    };
    let choices = Scope::CHOICES.map(|scope| Choice {
        scope,
        verdict: unsupported_reason(scope, options, whom, facts).map_or_else(|| Ok(estimate(scope)), Err),
    });
    let children =
        if whom.command { Costs::CHILDREN_OF_COMMAND } else { Costs::CHILDREN_PER_TASK * tasks.max(1.0) };
    let rank = |choice: &Choice| match &choice.verdict {
        Ok(estimate) => (u8::from(estimate.reservation.is_some()), estimate.total_us(children)),
        Err(_) => (2, 0.0),
    };
    let mut choices = Vec::from(choices);
    choices.sort_by(|a, b| rank(a).partial_cmp(&rank(b)).unwrap_or(Ordering::Equal));
    choices
}

/// The scope that is asked for, else the best.
pub(crate) fn choose(scopes: &[Choice], asked: Option<Scope>) -> Result<Scope, PlanError> {
    let first = scopes.first().map_or(Scope::Inherit, |choice| choice.scope);
    let Some(asked) = asked else { return Ok(first) };
    match scopes.iter().find(|choice| choice.scope == asked).map(|choice| &choice.verdict) {
        Some(Err(reason)) => Err(PlanError::Scope { scope: asked, reason: reason.clone() }),
        _ => Ok(asked),
    }
}

/// Why the target leaves no choice.
pub(crate) fn only(scope: Scope) -> &'static str {
    match scope {
        Scope::PerThread => "--per-thread has one ring per thread",
        _ => "-a and -C observe CPUs",
    }
}

/// Why a scope cannot serve.
fn unsupported_reason(scope: Scope, options: &Options, whom: Whom, facts: &Facts) -> Option<String> {
    let own_inherit =
        |wanted: bool| options.events.iter().any(|event| event.overrides.inherit == Some(wanted));
    match scope {
        Scope::Cgroup | Scope::Inherit | Scope::ThreadCpu
            if options.waits.is_some() || options.locks.is_some() =>
        {
            Some("waits are traced by programs in the kernel, which follow tasks as the filter does".into())
        }
        Scope::Cgroup if !whom.command => {
            Some("only a command that kymo starts can be put into a cgroup of its own".into())
        }
        Scope::Cgroup if !whom.follow || own_inherit(false) => {
            Some("a cgroup holds all children, and they are not to be followed".into())
        }
        Scope::Cgroup if options.tracking.cgroups => {
            Some("the cgroups of samples are recorded, and it would change the command's".into())
        }
        Scope::Cgroup => facts.cgroup.clone().err(),
        Scope::Filtered => unfilterable(options)
            .or_else(|| {
                own_inherit(!whom.follow).then(|| "its events disagree on whether to follow children".into())
            })
            .or_else(|| {
                if options.events.iter().any(samples) { &facts.follower } else { &facts.cpu_events }
                    .clone()
                    .err()
            }),
        Scope::Inherit if !whom.follow && !own_inherit(true) => {
            Some("children are not to be followed".into())
        }
        Scope::ThreadCpu if whom.follow => {
            Some("children are to be followed, and it observes only the threads that exist".into())
        }
        _ => None,
    }
}

/// The filter drops samples. It cannot change what an event counts, nor when it samples.
fn unfilterable(options: &Options) -> Option<String> {
    if options.counts || options.no_samples {
        return Some("counts cannot be filtered by task".into());
    }
    if options.switch_events {
        return Some("context switch records cannot be filtered by task".into());
    }
    for event in &options.events {
        let why = match event.attr.to_raw().type_ {
            // Those of our own user probes nobody else sees; strangers' samples are dropped later.
            Perf::TRACEPOINT if options.waits.is_some() && is_own_probe(event) => continue,
            Perf::TRACEPOINT => "is a tracepoint: a filter would hide its hits from everyone",
            Perf::BREAKPOINT => "would trap in every process",
            _ if event.group_read => "reads counts, which cannot be filtered by task",
            _ => continue,
        };
        return Some(format!("{} {why}", event.name));
    }
    None
}

/// Whether the event is a tracepoint that was made for this recording.
fn is_own_probe(event: &Selected) -> bool {
    event.tracepoint.as_ref().is_some_and(|tracepoint| user_probes::is_group(&tracepoint.system))
}

/// How many samples a second each CPU takes while someone else runs.
fn samples_per_second(options: &Options) -> f64 {
    let events = options.events.iter().filter(|event| samples(event)).count() as f64;
    match options.rate {
        _ if options.delay == Some(Delay::Disabled) => 0.0,
        Rate::Default(hz) | Rate::Frequency(hz) => events * hz.min(100_000) as f64,
        // Unknown; a period is usually chosen to come to about as many.
        Rate::Period(_) => events * 1000.0,
    }
}

/// What is different, not wrong, with samples that are filtered: worth another scope if there is
/// one.
fn reservation(options: &Options) -> Option<String> {
    let by_time = |event: &Selected| {
        // Hardware counters advance with whatever runs, as clocks do.
        is_clock(event) || !samples(event) || event.attr.to_raw().type_ != Perf::SOFTWARE
    };
    let each = |event: &Selected| {
        matches!(
            (event.attr.sampling, options.rate),
            (Sampling::Period(1), _)
                | (Sampling::Natural(1) | Sampling::Unset, Rate::Period(1))
                | (Sampling::Natural(1), Rate::Default(_))
        )
    };
    let event = options.events.iter().find(|event| !by_time(event) && !each(event))?;
    Some(format!("{} is sampled at everyone's rate", event.name))
}

#[cfg(test)]
mod tests;
