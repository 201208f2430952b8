//! A watchpoint of many threads, switched off and on.
//!
//! Each of the two calls walks all threads that inherited the watchpoint, and reaches out to those that run.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use kymo_perf::sys::{BareThread, Kernel, Real};
use serde_json::json;

use super::{Go, REPEAT, spawn, watch, write_total};
use crate::{Format, SCHEMA_VERSION};

const NAME: &str = "breakpoint/enable";

/// Switch a watchpoint off and on that many threads have
#[derive(Debug, Args)]
#[command(
    after_help = "Options and output are those of `perf bench breakpoint enable`.\n\nExample: kymo bench breakpoint enable -p 1000"
)]
pub(crate) struct EnableArgs {
    /// Threads that sleep
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    passive: u32,
    /// Threads that spin
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    active: u32,
    /// How often it is switched off and on [default: 10]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &EnableArgs, format: Format, repeat: Option<u32>) -> anyhow::Result<ExitCode> {
    let repeat = args.repeat.or(repeat).unwrap_or(REPEAT);
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        out.flush()?;
    }
    let took = switch(args, repeat)?;
    let each_us = took.as_secs_f64() * 1e6 / f64::from(repeat);
    if args.json {
        let json = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "passive": args.passive,
            "active": args.active,
            "operations": repeat,
            "total_ns": took.as_nanos() as u64,
            "operation_us": each_us,
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if text {
        let EnableArgs { passive, active, .. } = args;
        writeln!(
            out,
            "# Enabled/disabled breakpoint {repeat} time with {passive} passive and {active} active threads"
        )?;
    }
    write_total(&mut out, format, took)?;
    if text {
        writeln!(out, "\n {each_us:>14.6} usecs/op")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The time of all pairs of off and on.
fn switch(args: &EnableArgs, repeat: u32) -> anyhow::Result<Duration> {
    let byte = Box::new(0);
    let watchpoint = watch(&byte)?;
    let go = Arc::new(Go::default());
    let mut threads = Vec::new();
    let mut start = || {
        for _ in 0..args.passive {
            let go = Arc::clone(&go);
            threads.push(spawn(move || go.wait())?);
        }
        for _ in 0..args.active {
            let go = Arc::clone(&go);
            threads.push(spawn(move || while !go.is_given() {})?);
        }
        anyhow::Ok(())
    };
    let started = start();
    // As long as perf gives them to begin.
    thread::sleep(Duration::from_millis(10));
    let since = Instant::now();
    let pair = |_| Real.switch(&watchpoint, false).and_then(|()| Real.switch(&watchpoint, true));
    let done = started.and_then(|()| {
        (0..repeat)
            .try_for_each(pair)
            .context("failed to switch the watchpoint off and on; nothing was measured")
    });
    let took = since.elapsed();
    // Before anything is said: who waits must not wait for ever.
    go.give()?;
    threads.into_iter().for_each(BareThread::join);
    done.map(|()| took)
}
