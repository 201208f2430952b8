//! `kymo bench`: how fast kymo's own parts are on this machine.
//!
//! *You give it* a command line below `bench`; *it gives you* what was measured, on stdout. Each engine races the model that it replaces.
//!
//! A collection is a subcommand with benchmarks as its subcommands, as in `perf bench`; a benchmark is one file with its arguments and a
//! `run`. Where perf has the same benchmark, options, output and units are perf's, so that both can be raced by a script.
#![forbid(unsafe_code)]
// It panics where stdout is gone: `writeln!` and an error instead.
#![deny(clippy::print_stdout)]

#[macro_use(eprintln)]
extern crate kymo_cli;

mod breakpoint;
mod evlist_open_close;
mod list;
mod probe;
mod sched;
mod stats;
mod storm;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

/// The shape of `--json`; raised when a field changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;

/// Measure kymo's own parts on this machine
#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct BenchArgs {
    /// What the benchmarks of `sched` and `breakpoint` print: perf's text, or only the seconds
    #[arg(short, long, value_name = "FORMAT", default_value = "default")]
    format: Format,
    /// How often the benchmarks of `breakpoint` do what they measure [default: 10]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: Option<u32>,
    #[command(subcommand)]
    collection: Option<Collection>,
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// All lines
    Default,
    /// One number
    Simple,
}

#[derive(Debug, Subcommand)]
enum Collection {
    /// Switching between tasks, and what they send each other
    Sched(SchedArgs),
    /// Parts that every recording uses
    Internals(InternalsArgs),
    /// Recording
    Record(RecordArgs),
    /// Breakpoints and watchpoints: the kernel's, and the ledger of their slots
    Breakpoint(BreakpointArgs),
    /// Probes: what a hit costs
    Probe(ProbeArgs),
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
struct InternalsArgs {
    #[command(subcommand)]
    benchmark: Option<Internals>,
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
struct SchedArgs {
    #[command(subcommand)]
    benchmark: Option<sched::Sched>,
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
struct BreakpointArgs {
    #[command(subcommand)]
    benchmark: Option<breakpoint::Breakpoint>,
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
struct ProbeArgs {
    #[command(subcommand)]
    benchmark: Option<probe::Probe>,
}

#[derive(Debug, Subcommand)]
enum Internals {
    EvlistOpenClose(Box<evlist_open_close::EvlistArgs>),
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
struct RecordArgs {
    #[command(subcommand)]
    benchmark: Option<Record>,
}

#[derive(Debug, Subcommand)]
enum Record {
    Storm(Box<storm::StormArgs>),
    /// What the storm records: started by it.
    #[command(hide = true)]
    Load(storm::load::LoadArgs),
}

/// Only to ask clap for the names below this verb.
#[derive(Parser)]
struct Names {
    #[command(subcommand)]
    collection: Option<Collection>,
}

/// Runs the verb. Without a collection, or without a benchmark, it lists what there is.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let (format, repeat) = (args.format, args.repeat);
    match args.collection {
        None => list_collections(&mut io::stdout().lock())?,
        Some(Collection::Sched(args)) => match args.benchmark {
            None => list_benchmarks(&mut io::stdout().lock(), "sched")?,
            Some(benchmark) => return sched::run(&benchmark, format),
        },
        Some(Collection::Internals(args)) => match args.benchmark {
            None => list_benchmarks(&mut io::stdout().lock(), "internals")?,
            Some(Internals::EvlistOpenClose(args)) => return evlist_open_close::run(*args),
        },
        Some(Collection::Record(args)) => match args.benchmark {
            None => list_benchmarks(&mut io::stdout().lock(), "record")?,
            Some(Record::Storm(args)) => return storm::run(*args),
            Some(Record::Load(args)) => return storm::load::run(args),
        },
        Some(Collection::Breakpoint(args)) => match args.benchmark {
            None => list_benchmarks(&mut io::stdout().lock(), "breakpoint")?,
            Some(benchmark) => return breakpoint::run(&benchmark, format, repeat),
        },
        Some(Collection::Probe(args)) => match args.benchmark {
            None => list_benchmarks(&mut io::stdout().lock(), "probe")?,
            Some(benchmark) => return probe::run(&benchmark),
        },
    }
    Ok(ExitCode::SUCCESS)
}

/// Seconds as perf prints them: cut off, not rounded.
fn seconds(took: Duration) -> String {
    format!("{}.{:03}", took.as_secs(), took.subsec_millis())
}

/// perf's line of the whole time, in either format.
fn write_total(out: &mut dyn Write, format: Format, took: Duration) -> io::Result<()> {
    match format {
        Format::Default => writeln!(out, "     Total time: {} [sec]", seconds(took)),
        Format::Simple => writeln!(out, "{}", seconds(took)),
    }
}

fn list_collections(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Usage: \n\tkymo bench <collection> <benchmark> [<options>]\n")?;
    writeln!(out, "        # List of all available benchmark collections:\n")?;
    print_names(out, &Names::command())
}

fn list_benchmarks(out: &mut dyn Write, collection: &str) -> io::Result<()> {
    writeln!(out, "\n        # List of available benchmarks for collection '{collection}':\n")?;
    match Names::command().find_subcommand(collection) {
        Some(command) => print_names(out, command),
        None => Ok(()),
    }
}

/// What could be made; a benchmark whose threads wait for each other ends where one of them cannot be.
fn needed<T>(made: io::Result<T>) -> T {
    made.unwrap_or_else(|error| {
        eprintln!("kymo bench: failed to start a thread: {error}; use fewer, or see `ulimit -u`");
        std::process::exit(1)
    })
}

/// Names and what they stand for, in perf's columns.
fn print_names(out: &mut dyn Write, command: &clap::Command) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = sub.get_about().map_or_else(String::new, ToString::to_string);
        writeln!(out, "{:>14}: {about}", sub.get_name())?;
    }
    writeln!(out)
}
