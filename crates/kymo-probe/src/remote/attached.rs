//! The engine: stubs in a process that runs.
use super::build::{Built, Measure, Stubs, build};
use super::code::{CodeSource, ProcessCode, jumps_not_of_file};
use super::plan::{Planned, Planner};
use super::{WORDS, check, unusual};
use crate::engine::{Caller, Engine, ProbeRequest, Reading};
use crate::inproc::{Entered, Refusals};
use crate::modules::CodeMapping;
use kymo_agent::patch::MOST_TIMED_SITES;
use kymo_perf::inject::{
    CodeWriter, RemoteProcess, RemoteRegion, RemoteTarget, Restorer, SitePatch, StubOwner,
};
use kymo_perf::proc::Mappings;
use kymo_symbols::sites::ProbeModule;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long another kymo may take to restore what it did, or its restorer.
const MOST_UNNOTICED: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Sites that are served, and the rest with the reasons.
pub(crate) struct Attached {
    pub(super) stubs: Vec<Stubs>,
    /// What takes the sites' patches away.
    pub(super) restore: Vec<SitePatch>,
    /// Numbers of the sites, ascending.
    pub(super) served: Vec<usize>,
    pub(super) refused: Refusals,
    /// How long the program's threads stood still.
    pub(super) stopped: Duration,
    pub(super) writer: Option<CodeWriter>,
    /// Sites that a kymo which is gone had left, and that were restored.
    pub(super) cleaned_up: usize,
    pub(super) restorer: Option<Restorer>,
}

/// The stubs in one process, until this is dropped.
struct StubEngine {
    served: Vec<usize>,
    stubs: Vec<Stubs>,
    restore: Vec<SitePatch>,
    pid: i32,
    process: Mutex<RemoteProcess>,
    /// Ends when all is restored.
    _restorer: Option<Restorer>,
}

/// Patches what can be, in a process that runs and cannot load the agent, without some sites;
/// nothing if it can.
///
/// # Errors
/// Why nothing can be patched in it.
pub(crate) fn enter(request: &ProbeRequest, without: &Refusals, pid: i32) -> Result<Option<Entered>, String> {
    let mut process = RemoteProcess::look(pid).map_err(|refusal| refusal.to_string())?;
    if process.can_load_agent().map_err(|refusal| refusal.to_string())? {
        return Ok(None);
    }
    check(request)?;
    let stays = |number: &usize| without.binary_search_by_key(number, |(out, _)| *out).is_err();
    let numbers: Vec<usize> = (0..request.sites.len()).filter(stays).collect();
    let attached = attach(&mut process, request, &numbers, Measure::of(request, false))?;
    let Attached { stubs, restore, served, refused, stopped, writer, cleaned_up, restorer } = attached;
    let process = Mutex::new(process);
    let engine = StubEngine { served: served.clone(), stubs, restore, pid, process, _restorer: restorer };
    Ok(Some(Entered {
        engine: Box::new(engine),
        served,
        refused,
        stopped_ns: u64::try_from(stopped.as_nanos()).unwrap_or(u64::MAX),
        not_held: None,
        how: Some(writer.and_then(unusual).unwrap_or(WORDS)),
        cleaned_up: u32::try_from(cleaned_up).unwrap_or(u32::MAX),
    }))
}

/// Patches the sites of these numbers.
///
/// # Errors
/// Why none of them can be.
pub(super) fn attach(
    target: &mut dyn RemoteTarget,
    request: &ProbeRequest,
    numbers: &[usize],
    measure: Measure<'_>,
) -> Result<Attached, String> {
    prepare(target, request, numbers, measure)?.write(target)
}

/// Stubs in a process, to which no site leads yet.
pub(super) struct Prepared {
    pub(super) stubs: Vec<Stubs>,
    pub(super) patches: Vec<SitePatch>,
    pub(super) refused: Refusals,
    cleaned_up: usize,
}

