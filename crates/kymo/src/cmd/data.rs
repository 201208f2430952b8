//! `kymo data convert`: a recording in another format.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use kymo_cli::{exit, open};
use kymo_profile::load::TimeSpans;

use super::filter::InputArgs;
use super::report::SymbolArgs;

/// Convert a recording into another format
#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    #[command(subcommand)]
    action: DataAction,
}

#[derive(Debug, Subcommand)]
enum DataAction {
    /// Write the samples of a recording as JSON, in the form of `perf data convert`
    Convert(ConvertArgs),
}

#[derive(Debug, Args)]
struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Write JSON to this file; - is stdout
    #[arg(long, value_name = "FILE")]
    to_json: PathBuf,

    /// Only samples of these times: FROM,TO in seconds, or parts such as 10%/2
    #[arg(long, value_name = "TIMES")]
    time: Option<String>,

    /// Accepted for scripts written for perf: JSON holds samples only
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    symbols_from: SymbolArgs,

    /// Say nothing about what was written
    #[arg(short, long)]
    quiet: bool,
}

/// Converts a recording.
pub(crate) fn run(args: DataArgs) -> anyhow::Result<ExitCode> {
    let DataAction::Convert(args) = args.action;
    let input = args.input.path();
    let recording = open::recording(input)?;
    let time = args.time.as_deref().map(|text| TimeSpans::parse(text, &recording)).transpose();
    let time = time.map_err(|error| exit::usage(anyhow::Error::new(error)))?;
    let store = args.symbols_from.store(&recording);
    let captured = super::header::captured(input);
    let write = |out: &mut dyn Write| {
        kymo_profile::script::write_json(&recording, captured, time.as_ref(), &store, out)
    };
    let name = args.to_json.display();
    let printed = if args.to_json == Path::new("-") {
        let mut out = BufWriter::new(io::stdout().lock());
        let printed = write(&mut out).context("failed to write JSON")?;
        out.flush()?;
        printed
    } else {
        let mut out = BufWriter::new(open::export(&args.to_json)?);
        let printed = write(&mut out).with_context(|| format!("failed to write {name}"))?;
        let export = out.into_inner().map_err(|error| error.into_error())?;
        export.finish().with_context(|| format!("failed to write {name}"))?;
        printed
    };
    if !args.quiet {
        eprintln!("kymo: {} samples of {} as JSON in {name}", printed.samples, input.display());
    }
    Ok(exit::of_reading(&recording, &printed.problems))
}
