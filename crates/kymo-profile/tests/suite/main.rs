//! kymo-profile as the crates above it use it: exports here, recordings of real programs beside them.
mod callers;
mod export;
mod page;
mod perf_script;
#[path = "../../../kymo/tests/suite/programs.rs"]
mod programs;
mod recorded;
mod sample_profile;
mod unwind;
