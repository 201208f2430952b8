//! The engine inside the program: kymo's agent patches the sites, so that a hit takes no trap.
//!
//! The agent counts in memory that the program shares with this process, so what was counted is read here without asking, at any time: nothing is
//! lost when the program ends, however it does.
use crate::actions::ActionTable;
use crate::capability::{check_site, surrounding};
use crate::engine::{Caller, Choice, Engine, ProbeRequest, Reading};
use crate::exit_sites::{self, PartExits};
use crate::modules::reasons_of;
use kymo_core::holds::{HoldReport, HoldRole};
use kymo_core::probe::MOST_STAYING_BYTES;
use kymo_core::probe::wire::{ProbeAction, ProbeKind, ProbeSpec, ProbeState};
use kymo_perf::inject::{self, Client, CodeWriter, ProtocolError};
use kymo_record::Callers;
use kymo_symbols::sites::{Site, SiteKind};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The sites that it serves in one process, and the rest with the reasons.
pub(crate) struct Entered {
    pub engine: Box<dyn Engine>,
    /// Numbers of the sites that are armed.
    pub served: Vec<usize>,
    pub refused: Refusals,
    /// How long the program's threads stood still for it.
    pub stopped_ns: u64,
    /// Why they ran meanwhile, if they did.
    pub not_held: Option<String>,
    /// How its code was written, if that was not as usual.
    pub how: Option<&'static str>,
    /// Probes that an earlier kymo had to leave in it, and that are gone now.
    pub cleaned_up: u32,
}

/// What a patch at a function's begin may move or stand behind: the longest instruction that stays,
/// four bytes, and the longest instruction.
const MOVED_BYTES: u64 = MOST_STAYING_BYTES as u64 + 4 + 15;

/// Whether one of the offsets (ascending) is among the bytes that a patch of the function may move. The kernel's trap there would be a byte of
/// the patch, and what it executes instead an instruction that is not there any more: the program would crash.
fn overlaps_patch(function: u64, others: &[u64]) -> bool {
    let next = others.partition_point(|&other| other < function);
    others.get(next).is_some_and(|&other| other - function < MOVED_BYTES)
}

const TOO_LONG: &str = "its condition is too long";
const CROWDED: &str = "another probe is among the bytes of a patch";

/// Sites that the kernel serves: their offsets, ascending, by file.
struct Others<'a>(HashMap<&'a Path, Vec<u64>>);

