//! `kymo script`: samples one by one.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kymo_data::Recording;
use kymo_profile::load::LoadOptions;
use kymo_profile::script::{Field, ScriptOptions};

use super::filter::{self, FilterArgs, InputArgs};
use super::report::SymbolArgs;
use kymo_cli::{exit, open, terminal};

/// Print the samples one by one, in order of time, as `perf script` does.
#[derive(Debug, Args)]
pub(crate) struct ScriptArgs {
    #[command(flatten)]
    input: InputArgs,

    /// What to print: comm, pid, tid, cpu, time, period, event, trace, addr, ip, sym, symoff, dso
    #[arg(short = 'F', long, value_name = "FIELDS", value_delimiter = ',')]
    fields: Vec<String>,

    /// Leave out call chains
    #[arg(short = 'G', long)]
    hide_call_graph: bool,

    /// Do not show functions that the compiler inlined
    #[arg(long)]
    no_inline: bool,

    /// Show no more than this many frames of a call chain
    #[arg(long, value_name = "N", default_value_t = 127)]
    max_stack: usize,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    symbols_from: SymbolArgs,
}

/// Prints the samples of a recording.
pub(crate) fn run(args: ScriptArgs) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let recording = open::recording(input)?;
    let options = options(&args, &recording).map_err(exit::usage)?;
    for problem in &recording.problems {
        terminal::say(&problem.to_string());
    }
    let store = args.symbols_from.store();
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let printed = kymo_profile::script::write(&recording, &options, &store, &mut out)
        .with_context(|| format!("failed to print {}", input.display()))?;
    out.flush().context("failed to write the samples")?;
    for problem in &printed.problems {
        terminal::say(&problem.to_string());
    }
    if printed.samples == 0 {
        let ScriptOptions { cpus, pids, tids, time, .. } = options;
        filter::say_why_empty(&recording, &LoadOptions { cpus, pids, tids, time, ..LoadOptions::default() });
    }
    Ok(exit::of_reading(&recording, &printed.problems))
}

fn options(args: &ScriptArgs, recording: &Recording) -> anyhow::Result<ScriptOptions> {
    let fields = args.fields.iter().map(|w| w.parse()).collect::<Result<Vec<Field>, _>>()?;
    let LoadOptions { cpus, pids, tids, time, .. } = args.filter.load(recording)?;
    Ok(ScriptOptions {
        fields: (!fields.is_empty()).then_some(fields),
        callchains: !args.hide_call_graph,
        inline: !args.no_inline,
        max_stack: args.max_stack,
        cpus,
        pids,
        tids,
        time,
    })
}
