//! The protocol between a tracer and the agent in its target.
//!
//! One message is one packet of a socket that keeps packets apart, at most [`MOST_BYTES`] long.
//! Neither side trusts the other: whatever arrives is a message or [`Malformed`], nothing is
//! allocated by what it claims, and what is longer than a bound is refused.
//!
//! ```text
//!   | kind u16 | zero u16 | fields, little-endian; lists and texts after their length as u32 |
//! ```
//!
//! # The conversation
//! ```text
//!   tracer                                    agent
//!   Hello { version, children }      ------>
//!                                    <------  Hello { version, pid, ... }   (or Failed, and the end)
//!   Counters { .. } and their file   ------>
//!                                    <------  Counting   (or Failed, and the end)
//!   How { number, how }     (many)   ------>
//!   Add { module, probes }  (many)   ------>
//!   Commit                           ------>
//!                                    <------  Refused { id, reason }, Placed { of }, Before { id, of }  (many)
//!                                    <------  Armed { armed, stopped_ns }
//!   Go                               ------>  a program that was held before its first instruction runs,
//!                                             and nobody is there to be asked any more
//!                                    <------  Refused, ProbeSlots, Before: at any time, when a module was loaded that probes wait for
//!   Rings { .. } and their file      ------>
//!                                    <------  Recording   (or Failed)
//!   Losses, Callers                  ------>
//!                                    <------  Losses, Callers  (until last)
//!   Remove { ids }  (many), Commit   ------>
//!                                    <------  Armed
//!   List                             ------>
//!                                    <------  Listed { of, last }  (until last)
//!   Leave                            ------>
//!                                    <------  Left
//! ```
//! A tracer that can hold the process's threads says so once; then sites are written while they
//! stand still, at `Commit`, `Holds` and `Leave`:
//! ```text
//!   Holds                            ------>
//!                                    <------  Cleaned { probes }
//!   Commit                           ------>
//!                                    <------  Ready { places }
//!   Held  (or NotHeld { reason })    ------>
//!                                    <------  Written
//!                                    <------  Armed
//! ```
//!
//! Where the kernel does not let the agent write code, the tracer does it between `Ready` and
//! `Held`, and the agent looks what was written.
//!
//! Descriptors go one way only, from the tracer to the agent. The tracer takes none: the target
//! could send it a file of its own file system, and closing that would hang as long as the target
//! likes.
//!
//! Counts are not sent. They lie in the memory file that comes with `Counters`, which both sides
//! map, so the tracer reads them at any time, also after the program has ended.
//!
//! Requests are answered in order. If the tracer's end closes, however it ended, the agent removes
//! its probes and ends.
mod action;
mod message;
mod pack;
#[cfg(all(test, not(loom)))]
mod tests;

pub use action::{
    EventId, Fetch, FetchKind, Layout, MOST_FETCHES, MOST_STEPS, MOST_STRING_BYTES, MOST_TESTS, ProbeAction,
    is_supported,
};
pub use message::{
    Bucket, Command, HitCount, PatchSites, ProbeKind, ProbeSlots, ProbeSpec, ProbeState, ProbeStatus, Reply,
};
pub use pack::{Malformed, printable};

/// The version of this language. Both sides must have the same.
pub const VERSION: u32 = 8;
/// The bytes that a site takes in the list of [`PatchSites::edits`].
pub const EDIT_BYTES: u64 = 24;
/// No packet is longer.
pub const MOST_BYTES: usize = 32 << 10;
/// The most probes of one [`Command::Add`], and the most entries of any other list.
pub const MOST_ENTRIES: usize = 800;
/// The longest path.
pub const MOST_PATH_BYTES: usize = 4096;
/// The longest sentence.
pub const MOST_TEXT_BYTES: usize = 512;
