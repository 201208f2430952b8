//! The parallel engine. Units are opened concurrently until each is done or refused. With all of
//! them at rest, one fallback is applied to the refusal that the serial engine would have met
//! first. Then each unit continues where it stopped.
//!
//! ```text
//!   unit 0  ====x            ==x      =====|
//!   unit 1  ===========|       |           |      = opens   x refused   | rests
//!   unit 2  =======x         ======x  ===  |
//!                  ^barrier        ^barrier^ done
//!                   one fallback    one fallback
//! ```
use super::fallback::{Fallbacks, Next};
use super::note::OpenError;
use super::shape::{EventSlot, EvlistShape};
use super::unit::{Edit, Share, Unit};
use super::workers::{CpuBinding, WorkerPool};
use crate::sys::{ANY, Kernel};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// Opens everything with the workers of the pool.
///
/// # Errors
/// As the serial engine's, and the same for the same answers of the kernel.
pub(crate) fn open(
    pool: &WorkerPool,
    kernel: &Arc<dyn Kernel>,
    fallbacks: &mut Fallbacks,
) -> Result<Vec<Unit>, OpenError> {
    let mut units = divide(pool, kernel, &fallbacks.shape);
    let mut edit = Edit::Nothing;
    // A refusal that waits until all slots before its ordinal have been tried.
    let mut waiting: Option<SlotError> = None;
    loop {
        let below = waiting.as_ref().map_or(usize::MAX, |refusal| refusal.ordinal);
        let (mut refusals, opened);
        // All units give back before any opens again, or descriptors would run out that the serial
        // engine has.
        units = apply(pool, kernel, &fallbacks.shape, units, edit);
        (units, refusals, opened) = advance(pool, kernel, &fallbacks.shape, units, below);
        if opened {
            fallbacks.progressed();
        }
        if let Some(refusal) = waiting.take() {
            refusals.push(refusal);
        } else {
            let live: usize = units.iter().map(Unit::len).sum();
            let first_untried = count_as_serial(&mut refusals, live, &fallbacks.shape);
            let first = refusals.iter().map(|refusal| refusal.ordinal).min();
            if let (Some(untried), Some(first)) = (first_untried, first)
                && untried < first
            {
                // Descriptors ran out in slots that the serial engine reaches later than some that
                // were not tried: those give theirs back, the others are tried.
                edit = Edit::Ordinal(first);
                waiting = refusals.into_iter().min_by_key(SlotError::rank);
                continue;
            }
        }
        let Some(refusal) = refusals.into_iter().min_by_key(SlotError::rank) else {
            return Ok(units);
        };
        match fallbacks.decide(kernel.as_ref(), refusal.slot, refusal.error) {
            Ok(Next::Slot) => edit = Edit::Nothing,
            Ok(Next::Column(column)) => edit = Edit::Column(column),
            Ok(Next::Event(event)) => edit = Edit::Event(event),
            Err(error) => {
                close(pool, kernel, &fallbacks.shape, units);
                return Err(error);
            }
        }
    }
}

/// An open that failed, and how many slots come before it in serial order.
#[derive(Debug)]
struct SlotError {
    ordinal: usize,
    slot: EventSlot,
    error: io::Error,
    /// The kernel was asked.
    asked: bool,
}

impl SlotError {
    /// Which of two the serial engine meets first: what is refused without the kernel, then, as the
    /// kernel takes a number for the event before it looks at anything else, the lack of
    /// descriptors.
    fn rank(&self) -> (usize, bool, bool) {
        (self.ordinal, self.asked, !self.no_descriptor())
    }

    fn no_descriptor(&self) -> bool {
        self.error.raw_os_error() == Some(libc::EMFILE)
    }
}

