//! What a recording means: order, processes, call trees, exports.
//!
//! *You give it* a [`kymo_data::Recording`]; *it gives you* a [`Profile`](profile::Profile): how
//! many samples each thread name, function and call chain has, with names, and from that tables,
//! trees and exports.
//!
//! ```text
//!  Recording ──pass 1──▶ timeline   who was what, when (side-band records only)
//!      │                    │
//!      └──────pass 2──▶ load │ rows ──▶ counts per raw stack ──▶ resolve ──▶ hist ──▶ text
//!                            │   └────▶ columns ──▲                 │         └────▶ export
//!                            └─ kymo_symbols::unwind          kymo_symbols
//! ```
//!
//! # Guarantees
//! - The result does not depend on the number of threads or the order in which they worked.
//! - Memory grows with what is distinct (stacks, mappings, functions), not with the file. Where
//!   single samples are asked for, they are held as [`columns`], some 15 to 30 bytes each.
//! - Recordings are untrusted: nothing in them makes this panic or allocate without bound.
//!
//! # Non-goals
//! Reading or writing files of recordings (kymo-data), what files say
//! about addresses (kymo-symbols), terminals and arguments (the binary).
//!
//! # Modules
//! - [`profile`]: everything in one call. [`load`]: the two passes; [`timeline`]: who was what,
//!   when; [`chains`]: distinct stacks; [`columns`]: every sample, by time.
//! - [`build_ids`]: the files that samples are in, by build id; [`inject`]: recordings with more of
//!   them, or with call chains in the place of stacks.
//! - [`diff`]: what changed between two builds, by two sets of runs.
//! - [`dump`]: what a recording stores, in perf's words.
//! - [`loss`]: what was lost, ring by ring and moment by moment; its table and picture.
//! - [`sched`]: who ran on which CPU, who waited for one, and who woke whom up.
//! - [`unwind_samples`]: frames from stacks that were recorded as bytes; [`functions`],
//!   [`resolve`]: stacks with names.
//! - [`first_look`]: the first screen. [`wall`]: where each thread's time went, waiting included.
//!   [`locks`]: contended locks, their waiters and holders. [`runtimes`]: what they need to name
//!   their code.
//! - [`query`]: questions about ranges, threads, functions and states, answered as plain values;
//!   [`view`]: a recording that is looked at, and selected from. [`live`]: the newest samples of
//!   one that runs.
//! - [`hist`]: rows and call trees; [`text`]: tables;
//!   [`script`]: sample by sample; [`mod@export`]: JSON, folded stacks, pictures, the page, and
//!   formats of other tools; [`import`]: their profiles as recordings.
//!
//! # Example
//! The hottest function of a recording, by samples taken in it and in what it called.
//!
//! ```
//! use kymo_profile::hist::{Hist, HistOptions};
//! use kymo_profile::load::LoadOptions;
//! use kymo_profile::profile::Profile;
//! use kymo_profile::resolve::ResolveOptions;
//! use kymo_symbols::{SymbolOptions, SymbolStore};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/callgraph.data");
//! let recording = kymo_data::Recording::open(Arc::new(std::fs::File::open(path)?), Vec::new())?;
//! let store = SymbolStore::new(SymbolOptions::default());
//! let (load, resolve) = (LoadOptions::default(), ResolveOptions::default());
//! let profile = Profile::open(&recording, &load, resolve, &store, &|_pass, _done, _total| {})?;
//!
//! let keys = HistOptions::DEFAULT_KEYS.to_vec();
//! let options = HistOptions { keys, children: true, ..HistOptions::default() };
//! let table = Hist::new(&profile, 0, &options);
//! let hottest = &table.rows[0];
//! println!("{} of {} samples: {}", hottest.total.samples, table.total.samples, profile.frame_name(hottest.function));
//! assert!(hottest.own.samples <= hottest.total.samples && hottest.total.samples <= table.total.samples);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod build_ids;
pub mod chains;
pub mod columns;
mod counts;
pub mod diff;
pub mod dump;
pub mod emptied;
pub mod export;
mod extra;
pub mod firefox;
pub mod first_look;
pub mod functions;
mod futex_kind;
pub mod generated_code;
pub mod hist;
pub mod import;
pub mod inject;
pub mod kept_files;
pub mod live;
pub mod load;
pub mod locks;
pub mod loss;
pub mod machine;
pub mod name_key;
pub mod not_shown;
mod order;
pub mod profile;
pub mod query;
pub mod raw_frames;
pub mod resolve;
pub mod runtimes;
#[cfg(test)]
mod sample_profile;
pub mod sched;
pub mod script;
pub mod stat;
pub mod text;
pub mod thread_stacks;
pub mod timeline;
mod tracepoint;
pub mod unwind_samples;
pub mod view;
pub mod wall;
