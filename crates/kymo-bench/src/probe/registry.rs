//! The registry of probes alone: no program, no patched text, only the way from a key to its consumers. Beside it the same under locks, as
//! kernels had it before.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use kymo_agent::fence::Membarrier;
use kymo_core::epoch::{Fence, Symmetric, TaskId};
use kymo_core::probe::model::Locked;
use kymo_core::probe::{Consumer, Key, ModuleId, NoSites, Registry, Verdict};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::SCHEMA_VERSION;
use crate::needed;
use crate::stats::{Stats, median};

const NAME: &str = "probe/registry";
/// Between two looks at the clock's flag.
const BATCH: u64 = 512;

/// Hit probes of a registry on more and more threads, without a program
#[derive(Debug, Args)]
#[command(
    after_help = "All threads hit the same probe, as a hot function is hit. Rounds of the registry and of the locked model alternate; a\nline is the mean of its rounds, +- the standard error. ns/hit is the median time of one thread.\n\nExample: kymo bench probe registry -p 1,2,4"
)]
pub(crate) struct RegistryArgs {
    /// Threads, each on a CPU of its own as far as there are enough [default: 1, 2, 4 ... as many as CPUs]
    #[arg(short = 'p', long = "threads", value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// Probes in the registry
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    probes: u32,
    /// Consumers of the probe that is hit
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    consumers: u32,
    /// Milliseconds of a round
    #[arg(long, value_name = "MS", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    round_ms: u64,
    /// Rounds of each
    #[arg(short, long, value_name = "N", default_value = "7", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Leave the model out
    #[arg(long)]
    no_model: bool,
    /// Use the fence of the processor where the kernel could order threads for the reader
    #[arg(long)]
    no_membarrier: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Counts for the thread that hits: nothing is shared, so that what is measured is the way and not the counting.
struct Count;

impl Consumer for Count {
    type Context = u64;

    #[inline]
    fn hit(&self, count: &mut u64) -> Verdict {
        *count += 1;
        Verdict::Keep
    }
}

fn key(offset: u32) -> Key {
    Key { module: ModuleId(1), offset: u64::from(offset) * 16 }
}

/// Hits of threads for some time: of each, and how long it hit.
type Round = Vec<(u64, Duration)>;

/// Lets as many threads as `cpus` hit in batches until the time is over. `work` makes, on its thread, what does a batch.
fn round<W: FnMut()>(threads: u32, cpus: &[usize], time: Duration, work: impl Fn(u64) -> W + Sync) -> Round {
    let (stop, next, start) =
        (AtomicBool::new(false), AtomicUsize::new(0), Barrier::new(threads as usize + 1));
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                let hit = || {
                    // Relaxed: any number that nobody else has.
                    let me = next.fetch_add(1, Ordering::Relaxed);
                    let mut set = CpuSet::new();
                    set.set(cpus[me % cpus.len()]);
                    // Where it cannot be pinned it runs where it runs.
                    _ = sched_setaffinity(None, &set);
                    let mut batch = work(me as u64);
                    (0..16).for_each(|_| batch());
                    start.wait();
                    let since = Instant::now();
                    let mut batches = 0;
                    // At least once: a thread that got no CPU in time has hit something all the same.
                    loop {
                        batch();
                        batches += 1;
                        // Relaxed: late by a batch is no harm.
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    (batches * BATCH, since.elapsed())
                };
                needed(std::thread::Builder::new().spawn_scoped(scope, hit))
            })
            .collect();
        start.wait();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        handles.into_iter().map(|handle| handle.join().expect("threads only count")).collect()
    })
}

/// One subject: the registry or its model, ready to be hit.
trait Subject: Sync {
    fn batch(&self, task: u64) -> Box<dyn FnMut() + '_>;
}

impl<F: Fence> Subject for Registry<Count, NoSites, F> {
    fn batch(&self, task: u64) -> Box<dyn FnMut() + '_> {
        let (reader, mut count) = (self.join(TaskId(task)), 0);
        Box::new(move || {
            let hot = std::hint::black_box(key(0));
            for _ in 0..BATCH {
                reader.enter().hit(hot, &mut count);
            }
            std::hint::black_box(count);
        })
    }
}

impl Subject for Locked<Count> {
    fn batch(&self, _: u64) -> Box<dyn FnMut() + '_> {
        let mut count = 0;
        Box::new(move || {
            let hot = std::hint::black_box(key(0));
            for _ in 0..BATCH {
                self.hit(hot, &mut count);
            }
            std::hint::black_box(count);
        })
    }
}

