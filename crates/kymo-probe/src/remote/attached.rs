//! The engine: stubs in a process that runs.
use super::build::{Built, Measure, Stubs, build};
use super::plan::{CodeSource, Planned, Planner, jumps_not_of_file};
use super::{WORDS, check, unusual};
use crate::engine::{Engine, ProbeRequest, Reading};
use crate::inproc::{Entered, Refusals};
use crate::modules::CodeMapping;
use kymo_perf::inject::{CodeWriter, RemoteProcess, RemoteTarget, SitePatch};
use kymo_perf::proc::Mappings;
use kymo_symbols::sites::{ProbeModule, Site};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
}

/// The stubs in one process, until this is dropped.
struct StubEngine {
    served: Vec<usize>,
    stubs: Vec<Stubs>,
    restore: Vec<SitePatch>,
    process: Mutex<RemoteProcess>,
}

/// Patches what can be, in a process that runs and cannot load the agent, without some sites;
/// nothing if it can.
///
/// # Errors
/// Why nothing can be patched in it.
pub(crate) fn enter(
    (sites, without): (&[Site], &Refusals),
    request: &ProbeRequest,
    pid: i32,
) -> Result<Option<Entered>, String> {
    let mut process = RemoteProcess::look(pid).map_err(|refusal| refusal.to_string())?;
    if process.can_load_agent().map_err(|refusal| refusal.to_string())? {
        return Ok(None);
    }
    check(request)?;
    let stays = |number: &usize| without.binary_search_by_key(number, |(out, _)| *out).is_err();
    let numbers: Vec<usize> = (0..sites.len()).filter(stays).collect();
    let measure = Measure { timed: request.timed, children: false };
    let attached = attach(&mut process, sites, request, &numbers, measure)?;
    let Attached { stubs, restore, served, refused, stopped, writer, cleaned_up } = attached;
    let engine = StubEngine { served: served.clone(), stubs, restore, process: Mutex::new(process) };
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
    sites: &[Site],
    request: &ProbeRequest,
    numbers: &[usize],
    measure: Measure,
) -> Result<Attached, String> {
    let maps = target.maps().map_err(|error| format!("its list of mappings cannot be read: {error}"))?;
    let (code, all) = mappings(&maps);
    let cleaned_up = clean(target, sites, request, numbers, &code)?;
    let planner = Planner { sites, request, mapped: Some(&code), process: Some(&*target) };
    let Planned { modules, mut refused } = planner.plan(numbers);
    let (mut stubs, mut patches) = (Vec::new(), Vec::new());
    for module in &modules {
        match build(target, &all, module, measure) {
            Ok(Built { stubs: built, patches: new, refused: out }) => {
                stubs.push(built);
                patches.extend(new);
                refused.extend(out);
            }
            Err(reason) => {
                let numbers = module.functions.iter().map(|function| function.number);
                refused.extend(numbers.map(|number| (number, reason.clone())));
            }
        }
    }
    let mut served: Vec<usize> = patches.iter().map(|patch: &SitePatch| patch.group as usize).collect();
    served.sort_unstable();
    served.dedup();
    let (mut stopped, mut writer) = (Duration::ZERO, None);
    if !patches.is_empty() {
        let written = target.write(&patches).map_err(|why| format!("its threads cannot be held: {why}"))?;
        (stopped, writer) = (written.stopped, Some(written.writer));
        patches.retain(|patch| !written.refused.contains_key(&patch.group));
        served.retain(|number| !written.refused.contains_key(&(*number as u32)));
        refused.extend(written.refused.into_iter().map(|(number, why)| (number as usize, why.to_owned())));
    }
    refused.sort_unstable();
    if served.is_empty() {
        let reason = refused.first().map_or("there is no probe", |(_, reason)| reason);
        return Err(reason.to_owned());
    }
    let restore = patches.into_iter().map(restoring).collect();
    Ok(Attached { stubs, restore, served, refused, stopped, writer, cleaned_up })
}

fn restoring(patch: SitePatch) -> SitePatch {
    SitePatch { from: patch.to, to: patch.from, moves: Vec::new(), ..patch }
}

/// Restores what a kymo that is gone has left in the modules of these sites: how many sites.
///
/// # Errors
/// That another kymo is at work in the process.
fn clean(
    target: &mut dyn RemoteTarget,
    sites: &[Site],
    request: &ProbeRequest,
    numbers: &[usize],
    mapped: &[CodeMapping],
) -> Result<usize, String> {
    let mut seen: Vec<*const ProbeModule> = Vec::new();
    let mut left: Vec<SitePatch> = Vec::new();
    let mut owners: HashMap<u64, bool> = HashMap::new();
    for &number in numbers {
        let site = &sites[number];
        let module = std::sync::Arc::as_ptr(&site.module);
        if seen.contains(&module) {
            continue;
        }
        seen.push(module);
        let planner = Planner { sites, request, mapped: Some(mapped), process: None };
        let Ok((bias, _)) = planner.place(&site.module, site) else { continue };
        let Some((begin, bytes)) = site.module.code_around(site.svma) else { continue };
        let code = CodeSource { module: &site.module, bias, process: Some(&*target) };
        for jump in jumps_not_of_file(&code, begin.wrapping_add(bias), bytes) {
            let page = jump.to & !4095;
            let is_left = match owners.get(&page) {
                Some(known) => *known,
                None => {
                    let is_left = target.leftover(jump.to)?;
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
    if left.is_empty() {
        return Ok(0);
    }
    let written = target.write(&left).map_err(|why| format!("its threads cannot be held: {why}"))?;
    Ok(left.len() - written.refused.len())
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

/// Takes the patches away, and the memory with the stubs, where nothing can be in it any more.
pub(super) fn leave(process: &mut RemoteProcess, restore: &[SitePatch], stubs: Vec<Stubs>) {
    let regions: Vec<_> = stubs.into_iter().map(|stubs| stubs.region).collect();
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
}

impl Drop for StubEngine {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        leave(process, &self.restore, std::mem::take(&mut self.stubs));
    }
}
