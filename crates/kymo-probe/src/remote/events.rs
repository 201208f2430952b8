//! Events of a recording that stubs write, in a program that cannot load the agent.
use super::attached::{Prepared, not_held, prepare, restoring, start_restorer};
use super::build::{Measure, Stubs};
use super::event_plan::{EventPlan, EventRequest};
use crate::engine::ProbeRequest;
use crate::inproc::Refusals;
use kymo_perf::inject::{RemoteProcess, RemoteRegion, RemoteTarget, Restorer, SitePatch};
use kymo_perf::proc;
use kymo_perf::ring::Ring;
use kymo_record::UserEventControl;
use std::collections::{HashMap, HashSet};

/// The stubs that write events, until this is dropped.
pub(crate) struct StubEvents {
    process: RemoteProcess,
    stubs: Vec<Stubs>,
    /// What leads to them, and what takes that away once it was written.
    patches: Vec<SitePatch>,
    restore: Vec<SitePatch>,
    restorer: Option<Restorer>,
    /// The numbers of a site's events, of its hits and of its returns.
    event_of: HashMap<usize, [Option<usize>; 2]>,
    events: usize,
}

/// Stubs for events, the rings that they write, and the sites that have none.
pub(crate) type EnteredEvents = (StubEvents, Vec<Ring>, Refusals);

impl StubEvents {
    /// Makes stubs for events in a process that cannot load the agent; `None` if it can.
    ///
    /// # Errors
    /// Why no event can be written.
    pub(crate) fn enter(request: &EventRequest<'_>) -> Result<Option<EnteredEvents>, String> {
        let mut process = RemoteProcess::look(request.pid).map_err(|refusal| refusal.to_string())?;
        if process.can_load_agent().map_err(|refusal| refusal.to_string())? {
            return Ok(None);
        }
        let plan = EventPlan::of(request, &process)?;
        let numbers: Vec<usize> = plan.actions.keys().copied().collect();
        let conditions = (0..request.sites.len()).map(|number| {
            let action = plan.actions.get(&number);
            action.map(|how| (how.entry_condition.clone(), how.return_condition.clone())).unwrap_or_default()
        });
        let every = plan.actions.values().map(|action| action.every).max().unwrap_or(0);
        let (sites, conditions) = (request.sites.to_vec(), conditions.collect());
        let asked = ProbeRequest { sites, every, conditions, ..ProbeRequest::default() };
        let measure = Measure { events: Some((&plan, None)), ..Measure::of(&asked, false) };
        let prepared = prepare(&mut process, &asked, &numbers, measure)?;
        let Prepared { mut stubs, patches, refused, .. } = prepared;
        let rings = stubs.iter_mut().map(|stubs| stubs.region.take_rings()).find(|rings| !rings.is_empty());
        let (restore, restorer) = (Vec::new(), None);
        let (event_of, events) = (HashMap::new(), 0);
        let entered = StubEvents { process, stubs, patches, restore, restorer, event_of, events };
        match rings {
            Some(rings) => Ok(Some((entered, rings, refused))),
            None => Err(refused.into_iter().next().map_or("there is no probe".to_owned(), |(_, why)| why)),
        }
    }

    /// Leaves all sites out but these, and knows the numbers of the sites' events.
    pub(crate) fn keep(&mut self, kept: &HashSet<usize>, event_of: HashMap<usize, [Option<usize>; 2]>) {
        self.patches.retain(|patch| kept.contains(&(patch.group as usize)));
        self.events = event_of.values().flatten().flatten().count();
        self.event_of = event_of;
    }

    fn leave(&mut self) {
        let regions: Vec<&RemoteRegion> = self.stubs.iter().map(|stubs| &stubs.region).collect();
        // A program that is gone has no patches; one that cannot be held goes on writing, for
        // nobody.
        _ = self.process.leave(&self.restore, &regions);
        self.restorer = None;
    }
}

impl UserEventControl for StubEvents {
    fn begin(&mut self) -> Result<(), String> {
        self.restore = self.patches.iter().cloned().map(restoring).collect();
        self.restorer = start_restorer(&self.process, &self.patches, &self.stubs);
        match self.process.write(&self.patches) {
            Ok(written) => written.refused.into_values().next().map_or(Ok(()), |why| Err(why.to_owned())),
            // It has ended meanwhile: there is nothing to record.
            Err(_) if matches!(proc::state(self.process.pid(), self.process.pid()), None | Some('Z')) => {
                Ok(())
            }
            Err(why) => Err(not_held(why)),
        }
    }

    fn end(&mut self) -> (Vec<u64>, Option<String>) {
        self.leave();
        let mut lost = vec![0; self.events];
        for stubs in &self.stubs {
            stubs.lost_events(&mut |number, counts| {
                let events = self.event_of.get(&number).into_iter().flatten();
                for (event, count) in events.zip(counts) {
                    if let Some(of) = event.and_then(|event| lost.get_mut(event)) {
                        *of += count;
                    }
                }
            });
        }
        self.stubs.clear();
        (lost, None)
    }
}

impl Drop for StubEvents {
    fn drop(&mut self) {
        if !self.stubs.is_empty() {
            self.leave();
        }
    }
}
