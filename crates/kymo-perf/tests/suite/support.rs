//! What several tests need: finding perf.

use std::process::Output;

/// Runs perf; `None`, and the test says so, if there is none.
pub(crate) fn perf(test: &str, args: &[&str]) -> Option<Output> {
    kymo_testing::perf(test)?.args(args).output().ok()
}
