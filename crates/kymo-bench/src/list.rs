//! The event list that is opened and closed: from arguments to a plan, and one round of all phases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use kymo_perf::bpf::{Follow, Follower};
use kymo_perf::cgroup::OwnCgroup;
use kymo_perf::evlist::{self, EvlistPlan, OpenEngine, OpenError, Request};
use kymo_perf::sys::{Kernel, Perf};
use kymo_record::Scope;

/// The parts of a round, in order.
pub(crate) const PHASES: [&str; 8] = ["init", "open", "mmap", "enable", "disable", "munmap", "close", "fini"];

/// Whether the event can sample at all. What cannot needs no filter.
pub(crate) fn samples(request: &Request) -> bool {
    !(request.attr.type_ == Perf::SOFTWARE && request.attr.config == Perf::SW_DUMMY)
}

/// Tasks to be followed in the kernel.
pub(crate) enum Followed {
    Processes(Vec<i32>),
    Threads(Vec<i32>),
}

impl Followed {
    fn start(&self) -> anyhow::Result<Follower> {
        let who = match self {
            Followed::Processes(pids) => Follow::Processes(pids),
            Followed::Threads(ids) => Follow::Threads { ids, children: false },
        };
        Ok(Follower::start(who)?)
    }
}

/// What is opened again and again.
pub(crate) struct List {
    /// Events and targets; tasks as they were at the start.
    pub(crate) plan: EvlistPlan,
    /// Whom to follow where events are on CPUs and samples of others are dropped.
    pub(crate) followed: Followed,
    /// `None`: the target leaves no choice.
    pub(crate) scope: Option<Scope>,
    pub(crate) engine: OpenEngine,
    pub(crate) ring_pages: usize,
}

/// What one round showed.
pub(crate) struct Round {
    pub(crate) descriptors: usize,
    pub(crate) tasks: usize,
    pub(crate) cpus: usize,
    /// Threads that made the calls.
    pub(crate) workers: usize,
    /// What the list says was changed so that the machine would accept it.
    pub(crate) notes: Vec<String>,
    pub(crate) phases: [Duration; PHASES.len()],
}

impl List {
    /// Opens, maps, enables, disables and closes everything once. Making the copy of the plan is not in the time, as in perf.
    pub(crate) fn round(&self, kernel: &Arc<dyn Kernel>) -> anyhow::Result<Round> {
        let (mut plan, kernel) = (self.plan.clone(), Arc::clone(kernel));
        let mut clock = Clock::start();
        let cgroup = match self.scope {
            Some(Scope::Cgroup) => Some(OwnCgroup::create()?),
            _ => None,
        };
        if let Some(cgroup) = &cgroup {
            plan.targets.cgroup = Some(cgroup.fd());
        }
        let filtered = self.scope == Some(Scope::Filtered) && plan.events.iter().any(samples);
        let follower = filtered.then(|| self.followed.start()).transpose()?;
        clock.next();
        let mut events = evlist::open(kernel, plan, self.engine).map_err(Refused)?;
        if let Some(program) = follower.as_ref().and_then(Follower::program) {
            let given = events.set_bpf(program, |event| samples(&event.request));
            given.context("failed to attach the filter to the events")?;
        }
        clock.next();
        let rings = events.map_rings(self.ring_pages, true)?;
        // A recorder needs them, and perf asks for them, too.
        events.ids().context("failed to read the ids of events")?;
        clock.next();
        events.enable(true).and_then(|()| events.enable(false)).context("failed to enable events")?;
        clock.next();
        events.disable().context("failed to disable events")?;
        let (descriptors, tasks, cpus) = (events.descriptors(), events.tasks.len(), events.cpus().len());
        // Without any, the calling thread did it.
        let workers = events.workers().max(1);
        let notes = events.notes.iter().map(ToString::to_string).collect();
        clock.next();
        drop(rings);
        clock.next();
        events.close();
        clock.next();
        drop(follower);
        if let Some(cgroup) = cgroup {
            cgroup.remove()?;
        }
        clock.next();
        Ok(Round { descriptors, tasks, cpus, workers, notes, phases: clock.phases })
    }
}

/// The kernel did not open an event.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) OpenError);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refused {}

struct Clock {
    since: Instant,
    phase: usize,
    phases: [Duration; PHASES.len()],
}

impl Clock {
    fn start() -> Clock {
        Clock { since: Instant::now(), phase: 0, phases: [Duration::ZERO; PHASES.len()] }
    }

    /// The running phase ends, the next begins.
    fn next(&mut self) {
        let now = Instant::now();
        self.phases[self.phase] = now - self.since;
        self.phase += 1;
        self.since = now;
    }
}
