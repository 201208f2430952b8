//! A reader, or two, beside who waits for them, in every order that matters.
//!
//! Run with
//! `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p kymo-core --lib --release epoch::loom`.
use super::{Domain, Symmetric, TaskId};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

struct Stage {
    domain: Domain<Symmetric>,
    /// Which of the values is published.
    current: AtomicUsize,
    /// Whether each is freed.
    freed: [AtomicUsize; 3],
}

fn check(body: impl Fn(&Arc<Stage>) + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(model.preemption_bound.unwrap_or(2));
    model.check(move || {
        body(&Arc::new(Stage {
            domain: Domain::new(Symmetric),
            current: AtomicUsize::new(0),
            freed: std::array::from_fn(|_| AtomicUsize::new(0)),
        }))
    });
}

fn read(stage: &Stage, task: u64) {
    let reader = stage.domain.join(TaskId(task));
    let _section = reader.enter();
    // Acquire: as a pointer would be followed.
    let mine = stage.current.load(Ordering::Acquire);
    assert_eq!(stage.freed[mine].load(Ordering::Relaxed), 0, "freed in a reader's hands");
}

fn replace(stage: &Stage, task: u64) {
    let old = stage.current.swap(task as usize, Ordering::AcqRel);
    stage.domain.synchronize(TaskId(task)).unwrap();
    stage.freed[old].store(1, Ordering::Relaxed);
}

/// As [`replace`], by a wait that gives up at once if a reader is inside; then nothing is freed.
fn try_replace(stage: &Stage, task: u64) {
    let old = stage.current.swap(task as usize, Ordering::AcqRel);
    if stage.domain.try_synchronize(TaskId(task), || true).is_ok() {
        stage.freed[old].store(1, Ordering::Relaxed);
    }
}

/// Checks that a reader never holds what was freed after a grace period, entering twice (E1, E2).
#[test]
fn a_reader_and_a_writer() {
    check(|stage| {
        let other = Arc::clone(stage);
        let reader = thread::spawn(move || {
            read(&other, 10);
            read(&other, 10);
        });
        replace(stage, 1);
        reader.join().unwrap();
    });
}

/// A reader, this writer, and one that replaces.
fn a_reader_and_two_writers(first: fn(&Stage, u64)) {
    check(move |stage| {
        let (a, b) = (Arc::clone(stage), Arc::clone(stage));
        let reader = thread::spawn(move || read(&a, 10));
        let writer = thread::spawn(move || first(&b, 1));
        replace(stage, 2);
        reader.join().unwrap();
        writer.join().unwrap();
        assert!((1..=2).contains(&stage.domain.grace_periods()));
    });
}

/// Checks that two writers who share grace periods do not free early, whoever waits for whom (E1,
/// E4).
#[test]
fn two_writers_and_a_reader() {
    a_reader_and_two_writers(replace);
}

/// Checks that a writer whose wait expires frees nothing, and that one beside it that waits without
/// a bound is neither left alone nor served too early (E1, E6).
#[test]
fn a_writer_that_gives_up() {
    a_reader_and_two_writers(try_replace);
}
