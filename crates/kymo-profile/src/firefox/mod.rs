//! A recording as the Firefox Profiler reads it, with addresses in place of names: the profiler
//! asks a symbol server for names, source files and code, by the modules that are listed here.
//!
//! ```text
//!   distinct stacks --address--> (module, offset) or a name  --+--> tables of each thread
//!   samples of one event, by thread --------------------------'          (model: JSON)
//! ```
//!
//! # Invariants
//! - **P1** Every sample of the event is in its thread once, at its time, with the words of its
//!   call chain.
//! - **P2** An offset plus [`FirefoxModule::base`] is the address that the symbols of the module
//!   are asked with. Callers have the address of their call: that after it, less one.
//! - **P3** Different files have different ids, also those without a build id in the recording.
//!
//! The format is that of version 48 of processed profiles; the profiler reads all older ones.
pub(crate) mod frames;
pub(crate) mod model;
mod modules;
#[cfg(test)]
mod tests;

pub use modules::{FirefoxModule, breakpad_id};

use crate::chains::ChainId;
use crate::columns::{Columns, RowField};
use crate::profile::Profile;
use crate::query::Dataset;
use crate::raw_frames::{Place, walk_chain};
use crate::resolve::Resolver;
use crate::timeline::Timeline;
use kymo_data::Recording;
use kymo_symbols::SymbolStore;
use model::{Document, Meta, ThreadTables};
use modules::ModuleTable;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// More samples make a document that the profiler does not show any more.
pub const MOST_SAMPLES: usize = 8_000_000;
/// Frames of a stack that are shown, as in reports.
const MOST_FRAMES: usize = 127;

/// A profile, and the modules that its addresses are in.
#[derive(Debug, Default)]
pub struct FirefoxProfile {
    /// The document.
    pub json: Vec<u8>,
    /// In the order of the document's `libs`.
    pub modules: Vec<FirefoxModule>,
}

/// Why there is no such profile.
#[derive(Debug, thiserror::Error)]
pub enum FirefoxError {
    /// Spans of wall time have no sampled addresses.
    #[error("the Firefox Profiler is shown samples, not spans of wall time")]
    Spans,
    /// More than [`MOST_SAMPLES`].
    #[error(
        "the recording has {0} samples of the event, more than the {MOST_SAMPLES} that the Firefox Profiler can show"
    )]
    Large(usize),
    /// It cannot be written.
    #[error("failed to write the profile: {0}")]
    Write(#[from] serde_json::Error),
}

/// Makes the profile of the first event that has samples. `title`: what the profiler calls it;
/// `start_unix_ns`: when the first sample was, if it is known.
///
/// # Errors
/// [`FirefoxError`].
pub fn firefox_profile(
    recording: &Recording,
    data: &Dataset,
    store: &SymbolStore,
    (title, start_unix_ns): (&str, Option<u64>),
) -> Result<FirefoxProfile, FirefoxError> {
    let Some(profile) = data.profile() else { return Err(FirefoxError::Spans) };
    let columns = data.columns();
    let event = profile.loaded.totals.iter().position(|total| total.samples > 0).unwrap_or(0);
    let rows: Vec<usize> =
        (0..columns.len()).filter(|row| columns.get(RowField::Event, *row) == event as u64).collect();
    if rows.len() > MOST_SAMPLES {
        return Err(FirefoxError::Large(rows.len()));
    }
    let resolver = Resolver::new(&profile.loaded.timeline, store);
    let mut modules = ModuleTable::new(&resolver, &profile.loaded.timeline);
    let stacks = stacks(profile, &rows, columns, &mut modules);
    let threads = threads(&profile.loaded.timeline, columns, &rows, (&stacks, &modules));
    let name = recording.events.list.get(event).map_or("", |event| &event.name);
    let meta = Meta::new((title, name), start_unix_ns, false);
    let modules = modules.finish();
    let json = serde_json::to_vec(&Document { meta, libs: &modules, threads })?;
    Ok(FirefoxProfile { json, modules })
}

/// The frames of each distinct stack that has rows, outermost first, as numbers of the table.
fn stacks(
    profile: &Profile,
    rows: &[usize],
    columns: &Columns,
    modules: &mut ModuleTable<'_>,
) -> FxHashMap<ChainId, Vec<u32>> {
    let chains = &profile.loaded.chains;
    let mut used: Vec<ChainId> =
        rows.iter().map(|row| columns.get(RowField::Stack, *row) as ChainId).collect();
    used.sort_unstable();
    used.dedup();
    let mut places = Vec::new();
    let of_chain = |id: ChainId, modules: &mut ModuleTable<'_>, places: &mut Vec<Place>| {
        let chain = chains.get(id);
        places.clear();
        walk_chain(chains, chain, MOST_FRAMES, |place| places.push(place));
        if places.is_empty() {
            places.push(Place::sampled(chain));
        }
        let mut frames: Vec<u32> = places.iter().map(|place| modules.frame(*place)).collect();
        frames.reverse();
        frames
    };
    used.into_iter().map(|id| (id, of_chain(id, modules, &mut places))).collect()
}

/// The tables of each thread that has rows, by process and thread.
fn threads(
    timeline: &Timeline,
    columns: &Columns,
    rows: &[usize],
    (stacks, modules): (&FxHashMap<ChainId, Vec<u32>>, &ModuleTable<'_>),
) -> Vec<ThreadTables> {
    let mut threads: BTreeMap<(i32, i32, u32), ThreadTables> = BTreeMap::new();
    let first = rows.first().map_or(0, |row| columns.time()[*row]);
    for row in rows {
        let thread = columns.thread(*row);
        let reuses = timeline.reuses(thread.pid);
        let earlier = reuses.partition_point(|from| from.time_ns <= columns.time()[*row]) as u32;
        let tables = threads
            .entry((thread.pid, thread.tid, earlier))
            .or_insert_with(|| ThreadTables::new(thread.pid, thread.tid, earlier));
        let chain = columns.get(RowField::Stack, *row) as ChainId;
        let time_ns = columns.time()[*row].saturating_sub(first);
        let frames = stacks.get(&chain).map_or(&[][..], |frames| frames);
        tables.add_sample((time_ns, None), (chain, frames), modules);
        tables.set_name(&timeline.comm(thread.comm));
    }
    let names: FxHashMap<(i32, u32), String> = threads
        .iter()
        .filter(|((pid, tid, _), _)| pid == tid)
        .map(|((pid, _, earlier), tables)| ((*pid, *earlier), tables.name().to_owned()))
        .collect();
    let mut threads: Vec<ThreadTables> = threads.into_values().collect();
    threads.iter_mut().for_each(|tables| tables.set_process_name(&names));
    threads
}
