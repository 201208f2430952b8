//! Who serves a probe: the seam between the command and the ways of probing.
//!
//! ```text
//!  sites --serve()--> in-process engine takes what it can (reasons for the rest)  --+--> Service { sites, engine } ...
//!                     kernel engine takes what is left: the net                   --+
//! ```
//! An engine counts by itself, in the kernel or inside the program; the command only reads.

use std::io;
use std::os::fd::BorrowedFd;

use anyhow::Context;
use kymo_perf::bpf::uprobe::Value;
use kymo_perf::bpf::uprobe::{
    CapturedValue, Condition, Latencies, ReturnAction, UprobeOptions, UprobeScope, UprobeSite, Uprobes,
};
use kymo_perf::bpf::{Follow, Follower};
use kymo_symbols::place::call::Fetch;
use kymo_symbols::sites::{Site, SiteKind};

use super::arguments::{self, Values};
use super::exits::{ReturnAddresses, Timing};
use super::inproc;
use super::launched::Launch;

/// What was counted at a site until now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub(crate) hits: u64,
    pub(crate) latencies: Latencies,
    /// Calls that could not be timed.
    pub(crate) missed: u64,
    /// Hits and returns whose values are not told, since nobody read them in time.
    pub(crate) lost: u64,
}

/// A hit or a return, with its values.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    /// Number of the site among those that the engine serves.
    pub(crate) site: usize,
    pub(crate) returned: bool,
    /// CLOCK_MONOTONIC.
    pub(crate) time_ns: u64,
    pub(crate) pid: i32,
    pub(crate) tid: i32,
    pub(crate) latency_ns: Option<u64>,
    pub(crate) comm: String,
    /// In the order in which they were asked for.
    pub(crate) values: Vec<CapturedValue>,
}

impl Reading {
    /// What came since an earlier reading.
    pub(crate) fn since(&self, before: &Reading) -> Reading {
        Reading {
            hits: self.hits.saturating_sub(before.hits),
            latencies: self.latencies.since(&before.latencies),
            missed: self.missed.saturating_sub(before.missed),
            lost: self.lost.saturating_sub(before.lost),
        }
    }
}

/// Where a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Number of the site among those that the engine serves.
    pub(crate) site: usize,
    pub(crate) pid: i32,
    /// In the process.
    pub(crate) address: u64,
    pub(crate) hits: u64,
}

/// A way of probing, attached to its sites.
pub(crate) trait Engine {
    /// For people: `kernel` or `inproc`.
    fn name(&self) -> &'static str;

    /// What was counted, in the order of the sites that it serves.
    fn read(&self) -> Vec<Reading>;

    /// Who called, the most frequent first; empty unless asked for.
    fn callers(&self) -> io::Result<Vec<Caller>>;

    /// Tells hits and returns with their values, those since the last time.
    fn told(&self, _tell: &mut dyn FnMut(Told)) {}

    /// What becomes readable when there are any.
    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Waits until the command, which has just been started and whose end `ended` tells, is probed; it is held until [`Engine::go`]. The sites that
    /// cannot be probed in it, with the reasons: the engine leaves them to others.
    ///
    /// # Errors
    /// Why it is not probed at all; then it is not held.
    fn started(&self, ended: BorrowedFd<'_>) -> Result<Vec<(usize, String)>, String> {
        let _ = ended;
        Ok(Vec::new())
    }

    /// Leaves sites (ascending) to another engine in all programs that are to come.
    fn leave(&self, sites: &[usize]) {
        let _ = sites;
    }

    /// Lets the command run.
    fn go(&self) {}

    /// What is to be said at the end.
    fn words(&self, sites: &[Site]) -> Vec<String> {
        let _ = sites;
        Vec::new()
    }
}

