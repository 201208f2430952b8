//! kymo: a profiler and tracer for Linux programs with thousands of threads.
//!
//! The binary is thin: one file per verb in `cmd/`, each with its arguments as typed and a `run` that hands them to
//! the libraries below. What all verbs share is in `kymo-cli`: exit codes, signals, and that data goes to stdout and
//! words to stderr.
#![forbid(unsafe_code)]
// It panics where stdout is gone: `writeln!` and an error instead.
#![deny(clippy::print_stdout)]

#[macro_use(eprintln, eprint)]
extern crate kymo_cli;

mod cmd;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use kymo_cli::{exit, terminal};

/// Record where a Linux program spends its time, and read the result.
#[derive(Debug, Parser)]
#[command(name = "kymo", version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "First steps:\n  kymo record -- ./program     record it into perf.data\n  kymo report                  see where the time went\n  kymo doctor                  what this machine permits, and how to permit more"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(Box<cmd::record::RecordArgs>),
    Stat(Box<cmd::stat::StatArgs>),
    Probe(Box<cmd::probe::ProbeArgs>),
    Report(Box<cmd::report::ReportArgs>),
    List(cmd::list::ListArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Script(Box<cmd::script::ScriptArgs>),
    Watch(Box<cmd::watch::WatchArgs>),
    Bench(kymo_bench::BenchArgs),
    Completions(cmd::generate::CompletionsArgs),
    Man(cmd::generate::ManArgs),
}

/// The command line as clap knows it, for completions and manual pages.
fn command() -> clap::Command {
    Cli::command()
}

#[global_allocator]
static ALLOCATOR: kymo_perf::sys::memory::Allocator = kymo_perf::sys::memory::Allocator;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // A closed pipe under --help is no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    terminal::start_log();
    let done = match cli.verb {
        Verb::Record(args) => cmd::record::run(*args),
        Verb::Stat(args) => cmd::stat::run(*args),
        Verb::Probe(args) => cmd::probe::run(*args),
        Verb::Report(args) => cmd::report::run(*args),
        Verb::List(args) => cmd::list::run(args),
        Verb::Doctor(args) => cmd::doctor::run(args),
        Verb::Script(args) => cmd::script::run(*args),
        Verb::Watch(args) => cmd::watch::run(*args),
        Verb::Bench(args) => kymo_bench::run(args),
        Verb::Completions(args) => cmd::generate::completions(args, command()),
        Verb::Man(args) => cmd::generate::man(args, command()),
    };
    exit::code(done)
}
