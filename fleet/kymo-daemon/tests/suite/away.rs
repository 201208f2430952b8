//! A collector or store that is away and comes back: each sample arrives once and in order, or is
//! counted as dropped.
use crate::daemon::{Daemon, is_permitted};
use crate::fake_collector::{Behaviour, FakeCollector, first_moment_of};
use crate::pushing::{Busy, intervals, number};
use serde_json::Value;
use std::collections::HashSet;

/// The state once nothing waits and `arrived` plus what was dropped is what was sampled.
fn wait_until_all_is_accounted(daemon: &mut Daemon, arrived: impl Fn() -> u64) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let before = daemon.health();
        let arrived = arrived();
        let (dropped, sampled) = (number(&before["dropped"], "samples"), number(&before, "samples"));
        // An interval may be over between both answers; a sample that arrived twice stays too many.
        let is_still = daemon.health() == before;
        if is_still && number(&before, "spool_batches") == 0 && arrived + dropped == sampled {
            return before;
        }
        assert!(begun.elapsed().as_secs() < 240, "{arrived} arrived: {before}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Checks that a collector which refuses, hangs up and does not answer in turn gets everything when
/// it takes it again: each sample once, and intervals in their order.
#[test]
fn a_collector_that_comes_back_gets_each_sample_once() {
    if !is_permitted("away::a_collector_that_comes_back_gets_each_sample_once") {
        return;
    }
    let _busy = Busy::start();
    let collector = FakeCollector::start(Behaviour::Takes, None);
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("daemon.toml");
    let text = format!("[otlp]\nendpoint = \"http://{}\"\ntimeout_s = 1\n", collector.address);
    std::fs::write(&config, text).unwrap();
    let mut daemon = Daemon::start(state.path(), &["-F", "99", "--config", config.to_str().unwrap()]);
    daemon.wait_until("an interval sent", |health| number(health, "sent_batches") >= 1);
    for behaviour in [Behaviour::Refuses, Behaviour::HangsUp, Behaviour::Ignores] {
        collector.behave(behaviour);
        let now = intervals(&daemon.health());
        let health = daemon.wait_until("three intervals", |health| intervals(health) >= now + 3);
        assert!(number(&health, "spool_batches") >= 2, "{behaviour:?}: {health}");
    }
    collector.behave(Behaviour::Takes);
    let health = wait_until_all_is_accounted(&mut daemon, || collector.samples());
    assert_eq!(number(&health["dropped"], "batches"), 0, "{health}");
    let taken = collector.taken.lock().unwrap();
    let moments: Vec<u64> = taken.iter().map(|request| first_moment_of(request)).collect();
    assert!(moments.is_sorted(), "{moments:?}");
    assert_eq!(taken.iter().collect::<HashSet<_>>().len(), taken.len(), "a request came twice");
}

/// Checks that with a spool that is too small for the time without a collector, what arrives after
/// it and what is counted as dropped are together what was sampled.
#[test]
fn loss_beyond_the_bound_is_counted_to_the_sample() {
    if !is_permitted("away::loss_beyond_the_bound_is_counted_to_the_sample") {
        return;
    }
    let _busy = Busy::start();
    let collector = FakeCollector::start(Behaviour::HangsUp, None);
    let state = tempfile::tempdir().unwrap();
    let config = state.path().join("daemon.toml");
    let endpoint = format!("http://{}", collector.address);
    std::fs::write(&config, format!("max_spool = \"40K\"\n[otlp]\nendpoint = \"{endpoint}\"\n")).unwrap();
    let mut daemon = Daemon::start(state.path(), &["--config", config.to_str().unwrap()]);
    daemon.wait_until("three batches dropped", |health| number(&health["dropped"], "batches") >= 3);
    collector.behave(Behaviour::Takes);
    let health = wait_until_all_is_accounted(&mut daemon, || collector.samples());
    assert!(collector.samples() > 0 && number(&health["dropped"], "samples") > 0, "{health}");
}

/// Checks that a bucket which is away in the middle of a batch has everything when it is back, and
/// that a file which is written again is the same.
#[cfg(feature = "cloud")]
#[test]
fn a_bucket_that_comes_back_has_each_sample_once() {
    use crate::object_store::{configure, start, table};
    use kymo_dataset::{Table, TableReader};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    if !is_permitted("away::a_bucket_that_comes_back_has_each_sample_once") {
        return;
    }
    let _busy = Busy::start();
    let is_away = Arc::new(AtomicBool::new(false));
    let (address, objects) = start(&is_away);
    let state = tempfile::tempdir().unwrap();
    let config = configure(state.path(), address);
    let mut daemon = Daemon::start(state.path(), &["-F", "99", "--config", config.to_str().unwrap()]);
    let begun = objects.lock().unwrap().len();
    while objects.lock().unwrap().len() <= begun + 1 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    is_away.store(true, Ordering::Relaxed);
    let now = intervals(&daemon.health());
    let health = daemon.wait_until("three intervals", |health| intervals(health) >= now + 3);
    assert!(number(&health, "spool_batches") >= 2 && !health["last_error"].is_null(), "{health}");
    is_away.store(false, Ordering::Relaxed);
    let samples = || {
        let mut files = BTreeMap::new();
        for (key, bytes) in objects.lock().unwrap().iter() {
            let known = files.insert(key.clone(), bytes.clone());
            assert!(known.is_none_or(|known| known == *bytes), "{key} was written with other bytes");
        }
        let of_samples = files.iter().filter(|(key, _)| table(key).0 == Table::Samples);
        let counts = of_samples.flat_map(|(key, bytes)| {
            let reader = TableReader::of_bytes(key, bytes.clone().into(), Table::Samples).unwrap();
            reader.int64("samples").unwrap().into_iter().flatten()
        });
        counts.sum::<i64>() as u64
    };
    let health = wait_until_all_is_accounted(&mut daemon, samples);
    assert_eq!(number(&health["dropped"], "batches"), 0, "{health}");
}
