//! How fast user stacks are unwound: samples per second on one core, warm caches.
//!
//! `cargo run --release --example unwind_speed -- perf.data [seconds]`
//! where perf.data comes from `perf record --call-graph dwarf`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

#[path = "../tests/suite/recorded.rs"]
mod recorded;

use kymo_profile::unwind::{Convention, MAX_FRAMES, Stop, UnwindModules, Unwinder};

fn main() {
    let mut args = std::env::args().skip(1);
    let path = std::path::PathBuf::from(args.next().expect("usage: unwind_speed FILE [SECONDS]"));
    let seconds: f64 = args.next().and_then(|n| n.parse().ok()).unwrap_or(2.0);
    let modules = UnwindModules::new();
    let samples = recorded::samples(&path, &modules);
    assert!(!samples.is_empty(), "the recording has no samples with user registers and stack");
    let mut unwinder = Unwinder::new(Convention::Return);
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    let mut round = |unwinder: &mut Unwinder| {
        for sample in &samples {
            frames.clear();
            unwinder.unwind(&sample.space, &sample.regs, &sample.stack, MAX_FRAMES, &mut frames);
        }
    };
    let cold = Instant::now();
    round(&mut unwinder);
    let cold = cold.elapsed();
    let warm_from = unwinder.stats().clone();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        round(&mut unwinder);
    }
    let wall = start.elapsed().as_secs_f64();
    let stats = unwinder.stats();
    let (count, depth) = (stats.samples - warm_from.samples, stats.frames - warm_from.frames);
    let stack_bytes: usize = samples.iter().map(|s| s.stack.len()).sum();
    let threads: HashSet<i32> = samples.iter().map(|s| s.key.0).collect();
    println!(
        "{} samples of {} threads, {:.1} frames and {:.0} stack bytes each; first round {:.1} ms ({} rules worked out)",
        samples.len(),
        threads.len(),
        depth as f64 / count as f64,
        stack_bytes as f64 / samples.len() as f64,
        cold.as_secs_f64() * 1e3,
        warm_from.rules_parsed,
    );
    println!(
        "warm: {:.0} samples/s, {:.1} ns per frame, {} rules worked out again",
        count as f64 / wall,
        wall * 1e9 / depth as f64,
        stats.rules_parsed - warm_from.rules_parsed
    );
    for cause in Stop::ALL {
        println!("{:9} {}", stats.stopped(cause), cause.label());
    }
}
