//! Which functions can be patched from outside, and where.
use super::code::{CodeSource, ProcessCode};
use super::event_plan::EventPlan;
use crate::engine::ProbeRequest;
use crate::exit_sites;
use crate::inproc::Refusals;
use crate::modules::CodeMapping;
use kymo_agent::patch::{
    CallEnds, CallPlan, Convention, EntryState, Function, Site as Patch, Surroundings, jump_targets, plan,
    plan_begin,
};
use kymo_core::probe::value::{Condition, reads_memory};
use kymo_core::probe::wire::ProbeAction;
use kymo_symbols::sites::{ProbeModule, Site, SiteKind};
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

const OVERLAPS: &str = "its code is another function's, too, or another probe's";

/// A function that can be patched.
pub(super) struct PlannedFunction {
    /// The site's number.
    pub(super) number: usize,
    /// Where it begins in the process.
    pub(super) start: u64,
    pub(super) convention: Convention,
    /// Where it is patched.
    pub(super) call: CallPlan,
    /// Hits are counted before the instruction there, behind a check of the stack.
    pub(super) counts_at: Option<u64>,
    /// Which hits are counted.
    pub(super) condition: Condition,
    /// Which of these calls are timed.
    pub(super) return_condition: Condition,
    /// Whether the runtime may have stopped it inside of its entry's bytes.
    pub(super) is_interruptible: bool,
}

impl PlannedFunction {
    /// Whether more is moved of a function of Go than the check of its stack.
    pub(super) fn moves_body(&self) -> bool {
        self.counts_at.is_some_and(|body| body < self.call.entry.end())
    }
}

/// The functions of one module.
pub(super) struct PlannedModule {
    pub(super) module: Arc<ProbeModule>,
    /// From an address as linked to one in the process.
    pub(super) bias: u64,
    /// Where the module is in memory.
    pub(super) span: Range<u64>,
    pub(super) functions: Vec<PlannedFunction>,
}

/// Everything that can be patched, and the rest with the reasons.
#[derive(Default)]
pub(super) struct Planned {
    pub(super) modules: Vec<PlannedModule>,
    pub(super) refused: Refusals,
}

impl Planned {
    /// The numbers of the functions that can be patched, ascending.
    pub(super) fn served(&self) -> Vec<usize> {
        let functions = self.modules.iter().flat_map(|module| &module.functions);
        let mut served: Vec<usize> = functions.map(|function| function.number).collect();
        served.sort_unstable();
        served
    }

    /// Takes functions out.
    fn refuse(&mut self, out: HashMap<usize, String>) {
        for module in &mut self.modules {
            module.functions.retain(|function| !out.contains_key(&function.number));
        }
        self.modules.retain(|module| !module.functions.is_empty());
        self.refused.extend(out);
        self.refused.sort_unstable();
    }

    /// Takes those out that touch one another, or what the kernel will probe (M4).
    fn keep_apart(&mut self, sites: &[Site]) {
        loop {
            let mut out = HashMap::new();
            for module in &self.modules {
                let mut patched: Vec<(Range<u64>, usize)> = Vec::new();
                for function in &module.functions {
                    let ranges = function.call.sites().map(|patch| patch.address..patch.end());
                    patched.extend(ranges.map(|range| (range, function.number)));
                }
                patched.sort_unstable_by_key(|(range, _)| range.start);
                for pair in patched.windows(2).filter(|pair| pair[1].0.start < pair[0].0.end) {
                    out.insert(pair[1].1, OVERLAPS.to_owned());
                }
                let mut touch = |offset: u64| {
                    let Some(at) = module.module.svma_of(offset) else { return };
                    let at = at.wrapping_add(module.bias);
                    let before = patched.partition_point(|(range, _)| range.start < at);
                    if let Some((range, number)) = before.checked_sub(1).and_then(|at| patched.get(at))
                        && at < range.end
                    {
                        out.insert(*number, OVERLAPS.to_owned());
                    }
                };
                module.module.functions().iter().for_each(|function| touch(function.offset));
                let others = self.refused.iter().filter_map(|(number, _)| sites.get(*number));
                for other in others.filter(|other| Arc::ptr_eq(&other.module, &module.module)) {
                    touch(other.offset);
                    touch(other.counted_offset());
                }
            }
            if out.is_empty() {
                return;
            }
            self.refuse(out);
        }
    }
}

