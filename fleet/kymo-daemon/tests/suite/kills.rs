//! What SIGKILL leaves: whole files only.
use crate::daemon::{Daemon, is_permitted};
use kymo_dataset::{Table, TableReader};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a daemon is killed; `KYMO_KILLS` sets another number.
const KILLS: u64 = 8;

pub(crate) fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(parquet_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            found.push(path);
        }
    }
    found
}

/// The table of a file, by the first folder of its path in the dataset.
pub(crate) fn table(dataset: &Path, file: &Path) -> Table {
    let below = file.strip_prefix(dataset).expect("below the dataset");
    let name = below.iter().next().expect("a table").to_string_lossy().into_owned();
    Table::ALL.into_iter().find(|table| table.name() == name).unwrap_or_else(|| panic!("no table: {name}"))
}

/// Checks that whatever moment a daemon is killed at, every file of the dataset that a reader sees
/// is whole, that samples have their stacks, and that the next daemon goes on with the spool.
#[test]
fn readers_see_whole_files_only() {
    if !is_permitted("kills::readers_see_whole_files_only") {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let dataset = state.path().join("dataset");
    let arguments = ["-F", "99", "--dataset", dataset.to_str().unwrap()];
    let kills = std::env::var("KYMO_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    for kill in 0..kills {
        let mut daemon = Daemon::start(state.path(), &arguments);
        daemon.health();
        // Moments all over the interval, and around its end.
        std::thread::sleep(Duration::from_millis(700 + kill * 397 % 1500));
        daemon.kill();
        samples_in(&dataset);
    }
    let mut daemon = Daemon::start(state.path(), &arguments);
    daemon.wait_until("two intervals sent", |health| {
        health["intervals"].as_u64() >= Some(2) && health["spool_batches"] == 0
    });
    assert!(daemon.terminate().success());
    assert!(samples_in(&dataset) > 0, "there are samples");
    let left: Vec<_> = std::fs::read_dir(state.path().join("spool")).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// Reads and checks every file; how many samples there are.
pub(crate) fn samples_in(dataset: &Path) -> i64 {
    let (mut stacks, mut used, mut count) = (HashSet::new(), HashSet::new(), 0);
    for file in parquet_files(dataset) {
        let table = table(dataset, &file);
        let reader = TableReader::open(&file, table).unwrap_or_else(|error| panic!("{error}"));
        let numbers = |column: &str| reader.int64(column).unwrap().into_iter().flatten();
        match table {
            Table::Stacks => stacks.extend(numbers("stack_id")),
            Table::Samples => {
                let leaves = reader.int64("leaf_location_id").unwrap();
                // A wait of the beginning of a thread may have a stack without frames.
                let with_frames = numbers("stack_id").zip(leaves).filter(|(_, leaf)| leaf.is_some());
                used.extend(with_frames.map(|(stack, _)| stack));
                count += numbers("samples").sum::<i64>();
            }
            Table::Frames | Table::Builds | Table::Hosts => {}
        }
    }
    assert!(used.is_subset(&stacks), "samples without their stacks");
    count
}
