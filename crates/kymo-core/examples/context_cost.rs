//! What a switch between two tasks of one family costs, by the number of events that count them.
//!
//! Run with `cargo run --release -p kymo-core --features model --example context_cost`. The
//! counters are a load each, so the eager scheduler's column is its bookkeeping alone; counters
//! that cost something to touch only make its case worse.
use kymo_core::context::model::Eager;
use kymo_core::context::{Attr, Child, CpuId, Engine, Pmu, Scheduler, Source};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const CPU: CpuId = CpuId(0);

/// A counter and a clock that cost nothing to read.
#[derive(Default)]
struct Free(AtomicU64);

impl Pmu for Free {
    fn now_ns(&self, _: CpuId) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn read(&self, _: CpuId, _: Source) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The median of several rounds, in nanoseconds per call.
fn cost(mut what: impl FnMut()) -> f64 {
    const CALLS: u32 = 200_000;
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            let begin = Instant::now();
            (0..CALLS).for_each(|_| what());
            begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn switch<S: Scheduler>(engine: &S, events: usize, inherit_stat: bool) -> f64 {
    let mut a = engine.task();
    for _ in 0..events {
        engine.open(&mut a, &[Attr { inherit_stat, ..Attr::family(Source(0)) }]).expect("a sound event");
    }
    let mut b = engine.fork(&mut a, Child::Thread).expect("the parent lives");
    engine.enter(CPU, &mut a).expect("the CPU is idle");
    let mut here = true;
    let ns = cost(|| {
        let (from, to) = if here { (&mut a, &mut b) } else { (&mut b, &mut a) };
        black_box(engine.switch(CPU, black_box(from), black_box(to)))
            .expect("the first runs, the second rests");
        here = !here;
    });
    let _ = (engine.exit(&mut a), engine.exit(&mut b));
    ns
}

fn main() {
    println!(
        "ns per switch; two reads of the clock: {:.1}",
        cost(|| _ = black_box((Instant::now(), Instant::now())))
    );
    println!("{:>7} {:>8} {:>17} {:>8}", "events", "lazy", "lazy, per task", "eager");
    for events in [0, 1, 4, 16, 64] {
        let lazy = switch(&Engine::new(Free::default(), 1), events, false);
        let per_task = switch(&Engine::new(Free::default(), 1), events, true);
        let eager = switch(&Eager::new(Free::default(), 1), events, false);
        println!("{events:>7} {lazy:>8.1} {per_task:>17.1} {eager:>8.1}");
    }
    let engine = Engine::new(Free::default(), 1);
    let mut root = engine.task();
    engine.open(&mut root, &[Attr::family(Source(0))]).expect("a sound event");
    let ns = cost(|| drop(black_box(engine.fork(&mut root, Child::Thread))));
    println!("fork and end of a task with 1 event: {ns:.0}");
    let event = engine.open(&mut root, &[Attr::family(Source(0))]).expect("a sound event")[0];
    let tasks: Vec<_> =
        (0..10_000).map(|_| engine.fork(&mut root, Child::Thread).expect("it lives")).collect();
    let begin = Instant::now();
    const READS: u32 = 100;
    (0..READS).for_each(|_| _ = black_box(engine.read(event)));
    println!("read of a family of {}: {} us", tasks.len() + 1, (begin.elapsed() / READS).as_micros());
}
