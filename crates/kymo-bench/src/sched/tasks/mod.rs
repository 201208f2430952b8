//! Two tasks of a program that hand over in user space: without events, with the eager scheduler's and with the engine's.
//!
//! All variants take turns in one process, every second round in reverse order, after a round that is not counted. What is compared is the
//! CPU time of the thread, which other programs on the machine disturb less than the wall clock. Before anything is measured, each
//! variant hands over with counters that are known, and must find exactly what the tasks did.

mod counted;
mod executor;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use kymo_core::context::model::Eager;
use kymo_core::context::{Engine, Scheduler};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use self::counted::{Clock, Counted, Tally};
use self::executor::{Hook, Work, exchange};
use crate::stats::{Ratio, median};
use crate::{Format, SCHEMA_VERSION};

const NAME: &str = "sched/tasks";
/// Operations of the check before the measurement.
const CHECKED: u32 = 500;

/// Two tasks of a program that hand over in user space, with and without events
#[derive(Debug, Args)]
#[command(
    after_help = "bare: two futures on an executor with a run queue, mailboxes and wakers, without any event.\neager: at each hand-over all events of one task are stopped and read, those of the other started.\nlazy: kymo's engine, which exchanges the two tasks' events as a whole.\n\nA counter is a clock read, which stands for a hardware counter read by a program; none of those is used.\nThe time is CPU time of the thread; an operation is a message there and back, so two hand-overs."
)]
pub(crate) struct TasksArgs {
    /// Operations in each round
    #[arg(short, long = "loop", value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    loops: u32,
    /// Rounds, of which the median counts
    #[arg(short = 'n', long, value_name = "N", default_value = "21", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Numbers of events to measure with
    #[arg(short, long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    events: Vec<u32>,
    /// Keep the numbers of each task, not only of both together
    #[arg(long)]
    per_task: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What is attached to the two tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Bare,
    Eager(u32),
    Lazy(u32),
}

impl Variant {
    fn name(self) -> &'static str {
        match self {
            Variant::Bare => "bare",
            Variant::Eager(_) => "eager",
            Variant::Lazy(_) => "lazy",
        }
    }

    fn events(self) -> u32 {
        match self {
            Variant::Bare => 0,
            Variant::Eager(events) | Variant::Lazy(events) => events,
        }
    }
}

