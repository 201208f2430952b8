//! What watches cost: to start and to end one, by the number of threads, and a hit.
//!
//! Run with `cargo run --release -p kymo-agent --example watch_cost`. Medians.
use kymo_agent::watch::{Kind, release_slots, watch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn us(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// Starting and ending, each in microseconds.
fn start_and_end(place: &AtomicU64, rounds: usize) -> (f64, f64) {
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let since = Instant::now();
        let guard = watch(std::ptr::from_ref(place).addr(), 8, Kind::WRITE, |_| ()).expect("a watch");
        starts.push(us(since));
        let since = Instant::now();
        drop(guard);
        ends.push(us(since));
    }
    (median(starts), median(ends))
}

fn main() {
    let place = AtomicU64::new(0);
    if let Err(error) = watch(std::ptr::from_ref(&place).addr(), 8, Kind::WRITE, |_| ()) {
        eprintln!("{error}");
        std::process::exit(1)
    }
    release_slots();
    println!("{:>28} {:>12} {:>12} {:>12}", "other threads, asleep", "first, us", "start, us", "end, us");
    let mut threads = Vec::new();
    let end = Arc::new(AtomicBool::new(false));
    for count in [0, 1, 8, 64, 500, 2_000] {
        while threads.len() < count {
            let end = Arc::clone(&end);
            let wait = move || {
                while !end.load(Ordering::Relaxed) {
                    std::thread::park();
                }
            };
            threads.push(std::thread::Builder::new().stack_size(64 << 10).spawn(wait).expect("a thread"));
        }
        std::thread::sleep(Duration::from_millis(50));
        let first = Instant::now();
        drop(watch(std::ptr::from_ref(&place).addr(), 8, Kind::WRITE, |_| ()).expect("a watch"));
        let first = us(first);
        let (start, stop) = start_and_end(&place, if count > 100 { 15 } else { 300 });
        println!("{count:>28} {first:>12.1} {start:>12.1} {stop:>12.1}");
        release_slots();
    }
    end.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.thread().unpark();
        thread.join().expect("no panic");
    }
    for (kind, what) in
        [(Kind::WRITE, "a write that is told"), (Kind::READ_WRITE, "a read or write that is told")]
    {
        let guard = watch(std::ptr::from_ref(&place).addr(), 8, kind, |_| ()).expect("a watch");
        const HITS: u64 = 20_000;
        let rounds = (0..9).map(|_| {
            let since = Instant::now();
            (0..HITS).for_each(|value| place.store(value, Ordering::Relaxed));
            us(since) / HITS as f64
        });
        println!("{what:>28} {:>12.2} us", median(rounds.collect()));
        assert_eq!(guard.stop(), 9 * HITS);
    }
}