/// What is to be measured at every site.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// Time calls of functions.
    pub(crate) timed: bool,
    pub(crate) callers: bool,
    pub(crate) every: u32,
    /// For each site: which hits, and which returns.
    pub(crate) conditions: Vec<(Condition, Condition)>,
    /// For each site, what is told of each hit and return; empty if nothing is told of any.
    pub(crate) values: Vec<Option<Values>>,
    /// Whether return addresses may be replaced.
    pub(crate) return_addresses: ReturnAddresses,
}

/// Whom to probe.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Processes that exist: those of `-p`, or the command that waits for its start.
    pub(crate) pids: Vec<i32>,
    /// It is a command that has not executed its program yet.
    pub(crate) command: bool,
    /// What they start, too.
    pub(crate) children: bool,
}

/// An engine, and the numbers of the sites that it serves.
pub(crate) struct Service {
    pub(crate) sites: Vec<usize>,
    pub(crate) engine: Box<dyn Engine>,
}

/// Which engines may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Choice {
    /// The fastest that can serve each probe
    Auto,
    /// Only inside the program
    Inproc,
    /// Only the kernel's uprobes
    Kernel,
}

/// Attaches to all sites. What could not be as asked is among the words. `launch`: the command is started with the agent in it.
pub(crate) fn serve(
    choice: Choice,
    sites: &[Site],
    wish: &Wish,
    target: &Target,
    launch: Option<Launch>,
    words: &mut Vec<String>,
) -> anyhow::Result<Vec<Service>> {
    let mut services: Vec<Service> = Vec::new();
    let mut left: Vec<usize> = (0..sites.len()).collect();
    let verb =
        if choice == Choice::Auto { "not inside the program, but by the kernel" } else { "not probed" };
    let names = |refused: &(usize, String)| (refused.1.clone(), sites[refused.0].name.as_str());
    if let Some(launch) = launch {
        words.extend(reasons_of(verb, launch.refused().iter().map(names)));
        let served = launch.served().to_vec();
        let pid = target.pids.first().copied().context("there is no command")?;
        left.retain(|number| served.binary_search(number).is_err());
        let engine = launch.begin(pid).context("failed to wait for programs to start")?;
        services.push(Service { sites: served, engine: Box::new(engine) });
    } else if choice != Choice::Kernel && !target.command {
        match inside(choice, sites, wish, target) {
            Ok(entered) => {
                words.extend(reasons_of(verb, entered.refused.iter().map(names)));
                if entered.cleaned_up > 0 {
                    words.push(format!("removed {} probes that a killed kymo had left", entered.cleaned_up));
                }
                left.retain(|number| entered.served.binary_search(number).is_err());
                if !entered.served.is_empty() {
                    words.push(match entered.not_held {
                        None => format!(
                            "patched while the program's threads stood still, {:.2} ms",
                            entered.stopped_ns as f64 / 1e6
                        ),
                        Some(why) => format!("patched while the program ran: {why}"),
                    });
                    services.push(Service { sites: entered.served, engine: Box::new(entered.engine) });
                }
            }
            Err(reason) if choice == Choice::Inproc => return Err(impossible(&reason)),
            // What it never does needs no words; that the kernel serves is said.
            Err(_) if inproc::objection(wish, target).is_some() => {}
            Err(reason) => words.push(format!("not inside the program, but by the kernel: {reason}")),
        }
    }
    if choice == Choice::Inproc {
        anyhow::ensure!(
            !services.is_empty(),
            "no probe can be inside the program; leave --engine out to let the kernel do it"
        );
    } else if !left.is_empty() {
        services.push(by_the_kernel(left, sites, wish, target, words)?);
    }
    Ok(services)
}

/// That probes were asked for inside of a program, where there can be none.
pub(crate) fn impossible(reason: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "the program cannot be probed from inside: {reason}; leave --engine out to let the kernel do it"
    )
}

