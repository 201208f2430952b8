//! Two tasks that wake each other through two pipes: an operation is a byte there and back, so two switches on one CPU.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use kymo_perf::sys::fork;
use serde_json::json;

use super::{code, join, write_total};
use crate::{Format, SCHEMA_VERSION};

const NAME: &str = "sched/pipe";

/// Two tasks that wake each other through pipes
#[derive(Debug, Args)]
#[command(
    after_help = "Options and output are those of `perf bench sched pipe`. An operation is a message there and back;\nstarting and ending the tasks is in the time.\n\nExample: taskset -c 0 kymo bench sched pipe -l 100000"
)]
pub(crate) struct PipeArgs {
    /// Operations to make
    #[arg(short, long = "loop", value_name = "N", default_value = "1000000", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    loops: u32,
    /// Two threads of one process instead of two processes
    #[arg(short = 'T', long)]
    threaded: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark.
pub(crate) fn run(args: &PipeArgs, format: Format) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        // A child must not have it to write once more.
        out.flush()?;
    }
    let took = if args.threaded { threads(args.loops) } else { processes(args.loops) }?;
    let tasks = if args.threaded { "threads" } else { "processes" };
    // perf's clock has microseconds.
    let us = took.as_micros() as f64;
    let (each_us, per_second) = (us / f64::from(args.loops), f64::from(args.loops) / (us / 1e6));
    if args.json {
        let json = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "tasks": tasks,
            "operations": args.loops,
            "total_ns": took.as_nanos() as u64,
            "operation_us": each_us,
            "operations_per_second": per_second,
        });
        serde_json::to_writer_pretty(&mut out, &json)?;
        writeln!(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if text {
        writeln!(out, "# Executed {} pipe operations between two {tasks}\n", args.loops)?;
    }
    write_total(&mut out, format, took)?;
    if text {
        writeln!(out, "\n {each_us:>14.6} usecs/op\n {:>14} ops/sec", per_second as u64)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The two pipes, each end with the task that uses it: who answers, and who begins.
fn pipes() -> anyhow::Result<(End, End)> {
    let (there, back) = (io::pipe(), io::pipe());
    let ((there_read, there_write), (back_read, back_write)) =
        (there.context("failed to make a pipe")?, back.context("failed to make a pipe")?);
    Ok((End { read: there_read, write: back_write }, End { read: back_read, write: there_write }))
}

fn processes(loops: u32) -> anyhow::Result<Duration> {
    let (answers, begins) = pipes()?;
    let since = Instant::now();
    let child = fork(|| code(answers.answer(loops))).context("failed to fork the second process")?;
    // Who is left alone must read the end of the pipe, so nobody keeps the other's ends.
    drop(answers);
    let done = begins.begin(loops);
    drop(begins);
    join(child)?;
    let took = since.elapsed();
    done.context("failed to hand over to the second process")?;
    Ok(took)
}

fn threads(loops: u32) -> anyhow::Result<Duration> {
    let (answers, begins) = pipes()?;
    let since = Instant::now();
    let both = thread::scope(|scope| {
        let spawn = |work: Box<dyn FnOnce() -> io::Result<()> + Send>| {
            thread::Builder::new().spawn_scoped(scope, work).context("failed to create a thread")
        };
        let answers = spawn(Box::new(move || answers.answer(loops)))?;
        // If there is no second thread, its ends are closed and the first one comes back.
        let begins = spawn(Box::new(move || begins.begin(loops)))?;
        anyhow::Ok(
            [answers, begins].map(|one| one.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))),
        )
    })?;
    let took = since.elapsed();
    both.into_iter().collect::<io::Result<Vec<()>>>().context("a thread failed to hand over")?;
    Ok(took)
}

/// One task's ends of the pipes. Dropped with the task, so that the other one is not left waiting.
struct End {
    read: PipeReader,
    write: PipeWriter,
}

/// What is handed over; perf's is an int.
const MESSAGE: [u8; 4] = [0; 4];

impl End {
    fn begin(&self, loops: u32) -> io::Result<()> {
        for _ in 0..loops {
            self.send()?;
            self.receive()?;
        }
        Ok(())
    }

    fn answer(&self, loops: u32) -> io::Result<()> {
        for _ in 0..loops {
            self.receive()?;
            self.send()?;
        }
        Ok(())
    }

    fn send(&self) -> io::Result<()> {
        (&self.write).write_all(&MESSAGE)
    }

    fn receive(&self) -> io::Result<()> {
        let mut message = MESSAGE;
        (&self.read).read_exact(&mut message)
    }
}
