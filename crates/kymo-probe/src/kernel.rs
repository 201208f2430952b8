//! The kernel's uprobes with BPF programs: the engine for all that cannot be served inside a program.
use crate::arguments::{self, Values};
use crate::engine::{Caller, Engine, ProbeHit, ProbeRequest, Reading, Target};
use crate::exits::Timing;
use crate::modules::reasons_of;
use anyhow::Context;
use kymo_perf::bpf::uprobe::Value;
use kymo_perf::bpf::uprobe::{ReturnAction, UprobeOptions, UprobeScope, UprobeSite, Uprobes};
use kymo_perf::bpf::{Follow, Follower};
use kymo_symbols::place::call::Fetch;
use kymo_symbols::sites::SiteKind;
use std::io;
use std::os::fd::BorrowedFd;
/// What is told of a site's hits or returns.
fn told(request: &ProbeRequest, number: usize, part: impl Fn(&Values) -> &Vec<Fetch>) -> Option<Vec<Value>> {
    Some(part(request.values_of(number)?).iter().map(arguments::told).collect())
}

/// The kernel's uprobes.
#[derive(Debug)]
pub(crate) struct Kernel {
    probes: Uprobes,
    // Keeps the map of who is followed alive and true.
    _follower: Option<Follower>,
}

impl Kernel {
    pub(crate) fn attach(
        request: &ProbeRequest,
        target: &Target,
        words: &mut Vec<String>,
    ) -> anyhow::Result<Kernel> {
        let mut untimed = Vec::new();
        let mut places = Vec::new();
        for (number, site) in request.sites.iter().enumerate() {
            let (condition, return_condition) = request.conditions_of(number);
            let is_function = site.kind == SiteKind::Function;
            let values = told(request, number, |values| &values.entry);
            let return_values = told(request, number, |values| &values.back);
            let counted = || Timing { entry: site.counted_offset(), returns: ReturnAction::Ignore };
            let result =
                !return_condition.is_empty() || return_values.as_ref().is_some_and(|back| !back.is_empty());
            let timing = match request.timed && is_function {
                false => counted(),
                true => request.return_addresses.timing(site, result).unwrap_or_else(|reason| {
                    untimed.push((reason, site.name.as_str()));
                    counted()
                }),
            };
            places.push(UprobeSite {
                path: site.module.file().to_owned(),
                offset: timing.entry,
                semaphore: site.semaphore,
                returns: timing.returns,
                callers: request.callers && is_function,
                condition,
                return_condition,
                values,
                return_values,
            });
        }
        words.extend(reasons_of("counted, but not timed", untimed.into_iter()));
        let options = UprobeOptions { every: request.every, attachment: None };
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
            refused.map(|refused| (refused.reason(), request.sites[refused.place].name.as_str())),
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

    fn told(&self, tell: &mut dyn FnMut(ProbeHit)) {
        self.probes.records(&mut |record| {
            let comm = record.comm.split(|byte| *byte == 0).next().unwrap_or_default();
            tell(ProbeHit {
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
        let callers = self.probes.callers().into_iter();
        Ok(callers.map(|c| Caller { site: c.place, pid: c.pid, address: c.address, hits: c.hits }).collect())
    }
}