/// The net.
pub(crate) fn by_the_kernel(
    numbers: Vec<usize>,
    sites: &[Site],
    wish: &Wish,
    target: &Target,
    words: &mut Vec<String>,
) -> anyhow::Result<Service> {
    let chosen: Vec<Site> = numbers.iter().map(|&number| sites[number].clone()).collect();
    let conditions = numbers.iter().map(|&number| wish.conditions[number].clone()).collect();
    let values = numbers.iter().filter_map(|&number| wish.values.get(number).cloned()).collect();
    let wish = Wish { conditions, values, ..wish.clone() };
    let engine = Kernel::attach(&chosen, &wish, target, words)?;
    Ok(Service { sites: numbers, engine: Box::new(engine) })
}

/// As much as possible inside of the one program.
fn inside(choice: Choice, sites: &[Site], wish: &Wish, target: &Target) -> Result<inproc::Entered, String> {
    if let Some(objection) = inproc::objection(wish, target) {
        return Err(objection.to_owned());
    }
    inproc::may_replace_returns(choice, wish)?;
    match target.pids[..] {
        [pid] => inproc::enter(sites, wish, pid),
        _ => Err("it enters one process at a time".to_owned()),
    }
}

/// Sees that the command which has just been started is probed, before it begins: what an engine cannot do after all, the kernel does if it may.
pub(crate) fn started(
    choice: Choice,
    sites: &[Site],
    wish: &Wish,
    target: &Target,
    services: &mut Vec<Service>,
    ended: BorrowedFd<'_>,
) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let running = Target { command: false, ..target.clone() };
    let auto = choice == Choice::Auto;
    let mut left: Vec<usize> = Vec::new();
    for service in services.iter_mut() {
        match service.engine.started(ended) {
            Ok(refused) => {
                let (apart, crowded) = refused.into_iter().partition(|(number, _)| {
                    auto && inproc::is_apart(&sites[*number], sites, &service.sites)
                });
                let refused: [(&str, Vec<(usize, String)>); 2] =
                    [("not inside the program, but by the kernel", apart), ("not probed", crowded)];
                for (verb, refused) in &refused {
                    let named =
                        refused.iter().map(|(number, why)| (why.clone(), sites[*number].name.as_str()));
                    words.extend(reasons_of(verb, named));
                }
                left.extend(refused[0].1.iter().map(|(number, _)| *number));
            }
            Err(reason) if !auto => return Err(impossible(&reason)),
            Err(reason) => {
                words.push(format!("by the kernel, from now on, what came before is not counted: {reason}"));
                left.append(&mut service.sites);
            }
        }
    }
    if !left.is_empty() {
        left.sort_unstable();
        for service in services.iter_mut() {
            service.engine.leave(&left);
        }
        services.push(by_the_kernel(left, sites, wish, &running, &mut words)?);
    }
    services.iter().for_each(|service| service.engine.go());
    Ok(words)
}

/// A line for each reason, with the names that it is about; a few of both.
pub(super) fn reasons_of<'a>(verb: &str, reasons: impl Iterator<Item = (String, &'a str)>) -> Vec<String> {
    const NAMED: usize = 5;
    let mut known: Vec<(String, Vec<&str>)> = Vec::new();
    for (reason, name) in reasons {
        match known.iter_mut().find(|(same, _)| *same == reason) {
            Some((_, names)) => names.push(name),
            None => known.push((reason, vec![name])),
        }
    }
    let line = |(reason, names): &(String, Vec<&str>)| {
        let more = names.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{verb}: {}{more}: {reason}", names[..names.len().min(NAMED)].join(", "))
    };
    let mut lines: Vec<String> = known.iter().take(NAMED).map(line).collect();
    let rest: usize = known.iter().skip(NAMED).map(|(_, names)| names.len()).sum();
    if rest > 0 {
        lines.push(format!("{verb}: {rest} more, for other reasons"));
    }
    lines
}

/// What is told of a site's hits or returns.
fn told(wish: &Wish, number: usize, part: impl Fn(&Values) -> &Vec<Fetch>) -> Option<Vec<Value>> {
    let values = wish.values.get(number)?.as_ref()?;
    Some(part(values).iter().map(arguments::told).collect())
}