/// Descriptors run out for whoever comes last, but the serial engine misses them at the slot whose
/// ordinal is the number of those that there are. Moves such refusals there; returns the least
/// ordinal where one was met really.
fn count_as_serial(refusals: &mut [SlotError], live: usize, shape: &EvlistShape) -> Option<usize> {
    let lacking = || refusals.iter().filter(|refusal| refusal.no_descriptor());
    let first = lacking().map(|refusal| refusal.ordinal).min();
    for refusal in refusals.iter_mut().filter(|refusal| refusal.no_descriptor()) {
        refusal.ordinal = live;
        refusal.slot = shape.slot(live).unwrap_or(refusal.slot);
    }
    first
}

/// Makes what is open fit the changed shape.
fn apply(
    pool: &WorkerPool,
    kernel: &Arc<dyn Kernel>,
    shape: &Arc<EvlistShape>,
    units: Vec<Unit>,
    edit: Edit,
) -> Vec<Unit> {
    if edit == Edit::Nothing {
        return units;
    }
    in_workers(pool, kernel, shape, units, move |unit, kernel, shape| unit.apply(kernel, shape, edit))
        .into_iter()
        .map(|(unit, ())| unit)
        .collect()
}

/// One run of all units; their refusals, and whether anything was opened.
fn advance(
    pool: &WorkerPool,
    kernel: &Arc<dyn Kernel>,
    shape: &Arc<EvlistShape>,
    units: Vec<Unit>,
    below: usize,
) -> (Vec<Unit>, Vec<SlotError>, bool) {
    let results = in_workers(pool, kernel, shape, units, move |unit, kernel, shape| {
        let before = unit.len();
        let result = unit.advance(kernel, shape, below);
        (result, unit.len() > before)
    });
    let (mut units, mut refusals, mut any) = (Vec::new(), Vec::new(), false);
    for (unit, (result, opened)) in results {
        units.push(unit);
        any |= opened;
        refusals.extend(result.err().map(|(slot, error)| SlotError {
            ordinal: shape.ordinal(slot),
            slot,
            error,
            asked: !shape.lacks_leader(slot),
        }));
    }
    (units, refusals, any)
}

/// Closes all units.
pub(crate) fn close(pool: &WorkerPool, kernel: &Arc<dyn Kernel>, shape: &Arc<EvlistShape>, units: Vec<Unit>) {
    in_workers(pool, kernel, shape, units, |unit, kernel, shape| unit.close(kernel, shape));
}

/// Does something to every unit in its worker, at its home.
fn in_workers<R: Send + 'static>(
    pool: &WorkerPool,
    kernel: &Arc<dyn Kernel>,
    shape: &Arc<EvlistShape>,
    units: Vec<Unit>,
    act: impl Fn(&mut Unit, &dyn Kernel, &EvlistShape) -> R + Copy + Send + 'static,
) -> Vec<(Unit, R)> {
    let alone = units.len() <= pool.len();
    pool.run(units.into_iter().map(|mut unit| {
        let (kernel, shape) = (Arc::clone(kernel), Arc::clone(shape));
        move |binding: &mut CpuBinding| {
            binding.take(kernel.as_ref(), unit.home);
            let result = act(&mut unit, kernel.as_ref(), &shape);
            if !alone {
                binding.leave(kernel.as_ref());
            }
            (unit, result)
        }
    }))
}

/// Who opens what. Events of CPUs are best opened, switched and closed on that CPU, for the kernel
/// sends no interrupt to itself; events of tasks on the CPU where the task ran last, where the
/// kernel looks for it.
fn divide(pool: &WorkerPool, kernel: &Arc<dyn Kernel>, shape: &EvlistShape) -> Vec<Unit> {
    if shape.tasks.len() > 1 {
        let homes = homes(pool, kernel, &shape.tasks);
        return by_home(&homes, pool.len());
    }
    // All of the target: a fallback may give an event another PMU, which covers more.
    let home = |cpu: i32| u32::try_from(cpu).ok().filter(|_| shape.tasks == [ANY]);
    shape.target_cpus.iter().map(|&cpu| Unit::new(Share::Cpu(cpu), home(cpu))).collect()
}