/// What is to be planned, and in what.
pub(super) struct Planner<'a> {
    pub(super) request: &'a ProbeRequest,
    /// The process's code; none: before there is one.
    pub(super) mapped: Option<&'a [CodeMapping]>,
    pub(super) process: Option<&'a ProcessCode<'a>>,
    /// The events that are written.
    pub(super) events: Option<&'a EventPlan>,
}

impl Planner<'_> {
    /// Plans the sites of these numbers.
    pub(super) fn plan(&self, numbers: &[usize]) -> Planned {
        let mut planned = Planned::default();
        let mut by_module: Vec<(Arc<ProbeModule>, Vec<usize>)> = Vec::new();
        for &number in numbers {
            let module = &self.request.sites[number].module;
            match by_module.iter_mut().find(|(known, _)| Arc::ptr_eq(known, module)) {
                Some((_, list)) => list.push(number),
                None => by_module.push((Arc::clone(module), vec![number])),
            }
        }
        for (module, numbers) in by_module {
            match self.place(&module, &self.request.sites[numbers[0]]) {
                Ok((bias, span)) => self.module(&mut planned, module, bias, span, &numbers),
                Err(reason) => {
                    planned.refused.extend(numbers.into_iter().map(|number| (number, reason.clone())));
                }
            }
        }
        planned.refused.sort_unstable();
        planned.keep_apart(&self.request.sites);
        planned
    }

    /// Where the module is: what is added to its addresses, and all of it.
    pub(super) fn place(&self, module: &ProbeModule, site: &Site) -> Result<(u64, Range<u64>), String> {
        let Some(mapped) = self.mapped else { return Ok((0, 0..0)) };
        let name = crate::inproc::mapped_name(site);
        let is_its = |mapping: &&CodeMapping| mapping.path.as_os_str().as_bytes() == name;
        let its: Vec<&CodeMapping> = mapped.iter().filter(is_its).collect();
        let has = |mapping: &&&CodeMapping| {
            site.offset.checked_sub(mapping.offset).is_some_and(|into| into < mapping.end - mapping.start)
        };
        let mut holding = its.iter().filter(has);
        let (Some(mapping), None) = (holding.next(), holding.next()) else {
            return Err("its module is not mapped once, or by another name".to_owned());
        };
        let at = mapping.start + (site.offset - mapping.offset);
        let start = its.iter().map(|mapping| mapping.start).min().unwrap_or(at);
        let end = its.iter().map(|mapping| mapping.end).max().unwrap_or(at);
        let linked = module.svma_of(site.offset).ok_or("it is not in the code of its file")?;
        Ok((at.wrapping_sub(linked), start..end))
    }

    fn module(
        &self,
        planned: &mut Planned,
        module: Arc<ProbeModule>,
        bias: u64,
        span: Range<u64>,
        numbers: &[usize],
    ) {
        let code = CodeSource { module: &module, bias, process: self.process };
        let Some((begin, bytes)) = module.code_around(self.request.sites[numbers[0]].svma) else {
            let reason = "it is not in the code of its file".to_owned();
            planned.refused.extend(numbers.iter().map(|&number| (number, reason.clone())));
            return;
        };
        let timed = self.request.timed || self.events.is_some();
        let linked = begin..begin.saturating_add(bytes);
        let its = numbers.iter().map(|&number| &self.request.sites[number]);
        let placed = |place: &Range<u64>| place.start.wrapping_add(bias)..place.end.wrapping_add(bias);
        let places: Vec<_> = exit_sites::jump_places(its, timed, &linked).iter().map(placed).collect();
        let targets = jump_targets(&code, placed(&linked), &places).into();
        let mut functions = Vec::new();
        for &number in numbers {
            match self.function(&code, number, &targets) {
                Ok(function) => functions.push(function),
                Err(reason) => planned.refused.push((number, reason)),
            }
        }
        if !functions.is_empty() {
            let module = Arc::clone(&module);
            planned.modules.push(PlannedModule { module, bias, span, functions });
        }
    }

    fn function(
        &self,
        code: &CodeSource<'_>,
        number: usize,
        targets: &Rc<[u64]>,
    ) -> Result<PlannedFunction, String> {
        let site = &self.request.sites[number];
        if site.kind != SiteKind::Function {
            return Err("it is not a function's entry, and the program cannot load the agent".to_owned());
        }
        if let Some(reason) = site.untouchable().or_else(|| site.pinned()) {
            return Err(reason.to_owned());
        }
        let (_, bytes, room) =
            crate::capability::surrounding(site).ok_or("it is in no function that is known")?;
        let start = site.svma.wrapping_add(code.bias);
        let function = Function { start, bytes, next: start.wrapping_add(room.max(bytes)) };
        let convention = if site.is_go() { Convention::Go } else { Convention::C };
        let body = if convention == Convention::Go { site.go_body()? } else { None };
        let (condition, return_condition) = self.request.conditions_of(number);
        let action = ProbeAction {
            entry_condition: condition.clone(),
            return_condition: return_condition.clone(),
            fetches: self.events.map(|events| events.fetches(number)).unwrap_or_default(),
            ..ProbeAction::default()
        };
        let looks_at = match convention {
            Convention::C => EntryState::of(&action),
            // It looks behind the check of the stack, or at nothing.
            Convention::Go => EntryState { has_red_zone: false, ..EntryState::NOTHING },
        };
        let is_interruptible = convention == Convention::Go && body.is_none();
        let needs_room = !condition.is_empty() || self.request.callers || self.events.is_some();
        if is_interruptible && needs_room {
            return Err(
                "a Go function without a check of its stack has no room for a condition or an event, nor to tell callers apart"
                    .to_owned(),
            );
        }
        if !action.is_supported() || reads_memory(&condition) || reads_memory(&return_condition) {
            return Err(
                "the program cannot load the agent, and stubs alone look at registers, not at memory"
                    .to_owned(),
            );
        }
        let returns = self.events.is_some_and(|events| events.returns(number));
        let is_timed = self.request.timed || returns;
        if is_timed && is_interruptible {
            return Err("a Go function without a check of its stack is not timed by stubs".to_owned());
        }
        let parts = match is_timed {
            true => exit_sites::by_part(site, returns || !return_condition.is_empty())?,
            false => Vec::new(),
        };
        let ends: Vec<CallEnds> = parts.iter().map(|part| part.placed(code.bias, targets)).collect();
        let counts_at = body.map(|body| body.wrapping_add(code.bias));
        let entry = |surroundings: &Surroundings<'_>| match counts_at {
            Some(body) => plan_begin(code, &function, body, surroundings),
            None => plan(code, &function, surroundings),
        };
        let call = CallPlan::of(code, &entry, (targets, looks_at), &ends);
        let call = call.map_err(|refusal| refusal.to_string())?;
        call.sites().try_for_each(|patch| check_matches_file(code, patch))?;
        Ok(PlannedFunction {
            number,
            start,
            convention,
            call,
            counts_at,
            condition,
            return_condition,
            is_interruptible,
        })
    }
}

/// Looks whether the process has its file's code at a patch.
///
/// # Errors
/// That it has other code.
fn check_matches_file(code: &CodeSource<'_>, patch: &Patch) -> Result<(), String> {
    match code.matches_file(patch.address, patch.end() - patch.address) {
        true => Ok(()),
        false => {
            Err("the process has other code there than its file: another tool has patched it".to_owned())
        }
    }
}

/// Whether a site is in this program.
pub(super) fn is_program(site: &Site, program: &Path) -> bool {
    site.module.path().canonicalize().is_ok_and(|path| path == program)
}
