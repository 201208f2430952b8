//! What a slot costs in the ledger and in the account with one list, by CPUs, tasks and threads.
//!
//! Run with `cargo run --release -p kymo-core --features model --example ledger_cost -- [OPTIONS]`. The work is that of a program whose
//! threads inherit breakpoints: workers (`-p`) share a number of batches (`-r`); a batch makes tasks (`-t`), each of which reserves
//! so many slots (`-b`) anywhere; then all of them end. Other tasks (`--tasks`), with as many slots each, live all the time. With
//! `--bound PERCENT`, so many of the reservations are for a CPU instead: these stop everybody.
//!
//! Without options it prints tables: how the cost depends on CPUs, tasks and threads. With any, one run of both accounts in the form
//! of perf's `bench breakpoint thread`; `--model-r` batches are for the slow one (0: leave it out).
use kymo_core::breakpoint::model::OneList;
use kymo_core::breakpoint::{Accounts, Config, CpuId, Kind, Ledger, Slots, Target, TaskId};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[derive(Clone, Copy)]
struct Shape {
    cpus: usize,
    tasks: usize,
    breakpoints: usize,
    workers: usize,
    threads: usize,
    batches: usize,
    bound_percent: usize,
}

const ONE: Shape =
    Shape { cpus: 256, tasks: 0, breakpoints: 4, workers: 1, threads: 64, batches: 1_000, bound_percent: 0 };

fn config(shape: Shape) -> Config {
    Config { cpus: shape.cpus, slots: Slots::Shared(shape.breakpoints.clamp(4, 16)) }
}

/// The tasks that live all the time, with their slots.
fn standing<A: Accounts>(account: &A, shape: Shape) -> Vec<A::Reservation> {
    let slots = |number| {
        let task = account.task(TaskId(number as u64));
        let slot = move |_| account.reserve(Target::Task(&task), Kind::READ_WRITE).expect("its own slots");
        (0..shape.breakpoints).map(slot).collect::<Vec<_>>()
    };
    (0..shape.tasks).flat_map(slots).collect()
}

/// How long the batches take, from the moment at which all workers stand ready.
fn run<A: Accounts>(account: &A, shape: Shape) -> Duration {
    let (left, start) = (AtomicUsize::new(shape.batches), Barrier::new(shape.workers + 1));
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    std::thread::scope(|scope| {
        let worker = || {
            let mut requests = 0;
            start.wait();
            while take() {
                let mut held = Vec::with_capacity(shape.threads * shape.breakpoints);
                for number in 0..shape.threads {
                    let task = account.task(TaskId(number as u64));
                    for _ in 0..shape.breakpoints {
                        requests += 100;
                        let for_cpu = shape.bound_percent > 0 && requests >= 10_000 / shape.bound_percent;
                        let target = if for_cpu {
                            requests = 0;
                            Target::Cpu(CpuId((number % shape.cpus) as u32))
                        } else {
                            Target::Task(&task)
                        };
                        match account.reserve(target, Kind::READ_WRITE) {
                            Ok(slot) => held.push(slot),
                            // A CPU finds tasks that have all slots; a task finds a CPU that has one.
                            Err(error) => assert!(shape.bound_percent > 0, "{error}"),
                        }
                    }
                }
            }
            Instant::now()
        };
        let workers: Vec<_> = (0..shape.workers).map(|_| scope.spawn(worker)).collect();
        let begin = Instant::now();
        start.wait();
        let ends = workers.into_iter().map(|worker| worker.join().expect("a worker only counts"));
        ends.max().expect("at least one worker").duration_since(begin)
    })
}

fn report<A: Accounts>(name: &str, account: &A, shape: Shape) -> f64 {
    let standing = standing(account, shape);
    let time = run(account, shape);
    drop(standing);
    assert!(account.is_unused(), "something is left");
    let us = time.as_secs_f64() * 1e6 / (shape.batches * shape.threads) as f64;
    println!(
        "# {name}: {} batches of {} tasks with {} breakpoints, {} workers, {} CPUs, {} other tasks, {} % for CPUs",
        shape.batches,
        shape.threads,
        shape.breakpoints,
        shape.workers,
        shape.cpus,
        shape.tasks,
        shape.bound_percent
    );
    println!("     Total time: {:.3} [sec]\n", time.as_secs_f64());
    println!("{us:>20.6} usecs/op");
    println!("{:>20.6} usecs/op/cpu\n", us * shape.workers as f64);
    us
}

/// The median of some runs, in nanoseconds per request (half of them give back).
fn cost_ns(shape: Shape) -> f64 {
    let ledger = Ledger::new(config(shape)).expect("a sound config");
    let standing = standing(&ledger, shape);
    let requests = (shape.batches * shape.threads * shape.breakpoints * 2) as f64;
    let mut rounds: Vec<f64> = (0..9).map(|_| run(&ledger, shape).as_nanos() as f64 / requests).collect();
    drop(standing);
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn tables() {
    println!("ns per request (reserve or release, the making of the task included), one worker");
    for (percent, what) in [(0, "tasks only"), (1, "1 % for CPUs")] {
        let one = Shape { bound_percent: percent, ..ONE };
        println!("{what}\n{:>9} {:>9}", "CPUs", "ns");
        for cpus in [16, 64, 256, 1_024, 4_096] {
            println!("{cpus:>9} {:>9.1}", cost_ns(Shape { cpus, ..one }));
        }
        println!("{:>9} {:>9}", "tasks", "ns");
        for tasks in [64, 4_096, 65_536, 1_000_000] {
            // With fewer slots than there are, or no CPU would ever get one.
            println!("{tasks:>9} {:>9.1}", cost_ns(Shape { tasks, breakpoints: 3, ..one }));
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{:>9} {:>14} {:>14}", "workers", "requests/us", "of linear, %");
    let mut one = 0.0;
    for workers in 1..=cores {
        let rate = 1e3 / cost_ns(Shape { workers, batches: 1_000 * workers, ..ONE });
        one = if workers == 1 { rate } else { one };
        println!("{workers:>9} {rate:>14.2} {:>14.0}", 100.0 * rate / one / workers as f64);
    }
}

fn main() {
    let mut shape = Shape { batches: 10, threads: 1, breakpoints: 1, ..ONE };
    let mut model_batches = None;
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_none() {
        return tables();
    }
    while let Some(option) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value: usize = value.unwrap_or_else(|| usage(&option));
        match option.as_str() {
            "--cpus" => shape.cpus = value,
            "--tasks" => shape.tasks = value,
            "-b" => shape.breakpoints = value,
            "-p" => shape.workers = value.max(1),
            "-t" => shape.threads = value.max(1),
            "-r" => shape.batches = value.max(1),
            "--bound" => shape.bound_percent = value.min(100),
            "--model-r" => model_batches = Some(value),
            _ => usage(&option),
        }
    }
    let engine = report("ledger", &Ledger::new(config(shape)).expect("a sound config"), shape);
    let model_shape = Shape { batches: model_batches.unwrap_or(shape.batches), ..shape };
    if model_shape.batches > 0 {
        let model = report("one list", &OneList::new(config(shape)).expect("a sound config"), model_shape);
        println!("the ledger is {:.0} times faster per operation", model / engine);
    }
}

fn usage(option: &str) -> ! {
    eprintln!(
        "{option}: not an option with a number. Options: --cpus --tasks -b (breakpoints) -p (workers) -t (tasks of a batch) -r (batches) \
         --bound (percent) --model-r (batches of the model, 0 for none)"
    );
    std::process::exit(2)
}