/// Makes the stubs of the sites of these numbers.
///
/// # Errors
/// Why the process cannot be looked at, or that another kymo is at work in it.
pub(super) fn prepare(
    target: &mut dyn RemoteTarget,
    request: &ProbeRequest,
    numbers: &[usize],
    mut measure: Measure<'_>,
) -> Result<Prepared, String> {
    let events = measure.events.map(|(plan, _)| plan);
    let maps = target.maps().map_err(unknown_maps)?;
    let (code, mut all) = mappings(&maps);
    let process = ProcessCode::of(&*target);
    let left = leftovers(
        &process,
        &*target,
        &Planner { request, mapped: Some(&code), process: None, events },
        numbers,
    )?;
    let mut cleaned_up = 0;
    if !left.is_empty() {
        let written = target.write(&left).map_err(not_held)?;
        cleaned_up = left.len() - written.refused.len();
    }
    // What is free then is a place for stubs.
    if target.unmap_leftovers() > 0 {
        let maps = target.maps().map_err(unknown_maps)?;
        all = mappings(&maps).1;
    }
    let process = ProcessCode::of(&*target);
    let planner = Planner { request, mapped: Some(&code), process: Some(&process), events };
    let Planned { modules, mut refused } = planner.plan(numbers);
    let (mut stubs, mut patches) = (Vec::new(), Vec::new());
    // A function has a number in the memory that it shares with others.
    let parts = modules.iter().flat_map(|module| {
        module.functions.chunks(MOST_TIMED_SITES as usize).map(move |functions| (module, functions))
    });
    for (module, functions) in parts {
        match build(target, &all, (module, functions), measure) {
            Ok(Built { stubs: built, patches: new, refused: out }) => {
                let Range { start, end } = built.region.range();
                let next = all.partition_point(|mapping| mapping.start < start);
                all.insert(next, CodeMapping { start, end, offset: 0, path: PathBuf::new() });
                if let Some((plan, rings @ None)) = &mut measure.events {
                    *rings = Some(plan.rings_at(&built.region));
                }
                stubs.push(built);
                patches.extend(new);
                refused.extend(out);
            }
            Err(reason) => {
                let numbers = functions.iter().map(|function| function.number);
                refused.extend(numbers.map(|number| (number, reason.clone())));
            }
        }
    }
    refused.sort_unstable();
    Ok(Prepared { stubs, patches, refused, cleaned_up })
}

impl Prepared {
    /// Writes the sites.
    fn write(self, target: &mut dyn RemoteTarget) -> Result<Attached, String> {
        let Prepared { stubs, mut patches, mut refused, cleaned_up } = self;
        let mut served: Vec<usize> = patches.iter().map(|patch: &SitePatch| patch.group as usize).collect();
        served.sort_unstable();
        served.dedup();
        let (mut stopped, mut writer, mut restorer) = (Duration::ZERO, None, None);
        if !patches.is_empty() {
            restorer = start_restorer(target, &patches, &stubs);
            let written = target.write(&patches).map_err(not_held)?;
            (stopped, writer) = (written.stopped, Some(written.writer));
            patches.retain(|patch| !written.refused.contains_key(&patch.group));
            served.retain(|number| !written.refused.contains_key(&(*number as u32)));
            let words = |(number, why): (u32, &str)| (number as usize, why.to_owned());
            refused.extend(written.refused.into_iter().map(words));
        }
        refused.sort_unstable();
        if served.is_empty() {
            let reason = refused.first().map_or("there is no probe", |(_, reason)| reason);
            return Err(reason.to_owned());
        }
        let restore = patches.into_iter().map(restoring).collect();
        Ok(Attached { stubs, restore, served, refused, stopped, writer, cleaned_up, restorer })
    }
}

/// Starts what takes these away if this process is killed.
pub(super) fn start_restorer(
    target: &dyn RemoteTarget,
    patches: &[SitePatch],
    stubs: &[Stubs],
) -> Option<Restorer> {
    let restore: Vec<SitePatch> = patches.iter().cloned().map(restoring).collect();
    let regions: Vec<&RemoteRegion> = stubs.iter().map(|stubs| &stubs.region).collect();
    target.restorer(&restore, &regions)
}

pub(super) fn restoring(patch: SitePatch) -> SitePatch {
    SitePatch { from: patch.to, to: patch.from, moves: Vec::new(), ..patch }
}

fn unknown_maps(error: io::Error) -> String {
    format!("its list of mappings cannot be read: {error}")
}

pub(super) fn not_held(why: String) -> String {
    format!("its threads cannot be held: {why}")
}

