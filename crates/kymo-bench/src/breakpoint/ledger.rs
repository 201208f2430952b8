//! The ledger of slots alone: no kernel, any number of CPUs and tasks, and beside it the account that kernels had before.
//!
//! What an operation is, is what it is in `breakpoint thread`: a task that comes, takes its slots and ends.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use kymo_core::breakpoint::model::OneList;
use kymo_core::breakpoint::{Ledger, MAX_CPUS, MAX_SLOTS};
use serde_json::{Value, json};

use super::race::{Shape, run as race, standing};
use super::{REPEAT, sweep};
use crate::stats::median;
use crate::{Format, SCHEMA_VERSION, write_total};
use kymo_cli::exit;

const NAME: &str = "breakpoint/ledger";
/// What the x86 has.
const SLOTS: u32 = 4;
/// The least and most rounds of the ledger, and when it has had enough between them.
const ROUNDS: (usize, usize) = (5, 51);
const ENOUGH: Duration = Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 2_000 });
/// Above this the model is left out unless asked for.
const MODEL_LIMIT_S: f64 = 60.0;
/// Seconds for an entry that the model looks at, measured (2.1 GHz).
const STEP_S: f64 = 0.27e-9;

/// Keep account of slots of any number of CPUs and tasks, without a kernel
#[derive(Debug, Args)]
#[command(
    after_help = "An operation is a task that takes its slots and ends, as in `bench breakpoint thread`. The ledger's times are\nmedians of rounds; the model (one list under one lock, walked for each CPU) does the same work once.\n\nExample: kymo bench breakpoint ledger --cpus 256 -b 4 -p 64 -t 64"
)]
pub(crate) struct LedgerArgs {
    /// CPUs of the machine that is accounted for
    #[arg(long, value_name = "N", default_value = "256", value_parser = clap::value_parser!(u32).range(1..=MAX_CPUS as i64))]
    cpus: u32,
    /// Other tasks, with as many slots each, that live all the time
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
    tasks: u32,
    /// Slots that each CPU has [default: 4, or more if -b needs them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_SLOTS as i64))]
    slots: Option<u32>,
    /// Slots that each task takes
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=MAX_SLOTS as i64))]
    breakpoints: u32,
    /// Workers that do so at the same time
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    parallelism: u32,
    /// Tasks of a batch
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    threads: u32,
    /// Batches in all [default: 10, or one for each worker]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    /// Of a hundred requests, so many are for a CPU in the second measurement
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = clap::value_parser!(u32).range(0..=100))]
    for_cpus: u32,
    /// Race the model however long it takes [default: only if it takes less than a minute]
    #[arg(long, overrides_with = "no_model")]
    model: bool,
    /// Leave the model out
    #[arg(long)]
    no_model: bool,
    /// Then show how the cost of a request depends on the numbers of CPUs and of tasks
    #[arg(long)]
    sweep: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The time of one shape: of the ledger in rounds, or of the model once.
struct Timed {
    shape: Shape,
    rounds_us: Vec<f64>,
}

impl Timed {
    fn total(&self) -> Duration {
        Duration::from_nanos((median(&self.rounds_us) * 1e3) as u64)
    }

    fn operation_us(&self) -> f64 {
        median(&self.rounds_us) / self.shape.operations() as f64
    }

    fn write(&self, out: &mut dyn Write, format: Format) -> io::Result<()> {
        write_total(out, format, self.total())?;
        if format == Format::Default {
            let each = self.operation_us();
            writeln!(out, "\n {each:>14.6} usecs/op")?;
            writeln!(out, " {:>14.6} usecs/op/cpu\n", each * self.shape.workers as f64)?;
        }
        out.flush()
    }

