//! `kymo symbolize s3://BUCKET/PATH`: names for the functions of a dataset.
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use kymo_dataset::symbolize;
use kymo_store::Bucket;
use kymo_symbols::{Debuginfod, SymbolOptions};

use crate::say;

/// Name the functions of a dataset in an object store that was written without symbols.
#[derive(Debug, Args)]
pub(crate) struct SymbolizeArgs {
    /// The URL of the dataset
    #[arg(value_name = "URL")]
    dataset: String,

    /// A folder with debug files or programs by build id: ab/cdef.debug, below .build-id or at once
    #[arg(long, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,

    /// A directory that stands for / of the hosts
    #[arg(long, value_name = "DIR")]
    symfs: Option<PathBuf>,

    /// Keep names as the files store them
    #[arg(long)]
    no_demangle: bool,

    /// Fetch no symbols, though DEBUGINFOD_URLS is set
    #[arg(long)]
    no_debuginfod: bool,

    /// No notes
    #[arg(short, long)]
    quiet: bool,
}

/// Names what can be named.
pub(crate) fn run(args: SymbolizeArgs) -> anyhow::Result<()> {
    if let Some(folder) = args.debug_dir.iter().find(|folder| !folder.is_dir()) {
        anyhow::bail!("--debug-dir {}: there is no such folder", folder.display());
    }
    let bucket = Bucket::open(&args.dataset)?;
    let fetcher = if args.no_debuginfod { None } else { Debuginfod::configured(say) };
    let options = SymbolOptions {
        debug_dirs: args.debug_dir,
        symfs: args.symfs,
        demangle: !args.no_demangle,
        debuginfod: fetcher.map(Arc::new),
        ..SymbolOptions::default()
    };
    let done =
        symbolize(&bucket, options).with_context(|| format!("failed to symbolize {}", args.dataset))?;
    if !args.quiet {
        done.notes.iter().for_each(|note| say(note));
        say(&done.to_string());
    }
    Ok(())
}
