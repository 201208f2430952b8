//! `kymo mcp`: queries as tools for coding assistants, by the Model Context Protocol.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::report::SymbolArgs;

/// Queries as tools for coding assistants, by the Model Context Protocol on stdin and stdout.
#[derive(Debug, Args)]
#[command(
    after_help = "The client starts it, and ends it by closing its stdin. It reads the recordings that are named here,\nand those below --root, and no other file that the client names.\n\nExamples:\n  kymo mcp perf.data wall.data\n  kymo mcp --root /srv/recordings"
)]
pub(crate) struct McpArgs {
    /// Recordings that the client may ask about; perf.data if none is named and no --root
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A folder: the client may ask about each recording below it
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Worker threads; as many as CPUs are usual
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    #[command(flatten)]
    symbols: SymbolArgs,
}

/// Serves the client until its end of stdin closes.
#[cfg(feature = "mcp")]
pub(crate) fn run(args: McpArgs) -> anyhow::Result<ExitCode> {
    use anyhow::Context as _;
    use kymo_cli::{exit, open};
    use kymo_mcp::{AllowedRecordings, RecordingOpener, serve};

    let McpArgs { mut files, root, jobs, symbols } = args;
    if files.is_empty() && root.is_none() {
        files.push(open::DEFAULT.into());
    }
    if files.iter().any(|file| file.as_os_str() == "-") {
        return Err(exit::usage(anyhow::anyhow!("stdin has the client's requests: name a file")));
    }
    let folder = root.as_ref().map(|root| root.display().to_string()).unwrap_or_default();
    let allowed =
        AllowedRecordings::new(files, root).with_context(|| format!("failed to open the folder {folder}"))?;
    let opener = RecordingOpener {
        open: Box::new(|path| open::recording(path).map_err(|error| exit::with_causes(&error))),
        read: Box::new(|file| open::opened_recording(file, Vec::new()).map_err(|error| error.to_string())),
        store: Box::new(move |recording| symbols.store(recording)),
        jobs,
    };
    serve(allowed, opener)?;
    Ok(ExitCode::SUCCESS)
}

/// Says how to build a kymo that has it.
#[cfg(not(feature = "mcp"))]
pub(crate) fn run(args: McpArgs) -> anyhow::Result<ExitCode> {
    drop(args);
    anyhow::bail!(
        "this kymo was built without `kymo mcp`: build one that has it by `make mcp`, or by `cargo build --release -p kymo --features mcp`"
    )
}
