//! What several tests need: finding perf.

use std::process::{Command, Output};

/// Runs perf in an empty folder; `None` if there is no perf.
pub(crate) fn perf(args: &[&str]) -> Option<Output> {
    Command::new("perf").args(args).env("LC_ALL", "C").output().ok()
}
