//! `kymo locks`: contended locks, who waits for them and who has them.
//!
//! The recording is made by `kymo-record`, the table by [`kymo_profile::locks`]; here are the
//! arguments and what is said on stderr.

mod live;
mod record;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use kymo_cli::parse::{parse_duration, parse_pid, parse_ring};
use kymo_cli::terminal::ReadProgress;
use kymo_cli::{damage, exit, open};
use kymo_data::Recording;
use kymo_perf::workload::Exit;
use kymo_profile::load::LoadOptions;
use kymo_profile::locks::{Locks, write_locks, write_locks_json};
use kymo_profile::resolve::ResolveOptions;

use super::report::SymbolArgs;

/// Show contended locks: how long threads wait for them, where, and where those are that hold them.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo locks -p 1234 -d 10          a process that runs, for ten seconds\n  kymo locks -- ./program           a program from its start to its end\n  kymo locks -p 1234 -o locks.data  keep the recording, too; kymo locks -i locks.data reads it again"
)]
pub(crate) struct LocksArgs {
    /// Observe these processes and what they have started, by number or name
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pids: Vec<i32>,
    /// With -p, do not observe what the processes have started before
    #[arg(long)]
    no_children: bool,
    /// Observe all processes of this machine
    #[arg(short, long = "all-cpus")]
    all: bool,
    /// End after this time: seconds, or with ms, s, m, h
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "command")]
    duration: Option<Duration>,
    /// On a terminal, draw the table anew after this time: seconds, or with ms, s, m, h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2", conflicts_with = "command")]
    interval: Duration,
    /// Read a recording instead of making one
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["pids", "all", "duration", "output", "command", "holds"])]
    input: Option<PathBuf>,
    /// Keep the recording in this perf.data file; a recording that is there becomes FILE.old
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// JSON
    #[arg(long)]
    json: bool,
    /// So many locks at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// So many waits and wake-ups per second and CPU are recorded with stacks at most
    #[arg(long, value_name = "N", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    stacks: u32,
    /// Time how long locks are held, too, by probes inside of the programs
    #[arg(long)]
    holds: bool,
    /// Size of each ring buffer: a number of pages, or bytes with B, K, M or G
    #[arg(short = 'm', long = "mmap-pages", value_name = "SIZE", value_parser = parse_ring)]
    ring_pages: Option<usize>,
    /// Attach to tracepoints, as on kernels that attach nothing to functions
    #[arg(long, hide = true)]
    tracepoints: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
    /// The command to observe, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: LocksArgs) -> anyhow::Result<ExitCode> {
    if let Some(input) = &args.input {
        let recording = open::recording(input)?;
        return show(&args, &recording, &input.display().to_string());
    }
    if args.pids.is_empty() && args.command.is_empty() && !args.all {
        return Ok(exit::misused(
            "locks",
            "nothing to observe: name processes with -p or a command behind --, use -a for all, or read a recording with -i",
        ));
    }
    let made = match record::run(&args)? {
        Ok(made) => made,
        Err(code) => return Ok(code),
    };
    let shown = show(&args, &made.recording, &made.name)?;
    Ok(made.exit.filter(|exit| *exit != Exit::Code(0)).map_or(shown, exit::as_command))
}

/// Prints the locks of a recording.
fn show(args: &LocksArgs, recording: &Recording, name: &str) -> anyhow::Result<ExitCode> {
    let store = args.symbols.store(recording);
    let progress = ReadProgress::new(args.quiet);
    let load = LoadOptions::default();
    let locks = Locks::open(recording, &load, ResolveOptions::default(), &store, &|pass, done, all| {
        progress.at(pass, done, all);
    })
    .with_context(|| format!("failed to read {name}"))?;
    progress.finish();
    let Some(locks) = locks else {
        return Err(exit::usage(anyhow!("{name} does not tell of locks: record with `kymo locks -o FILE`")));
    };
    if !args.quiet {
        damage::tell(recording.problems.iter().chain(&locks.summary.problems));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        write_locks_json(&mut out, &locks, args.top)?;
    } else {
        write_locks(&mut out, &locks, args.top)?;
    }
    out.flush().context("failed to write the locks")?;
    Ok(exit::of_reading(recording, &locks.summary.problems))
}

/// What a recording is called in messages.
fn name_of(output: Option<&Path>) -> String {
    output.map_or_else(|| "the recording".to_owned(), |path| path.display().to_string())
}
