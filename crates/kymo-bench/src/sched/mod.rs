//! `kymo bench sched`: what the kernel's scheduler, and a switch in user space, cost.
//!
//! `pipe` and `messaging` are perf's benchmarks of these names: the same work, options and output, so that either tool's can be the
//! program that is counted. `tasks` is kymo's own.

pub(crate) mod messaging;
pub(crate) mod pipe;
pub(crate) mod tasks;

use std::io;
use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use kymo_perf::sys::Child;
use kymo_perf::workload::Exit;

use super::{Format, write_total};

/// Benchmarks of this collection.
#[derive(Debug, Subcommand)]
pub(crate) enum Sched {
    Messaging(messaging::MessagingArgs),
    Pipe(pipe::PipeArgs),
    Tasks(tasks::TasksArgs),
}

/// Runs the benchmark.
pub(crate) fn run(benchmark: &Sched, format: Format) -> anyhow::Result<ExitCode> {
    match benchmark {
        Sched::Messaging(args) => messaging::run(args, format),
        Sched::Pipe(args) => pipe::run(args, format),
        Sched::Tasks(args) => tasks::run(args, format),
    }
}

/// What a child says about its work; it has no other way to.
fn code(done: io::Result<()>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("kymo bench: a child failed to hand over: {error}");
            1
        }
    }
}

/// Waits for a child, which must have done all of its work.
fn join(child: Child) -> anyhow::Result<()> {
    match child.wait().context("failed to wait for a child")? {
        Exit::Code(0) => Ok(()),
        Exit::Code(code) => anyhow::bail!("a child ended with {code} instead of 0; nothing was measured"),
        Exit::Signal(signal) => anyhow::bail!("a child was killed by signal {signal}; nothing was measured"),
    }
}
