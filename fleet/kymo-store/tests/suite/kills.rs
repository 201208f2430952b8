//! Daemons write, engines read, and compactors are killed: all at once, in one dataset.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kymo_dataset::{DatasetStore, Table};

use crate::Place;
use crate::minutes::{self, Sums};

/// Compactors that are killed, at least.
const KILLS: usize = 40;
/// Minutes that are written; afterwards some are put again.
const MINUTES: i64 = 40;
/// A compactor is killed before that, however long it would take.
const LONGEST: Duration = Duration::from_secs(2);
/// Hosts that write.
const HOSTS: u32 = 3;
/// One of so many batches is put again later: its daemon did not hear that it was taken.
const AGAIN: usize = 5;

/// Numbers that look random and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// What is in the dataset for sure: a batch is here when all of its files are.
#[derive(Default)]
struct Written(Mutex<Sums>);

impl Written {
    fn lock(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a file as daemons do: again, until an answer has come.
fn put(store: &dyn DatasetStore, file: &kymo_dataset::DatasetFile) {
    for _ in 0..20 {
        if store.put(file).is_ok() {
            return;
        }
    }
    panic!("{} is not taken", file.path);
}

fn write(place: &Place, written: &Written, is_over: &AtomicBool) {
    let (bucket, mut random, mut again) = (place.bucket(), Random(7), Vec::new());
    for minute in 0..MINUTES {
        for host in 0..HOSTS {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let files = minutes::files(host, minute);
            files.iter().for_each(|file| put(&bucket, file));
            written.lock().extend([minutes::sums(host, minute)]);
            again.push(files);
            if random.below(AGAIN as u64) == 0 {
                let old = &again[random.below(again.len() as u64) as usize];
                old.iter().for_each(|file| put(&bucket, file));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    while !is_over.load(Ordering::Relaxed) {
        let old = &again[random.below(again.len() as u64) as usize];
        old.iter().for_each(|file| put(&bucket, file));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Checks what a reader counted: nothing twice, nothing in part, and all that was there before.
fn check(found: &Sums, before: &Sums, who: &str) {
    for (key, value) in before {
        assert_eq!(found.get(key), Some(value), "{who}: {key:?} of {} batches", before.len());
    }
    let all: BTreeMap<_, _> =
        (0..HOSTS).flat_map(|host| (0..MINUTES).map(move |minute| minutes::sums(host, minute))).collect();
    for (key, value) in found.iter().filter(|(key, _)| !before.contains_key(key)) {
        // One that is being written may lack services; none is counted twice.
        assert!(*value <= all[key], "{who}: {key:?} has {value} instead of {}", all[key]);
    }
}

/// Counts through the library until the end.
fn read(place: &Place, written: &Written, is_over: &AtomicBool, reads: &AtomicUsize) {
    let bucket = place.bucket();
    while !is_over.load(Ordering::Relaxed) {
        let before = written.lock().clone();
        match minutes::read(&bucket) {
            Ok(found) => {
                check(&found, &before, "a reader");
                reads.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => assert!(error.is_not_found(), "{error}"),
        }
    }
}

/// `kymo-sql` beside this program, where it was built.
fn kymo_sql() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_BIN_EXE_kymo-store")).with_file_name("kymo-sql");
    program.is_file().then_some(program)
}

/// Counts through kymo sql until the end.
fn query(place: &Place, written: &Written, is_over: &AtomicBool, reads: &AtomicUsize) {
    let Some(program) = kymo_sql() else {
        return eprintln!("SKIPPED kills: no kymo-sql beside kymo-store");
    };
    let query =
        "SELECT host_id, CAST(time AS BIGINT) AS time, SUM(value) AS value FROM samples GROUP BY 1, 2";
    while !is_over.load(Ordering::Relaxed) {
        let before = written.lock().clone();
        if before.is_empty() {
            continue;
        }
        let ran = place.command(&program).args(["--json", query, &place.url]).output().expect("started");
        let errors = String::from_utf8_lossy(&ran.stderr);
        if !ran.status.success() {
            assert!(errors.contains("was compacted meanwhile"), "{errors}");
            continue;
        }
        let answer: serde_json::Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        let number = |row: &serde_json::Value, name: &str| row[name].as_i64().expect("a number");
        let rows = answer["rows"].as_array().expect("rows");
        let found =
            rows.iter().map(|row| ((number(row, "host_id"), number(row, "time")), number(row, "value")));
        check(&found.collect(), &before, "kymo sql");
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

fn start(place: &Place) -> Child {
    let mut command = place.store(&["compact", "--in-place", "--quiet", &place.url]);
    command.stderr(Stdio::piped()).spawn().expect("started")
}

/// What a compactor that ended by itself may say: of a store that hung up, or others in its way.
fn succeeded(child: Child) -> bool {
    let done = child.wait_with_output().expect("a status");
    let errors = String::from_utf8_lossy(&done.stderr);
    if !done.status.success() && done.status.code().is_some() {
        eprintln!("a compactor: {errors}");
    }
    done.status.success()
}

/// Kills compactors at random moments of their work, at times two at once; how many died, and how
/// many ended by themselves.
fn compact_and_kill(place: &Place, is_over: &AtomicBool) -> (usize, usize) {
    let (mut random, mut killed, mut ended) = (Random(11), 0, 0);
    let mut whole = Duration::from_millis(200);
    while killed < KILLS && !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let mut children = vec![start(place)];
        if random.below(3) == 0 {
            children.push(start(place));
        }
        if random.below(8) == 0 {
            ended += children.into_iter().map(succeeded).filter(|is_done| *is_done).count();
            whole = begun.elapsed();
            continue;
        }
        std::thread::sleep(Duration::from_micros(random.below(whole.min(LONGEST).as_micros() as u64)));
        for mut child in children {
            // SIGKILL; one that has ended does not mind.
            child.kill().expect("killed");
            killed += usize::from(child.wait().expect("a status").code().is_none());
        }
    }
    (killed, ended)
}

/// Ends the other threads where one panics.
struct OverAtPanic<'a>(&'a AtomicBool);

impl Drop for OverAtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Checks that each interval is counted exactly once, by all readers at any time and afterwards,
/// while daemons write, put again what they did not hear of, and 40 compactors are killed by
/// SIGKILL.
#[test]
fn killed_compactors_lose_nothing_and_count_nothing_twice() {
    let place = Place::new("killed");
    let (written, is_over) = (Written::default(), AtomicBool::new(false));
    let (reads, queries) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (killed, ended) = std::thread::scope(|scope| {
        let _over = OverAtPanic(&is_over);
        scope.spawn(|| {
            let _over = OverAtPanic(&is_over);
            write(&place, &written, &is_over);
        });
        scope.spawn(|| {
            let _over = OverAtPanic(&is_over);
            read(&place, &written, &is_over, &reads);
        });
        scope.spawn(|| {
            let _over = OverAtPanic(&is_over);
            query(&place, &written, &is_over, &queries);
        });
        while written.lock().len() < 5 && !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let done = compact_and_kill(&place, &is_over);
        is_over.store(true, Ordering::Relaxed);
        done
    });
    let bucket = place.bucket();
    let sums = written.lock().clone();
    // The writer may have been in the middle of a batch.
    let is_whole = |found: &Sums| check(found, &sums, "afterwards");
    is_whole(&minutes::read(&bucket).expect("sums"));
    let tries = (0..5).map(|_| succeeded(start(&place)));
    assert!(tries.into_iter().any(|is_done| is_done), "no compactor ends");
    is_whole(&minutes::read(&bucket).expect("sums"));
    let files = bucket.files(Table::Samples.name()).expect("files").len();
    let folders = 2 * minutes::SERVICES.len();
    assert!(files <= folders, "{files} files in {folders} folders");
    assert!(killed >= KILLS && sums.len() > KILLS && reads.load(Ordering::Relaxed) > 0);
    println!(
        "{killed} compactors killed, {ended} ended; {} batches; {} reads, {} queries; {files} files",
        sums.len(),
        reads.into_inner(),
        queries.into_inner()
    );
}
