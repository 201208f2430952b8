//! Readers and writers in every order that matters.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p kymo-core --lib --release gate::loom`. The value is in loom's cell, so a writer beside
//! anybody else is an error there, whatever is computed with it. A thread that waits for ever is one, too.
use super::{Gate, stand_in_lane};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

type Shared = Arc<Gate<(usize, AtomicUsize)>>;

fn read(gate: &Shared, lane: usize) -> usize {
    stand_in_lane(lane);
    let value = gate.read();
    // Relaxed: that the writer sees it is the gate's work.
    value.1.fetch_add(1, Ordering::Relaxed);
    value.0
}

fn write(gate: &Shared) -> usize {
    let mut value = gate.write();
    value.0 += 1;
    value.1.load(Ordering::Relaxed)
}

fn check(others: &[fn(&Shared)], preemptions: usize, body: impl Fn(&Shared) + Sync + Send + 'static) {
    let others = others.to_vec();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let gate = Arc::new(Gate::new((0, AtomicUsize::new(0))));
        let threads: Vec<_> = (others.iter().copied())
            .map(|other| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || other(&gate))
            })
            .collect();
        body(&gate);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let value = gate.write();
        assert_eq!(value.1.load(Ordering::Relaxed) + value.0, 4, "work was lost");
    });
}

/// Checks one reader who comes twice beside a writer who comes twice (G1, G2): what the reader sees only grows, and so does what the
/// writer sees of the reader.
#[test]
fn a_reader_and_a_writer() {
    let reader = |gate: &Shared| {
        let first = read(gate, 0);
        assert!(read(gate, 0) >= first);
    };
    check(&[reader], 3, |gate| {
        let first = write(gate);
        assert!(write(gate) >= first);
    });
}

/// Checks two readers in one lane, each of whom could be the last that wakes the writer (G1, G3).
#[test]
fn readers_in_one_lane() {
    check(&[|gate| _ = read(gate, 1), |gate| _ = read(gate, 1)], 2, |gate| {
        write(gate);
        write(gate);
    });
}

/// Checks two readers in two lanes: a lane that was empty stays empty for the writer (G1, G3).
#[test]
fn readers_in_two_lanes() {
    check(&[|gate| _ = read(gate, 0), |gate| _ = read(gate, 1)], 2, |gate| {
        write(gate);
        write(gate);
    });
}

/// Checks two writers and a reader that waits for one or both (G1, G5).
#[test]
fn two_writers() {
    check(&[|gate| _ = write(gate), |gate| _ = write(gate)], 2, |gate| {
        read(gate, 0);
        read(gate, 0);
    });
}