impl<'a> Others<'a> {
    fn new(sites: impl Iterator<Item = &'a Site>) -> Others<'a> {
        let mut others: HashMap<&Path, Vec<u64>> = HashMap::new();
        sites.for_each(|site| others.entry(site.module.file()).or_default().push(site.offset));
        others.values_mut().for_each(|offsets| offsets.sort_unstable());
        Others(others)
    }

    /// Whether one is among the bytes that a patch of this site may move.
    fn crowd(&self, site: &Site) -> bool {
        self.0.get(site.module.file()).is_some_and(|beside| overlaps_patch(site.offset, beside))
    }
}

/// A site by its number, and what the agent is asked for there.
type Candidate = (usize, ProbeSpec);
/// Sites by their numbers, with the reasons why they cannot be served.
pub(crate) type Refusals = Vec<(usize, String)>;

/// Whether the kernel may set a trap at a site beside what is patched in the same file.
pub(crate) fn is_apart(site: &Site, sites: &[Site], patched: &[usize]) -> bool {
    let same = |&&number: &&usize| sites[number].module.file() == site.module.file();
    let mut offsets = patched.iter().filter(same).map(|&number| sites[number].offset);
    !offsets.any(|offset| offset < site.offset && site.offset - offset < MOVED_BYTES)
}

/// Sites to ask the agent for, by number, and those that it need not be asked for, with the reasons. `timed`: whether a site's returns are looked at.
/// `inside`: not only functions, but markers, lines and instructions inside of these.
pub(crate) fn candidates(
    sites: &[Site],
    timed: &dyn Fn(usize) -> bool,
    inside: bool,
) -> (Vec<Candidate>, Refusals) {
    let (mut wanted, mut refused) = (Vec::new(), Vec::new());
    let unsupported: Vec<Option<&str>> = sites
        .iter()
        .enumerate()
        .map(|(number, site)| check_site(site, timed(number), inside).err())
        .collect();
    let others = sites.iter().zip(&unsupported).filter(|(_, reason)| reason.is_some());
    let others = Others::new(others.map(|(site, _)| site));
    for ((number, site), unsupported) in sites.iter().enumerate().zip(unsupported) {
        if let Some(reason) = unsupported.or_else(|| others.crowd(site).then_some(CROWDED)) {
            refused.push((number, reason.to_owned()));
            continue;
        }
        // SANITY: check_site() saw that there is one.
        let (begin, size, room) = surrounding(site).unwrap_or_default();
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(0);
        let spec = ProbeSpec {
            id: number as u32,
            offset: begin,
            size_bytes: bytes(size),
            room_bytes: bytes(room),
            inside_bytes: bytes(site.offset - begin),
            semaphore: site.semaphore.unwrap_or(0),
            kind: ProbeKind::Count,
            action_id: 0,
        };
        wanted.push((number, spec));
    }
    (wanted, refused)
}

/// What an agent is told: the sites that it is to serve.
#[derive(Default)]
pub(crate) struct Plan {
    /// By module, as a list of mappings names it.
    modules: Vec<(Vec<u8>, Vec<ProbeSpec>)>,
    actions: ActionTable,
    /// They time holds of locks.
    times_holds: bool,
    /// Numbers of the sites that an agent is told, ascending.
    pub served: Vec<usize>,
    /// The other ones.
    pub refused: Refusals,
}

impl Plan {
    /// For all sites that can be, as far as it is seen from outside.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn of(choice: Choice, request: &ProbeRequest) -> Result<Plan, String> {
        let timed = request.timed;
        let (wanted, refused) = candidates(&request.sites, &|_| timed, true);
        let mut plan = Plan { refused, ..Plan::default() };
        for (number, wanted) in wanted {
            let site = &request.sites[number];
            let is_timed = timed && site.kind == SiteKind::Function;
            if is_timed && choice != Choice::Shadow {
                let action = action(request, number);
                let parts = exit_sites::by_part(site, !action.return_condition.is_empty());
                match (parts, plan.actions.number(action)) {
                    (Ok(parts), Some(action_id)) => {
                        plan.want_call(site, ProbeSpec { action_id, ..wanted }, &parts);
                    }
                    (Ok(_), None) => plan.refused.push((number, TOO_LONG.to_owned())),
                    (Err(reason), _) => plan.refused.push((number, reason)),
                }
                continue;
            }
            let mut action = action(request, number);
            // Only at a function's first instruction the stack shows who called.
            action.callers &= site.kind == SiteKind::Function;
            let Some(action_id) = plan.actions.number(action) else {
                plan.refused.push((number, TOO_LONG.to_owned()));
                continue;
            };
            let kind = if is_timed { ProbeKind::Latency } else { ProbeKind::Count };
            let wanted = ProbeSpec { kind, action_id, ..wanted };
            plan.want(mapped_name(site), wanted);
            plan.served.push(number);
        }
        if plan.served.is_empty() { Err(plan.first_reason()) } else { Ok(plan) }
    }