/// What restores what a kymo that is gone has left in the modules of these sites.
///
/// # Errors
/// That another kymo is at work in the process.
fn leftovers(
    process: &ProcessCode<'_>,
    target: &dyn RemoteTarget,
    planner: &Planner<'_>,
    numbers: &[usize],
) -> Result<Vec<SitePatch>, String> {
    let mut seen: HashSet<*const ProbeModule> = HashSet::new();
    let mut left: Vec<SitePatch> = Vec::new();
    let mut owners: HashMap<u64, bool> = HashMap::new();
    for &number in numbers {
        let site = &planner.request.sites[number];
        if !seen.insert(Arc::as_ptr(&site.module)) {
            continue;
        }
        let Ok((bias, _)) = planner.place(&site.module, site) else { continue };
        let Some((begin, bytes)) = site.module.code_around(site.svma) else { continue };
        let code = CodeSource { module: &site.module, bias, process: Some(process) };
        for jump in jumps_not_of_file(&code, begin.wrapping_add(bias), bytes) {
            let page = jump.to & !4095;
            let is_left = match owners.get(&page) {
                Some(known) => *known,
                None => {
                    let is_left = is_left(target, jump.to)?;
                    owners.insert(page, is_left);
                    is_left
                }
            };
            if is_left {
                let (at, from, to, group) = (jump.at, jump.now, jump.file, left.len() as u32);
                left.push(SitePatch { at, from, to, moves: Vec::new(), group, is_interruptible: false });
            }
        }
    }
    Ok(left)
}

/// Whether a kymo that is gone has left what is at an address. One that is about to go, or whose
/// restorer has not ended, is waited for.
fn is_left(target: &dyn RemoteTarget, address: u64) -> Result<bool, String> {
    let begun = Instant::now();
    loop {
        match target.owner_at(address)? {
            StubOwner::Nobody => return Ok(false),
            StubOwner::Gone => return Ok(true),
            StubOwner::Lives if begun.elapsed() < MOST_UNNOTICED => std::thread::sleep(PAUSE),
            StubOwner::Lives => return Err("another kymo has patched it; end that one first".to_owned()),
        }
    }
}

/// Code, and everything, that a process has mapped.
fn mappings(maps: &[u8]) -> (Vec<CodeMapping>, Vec<CodeMapping>) {
    let (mut code, mut all) = (Vec::new(), Vec::new());
    for map in Mappings::new(maps) {
        let path = PathBuf::from(OsStr::from_bytes(map.path));
        let mapping = CodeMapping { start: map.start, end: map.end, offset: map.offset, path };
        if map.prot & 4 != 0 {
            code.push(mapping.clone());
        }
        all.push(mapping);
    }
    (code, all)
}

/// What stubs have counted, in the order of the served sites.
pub(super) fn read(stubs: &[Stubs], served: &[usize]) -> Vec<Reading> {
    let mut readings = vec![Reading::default(); served.len()];
    for stubs in stubs {
        stubs.read(&mut |number, reading| {
            if let Ok(place) = served.binary_search(&number) {
                readings[place] = reading;
            }
        });
    }
    readings
}

/// Who called, by the places of sites among the served ones.
pub(super) fn callers(stubs: &[Stubs], served: &[usize], pid: i32) -> Vec<Caller> {
    let mut callers = Vec::new();
    for stubs in stubs {
        stubs.callers(&mut |number, address, hits| {
            if let Ok(site) = served.binary_search(&number) {
                callers.push(Caller { site, pid, address, hits });
            }
        });
    }
    callers
}

/// Takes the patches away, and the memory with the stubs, where nothing can be in it any more.
pub(super) fn leave(process: &mut RemoteProcess, restore: &[SitePatch], stubs: &[Stubs]) {
    let regions: Vec<_> = stubs.iter().map(|stubs| &stubs.region).collect();
    // A program that is gone has no patches; one that cannot be held goes on counting, for nobody.
    _ = process.leave(restore, &regions);
}

impl Engine for StubEngine {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn read(&self) -> Vec<Reading> {
        read(&self.stubs, &self.served)
    }

    fn callers(&self) -> io::Result<Vec<Caller>> {
        Ok(callers(&self.stubs, &self.served, self.pid))
    }
}

impl Drop for StubEngine {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        leave(process, &self.restore, &self.stubs);
    }
}