/// What rounds of one subject at one number of threads showed.
#[derive(Default)]
struct Line {
    millions: Stats,
    ns: Vec<f64>,
}

impl Line {
    fn add(&mut self, round: &Round) {
        // Threads begin and end at slightly different moments: each one's rate is by its own time.
        let rates = round.iter().map(|(hits, time)| *hits as f64 / time.as_secs_f64());
        self.millions.add(rates.sum::<f64>() / 1e6);
        self.ns.extend(round.iter().map(|(hits, time)| time.as_nanos() as f64 / *hits as f64));
    }

    fn write(&self, out: &mut dyn Write, name: &str, threads: u32) -> io::Result<()> {
        let (mean, error) = (self.millions.mean(), self.millions.error());
        let (each, ns) = (mean / f64::from(threads), median(&self.ns));
        writeln!(
            out,
            "{name:<14} ({threads:>2} cpus): {mean:>8.3} ± {error:.3}M/s ({each:>8.3}M/s/cpu) {ns:>9.2} ns/hit"
        )
    }

    fn json(&self) -> Value {
        json!({
            "millions_per_s": self.millions.mean(),
            "error": self.millions.error(),
            "ns_per_hit": median(&self.ns),
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: &RegistryArgs) -> anyhow::Result<ExitCode> {
    let cpus = sched_getaffinity(None).context("failed to ask for the CPUs of this thread")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect();
    let threads = if args.threads.is_empty() { doubling(cpus.len() as u32) } else { args.threads.clone() };
    let fence = if args.no_membarrier { None } else { Membarrier::register() };
    let reader = if fence.is_some() { "membarrier" } else { "fence" };
    let subject: Box<dyn Subject> = match fence {
        Some(fence) => Box::new(filled(fence, args)?),
        None => Box::new(filled(Symmetric, args)?),
    };
    let model = (!args.no_model).then(|| locked(args));
    let mut out = io::stdout().lock();
    if !args.json {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        let (probes, consumers) = (args.probes, args.consumers);
        writeln!(
            out,
            "# {probes} probes, {consumers} consumers of the one that is hit, readers by {reader}"
        )?;
    }
    let (time, mut results) = (Duration::from_millis(args.round_ms), Vec::new());
    for &threads in &threads {
        let (mut engine, mut before) = (Line::default(), Line::default());
        for _ in 0..args.rounds {
            engine.add(&round(threads, &cpus, time, |task| subject.batch(task)));
            if let Some(model) = &model {
                before.add(&round(threads, &cpus, time, |task| model.batch(task)));
            }
        }
        if !args.json {
            engine.write(&mut out, "registry-entry", threads)?;
            if model.is_some() {
                before.write(&mut out, "locked-entry", threads)?;
            }
            out.flush()?;
        }
        results.push(json!({
            "threads": threads,
            "registry": engine.json(),
            "locked": model.is_some().then(|| before.json()),
        }));
    }
    if args.json {
        let json = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "cpus": cpus.len(),
            "probes": args.probes,
            "consumers": args.consumers,
            "hit": "entry",
            "reader": reader,
            "results": results,
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// 1, 2, 4 and so on, and the number itself.
fn doubling(cpus: u32) -> Vec<u32> {
    let mut threads: Vec<u32> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < cpus).collect();
    threads.push(cpus.max(1));
    threads
}

fn filled<F: Fence>(fence: F, args: &RegistryArgs) -> anyhow::Result<Registry<Count, NoSites, F>> {
    let registry = Registry::new(fence, NoSites);
    let all = (0..args.probes).chain((1..args.consumers).map(|_| 0));
    let asked = all.map(|offset| (key(offset).into(), Arc::new(Count)));
    registry.register_all(asked).into_iter().collect::<Result<Vec<_>, _>>()?;
    registry.synchronize(TaskId(u64::MAX))?;
    Ok(registry)
}

fn locked(args: &RegistryArgs) -> Locked<Count> {
    let locked = Locked::default();
    for offset in (0..args.probes).chain((1..args.consumers).map(|_| 0)) {
        locked.register(key(offset), Arc::new(Count));
    }
    locked
}

#[cfg(test)]
mod tests {
    use super::doubling;

    /// Checks which numbers of threads are measured when none is asked for.
    #[test]
    fn numbers_of_threads() {
        assert_eq!(doubling(1), [1]);
        assert_eq!(doubling(2), [1, 2]);
        assert_eq!(doubling(6), [1, 2, 4, 6]);
        assert_eq!(doubling(8), [1, 2, 4, 8]);
    }
}
