//! `kymo import`: a profile of another tool as a recording.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use kymo_cli::open;
use kymo_cli::terminal::say;
use kymo_files::{Input, open_input};
use kymo_profile::import::{self, ImportedProfile};
use kymo_record::write_whole;

/// Make a recording of another tool's profile, for every verb that reads recordings
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo import pprof cpu.pb.gz -o cpu.data && kymo report -i cpu.data\n  kymo import folded stacks.txt -o stacks.data"
)]
pub(crate) struct ImportArgs {
    /// The format
    #[arg(value_name = "FORMAT")]
    from: ImportFormat,

    /// The profile, - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where the recording goes
    #[arg(short, long, value_name = "FILE", default_value = open::DEFAULT)]
    output: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ImportFormat {
    /// A profile of pprof (profile.proto), compressed or not
    Pprof,
    /// Folded stacks: command;outer;inner count
    Folded,
}

/// Reads a profile and writes a recording.
pub(crate) fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let profile = read(&args).with_context(|| format!("failed to import {}", args.file.display()))?;
    let tool = match args.from {
        ImportFormat::Pprof => "pprof",
        ImportFormat::Folded => "folded",
    };
    profile.notes.iter().for_each(|note| say(note));
    if profile.counts.is_empty() {
        say("the profile has no samples");
    }
    write_whole(&args.output, |file| anyhow::Ok(import::write(&profile, tool, file)?))
        .with_context(|| format!("failed to write {}", args.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn read(args: &ImportArgs) -> anyhow::Result<ImportedProfile> {
    let from: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        match open_input(&args.file)? {
            Input::File(file) => Box::new(file),
            Input::Stream(stream) => Box::new(stream),
            Input::Folder(_) => anyhow::bail!("it is a directory, not a profile"),
        }
    };
    let from = BufReader::new(from);
    Ok(match args.from {
        ImportFormat::Pprof => import::pprof(from)?,
        ImportFormat::Folded => import::folded(from)?,
    })
}
