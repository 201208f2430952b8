//! `kymo evlist`: the events of a recording.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use kymo_cli::{exit, open};
use kymo_profile::dump::{EventList, write_events};

use super::filter::InputArgs;

/// List the events of a recording
#[derive(Debug, Args)]
pub(crate) struct EvlistArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Show the frequency or period of each event
    #[arg(short = 'F', long)]
    freq: bool,

    /// Show all settings of each event
    #[arg(short, long)]
    verbose: bool,

    /// Show events of one group together
    #[arg(short, long, conflicts_with_all = ["verbose", "freq"])]
    group: bool,

    /// Show the names of the fields of tracepoints
    #[arg(long)]
    trace_fields: bool,

    /// Accepted for scripts written for perf: kymo reads recordings of every owner
    #[arg(short, long)]
    force: bool,
}

/// Prints a line for each event.
pub(crate) fn run(args: EvlistArgs) -> anyhow::Result<ExitCode> {
    let recording = open::recording(args.input.path())?;
    let list = EventList {
        frequency: args.freq,
        settings: args.verbose,
        groups: args.group,
        fields: args.trace_fields,
    };
    let mut out = io::BufWriter::new(io::stdout().lock());
    write_events(&mut out, &recording, list)?;
    out.flush()?;
    Ok(exit::of_reading(&recording, &[]))
}