    /// For functions that take locks and give them back.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn of_holds(sites: &[Site], roles: &[HoldRole]) -> Result<Plan, String> {
        let acquires = |number: usize| roles.get(number).is_some_and(|role| role.acquires());
        let (wanted, refused) = candidates(sites, &acquires, false);
        let mut plan = Plan { refused, times_holds: true, ..Plan::default() };
        for (number, wanted) in wanted {
            let Some(&role) = roles.get(number) else { continue };
            plan.want(mapped_name(&sites[number]), ProbeSpec { kind: ProbeKind::Hold(role), ..wanted });
            plan.served.push(number);
        }
        if plan.served.is_empty() { Err(plan.first_reason()) } else { Ok(plan) }
    }

    /// A function whose calls are timed where they end.
    fn want_call(&mut self, site: &Site, wanted: ProbeSpec, parts: &[PartExits]) {
        let module = mapped_name(site);
        self.want(module.clone(), ProbeSpec { kind: ProbeKind::LatencyAtExits, ..wanted });
        exits_of(&wanted, parts).for_each(|exit| self.want(module.clone(), exit));
        self.served.push(wanted.id as usize);
    }

    fn want(&mut self, module: Vec<u8>, wanted: ProbeSpec) {
        match self.modules.last_mut() {
            Some((last, list)) if *last == module => list.push(wanted),
            _ => self.modules.push((module, vec![wanted])),
        }
    }

    /// Why there is nothing to be served.
    pub(crate) fn first_reason(&self) -> String {
        self.refused.first().map_or_else(|| "there is no probe".to_owned(), |(_, reason)| reason.clone())
    }

    /// Takes sites out, and what stands among the bytes of their patches: others will serve them.
    pub(crate) fn leave_out(&mut self, sites: &[Site], refused: Refusals) {
        self.refused.extend(refused);
        let out: HashSet<usize> = self.refused.iter().map(|(number, _)| *number).collect();
        let others = Others::new(out.iter().map(|&number| &sites[number]));
        let is_near = |number: &usize| !out.contains(number) && others.crowd(&sites[*number]);
        let near: Vec<usize> = self.served.iter().copied().filter(is_near).collect();
        self.refused.extend(near.iter().map(|&number| (number, CROWDED.to_owned())));
        self.refused.sort_unstable();
        let stays = |number: usize| !out.contains(&number) && near.binary_search(&number).is_err();
        self.served.retain(|&number| stays(number));
        for (_, wanted) in &mut self.modules {
            wanted.retain(|wanted| stays(wanted.id as usize));
        }
    }

    /// Has an agent arm all of it, without some (ascending).
    pub(crate) fn tell(&self, client: &Client, without: &[usize]) -> Result<inject::Outcome, ProtocolError> {
        self.actions.tell(client)?;
        if self.times_holds {
            client.time_holds()?;
        }
        for (module, wanted) in &self.modules {
            let wanted = wanted.iter().filter(|wanted| without.binary_search(&(wanted.id as usize)).is_err());
            let wanted: Vec<ProbeSpec> = wanted.copied().collect();
            if !wanted.is_empty() {
                client.add(module, &wanted)?;
            }
        }
        client.commit()
    }

    /// Adds what a program has counted, in the order of the served sites.
    pub(crate) fn add(&self, readings: &mut [Reading], client: &Client) {
        for count in client.counts() {
            let Ok(place) = self.served.binary_search(&(count.id as usize)) else { continue };
            readings[place].hits = readings[place].hits.wrapping_add(count.hits);
            readings[place].latencies.merge(&count.latencies);
            readings[place].missed = readings[place].missed.saturating_add(count.untimed);
        }
    }
}

/// What an agent is asked for where calls of a function end.
pub(crate) fn exits_of(wanted: &ProbeSpec, parts: &[PartExits]) -> impl Iterator<Item = ProbeSpec> {
    let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(0);
    let exit = move |part: &PartExits, exit: u64| ProbeSpec {
        offset: part.offset,
        size_bytes: bytes(part.bytes),
        room_bytes: bytes(part.room),
        inside_bytes: bytes(exit),
        kind: ProbeKind::Exit,
        ..*wanted
    };
    parts.iter().flat_map(move |part| part.exits.iter().map(move |&at| exit(part, at)))
}

/// A site's file as lists of mappings name it: without links.
pub(crate) fn mapped_name(site: &Site) -> Vec<u8> {
    let path = site.module.path();
    // Below another root the name is that of the process.
    let real = if site.module.file() == path { path.canonicalize().ok() } else { None };
    real.as_deref().unwrap_or(path).as_os_str().as_bytes().to_vec()
}

