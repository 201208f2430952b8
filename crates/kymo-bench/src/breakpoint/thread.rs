//! Threads that inherit watchpoints: what creating and joining one costs.
//!
//! Workers share a number of batches. A batch creates threads, each of which waits; then all of them are woken and joined. Each thread
//! takes a slot for each watchpoint of the process when it is created, and gives it back at its end.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use kymo_perf::sys::{BareThread, Descriptor};
use serde_json::json;

use super::{Go, REPEAT, spawn, watch, write_total};
use crate::{Format, SCHEMA_VERSION};

const NAME: &str = "breakpoint/thread";

/// Create and join threads that inherit watchpoints
#[derive(Debug, Args)]
#[command(
    after_help = "Options and output are those of `perf bench breakpoint thread`. With -b 0 it is the bare cost of threads.\n\nExample: kymo bench breakpoint thread -r 30 -b 4 -p 64 -t 64"
)]
pub(crate) struct ThreadArgs {
    /// Watchpoints of the process
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(0..=64))]
    breakpoints: u32,
    /// Workers that create threads at the same time
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    parallelism: u32,
    /// Threads of a batch
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    threads: u32,
    /// Batches in all [default: 10]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &ThreadArgs, format: Format, repeat: Option<u32>) -> anyhow::Result<ExitCode> {
    let repeat = args.repeat.or(repeat).unwrap_or(REPEAT);
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        out.flush()?;
    }
    let took = create(args, repeat)?;
    let each_us = took.as_secs_f64() * 1e6 / f64::from(repeat) / f64::from(args.threads);
    if args.json {
        let json = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "breakpoints": args.breakpoints,
            "parallelism": args.parallelism,
            "threads": args.threads,
            "batches": repeat,
            "total_ns": took.as_nanos() as u64,
            "operation_us": each_us,
            "operation_us_per_worker": each_us * f64::from(args.parallelism),
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if text {
        // The number of batches, as perf has it.
        let ThreadArgs { breakpoints, parallelism, .. } = args;
        writeln!(
            out,
            "# Created/joined {repeat} threads with {breakpoints} breakpoints and {parallelism} parallelism"
        )?;
    }
    write_total(&mut out, format, took)?;
    if text {
        writeln!(out, "\n {each_us:>14.6} usecs/op")?;
        writeln!(out, " {:>14.6} usecs/op/cpu", each_us * f64::from(args.parallelism))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What went wrong first in a worker.
type First = Arc<Mutex<Option<anyhow::Error>>>;

/// From the first worker's start to the last one's end.
fn create(args: &ThreadArgs, repeat: u32) -> anyhow::Result<Duration> {
    let watched = vec![0; args.breakpoints as usize];
    let watchpoints = watched.iter().map(watch).collect::<anyhow::Result<Vec<Descriptor>>>()?;
    let (left, problem) = (Arc::new(AtomicI64::new(repeat.into())), First::default());
    let since = Instant::now();
    let mut workers = Vec::with_capacity(args.parallelism as usize);
    for _ in 0..args.parallelism {
        let (left, problem, threads) = (Arc::clone(&left), Arc::clone(&problem), args.threads);
        workers.push(spawn(move || {
            // Relaxed: nothing but the count is shared.
            while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                if let Err(error) = batch(threads) {
                    problem.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        })?);
    }
    workers.into_iter().for_each(BareThread::join);
    let took = since.elapsed();
    drop(watchpoints);
    match problem.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(problem) => Err(problem),
        None => Ok(took),
    }
}

fn batch(threads: u32) -> anyhow::Result<()> {
    let go = Arc::new(Go::default());
    let mut created = Vec::with_capacity(threads as usize);
    let mut problem = None;
    for _ in 0..threads {
        let go = Arc::clone(&go);
        match spawn(move || go.wait()) {
            Ok(thread) => created.push(thread),
            Err(error) => {
                problem = Some(error);
                break;
            }
        }
    }
    go.give()?;
    created.into_iter().for_each(BareThread::join);
    problem.map_or(Ok(()), Err)
}