/// Where each task ran last.
fn homes(pool: &WorkerPool, kernel: &Arc<dyn Kernel>, tasks: &[i32]) -> Vec<Option<u32>> {
    let jobs = tasks.chunks(tasks.len().div_ceil(pool.len()).max(1)).map(|tasks| {
        let (kernel, tasks) = (Arc::clone(kernel), tasks.to_vec());
        move |_: &mut CpuBinding| -> Vec<Option<u32>> { kernel.last_cpus(&tasks) }
    });
    pool.run(jobs.collect::<Vec<_>>()).into_iter().flatten().collect()
}

/// Tasks that are looked at before it is decided whether the others are.
const SAMPLE: usize = 32;
/// What it costs to look where a task ran last, to open, switch and close an event of it, and to
/// reach another CPU for it: measured, in nanoseconds (docs/internals/design/0002-event-lists.md).
/// Only their ratios matter.
const LOOK_NS: f64 = 8_000.0;
const EVENT_NS: f64 = 6_500.0;
const REACH_NS: f64 = 9_000.0;
/// What starting workers and waiting for them costs.
const CREW_NS: f64 = 400_000.0;

/// Whether so many workers would be faster for a list of tasks than the calling thread, which is on
/// the CPU `here`: that depends on where the tasks ran last. Where all did so here, workers only
/// add the looking.
pub(crate) fn pays(kernel: &dyn Kernel, shape: &EvlistShape, workers: usize, here: u32) -> bool {
    let tasks = &shape.tasks;
    let sample: Vec<i32> = tasks.iter().copied().step_by(tasks.len().div_ceil(SAMPLE).max(1)).collect();
    let mut homes: BTreeMap<u32, usize> = BTreeMap::new();
    for home in kernel.last_cpus(&sample).into_iter().flatten() {
        *homes.entry(home).or_default() += 1;
    }
    let (Some(&most), known) = (homes.values().max(), homes.values().sum::<usize>()) else { return false };
    let elsewhere = 1.0 - homes.get(&here).map_or(0.0, |&count| count as f64 / known as f64);
    // Opening its first event, and switching each twice.
    let per_task = shape.descriptors() as f64 / tasks.len() as f64;
    let switched = per_task * (0..shape.events.len()).filter(|&event| shape.leads(event)).count() as f64
        / shape.events.len() as f64;
    let serial = per_task * EVENT_NS + elsewhere * (1.0 + 2.0 * switched) * REACH_NS;
    let at_once = (known as f64 / most as f64).max(workers as f64 / 4.0).min(workers as f64);
    let parallel = (LOOK_NS + per_task * EVENT_NS) / at_once;
    // Twice: what is shared inside the kernel does not divide.
    serial * tasks.len() as f64 > 2.0 * parallel * tasks.len() as f64 + CREW_NS
}

/// One unit per home, none with more than four times its fair share: the rest, and tasks of no
/// known home, go to the smallest. (On few CPUs that caps nothing: there it is dearer to reach
/// elsewhere than to wait.)
fn by_home(homes: &[Option<u32>], workers: usize) -> Vec<Unit> {
    let most = (4 * homes.len()).div_ceil(workers.max(1));
    let mut units: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut rest = Vec::new();
    for (column, home) in homes.iter().enumerate() {
        match home.map(|home| units.entry(home).or_default()) {
            Some(unit) if unit.len() < most => unit.push(column),
            _ => rest.push(column),
        }
    }
    let mut units: Vec<(Option<u32>, Vec<usize>)> =
        units.into_iter().map(|(home, columns)| (Some(home), columns)).collect();
    while units.len() < workers && !rest.is_empty() {
        units.push((None, Vec::new()));
    }
    let (count, taken) = (units.len().max(1), homes.len() - rest.len());
    let fair = (taken + rest.len()).div_ceil(count);
    let mut rest = rest.into_iter();
    for (_, columns) in &mut units {
        columns.extend(rest.by_ref().take(fair.saturating_sub(columns.len())));
        columns.sort_unstable();
    }
    units.into_iter().map(|(home, columns)| Unit::new(Share::Columns(columns), home)).collect()
}
