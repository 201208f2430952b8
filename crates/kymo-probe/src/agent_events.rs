//! Events of a recording that kymo's agent in the program writes.
use crate::actions::ActionTable;
use crate::exit_sites::{self, PartExits};
use crate::inproc::{Refusals, arm, candidates, exits_of};
use crate::remote::EventRequest;
use kymo_core::probe::wire::{ProbeKind, ProbeSpec, ProbeState, ProbeStatus};
use kymo_perf::inject::{self, Client, ProtocolError};
use kymo_perf::ring::Ring;
use kymo_record::{Callers, UserEventControl};
use kymo_symbols::sites::Site;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The counter itself in the place of times (a tick is a nanosecond from 0 on).
const TICKS: (u64, u64) = (1 << 32, 0);

/// The agent in the program that writes the events.
pub(crate) struct AgentEvents {
    client: Option<Client>,
    sites: Vec<Site>,
    wanted: Vec<(usize, ProbeSpec)>,
    /// By the numbers that the agent knows, the first event.
    event_of: HashMap<u32, usize>,
    events: usize,
}

impl AgentEvents {
    /// Has the agent loaded, and looks which of these can be written.
    ///
    /// # Errors
    /// Why nothing can be.
    pub(crate) fn enter(request: &EventRequest<'_>) -> Result<(AgentEvents, Vec<Ring>, Refusals), String> {
        let sites = request.sites;
        let returns =
            |site: usize| request.actions.get(&site).is_some_and(|action| action.return_event.is_some());
        let (mut wanted, mut refused) = candidates(sites, &returns, false);
        let mut exits: BTreeMap<usize, Vec<PartExits>> = BTreeMap::new();
        if request.at_exits {
            wanted.retain(|(site, _)| {
                match returns(*site).then(|| exit_sites::by_part(&sites[*site], true)) {
                    None => true,
                    Some(Ok(parts)) => exits.insert(*site, parts).is_none(),
                    Some(Err(reason)) => {
                        refused.push((*site, reason));
                        false
                    }
                }
            });
        }
        let mut numbers = ActionTable::default();
        for (site, wanted) in &mut wanted {
            let how = request.actions.get(site).cloned().unwrap_or_default();
            wanted.kind = ProbeKind::Record;
            wanted.action_id = numbers.number(how).ok_or("there are too many events")?;
        }
        if wanted.is_empty() {
            let reason = refused.into_iter().next().map(|(_, reason)| reason);
            return Err(reason.unwrap_or_else(|| "there is no probe".to_owned()));
        }
        let said = |broken: ProtocolError| broken.to_string();
        let mut callers = Callers::default();
        let client = inject::enter_unwinding(request.pid, &crate::agent::LIBRARY, &mut callers)
            .map_err(|refusal| refusal.to_string())?;
        let rings = client.rings(request.ring_bytes as u32, TICKS.0, TICKS.1).map_err(said)?;
        numbers.tell(&client).map_err(said)?;
        let ids: Vec<u32> = wanted.iter().map(|(_, wanted)| wanted.id).collect();
        // Where a function's calls end, behind it.
        let with_exits = |(site, wanted): (usize, ProbeSpec)| {
            let parts = exits.get(&site).map_or(&[][..], Vec::as_slice);
            let exits: Vec<_> = exits_of(&wanted, parts).map(|exit| (site, exit)).collect();
            std::iter::once((site, wanted)).chain(exits)
        };
        let wanted: Vec<(usize, ProbeSpec)> = wanted.into_iter().flat_map(with_exits).collect();
        // Whether they can be is known once they are; they begin with the recording, though, so
        // this only counts.
        let trial = |(site, wanted): &(usize, ProbeSpec)| {
            let kind = match wanted.kind {
                ProbeKind::Exit => ProbeKind::Exit,
                _ if exits.contains_key(site) => ProbeKind::LatencyAtExits,
                _ if returns(*site) => ProbeKind::Latency,
                _ => ProbeKind::Count,
            };
            (*site, ProbeSpec { kind, action_id: 0, ..*wanted })
        };
        let outcome = arm(&client, sites, &wanted.iter().map(trial).collect::<Vec<_>>()).map_err(said)?;
        refused.extend(outcome.refused.into_iter().map(|(id, reason)| (id as usize, reason)));
        let listed = client.list().map_err(said)?;
        let waits = listed.iter().filter(|listed: &&ProbeStatus| listed.state == ProbeState::Waiting);
        let why = "its module is not mapped, or by another name";
        refused.extend(waits.map(|listed| (listed.id as usize, why.to_owned())));
        client.remove(&ids).map_err(said)?;
        client.commit().map_err(said)?;
        let (client, event_of) = (Some(client), HashMap::new());
        let agent = AgentEvents { client, sites: sites.to_vec(), wanted, event_of, events: 0 };
        Ok((agent, rings, refused))
    }

    /// Leaves all sites out but these, and knows the numbers of the sites' events.
    pub(crate) fn keep(&mut self, kept: &HashSet<usize>, event_of: HashMap<usize, [Option<usize>; 2]>) {
        self.wanted.retain(|(site, _)| kept.contains(site));
        // Numbers are given once.
        let first = self.sites.len() as u32;
        self.wanted.iter_mut().for_each(|(_, wanted)| wanted.id += first);
        self.events = event_of.values().flatten().flatten().count();
        let ids = event_of
            .into_iter()
            .filter_map(|(site, events)| Some((site as u32 + first, events.into_iter().flatten().next()?)));
        self.event_of = ids.collect();
    }
}

impl UserEventControl for AgentEvents {
    fn begin(&mut self) -> Result<(), String> {
        let Some(client) = &self.client else { return Ok(()) };
        let outcome = match arm(client, &self.sites, &self.wanted) {
            Ok(outcome) => outcome,
            // It has ended meanwhile: there is nothing to record.
            Err(ProtocolError::Gone) => return Ok(()),
            Err(broken) => return Err(broken.to_string()),
        };
        outcome.refused.into_iter().next().map_or(Ok(()), |(_, reason)| Err(reason))
    }

    fn end(&mut self) -> (Vec<u64>, Option<String>) {
        let mut lost = vec![0; self.events];
        let Some(client) = self.client.take() else { return (lost, None) };
        client.ends();
        let begins = self.wanted.iter().filter(|(_, wanted)| wanted.kind != ProbeKind::Exit);
        let ids: Vec<u32> = begins.map(|(_, wanted)| wanted.id).collect();
        let losses = client.remove(&ids).and_then(|()| client.commit()).and_then(|_| client.losses());
        match losses {
            Ok(losses) => {
                for loss in losses {
                    // Told by the program: only numbers that were given to it are believed.
                    if let Some(of) = self.event_of.get(&loss.id).and_then(|&event| lost.get_mut(event)) {
                        *of = loss.hits;
                    }
                }
                // A program that is gone has no probes either.
                _ = client.leave();
                (lost, None)
            }
            // Its rings know how many there were.
            Err(ProtocolError::Gone) => (lost, None),
            Err(broken) => {
                (lost, Some(format!("the agent in the program could not be asked at the end: {broken}")))
            }
        }
    }
}