/// Enters a process and arms all sites that can be, without some.
pub(crate) fn enter(
    choice: Choice,
    request: &ProbeRequest,
    without: &Refusals,
    pid: i32,
) -> Result<Entered, String> {
    let mut plan = Plan::of(choice, request)?;
    if !without.is_empty() {
        plan.leave_out(&request.sites, without.clone());
        plan.refused.dedup_by_key(|(number, _)| *number);
    }
    if plan.served.is_empty() {
        return Err(plan.first_reason());
    }
    let mut callers = Callers::default();
    let client = inject::enter_unwinding(pid, &crate::agent::LIBRARY, &mut callers)
        .map_err(|refusal| refusal.to_string())?;
    enter_with(client, plan, &request.sites, pid, request.every)
}

/// Enters a process to time holds of locks there; `children`: and in what it forks from then on.
pub(crate) fn enter_for_holds(
    sites: &[Site],
    roles: &[HoldRole],
    pid: i32,
    children: bool,
) -> Result<Entered, String> {
    let plan = Plan::of_holds(sites, roles)?;
    let mut callers = Callers::default();
    let enter = if children { inject::enter_unwinding_with_children } else { inject::enter_unwinding };
    let client = enter(pid, &crate::agent::LIBRARY, &mut callers).map_err(|refusal| refusal.to_string())?;
    enter_with(client, plan, sites, pid, 1)
}

/// Arms all sites that can be.
fn enter_with(
    client: Client,
    mut plan: Plan,
    sites: &[Site],
    pid: i32,
    every: u32,
) -> Result<Entered, String> {
    let outcome = plan.tell(&client, &[]).map_err(|broken| broken.to_string())?;
    let mut refused = plan.refused.clone();
    refused.extend(outcome.refused.into_iter().map(|(id, reason)| (id as usize, reason)));
    // ProbeHit by the agent: only numbers that were given to it are believed.
    refused.retain(|(number, _)| *number < sites.len());
    let out: HashSet<usize> = refused.iter().map(|(number, _)| *number).collect();
    let mut served: Vec<usize> = plan.served.iter().copied().filter(|number| !out.contains(number)).collect();
    if (outcome.armed as usize) < served.len() {
        // Its list of mappings names the module otherwise, or it is not loaded: the kernel knows files.
        let listed = client.list().map_err(|broken| broken.to_string())?;
        let waits = listed.iter().filter(|listed| listed.state == ProbeState::Waiting);
        let waiting: HashSet<usize> = waits.map(|listed| listed.id as usize).collect();
        served.retain(|number| !waiting.contains(number));
        let why = "its module is not mapped, or by another name";
        let waiting = waiting.into_iter().filter(|&number| number < sites.len());
        refused.extend(waiting.map(|number| (number, why.to_owned())));
        refused.sort_unstable();
    }
    plan.served = served.clone();
    let cleaned_up = client.cleaned_up();
    let engine = Inproc { client: Some(client), plan, pid, every, callers: RefCell::new(None) };
    let inject::Outcome { stopped_ns, not_held, writer, .. } = outcome;
    let (engine, how) = (Box::new(engine), writer.and_then(CodeWriter::words));
    Ok(Entered { engine, served, refused, stopped_ns, not_held, how, cleaned_up })
}

/// What a site is to do besides counting.
fn action(request: &ProbeRequest, number: usize) -> ProbeAction {
    let (entry_condition, return_condition) = request.conditions_of(number);
    // Counting looks at every hit.
    let every = if request.every > 1 && (request.timed || request.callers) { request.every } else { 0 };
    let callers = request.callers;
    ProbeAction { entry_condition, return_condition, every, callers, ..ProbeAction::default() }
}

