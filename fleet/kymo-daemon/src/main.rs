//! `kymo-daemon`: continuous profiling of a machine.
//!
//! ```text
//!  kernel --> LiveRecorder --a file in memory each minute--> IntervalReader --> Spool (disk)
//!             samples, unwound                               adds up                |
//!                                                                                   v
//!                                     dataset, collector <-- Sender (a thread of its own)
//! ```
//!
//! # Invariants
//! - **D1** The rows of an interval sum to its samples, and what is missing is counted.
//! - **D2** Recording and adding up never wait for a network or for the place of the dataset.
//! - **D3** SIGKILL at any moment leaves whole files only, in the spool and in the dataset.
//! - **D4** Memory does not grow with time: each interval has its own tables, and what they took
//!   goes back to the system.
#![forbid(unsafe_code)]

mod args;
#[cfg(feature = "cloud")]
mod cloud;
mod collector;
mod config;
mod connection;
mod delivery;
mod dry_run;
mod health;
mod host;
mod interval;
mod recording;
mod run;
mod sender;
mod spool;
mod status;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod whole;

use clap::Parser;
use std::process::ExitCode;

/// The command line was not understood.
const USAGE: u8 = 129;

fn main() -> ExitCode {
    kymo_perf::sys::memory::keep_heap_small();
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let config = match args.config() {
        Ok(config) => config,
        Err(error) => {
            status::say(&error.to_string());
            return ExitCode::from(USAGE);
        }
    };
    let done = if args.dry_run { dry_run::run(&config) } else { run::run(&config) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            status::say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
