//! What several tests need: loud skips, and finding perf.

use std::process::{Command, Output};

/// Says on stderr that a test did not run, and why.
pub(crate) fn skip(test: &str, reason: impl std::fmt::Display) {
    eprintln!("SKIPPED {test}: {reason}");
}

/// Runs perf in an empty folder; `None` if there is no perf.
pub(crate) fn perf(args: &[&str]) -> Option<Output> {
    Command::new("perf").args(args).env("LC_ALL", "C").output().ok()
}
