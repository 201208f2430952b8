//! `kymo symbolize`: names for the functions of a dataset.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use kymo_cli::exit;
use kymo_cli::terminal::say;
use kymo_dataset::{DatasetFolder, symbolize};
use kymo_symbols::{Debuginfod, SymbolOptions};

use super::external;

/// Name the functions of a dataset that was written without symbols
///
/// Each build is looked up once, by its build id: in the folders given with --debug-dir, in the
/// places where debug files are installed, in what debuginfod's servers have (if DEBUGINFOD_URLS is
/// set), and where the file lay on its host. Files of the dataset are replaced as a whole; those
/// that get no new name stay as they are.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo symbolize profiles\n  kymo symbolize s3://profiles/prod\n  kymo symbolize --debug-dir /srv/debug profiles   # /srv/debug/.build-id/ab/cdef.debug"
)]
pub(crate) struct SymbolizeArgs {
    /// The folder of the dataset; or its URL, s3://BUCKET/PATH, for kymo-store
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,

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
pub(crate) fn run(args: SymbolizeArgs) -> anyhow::Result<ExitCode> {
    for folder in &args.debug_dir {
        if !folder.is_dir() {
            return Err(exit::usage(anyhow::anyhow!(
                "--debug-dir {}: there is no such folder",
                folder.display()
            )));
        }
    }
    if external::is_url(&args.dataset) {
        return external::become_store("symbolize");
    }
    let dataset = DatasetFolder::open(&args.dataset)?;
    let announce = |sentence: &str| kymo_cli::eprintln!("kymo: {sentence}");
    let fetcher = if args.no_debuginfod { None } else { Debuginfod::configured(announce) };
    let options = SymbolOptions {
        debug_dirs: args.debug_dir,
        symfs: args.symfs,
        demangle: !args.no_demangle,
        debuginfod: fetcher.map(Arc::new),
        ..SymbolOptions::default()
    };
    let done = symbolize(&dataset, options)
        .with_context(|| format!("failed to symbolize {}", args.dataset.display()))?;
    if !args.quiet {
        done.notes.iter().for_each(|note| say(note));
        say(&done.to_string());
    }
    Ok(ExitCode::SUCCESS)
}
