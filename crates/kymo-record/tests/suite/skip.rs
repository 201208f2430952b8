//! A test that cannot run on a machine says so.

/// Says that a test did not run and why, on stderr and in the list that `ci/test.sh` prints at its end.
pub(crate) fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("KYMO_SKIP_LOG") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the skip log is writable");
    }
}
