//! `kymo probe`: hits, latencies and callers of functions, lines and markers of programs that run.
//!
//! ```text
//!  selectors --modules--> sites --engine--> Service (counts by itself) --read each second--> table, picture, JSON
//! ```

mod live;
mod recording;
mod run;
mod show;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use kymo_cli::exit;
use kymo_cli::parse::parse_pid;
use kymo_probe::engine::Choice;

/// Count and time any function, line or marker of a program while it runs.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo probe --ret parse_request -- ./server        hits and latencies of a function of the program\n  kymo probe -p 1234 -g 'libc.so.6:malloc'           who calls malloc, and how often\n  kymo probe -p 1234 --hist 'libssl*:SSL_*'          latencies of all functions of a library, as pictures\n  kymo probe 'parse(req->uri, len)' -- ./server       each call with these arguments; --args: all of them\n  kymo probe -p 1234 --if 'size > 4096' pool_alloc    only some calls\n  kymo probe file.c:120 usdt:libc:setjmp -- ./prog   lines and markers (USDT)\n  kymo list --probes ./prog 'pars*'                  what can be probed"
)]
pub(crate) struct ProbeArgs {
    /// What to probe: FUNCTION (of the program itself), LIB.so:FUNCTION*, FILE.c:LINE, LIB.so:0xOFFSET, FUNCTION+0xOFFSET or usdt:PROVIDER:NAME; * and ? stand for any names
    #[arg(required = true, value_name = "PROBE")]
    selectors: Vec<String>,
    /// Probe these processes, until they end or Ctrl-C
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pids: Vec<i32>,
    /// Count in the processes that they start, too (for a command: always, without -i); other programs that use a probed library are slowed then
    #[arg(long)]
    children: bool,
    /// Do not count in what the command starts
    #[arg(short = 'i', long, conflicts_with = "children")]
    no_inherit: bool,
    /// Time calls: mean, median, 99th percentile, longest
    #[arg(long)]
    ret: bool,
    /// Show the most frequent callers
    #[arg(short = 'g')]
    callers: bool,
    /// Draw how often which latency was (implies --ret)
    #[arg(long)]
    hist: bool,
    /// Count only
    #[arg(long, conflicts_with_all = ["ret", "hist", "callers", "args"])]
    count: bool,
    /// Print each hit with what the function was called with, and with --ret what it returned, by the names of the source: all parameters, or those in parentheses behind its name
    #[arg(long)]
    args: bool,
    /// Only hits of which this holds: comparisons of parameters (size, req->method), of arg1 to arg6, registers ($rdi) or ret with numbers or "texts", joined by && and ||; arg1:s32 is an int, u8 to u64 and s8 to s64 are others
    #[arg(long = "if", value_name = "EXPR")]
    condition: Option<String>,
    /// Look at each Nth hit only (all are counted), so that timing and callers cost less
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    every: u32,
    /// End after so many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Who serves the probes
    #[arg(long, value_parser = engines(), value_name = "ENGINE", default_value = "auto")]
    engine: Choice,
    /// Time calls by replacing return addresses also where that may crash the program: it walks or switches its stacks, or throws exceptions
    #[arg(long)]
    force: bool,
    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
    /// Do not print probes without hits
    #[arg(long)]
    hits_only: bool,
    /// Print what would be probed, and end
    #[arg(long)]
    dry_run: bool,
    /// Print nothing but the result and errors
    #[arg(short, long)]
    quiet: bool,
    /// The command to probe, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Write a recording of each hit instead (as `kymo record -e probe:...`), for `kymo script` and perf; with -g call chains, with --ret what functions returned
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["json", "hist", "count", "hits_only", "dry_run"])]
    output: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.trim_end_matches('s').parse().map_err(|_| "expected a number of seconds")?;
    if !(0.001..=1e9).contains(&number) {
        return Err("expected a number of seconds above 0".into());
    }
    Ok(Duration::from_secs_f64(number))
}

/// The engines by name.
pub(crate) fn engines() -> impl TypedValueParser<Value = Choice> {
    let names = Choice::NAMES.map(|(name, _, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(names).try_map(|given| {
        let named = Choice::NAMES.iter().find(|(name, ..)| *name == given);
        named.map(|(_, choice, _)| *choice).ok_or("there is no such engine")
    })
}

/// Runs the verb.
pub(crate) fn run(args: ProbeArgs) -> anyhow::Result<ExitCode> {
    if args.pids.is_empty() == args.command.is_empty() {
        return Err(exit::usage("name a command behind --, or processes with -p"));
    }
    match args.output.clone() {
        Some(output) => recording::run(args, output),
        None => run::run(&args),
    }
}
