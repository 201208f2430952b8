//! What several tests need: loud skips, and finding perf.

use std::process::{Command, Output};

/// Says that a test did not run and why, on stderr and in the list that `ci/test.sh` prints at its end.
pub(crate) fn skip(test: &str, reason: impl std::fmt::Display) {
    let line = format!("SKIPPED {test}: {reason}\n").replace("\n  ", " ");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("KYMO_SKIP_LOG") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        // One write, so that lines of tests that run at the same time stay whole. An ordinary user may not write there.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// Runs perf in an empty folder; `None` if there is no perf.
pub(crate) fn perf(args: &[&str]) -> Option<Output> {
    Command::new("perf").args(args).env("LC_ALL", "C").output().ok()
}
