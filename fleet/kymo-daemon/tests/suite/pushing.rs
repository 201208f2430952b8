//! What a collector gets, and what is kept when it does not take it.
use crate::daemon::{Daemon, is_permitted};
use crate::fake_collector::{Behaviour, FakeCollector, unused_address};
use serde_json::Value;
use std::path::Path;

pub(crate) fn number(health: &Value, key: &str) -> u64 {
    health[key].as_u64().unwrap_or_else(|| panic!("no {key} in {health}"))
}

pub(crate) fn intervals(health: &Value) -> u64 {
    number(health, "intervals")
}

/// Keeps a CPU busy until it goes out of scope, so that there are samples.
pub(crate) struct Busy(std::process::Child);

impl Busy {
    pub(crate) fn start() -> Busy {
        let mut command = std::process::Command::new("sh");
        Busy(command.args(["-c", "while :; do :; done"]).spawn().expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that a collector gets every sample, the last ones at SIGTERM, and that nothing is left.
#[test]
fn a_collector_gets_every_sample() {
    if !is_permitted("pushing::a_collector_gets_every_sample") {
        return;
    }
    let _busy = Busy::start();
    let collector = FakeCollector::start(Behaviour::Takes, None);
    let state = tempfile::tempdir().unwrap();
    let endpoint = format!("http://{}", collector.address);
    let mut daemon = Daemon::start(state.path(), &["-F", "99", "--otlp", &endpoint]);
    let health = daemon.wait_until("three intervals", |health| intervals(health) >= 3);
    assert!(health["last_error"].is_null(), "{health}");
    let before = number(&health, "samples");
    assert!(daemon.terminate().success());
    assert!(before > 50 && collector.samples() >= before, "{before} of {}", collector.samples());
    assert_eq!(std::fs::read_dir(state.path().join("spool")).unwrap().count(), 1, "the lock alone");
}

/// Checks that a collector which refuses, hangs or answers garbage neither stops nor delays the
/// intervals, that nothing is lost for it, and that the daemon ends when it is asked to.
#[test]
fn a_hostile_collector_stops_nothing() {
    if !is_permitted("pushing::a_hostile_collector_stops_nothing") {
        return;
    }
    let _busy = Busy::start();
    let all = [
        Behaviour::Refuses,
        Behaviour::Hangs,
        Behaviour::Ignores,
        Behaviour::Garbage,
        Behaviour::Noise,
        Behaviour::Endless,
        Behaviour::Redirects,
        Behaviour::HangsUp,
    ];
    let started = all.map(|behaviour| {
        let collector = FakeCollector::start(behaviour, None);
        let state = tempfile::tempdir().unwrap();
        let endpoint = format!("http://{}", collector.address);
        let daemon = Daemon::start(state.path(), &["--otlp", &endpoint]);
        (behaviour, collector, state, daemon)
    });
    for (behaviour, collector, state, mut daemon) in started {
        let health = daemon.wait_until("four intervals", |health| intervals(health) >= 4);
        let kept = number(&health, "spool_batches");
        assert!(kept >= 3, "{behaviour:?}: {health}");
        assert_eq!(
            (number(&health, "sent_batches"), number(&health["dropped"], "batches")),
            (0, 0),
            "{behaviour:?}"
        );
        if !matches!(behaviour, Behaviour::Hangs | Behaviour::Ignores) {
            let error = health["last_error"]["text"].as_str().unwrap_or_default();
            assert!(
                error.contains(&collector.address.to_string()) && !error.contains('\n'),
                "{behaviour:?}: {error}"
            );
        }
        assert!(daemon.terminate().success(), "{behaviour:?}");
        let left = std::fs::read_dir(state.path().join("spool")).unwrap().count() as u64;
        assert!(left > kept, "{behaviour:?}: {left} files, {kept} batches before");
    }
}

/// Checks that what was sampled while there was no network arrives later, after a restart too, and
/// that all of it does.
#[test]
fn nothing_is_lost_while_the_network_is_away() {
    if !is_permitted("pushing::nothing_is_lost_while_the_network_is_away") {
        return;
    }
    let _busy = Busy::start();
    let state = tempfile::tempdir().unwrap();
    let address = unused_address();
    let endpoint = format!("http://{address}");
    let mut daemon = Daemon::start(state.path(), &["--otlp", &endpoint]);
    let away = daemon.wait_until("three intervals", |health| intervals(health) >= 3);
    assert!(away["last_error"]["text"].as_str().is_some_and(|text| text.contains("refused")), "{away}");
    assert!(daemon.terminate().success());
    let kept: u64 = batches(state.path()).into_iter().sum();
    assert!(kept >= number(&away, "samples"), "{kept}: {away}");
    let collector = FakeCollector::start(Behaviour::Takes, Some(address));
    let mut daemon = Daemon::start(state.path(), &["--otlp", &endpoint]);
    let sent = |health: &Value| intervals(health) >= 1 && number(health, "spool_batches") == 0;
    let back = daemon.wait_until("everything sent", sent);
    assert!(daemon.terminate().success());
    assert!(number(&back, "samples") > 0 && number(&back["dropped"], "samples") == 0, "{back}");
    let arrived = collector.samples();
    assert!(arrived >= kept + number(&back, "samples"), "{arrived} of {kept} and {back}");
}

/// Checks that a spool which is too small for the time without a network keeps its bound, and that
/// each sample is either there or counted as dropped.
#[test]
fn what_the_spool_drops_is_counted() {
    if !is_permitted("pushing::what_the_spool_drops_is_counted") {
        return;
    }
    let _busy = Busy::start();
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("daemon.toml");
    std::fs::write(&config, "max_spool = \"40K\"\n").unwrap();
    let endpoint = format!("http://{}", unused_address());
    let arguments = ["--config", config.to_str().unwrap(), "--otlp", &endpoint];
    let mut daemon = Daemon::start(state.path(), &arguments);
    let dropped = |health: &Value| number(&health["dropped"], "batches") >= 2;
    daemon.wait_until("two batches dropped", dropped);
    // Nothing came or went between two answers: what is there then belongs to both.
    let (health, left) = loop {
        let before = daemon.health();
        let left: u64 = batches(state.path()).into_iter().sum();
        if before == daemon.health() {
            break (before, left);
        }
    };
    assert!(number(&health, "spool_bytes") <= 40 << 10, "{health}");
    assert_eq!(left + number(&health["dropped"], "samples"), number(&health, "samples"), "{health}");
}

/// The samples of each batch in the spool.
fn batches(state: &Path) -> Vec<u64> {
    let names = std::fs::read_dir(state.join("spool")).unwrap();
    let samples = |name: String| name.strip_prefix("otlp-")?.rsplit('-').next()?.parse::<u64>().ok();
    names.filter_map(|entry| samples(entry.unwrap().file_name().into_string().unwrap())).collect()
}