/// Has the agent arm these.
pub(crate) fn arm(
    client: &Client,
    sites: &[Site],
    wanted: &[(usize, ProbeSpec)],
) -> Result<inject::Outcome, ProtocolError> {
    let mut rest = wanted;
    while let Some((first, _)) = rest.first() {
        let module = sites[*first].module.path();
        let end = rest.iter().position(|(number, _)| sites[*number].module.path() != module);
        let (same, others) = rest.split_at(end.unwrap_or(rest.len()));
        let same: Vec<ProbeSpec> = same.iter().map(|(_, wanted)| *wanted).collect();
        client.add(module.as_os_str().as_bytes(), &same)?;
        rest = others;
    }
    client.commit()
}

/// The agent in one process.
pub(crate) struct Inproc {
    /// Until it has left.
    client: Option<Client>,
    plan: Plan,
    pid: i32,
    every: u32,
    /// As they were told last: unlike counts they are in the program's own memory, and go with it.
    callers: RefCell<Option<Vec<Caller>>>,
}

impl Inproc {
    /// What the program told last, and all other hits as those of nobody known.
    fn left_callers(&self) -> Vec<Caller> {
        let mut callers = self.callers.borrow().clone().unwrap_or_default();
        if self.every <= 1 && self.callers.borrow().is_some() {
            let readings = self.read();
            let mut told = vec![0_u64; readings.len()];
            for caller in &callers {
                told[caller.site] = told[caller.site].saturating_add(caller.hits);
            }
            for (site, (reading, told)) in readings.iter().zip(told).enumerate() {
                let hits = reading.hits.saturating_sub(told);
                if hits > 0 {
                    callers.push(Caller { site, pid: self.pid, address: 0, hits });
                }
            }
        }
        callers
    }
}

impl Engine for Inproc {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn read(&self) -> Vec<Reading> {
        let mut readings = vec![Reading::default(); self.plan.served.len()];
        self.client.iter().for_each(|client| self.plan.add(&mut readings, client));
        readings
    }

    fn holds(&self) -> HoldReport {
        self.client.as_ref().map(Client::lock_holds).unwrap_or_default()
    }

    fn words(&self, sites: &[Site]) -> Vec<String> {
        let refused = self.client.iter().flat_map(Client::refused_later).collect::<Vec<_>>();
        let named = refused.into_iter().filter_map(|(id, reason)| {
            // ProbeHit by the program: only numbers that were given to it are believed.
            let number = self.plan.served.binary_search(&(id as usize)).ok()?;
            Some((reason, sites.get(self.plan.served[number])?.name.as_str()))
        });
        let mut words = reasons_of("not counted to the end", named);
        if self.client.as_ref().is_some_and(Client::is_restricted) {
            words.push(ProtocolError::Restricted.to_string());
        }
        words
    }

    fn callers(&self) -> io::Result<Vec<Caller>> {
        let Some(Ok(told)) = self.client.as_ref().map(Client::callers) else {
            return Ok(self.left_callers());
        };
        let of = |(id, address, hits): (u32, u64, u64)| {
            // ProbeHit by the program: only numbers that were given to it are believed.
            let site = self.plan.served.binary_search(&(id as usize)).ok()?;
            Some(Caller { site, pid: self.pid, address, hits })
        };
        let callers: Vec<Caller> = told.into_iter().filter_map(of).collect();
        self.callers.replace(Some(callers.clone()));
        Ok(callers)
    }
}

impl Drop for Inproc {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            // A program that is gone has no probes either.
            _ = client.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::overlaps_patch;

    /// Checks that a probe within what a patch moves is seen, from the function's first byte to the last that can move, and none before or
    /// behind.
    #[test]
    fn crowded() {
        let others = [0x100, 0x140, 0x200];
        assert!(overlaps_patch(0x100, &others) && overlaps_patch(0xf0, &others));
        assert!(overlaps_patch(0x140 - 26, &others) && !overlaps_patch(0x140 - 27, &others));
        assert!(!overlaps_patch(0x101, &others) && !overlaps_patch(0x201, &others));
        assert!(!overlaps_patch(0, &[]));
    }
}
