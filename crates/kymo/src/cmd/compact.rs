//! `kymo compact`: few, large files of the many small ones of a dataset.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use kymo_cli::signals;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_dataset::{CompactOptions, DatasetFolder, compact, compact_in_place};

use super::external;

/// Make few, large files of the many small ones of a dataset
///
/// Daemons write a set of files each minute, and engines take longer to open many files than to
/// read them. Afterwards there are the same samples: one file (or some, of 256 MiB) for each day and
/// service, and each stack, function, build and host once.
///
/// With -o the rows go into a new dataset, and the old one is only read. With --in-place the files
/// of each folder are merged where they are, while daemons write and `kymo sql` reads: each sample
/// counts once at any moment, also if this is killed.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["output", "in_place"]))]
#[command(
    after_help = "Examples:\n  kymo compact profiles -o profiles.compact\n  kymo compact profiles --day 2026-11-26 -o archive/2026-11-26\n  kymo compact --in-place s3://profiles/prod"
)]
pub(crate) struct CompactArgs {
    /// The folder of the dataset; or its URL, s3://BUCKET/PATH, for kymo-store
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,

    /// The folder of the new dataset, which does not exist yet
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Merge the files where they are
    #[arg(long)]
    in_place: bool,

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
    if external::is_url(&args.dataset) {
        return external::become_store("compact");
    }
    let dataset = DatasetFolder::open(&args.dataset)?;
    let interrupted = signals::interrupted()?;
    let bar = ReadProgress::new(args.quiet);
    let progress = |done, all| bar.files(done, all);
    let options = CompactOptions {
        days: args.day.into_iter().collect(),
        progress: Some(&progress),
        cancel: Some(&interrupted),
    };
    let done = match &args.output {
        Some(new) => compact(&dataset, new, &options),
        None => compact_in_place(&dataset, &options),
    };
    bar.finish();
    let done = done.with_context(|| format!("failed to compact {}", args.dataset.display()))?;
    if !args.quiet {
        say(&done.to_string());
    }
    Ok(ExitCode::SUCCESS)
}