    fn json(&self) -> Value {
        let each = self.operation_us();
        json!({
            "for_cpus_percent": self.shape.for_cpus_percent,
            "rounds_us": self.rounds_us,
            "operation_us": each,
            "operation_us_per_worker": each * self.shape.workers as f64,
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: &LedgerArgs, format: Format, repeat: Option<u32>) -> anyhow::Result<ExitCode> {
    let shape = shape(args, repeat)?;
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        writeln!(
            out,
            "# {} batches of {} tasks with {} breakpoints and {} parallelism, {} CPUs with {} slots, {} other tasks",
            shape.batches,
            shape.threads,
            shape.breakpoints,
            shape.workers,
            shape.cpus,
            shape.slots,
            shape.tasks
        )?;
        out.flush()?;
    }
    let ledger = rounds(shape)?;
    if !args.json {
        ledger.write(&mut out, format)?;
        if !text {
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mixed = match args.for_cpus {
        0 => None,
        percent => Some(rounds(Shape { for_cpus_percent: percent as usize, ..shape })?),
    };
    if let (true, Some(mixed)) = (text, &mixed) {
        writeln!(out, "# The same, {} % of the requests for CPUs", args.for_cpus)?;
        mixed.write(&mut out, format)?;
    }
    let (model, left_out) = model(args, shape)?;
    let faster = model.as_ref().map(|model| model.operation_us() / ledger.operation_us());
    if text {
        if let Some(words) = &left_out {
            writeln!(out, "# Without the model: {words}\n")?;
        }
        if let (Some(model), Some(faster)) = (&model, faster) {
            writeln!(out, "# The same with one list (the model)")?;
            model.write(&mut out, format)?;
            writeln!(out, "# The ledger is {faster:.0} times faster than the model\n")?;
        }
    }
    let threads = sweep::threads(shape)?;
    if text {
        threads.write(&mut out)?;
    }
    let tables = if args.sweep { sweep::tables(shape, args.for_cpus as usize)? } else { Vec::new() };
    if text {
        tables.iter().try_for_each(|table| table.write(&mut out))?;
        return Ok(ExitCode::SUCCESS);
    }
    let json = json!({
        "schema": "kymo-bench",
        "schema_version": SCHEMA_VERSION,
        "benchmark": NAME,
        "cpus": shape.cpus,
        "slots": shape.slots,
        "tasks": shape.tasks,
        "breakpoints": shape.breakpoints,
        "parallelism": shape.workers,
        "threads": shape.threads,
        "batches": shape.batches,
        "ledger": ledger.json(),
        "mixed": mixed.as_ref().map(Timed::json),
        "model": model.as_ref().map(Timed::json),
        "model_left_out": left_out,
        "faster_than_model": faster,
        "scaling": threads.json(),
        "sweep": tables.iter().map(sweep::SweepTable::json).collect::<Vec<_>>(),
    });
    serde_json::to_writer_pretty(&mut out, &json)?;
    writeln!(out)?;
    Ok(ExitCode::SUCCESS)
}

fn shape(args: &LedgerArgs, repeat: Option<u32>) -> anyhow::Result<Shape> {
    let slots = args.slots.unwrap_or(SLOTS.max(args.breakpoints));
    if args.breakpoints > slots {
        let words = format!(
            "{} slots for each task (-b) need at least as many on each CPU, not --slots {slots}",
            args.breakpoints
        );
        return Err(exit::usage(anyhow::anyhow!(words)));
    }
    // One for each worker: with less, fewer of them work than -p says.
    let batches = args.repeat.or(repeat).unwrap_or(REPEAT.max(args.parallelism));
    Ok(Shape {
        cpus: args.cpus as usize,
        slots: slots as usize,
        tasks: args.tasks as usize,
        breakpoints: args.breakpoints as usize,
        workers: args.parallelism as usize,
        threads: args.threads as usize,
        batches: batches as usize,
        for_cpus_percent: 0,
        pinned: false,
    })
}

fn us(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// The ledger: one unmeasured round, then until it is enough.
fn rounds(shape: Shape) -> anyhow::Result<Timed> {
    let ledger = kymo_perf::sys::memory::may_fail(|| Ledger::new(shape.config()))?;
    let held = standing(&ledger, shape)?;
    race(&ledger, shape)?;
    let (since, mut rounds_us) = (Instant::now(), Vec::new());
    while rounds_us.len() < ROUNDS.0 || (rounds_us.len() < ROUNDS.1 && since.elapsed() < ENOUGH) {
        rounds_us.push(us(race(&ledger, shape)?));
    }
    drop(held);
    anyhow::ensure!(ledger.is_unused(), "something is left in the ledger after everything was released");
    Ok(Timed { shape, rounds_us })
}

/// The model, once; or why not.
fn model(args: &LedgerArgs, shape: Shape) -> anyhow::Result<(Option<Timed>, Option<String>)> {
    let about_s = shape.steps_of_the_model() * STEP_S;
    if args.no_model {
        return Ok((None, Some("--no-model".into())));
    }
    if about_s > MODEL_LIMIT_S && !args.model {
        return Ok((None, Some(format!("it would take about {about_s:.0} s; --model runs it all the same"))));
    }
    let list = OneList::new(shape.config())?;
    let held = standing(&list, shape)?;
    let took = race(&list, shape)?;
    drop(held);
    anyhow::ensure!(list.is_unused(), "something is left in the model after everything was released");
    Ok((Some(Timed { shape, rounds_us: vec![us(took)] }), None))
}
