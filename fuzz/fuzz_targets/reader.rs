//! Any bytes, read as everything that kymo-data reads.
//!
//! `cargo fuzz run reader` (nightly), or without nightly as the README says. The corpus is replayed by a test of
//! kymo-data that calls the same function, so a new finding becomes a test by being copied into `corpus/reader/`.
#![no_main]

#[path = "../../crates/kymo-data/tests/suite/exhaust.rs"]
mod exhaust;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| exhaust::all_formats(bytes));
