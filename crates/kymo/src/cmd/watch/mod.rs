//! `kymo watch`: who touches this memory, on every thread that is and will be.
//!
//! ```text
//!  words -> target (held) -> places -> plan -> arm -> let go
//!                                               |
//!     rings -> rounds (in order) -> ledger (values, condition, counts) -> lines (a thread of its own) -> stdout
//!                                               '-> table at the end
//! ```

mod arming;
mod ending;
mod errors;
mod lines;
mod run;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use kymo_perf::watch::Scope;
use kymo_record::Output;

use kymo_cli::exit;
use kymo_cli::parse::{parse_duration, parse_pid};

/// Show who touches memory: every access by every thread, with the value that it left.
#[derive(Debug, Args)]
#[command(
    after_help = "A place is EXPR[:LENGTH][:r|w|rw|x]: a symbol or variable (counter, queue.head->next, table[3], *pointer, module::STATIC), symbol+0x10, or an address (0x404040:8).\nWithout a length all of it is watched, without an access writes (a function: its execution).\n\nExamples:\n  kymo watch -p 1234 counter                     who writes this variable?\n  kymo watch -p 1234 'flags[2]' --if 'new==0'    who clears this flag?\n  kymo watch config.mode -- ./server --port 80   from the first instruction on\n  kymo watch -p 1234 list.head:rw -g             who reads or writes it, with callers\n  kymo watch -p 1234 total --stop                stop the process at the next write, for a debugger"
)]
pub(crate) struct WatchArgs {
    /// Watch these processes, all their threads and children
    #[arg(short, long = "pid", value_name = "PID|NAME", value_delimiter = ',', value_parser = parse_pid)]
    pids: Vec<i32>,
    /// What to watch, and with -- a command to start
    #[arg(value_name = "EXPR", required = true)]
    places: Vec<String>,
    /// The command to watch, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Show callers of each access (along frame pointers)
    #[arg(short = 'g', long)]
    call_graph: bool,
    /// Only accesses for which this holds: comparisons of new, old, tid, pid with values, joined by && and ||
    #[arg(long = "if", value_name = "CONDITION")]
    condition: Option<String>,
    /// End after so many accesses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop the process at the access, for a debugger to look at it
    #[arg(long)]
    stop: bool,
    /// Take turns of so many milliseconds where more is watched than the hardware can at a time
    #[arg(long, value_name = "MS", default_value = "50", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    rotate: u64,
    /// Refuse to watch more than the hardware can at a time
    #[arg(long, conflicts_with = "rotate")]
    no_rotate: bool,
    /// End after this time: seconds, or with ms, s, m, h
    #[arg(short, long, value_name = "TIME", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Accesses that the kernel makes for the process, too (read into a buffer, futex)
    #[arg(long)]
    kernel: bool,
    /// Record all accesses into this perf.data file, too (for kymo report and perf); an existing one becomes FILE.old
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How to reach threads: filtered (on every CPU, strangers dropped in the kernel) or tasks (each thread, inherited) [default: filtered where permitted]
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope)]
    scope: Option<Scope>,
    /// JSON, one object per line
    #[arg(long)]
    json: bool,
    /// No line for each access, only the table at the end
    #[arg(short, long)]
    quiet: bool,
    /// All lines on a terminal, too, and what was decided
    #[arg(short, long)]
    verbose: bool,
}

fn parse_scope(text: &str) -> Result<Scope, String> {
    match text {
        "filtered" => Ok(Scope::Filtered),
        "tasks" => Ok(Scope::Tasks),
        _ => Err("expected filtered or tasks".into()),
    }
}

/// Says something on stderr.
fn say(text: &str) {
    let lines: Vec<_> = text.split('\n').map(kymo_profile::text::shown).collect();
    eprintln!("kymo watch: {}", lines.join("\n"));
}

/// Runs the verb.
pub(crate) fn run(args: WatchArgs) -> anyhow::Result<ExitCode> {
    if args.pids.is_empty() == args.command.is_empty() {
        say(if args.pids.is_empty() {
            "nothing to watch: name a process with -p, or a command behind --; see `kymo watch --help`"
        } else {
            "either -p or a command, not both"
        });
        return Ok(ExitCode::from(exit::USAGE));
    }
    match args.output.as_deref().map(Output::parse) {
        Some(output @ Output::File(_)) => output.check()?,
        Some(_) => {
            say("-o wants a file: the accesses are printed on standard output, and would be mixed with it");
            return Ok(ExitCode::from(exit::USAGE));
        }
        None => {}
    }
    run::run(args)
}
