use super::{OwnCgroup, cleanup_stale};
use crate::workload::{Exit, Workload};
use std::ffi::OsString;

/// Says that a test did not run and why, on stderr and in the list that `ci/test.sh` prints at its end.
fn skip(test: &str, reason: impl std::fmt::Display) {
    let line = format!("SKIPPED {test}: {reason}\n");
    eprint!("{line}");
    if let Some(log) = std::env::var_os("KYMO_SKIP_LOG") {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().append(true).create(true).open(log);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

fn own(test: &str) -> Option<OwnCgroup> {
    OwnCgroup::create().map_err(|error| skip(test, error)).ok()
}

fn shell(script: &str) -> Workload {
    Workload::prepare(&["sh", "-c", script].map(OsString::from)).unwrap()
}

/// Checks that a command runs in its cgroup, and that nothing of it stays.
#[test]
fn life() {
    let Some(cgroup) = own("cgroup::life") else { return };
    let path = cgroup.path().to_owned();
    let mut command = shell("grep -q /kymo-$PPID- /proc/self/cgroup");
    cgroup.add(command.pid()).unwrap();
    assert_eq!(cgroup.processes(), [command.pid()]);
    command.start().unwrap();
    assert_eq!(command.wait().unwrap(), Exit::Code(0));
    assert!(path.is_dir());
    cleanup_stale().unwrap();
    assert!(path.is_dir(), "a living one's cgroup was taken for a dead one's");
    assert_eq!(cgroup.remove().unwrap().moved, 0);
    assert!(!path.exists());
}