/// One row of the table.
struct Row {
    variant: Variant,
    /// From the check: per hand-over, how often a counter was asked.
    asked: f64,
    /// From the check: the share of hand-overs at which contexts were exchanged.
    exchanged: f64,
    /// One value per round: CPU time of one hand-over.
    took_ns: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(args: &TasksArgs, format: Format) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let text = !args.json && format == Format::Default;
    if text {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
        writeln!(
            out,
            "# {} operations of two tasks on one thread in each of {} rounds\n",
            args.loops, args.rounds
        )?;
        out.flush()?;
    }
    let mut rows = Vec::new();
    for variant in variants(&args.events) {
        rows.push(checked(variant, args.per_task)?);
    }
    for round in 0..=args.rounds {
        let mut turn: Vec<&mut Row> = rows.iter_mut().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for row in turn {
            let took_ns = timed(row.variant, args)?;
            // The first round only warms up.
            if round > 0 {
                row.took_ns.push(took_ns);
            }
        }
    }
    if args.json {
        serde_json::to_writer_pretty(&mut out, &as_json(args, &rows))?;
        writeln!(out)?;
    } else {
        write_rows(&mut out, format, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn variants(events: &[u32]) -> Vec<Variant> {
    let counted = events.iter().flat_map(|&events| [Variant::Eager(events), Variant::Lazy(events)]);
    std::iter::once(Variant::Bare).chain(counted).collect()
}

struct Bare;

impl Hook for Bare {
    #[inline]
    fn hand_over(&mut self, _: usize, _: usize) {}
}

#[derive(Clone)]
struct Nothing;

impl Work for Nothing {}

/// Hands over with counters of which it is known what they must show.
fn checked(variant: Variant, per_task: bool) -> anyhow::Result<Row> {
    let tally = Tally::default();
    let (asked, exchanged) = match variant {
        Variant::Bare => (0, 0),
        Variant::Eager(events) => check(Eager::new(tally.clone(), 1), &tally, events, per_task)?,
        Variant::Lazy(events) => check(Engine::new(tally.clone(), 1), &tally, events, per_task)?,
    };
    let hand_overs = f64::from(2 * CHECKED);
    Ok(Row {
        variant,
        asked: asked as f64 / hand_overs,
        exchanged: exchanged as f64 / hand_overs,
        took_ns: Vec::new(),
    })
}

/// How often counters were asked while handing over, and how often nothing had to be.
fn check<S: Scheduler>(
    scheduler: S,
    tally: &Tally,
    events: u32,
    per_task: bool,
) -> anyhow::Result<(u64, u64)> {
    let mut counted = Counted::start(scheduler, events, per_task)?;
    let before = tally.asked();
    exchange(CHECKED, tally, &mut counted);
    let (asked, exchanged) = (tally.asked() - before, counted.exchanged);
    let totals = counted.finish()?;
    let (each, both) = (u64::from(CHECKED), u64::from(2 * CHECKED));
    for count in &totals.family {
        ensure!(count.value == both, "an event counted {} of {both}; nothing was measured", count.value);
        ensure!(
            (count.enabled_ns, count.running_ns) == (both, both),
            "an event's times are {} and {} of {both}; nothing was measured",
            count.enabled_ns,
            count.running_ns
        );
    }
    ensure!(per_task != totals.single.is_empty(), "the numbers of single tasks are missing");
    for single in &totals.single {
        let right = [Some(each); 2];
        ensure!(*single == right, "the tasks counted {single:?} of {each} each; nothing was measured");
    }
    Ok((asked, exchanged))
}

/// CPU time of one hand-over in nanoseconds.
fn timed(variant: Variant, args: &TasksArgs) -> anyhow::Result<f64> {
    match variant {
        Variant::Bare => Ok(per_hand_over(args.loops, &mut Bare)),
        Variant::Eager(events) => counted(Eager::new(Clock::start(), 1), events, args),
        Variant::Lazy(events) => counted(Engine::new(Clock::start(), 1), events, args),
    }
}

fn counted<S: Scheduler>(scheduler: S, events: u32, args: &TasksArgs) -> anyhow::Result<f64> {
    let mut counted = Counted::start(scheduler, events, args.per_task)?;
    let took_ns = per_hand_over(args.loops, &mut counted);
    let totals = counted.finish().context("failed to count two tasks")?;
    ensure!(totals.family.iter().all(|count| count.value > 0), "an event counted nothing");
    Ok(took_ns)
}

fn per_hand_over(loops: u32, hook: &mut impl Hook) -> f64 {
    let since = cpu_ns();
    let hand_overs = exchange(loops, &Nothing, hook);
    (cpu_ns() - since) as f64 / hand_overs as f64
}

fn cpu_ns() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

fn write_rows(out: &mut dyn Write, format: Format, rows: &[Row]) -> io::Result<()> {
    if format == Format::Simple {
        return rows.iter().try_for_each(|row| writeln!(out, "{:.1}", median(&row.took_ns)));
    }
    writeln!(
        out,
        "  events  variant  ns/hand-over     added   to bare (95 % interval)  counter reads/hand-over  exchanged"
    )?;
    let bare = &rows[0].took_ns;
    let bare_took = median(bare);
    for row in rows {
        let took = median(&row.took_ns);
        if row.variant == Variant::Bare {
            writeln!(out, "{:>8}  {:<7}  {took:>12.1}", "-", row.variant.name())?;
            continue;
        }
        let Ratio { ratio, low, high } = Ratio::of(&row.took_ns, bare);
        writeln!(
            out,
            "{:>8}  {:<7}  {took:>12.1}  {:>8.1}  {:>24}  {:>23.1}  {:>7.1} %",
            row.variant.events(),
            row.variant.name(),
            took - bare_took,
            format!("{ratio:.3} ({low:.3} .. {high:.3})"),
            row.asked,
            row.exchanged * 100.0
        )?;
    }
    Ok(())
}

fn as_json(args: &TasksArgs, rows: &[Row]) -> serde_json::Value {
    let bare = &rows[0].took_ns;
    let variants: Vec<_> = rows
        .iter()
        .map(|row| {
            let to_bare = (row.variant != Variant::Bare).then(|| {
                let Ratio { ratio, low, high } = Ratio::of(&row.took_ns, bare);
                [ratio, low, high]
            });
            json!({
                "variant": row.variant.name(),
                "events": row.variant.events(),
                "hand_over_ns": median(&row.took_ns),
                "rounds_ns": row.took_ns,
                "to_bare": to_bare,
                "counter_reads": row.asked,
                "exchanged_share": row.exchanged,
            })
        })
        .collect();
    json!({
        "schema": "kymo-bench",
        "schema_version": SCHEMA_VERSION,
        "benchmark": NAME,
        "operations": args.loops,
        "rounds": args.rounds,
        "per_task": args.per_task,
        "variants": variants,
    })
}
