//! The program that `kymo demo` records: a little shop of threads that differ in what they do, so that every part of a
//! profile has something to show.
//!
//! | thread | what it does | what a profile shows |
//! |---|---|---|
//! | `mandelbrot` | computes a picture | one hot loop, with the inlined `escape_time` in it |
//! | `sorter` | sorts and counts words | the standard library's sort and B-tree below our functions |
//! | `collatz` | recursion of changing depth | deep stacks |
//! | `till-0`..`till-3` | serve customers from one locked till | time spent waiting, short bursts of work between |
//! | `burst` | sleeps, and every half second works hard | bursts on the timeline |
//!
//! It needs nothing and leaves nothing behind.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Mutex;
use std::thread::{Builder, scope, sleep};
use std::time::{Duration, Instant};

/// Runs it for so long; how many customers were served, and a checksum.
pub(super) fn run(length: Duration) -> (u64, u64) {
    let end = Instant::now() + length;
    let till = Mutex::new(Till { customers: 0, total: 0 });
    let done = scope(|scope| {
        let start = |name: &str, work: &'static (dyn Fn(Instant) -> u64 + Sync)| {
            Builder::new().name(name.into()).spawn_scoped(scope, move || work(end)).expect("a thread starts")
        };
        let workers = [
            start("mandelbrot", &mandelbrot),
            start("sorter", &sorter),
            start("collatz", &collatz),
            start("burst", &burst),
        ];
        let clerks = [0, 1, 2, 3].map(|number| {
            let name = format!("till-{number}");
            Builder::new().name(name).spawn_scoped(scope, || clerk(&till, end)).expect("a thread starts")
        });
        workers
            .into_iter()
            .chain(clerks)
            .map(|thread| thread.join().expect("a worker"))
            .fold(0, u64::wrapping_add)
    });
    let till = till.into_inner().expect("no clerk panicked");
    (till.customers, done ^ till.total)
}

/// Draws rows of a picture until the time is up.
#[inline(never)]
fn mandelbrot(end: Instant) -> u64 {
    let mut sum = 0_u64;
    for row in (0..512).cycle() {
        sum = sum.wrapping_add(draw_row(row));
        if Instant::now() >= end {
            break;
        }
        sleep(Duration::from_micros(300));
    }
    sum
}

#[inline(never)]
fn draw_row(row: u32) -> u64 {
    let y = f64::from(row) / 256.0 - 1.0;
    (0..512).map(|column| u64::from(escape_time(f64::from(column) / 192.0 - 2.0, y))).sum()
}

/// Always inlined: a profile that knows inlined functions shows it below `draw_row`.
#[inline(always)]
fn escape_time(x0: f64, y0: f64) -> u32 {
    let (mut x, mut y, mut steps) = (0.0_f64, 0.0_f64, 0);
    while x * x + y * y <= 4.0 && steps < 200 {
        (x, y) = (x * x - y * y + x0, 2.0 * x * y + y0);
        steps += 1;
    }
    steps
}

/// Sorts numbers and counts words, in turns.
#[inline(never)]
fn sorter(end: Instant) -> u64 {
    let mut state = 1;
    let mut sum = 0_u64;
    while Instant::now() < end {
        sum = sum.wrapping_add(sort_numbers(&mut state)).wrapping_add(count_words(&mut state));
        sleep(Duration::from_millis(1));
    }
    sum
}

#[inline(never)]
fn sort_numbers(state: &mut u64) -> u64 {
    let mut numbers: Vec<u64> = (0..20_000).map(|_| random(state)).collect();
    numbers.sort_unstable_by_key(|n| n.rotate_left(17));
    numbers[numbers.len() / 2]
}

#[inline(never)]
fn count_words(state: &mut u64) -> u64 {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..5_000 {
        *counts.entry(format!("word-{}", random(state) % 700)).or_default() += 1;
    }
    counts.values().copied().max().unwrap_or(0)
}

/// Recursion: the stack is as deep as a number's way to 1 is long.
#[inline(never)]
fn collatz(end: Instant) -> u64 {
    let mut sum = 0_u64;
    for first in 1.. {
        sum = sum.wrapping_add(way_to_one(first));
        if first % 2_000 == 0 {
            if Instant::now() >= end {
                break;
            }
            sleep(Duration::from_micros(200));
        }
    }
    sum
}

#[inline(never)]
fn way_to_one(n: u64) -> u64 {
    match n {
        0 | 1 => 0,
        n if n % 2 == 0 => black_box(way_to_one(n / 2)) + 1,
        n => black_box(way_to_one(3 * n + 1)) + 1,
    }
}

/// What the clerks share.
struct Till {
    customers: u64,
    total: u64,
}

/// Serves customers; all clerks need the one till, and hold it while they count.
#[inline(never)]
fn clerk(till: &Mutex<Till>, end: Instant) -> u64 {
    let mut state = 7;
    while Instant::now() < end {
        let price = pack_goods(&mut state);
        take_money(till, price);
    }
    state
}

#[inline(never)]
fn pack_goods(state: &mut u64) -> u64 {
    (0..2_000).map(|_| random(state) % 100).sum()
}

#[inline(never)]
fn take_money(till: &Mutex<Till>, price: u64) {
    let mut till = till.lock().expect("no clerk panicked");
    till.customers += 1;
    till.total = count_coins(till.total, price);
    sleep(Duration::from_micros(100));
}

#[inline(never)]
fn count_coins(total: u64, price: u64) -> u64 {
    (0..3_000).fold(total.wrapping_add(price), |sum, coin| black_box(sum.rotate_left(5) ^ coin))
}

/// Does nothing for long, then much at once.
#[inline(never)]
fn burst(end: Instant) -> u64 {
    let mut sum = 0;
    while let Some(left) = end.checked_duration_since(Instant::now()) {
        sleep(left.min(Duration::from_millis(400)));
        let stop = Instant::now() + left.min(Duration::from_millis(100));
        while Instant::now() < stop {
            sum ^= work_hard(sum);
        }
    }
    sum
}

#[inline(never)]
fn work_hard(seed: u64) -> u64 {
    let mut state = seed | 1;
    (0..20_000).fold(0, |sum, _| sum ^ random(&mut state))
}

/// xorshift: the same numbers in every run.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
