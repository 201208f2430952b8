//! What a recording means: order, processes, unwinding, symbols, call trees, exports.
//!
//! *You give it* a [`kymo_data::Recording`]; *it gives you* a [`Profile`](profile::Profile): how many samples each
//! thread name, function and call chain has, with names, and from that tables, trees and exports.
//!
//! ```text
//!  Recording ──pass 1──▶ timeline   who was what, when (side-band records only)
//!      │                    │
//!      └──────pass 2──▶ load │ counts per distinct raw stack ──▶ resolve ──▶ hist ──▶ text
//!                            └ unwind (stacks recorded as bytes)     │         └────▶ export
//!                                                                 symbols
//! ```
//!
//! # Guarantees
//! - The result does not depend on the number of threads or the order in which they worked.
//! - Memory grows with what is distinct (stacks, mappings, functions), not with the file.
//! - Files of the recorded machine are untrusted: nothing in them makes this panic or allocate without bound.
//!
//! # Non-goals
//! Reading or writing files of recordings (kymo-data), terminals and arguments (the binary).

#![forbid(unsafe_code)]

pub mod chains;
pub mod export;
pub mod functions;
pub mod hist;
pub mod load;
pub mod profile;
pub mod resolve;
#[cfg(test)]
mod sample_profile;
pub mod script;
pub mod symbols;
pub mod text;
pub mod timeline;
pub mod unwind;
pub mod unwind_samples;
