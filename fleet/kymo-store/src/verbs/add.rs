//! `kymo export --to parquet -o s3://BUCKET/PATH` ends with this: the files of a recording go into
//! a dataset.
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use kymo_dataset::{DatasetFolder, add};
use kymo_store::Bucket;

/// Add the files of a dataset in a folder to one in an object store.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// The folder of a dataset
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// The URL of the dataset, a new one or one to add to
    #[arg(value_name = "URL")]
    dataset: String,
}

/// Adds them.
pub(crate) fn run(args: &AddArgs) -> anyhow::Result<()> {
    let folder = DatasetFolder::open(&args.folder)?;
    let bucket = Bucket::open(&args.dataset)?;
    add(&folder, &bucket).with_context(|| format!("failed to add to {}", args.dataset))
}