/// The kernel's uprobes.
#[derive(Debug)]
struct Kernel {
    probes: Uprobes,
    // Keeps the map of who is followed alive and true.
    _follower: Option<Follower>,
}

impl Kernel {
    fn attach(
        sites: &[Site],
        wish: &Wish,
        target: &Target,
        words: &mut Vec<String>,
    ) -> anyhow::Result<Kernel> {
        let mut untimed = Vec::new();
        let mut places = Vec::new();
        for (number, (site, (condition, return_condition))) in sites.iter().zip(&wish.conditions).enumerate()
        {
            let is_function = site.kind == SiteKind::Function;
            let values = told(wish, number, |values| &values.entry);
            let return_values = told(wish, number, |values| &values.back);
            let counted = || Timing { entry: site.counted_offset(), returns: ReturnAction::Ignore };
            let result =
                !return_condition.is_empty() || return_values.as_ref().is_some_and(|back| !back.is_empty());
            let timing = match wish.timed && is_function {
                false => counted(),
                true => wish.return_addresses.timing(site, result).unwrap_or_else(|reason| {
                    untimed.push((reason, site.name.as_str()));
                    counted()
                }),
            };
            places.push(UprobeSite {
                path: site.module.file().to_owned(),
                offset: timing.entry,
                semaphore: site.semaphore,
                returns: timing.returns,
                callers: wish.callers && is_function,
                condition: condition.clone(),
                return_condition: return_condition.clone(),
                values,
                return_values,
            });
        }
        words.extend(reasons_of("counted, but not timed", untimed.into_iter()));
        let options = UprobeOptions { every: wish.every, attachment: None };
        let follow = |who: Follow<'_>| Follower::start(who);
        let follower = match (target.command, target.children) {
            (true, _) => {
                let pid = target.pids.first().copied().context("there is no command")?;
                // Also without children: what the process does before its exec is ours, not the command's.
                follow(Follow::Command(pid)).map(Some)
            }
            (false, true) => follow(Follow::Processes(&target.pids)).map(Some),
            (false, false) => Ok(None),
        };
        let follower = follower.unwrap_or_else(|error| {
            words.push(format!("children are not counted: {error}"));
            None
        });
        let whom = match &follower {
            Some(follower) if target.children => UprobeScope::Followed(follower),
            Some(follower) => UprobeScope::FollowedIn(follower, target.pids[0]),
            None => UprobeScope::Processes(&target.pids),
        };
        let probes = Uprobes::attach(&places, &whom, &options)?;
        let refused = probes.refused().iter();
        words.extend(reasons_of(
            "not probed",
            refused.map(|refused| (refused.reason(), sites[refused.place].name.as_str())),
        ));
        Ok(Kernel { probes, _follower: follower })
    }
}

impl Engine for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn read(&self) -> Vec<Reading> {
        let readings = self.probes.read().into_iter();
        let one = |r: kymo_perf::bpf::uprobe::UprobeCounts| Reading {
            hits: r.hits,
            latencies: r.latencies,
            missed: r.missed,
            lost: r.lost,
        };
        readings.map(one).collect()
    }

    fn told(&self, tell: &mut dyn FnMut(Told)) {
        self.probes.records(&mut |record| {
            let comm = record.comm.split(|byte| *byte == 0).next().unwrap_or_default();
            tell(Told {
                site: record.place,
                returned: record.returned,
                time_ns: record.time_ns,
                pid: record.pid,
                tid: record.tid,
                latency_ns: record.latency_ns,
                comm: String::from_utf8_lossy(comm).into_owned(),
                values: record.values(),
            });
        });
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.probes.ready_fd()
    }

    fn callers(&self) -> io::Result<Vec<Caller>> {
        let callers = self.probes.callers()?.into_iter();
        Ok(callers.map(|c| Caller { site: c.place, pid: c.pid, address: c.address, hits: c.hits }).collect())
    }
}
