//! A disk that is full: what cannot be kept is counted once, and the daemon goes on.
use crate::daemon::{Daemon, is_permitted};
use crate::fake_collector::{Behaviour, FakeCollector};
use crate::kills::samples_in;
use crate::pushing::{Busy, intervals, number};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of so many KiB in memory; goes away when it goes out of scope.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path, kib: u32) -> Option<SmallDisk> {
        let size = format!("size={kib}k");
        let mut command = Command::new("mount");
        let mounted = command.args(["-t", "tmpfs", "-o", &size, "none"]).arg(folder).status();
        mounted.is_ok_and(|status| status.success()).then(|| SmallDisk(folder.to_owned()))
    }

    /// Leaves no room at all.
    fn fill(&self) {
        let written = std::fs::write(self.0.join("ballast"), vec![0; 16 << 20]);
        assert_eq!(written.map_err(|error| error.kind()), Err(std::io::ErrorKind::StorageFull));
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("ballast")).expect("the ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Checks that a spool without room costs the samples and waits of those intervals, counted once
/// though two destinations lack them, that the error names the folder and the reason, and that the
/// daemon goes on when there is room again.
#[test]
fn a_spool_without_room_is_counted_once() {
    const TEST: &str = "full_disk::a_spool_without_room_is_counted_once";
    if !is_permitted(TEST) {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(state.path(), 4096) else {
        println!("SKIPPED {TEST}: no file system can be mounted here");
        return;
    };
    let _busy = Busy::start();
    let collector = FakeCollector::start(Behaviour::Takes, None);
    let dataset = tempfile::tempdir().unwrap();
    let arguments = ["-F", "99", "--off-cpu", "--dataset", dataset.path().to_str().unwrap()];
    let endpoint = format!("http://{}", collector.address);
    let mut daemon = Daemon::start(state.path(), &[&arguments[..], &["--otlp", &endpoint]].concat());
    daemon.wait_until("an interval sent", |health| number(health, "sent_batches") >= 3);
    disk.fill();
    let before = intervals(&daemon.health());
    // The first of them may have begun to write before the disk was full.
    let health = daemon.wait_until("three intervals", |health| intervals(health) >= before + 3);
    let last = &health["last_interval"];
    assert!(number(last, "samples") > 50, "{health}");
    assert_eq!(number(last, "lost"), number(last, "samples"), "{health}");
    let text = health["last_error"]["text"].as_str().unwrap_or_default().to_owned();
    let folder = state.path().join("spool").display().to_string();
    assert!(text.contains(&folder) && text.contains("No space left"), "{text}");
    disk.empty();
    let now = intervals(&health);
    let health = daemon.wait_until("three intervals with room", |health| intervals(health) >= now + 3);
    assert_eq!(number(&health["last_interval"], "lost"), 0, "{health}");
    assert!(number(&health["last_interval"], "rows") > 0, "{health}");
    let health = daemon.wait_until("all sent", |health| number(health, "spool_batches") == 0);
    let (samples, lost) = (number(&health, "samples"), number(&health, "lost_samples"));
    assert!(daemon.terminate().success());
    // What one destination lacks can have arrived at the other.
    let arrived = samples_in(dataset.path()) as u64;
    assert!(lost < samples && arrived + lost >= samples, "{arrived} {health}");
    assert!(collector.samples() > 0);
}
