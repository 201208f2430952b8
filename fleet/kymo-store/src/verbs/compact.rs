//! `kymo compact s3://BUCKET/PATH`: few, large files of many small ones.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::Args;
use kymo_dataset::{CompactOptions, compact, compact_in_place};
use kymo_store::Bucket;
use signal_hook::consts::SIGINT;

use crate::say;

/// Make few, large files of the many small ones of a dataset in an object store.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("where").required(true).args(["output", "in_place"]))]
pub(crate) struct CompactArgs {
    /// The URL of the dataset
    #[arg(value_name = "URL")]
    dataset: String,

    /// Merge the files where they are, while daemons write and kymo sql reads
    #[arg(long)]
    in_place: bool,

    /// The folder of the new dataset, which does not exist yet
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Only the samples and stacks of this day (UTC); several may be named
    #[arg(long, value_name = "YYYY-MM-DD")]
    day: Vec<String>,

    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

/// Compacts it.
pub(crate) fn run(args: CompactArgs) -> anyhow::Result<()> {
    let bucket = Bucket::open(&args.dataset)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    // A second Ctrl-C ends it at once.
    signal_hook::flag::register_conditional_default(SIGINT, Arc::clone(&interrupted))
        .and_then(|_| signal_hook::flag::register(SIGINT, Arc::clone(&interrupted)))
        .context("failed to catch Ctrl-C")?;
    let days = args.day.into_iter().collect();
    let options = CompactOptions { days, progress: None, cancel: Some(&interrupted) };
    let done = match &args.output {
        Some(new) => compact(&bucket, new, &options),
        None => compact_in_place(&bucket, &options),
    };
    let done = done.with_context(|| format!("failed to compact {}", args.dataset))?;
    if !args.quiet {
        say(&done.to_string());
    }
    Ok(())
}
