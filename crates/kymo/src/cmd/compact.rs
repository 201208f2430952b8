//! `kymo compact`: a dataset of many small files as one of few large ones.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use kymo_cli::signals;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_dataset::{CompactOptions, DatasetFolder, compact};

/// Write a dataset of many small files into a new one with few large files
///
/// Daemons write a set of files each minute, and engines take longer to open many files than to
/// read them. The new dataset has the same samples: one file (or some, of 256 MiB) for each day and
/// service, and each stack, function, build and host once. The old one is only read.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo compact profiles -o profiles.compact\n  kymo compact profiles --day 2026-11-26 -o archive/2026-11-26"
)]
pub(crate) struct CompactArgs {
    /// The folder of the dataset
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,

    /// The folder of the new dataset, which does not exist yet
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Only the samples of this day (UTC); several may be named
    #[arg(long, value_name = "YYYY-MM-DD", value_parser = day)]
    day: Vec<String>,

    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

fn day(text: &str) -> Result<String, String> {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let is_day = text.len() == 10
        && text.bytes().zip(0..).all(|(c, at)| if at == 4 || at == 7 { c == b'-' } else { is_digit(at) });
    if is_day { Ok(text.to_owned()) } else { Err("write a day as 2026-11-27".into()) }
}

/// Compacts it.
pub(crate) fn run(args: CompactArgs) -> anyhow::Result<ExitCode> {
    let dataset = DatasetFolder::open(&args.dataset)?;
    let interrupted = signals::interrupted()?;
    let bar = ReadProgress::new(args.quiet);
    let progress = |done, all| bar.files(done, all);
    let options = CompactOptions {
        days: args.day.into_iter().collect(),
        progress: Some(&progress),
        cancel: Some(&interrupted),
    };
    let done = compact(&dataset, &args.output, &options);
    bar.finish();
    let done = done.with_context(|| format!("failed to compact {}", args.dataset.display()))?;
    if !args.quiet {
        let of = |files: u64, bytes: u64| format!("{files} files of {:.1} MB", bytes as f64 / 1e6);
        let (old, new) = (of(done.old_files, done.old_bytes), of(done.new_files, done.new_bytes));
        say(&format!("{} rows of samples; {old} are {new} now", done.rows));
    }
    Ok(ExitCode::SUCCESS)
}
