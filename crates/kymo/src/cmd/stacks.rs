//! `kymo stacks`: what each thread of a process does now, with its stack.
//!
//! The recording is made by `kymo-record`, its reading by [`kymo_profile::thread_stacks`]; here are
//! the arguments and what is said on stderr.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use kymo_cli::parse::{parse_duration, parse_pid};
use kymo_cli::signals::Signals;
use kymo_cli::{damage, exit, open};
use kymo_data::Recording;
use kymo_perf::proc;
use kymo_profile::load::LoadOptions;
use kymo_profile::thread_stacks::{ThreadStacks, write_stacks, write_stacks_json};
use kymo_record::{Output, StackOptions, StackRecording, record_core, record_stacks};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::report::SymbolArgs;

/// Clears a terminal.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// Show what each thread of a process does now: its stack, what it waits for, and who has it
///
/// No thread is stopped, but by a Java machine that is asked for its threads. Threads with equal
/// stacks are shown once, with their number. Threads that wait for each other's locks are told in a
/// sentence.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo stacks -p 1234                 all threads of a process\n  kymo stacks -p nginx --json         of all processes of that name, as JSON\n  kymo stacks -p 1234 --watch 1s      again each second\n  kymo stacks --core core             of a core file\n  kymo stacks -p 1234 -o hung.data    keep it; kymo stacks -i hung.data shows it again"
)]
pub(crate) struct StacksArgs {
    /// Look at these processes, by number or name
    #[arg(
        short,
        long = "pid",
        value_name = "PID|NAME",
        value_delimiter = ',',
        value_parser = parse_pid,
        required_unless_present_any = ["input", "core"]
    )]
    pids: Vec<i32>,
    /// Look at what they have started, too
    #[arg(long)]
    children: bool,
    /// Look again and again: after this time, seconds, or with ms, s, m, h; a second if none is
    /// given
    #[arg(long, value_name = "TIME", value_parser = parse_duration, num_args = 0..=1, default_missing_value = "1")]
    watch: Option<Duration>,
    /// Show the threads of a core file instead of a process
    #[arg(long, value_name = "FILE", conflicts_with_all = ["pids", "children", "watch", "input"])]
    core: Option<PathBuf>,
    /// Show a file that was kept with -o instead of a process
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["pids", "children", "watch", "output"])]
    input: Option<PathBuf>,
    /// Keep the stacks in this perf.data file; one that is there becomes FILE.old
    #[arg(short, long, value_name = "FILE", conflicts_with = "watch")]
    output: Option<PathBuf>,
    /// Do not ask Java's machines, which stop their threads for the answer as for jstack: Java's
    /// functions stay addresses
    #[arg(long)]
    no_jvm: bool,
    /// Show the kernel's functions of all threads, too
    #[arg(long)]
    kernel: bool,
    /// JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the verb.
pub(crate) fn run(args: StacksArgs) -> anyhow::Result<ExitCode> {
    if let Some(input) = &args.input {
        let recording = open::recording(input)?;
        return show(&args, &recording, &input.display().to_string(), &[]);
    }
    let Some(pause) = args.watch else { return look(&args) };
    let signals = Signals::catch_once()?;
    while signals.last().is_none() {
        if io::stdout().is_terminal() && !args.json {
            io::stdout().write_all(CLEAR).context("failed to write the stacks")?;
        }
        look(&args)?;
        let pause = Timespec::try_from(pause).unwrap_or_default();
        _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], Some(&pause));
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks once.
fn look(args: &StacksArgs) -> anyhow::Result<ExitCode> {
    let mut pids = args.pids.clone();
    if args.children {
        pids.extend(proc::descendants(&args.pids));
        pids.sort_unstable();
        pids.dedup();
    }
    let output = match &args.output {
        Some(path) => match Output::parse(path) {
            file @ Output::File(_) => file,
            _ => {
                return Ok(exit::misused(
                    "stacks",
                    "-o wants a file: the stacks are printed on standard output",
                ));
            }
        },
        None => Output::Memory,
    };
    output.check()?;
    let options = StackOptions {
        pids,
        output,
        asks_jvms: !args.no_jvm,
        version: concat!("kymo ", env!("CARGO_PKG_VERSION")).to_owned(),
        cmdline: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
    };
    let recorded = match &args.core {
        Some(core) => record_core(core, &options).with_context(|| core.display().to_string()),
        None => record_stacks(&options).context("failed to read the stacks"),
    };
    let StackRecording { file, remarks, .. } = recorded?;
    if !args.quiet {
        remarks.iter().for_each(|remark| eprintln!("kymo stacks: {remark}"));
    }
    let recording = match &args.output {
        Some(path) => open::own_recording(path)?,
        None => Recording::open(Arc::new(file), Vec::new()).context("failed to read the stacks")?,
    };
    show(args, &recording, "the stacks", &remarks)
}

/// Prints what a recording has.
fn show(args: &StacksArgs, recording: &Recording, name: &str, notes: &[String]) -> anyhow::Result<ExitCode> {
    let store = args.symbols.store(recording);
    let stacks = ThreadStacks::open(recording, &LoadOptions::default(), &store)
        .with_context(|| format!("failed to read {name}"))?;
    let Some(stacks) = stacks else {
        return Err(exit::usage(anyhow!(
            "{name} has no stacks of threads: `kymo stacks -o FILE` keeps them"
        )));
    };
    if !args.quiet {
        damage::tell(recording.problems.iter().chain(&stacks.summary.problems));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    match args.json {
        true => write_stacks_json(&mut out, &stacks, notes)?,
        false => write_stacks(&mut out, &stacks, args.kernel)?,
    }
    out.flush().context("failed to write the stacks")?;
    Ok(exit::of_reading(recording, &stacks.summary.problems))
}
