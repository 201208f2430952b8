//! `kymo completions` and `kymo man`: both generated from the flags' own definitions.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Write the manual pages into a directory.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write kymo.1, kymo-record.1, ... into.
    directory: PathBuf,
}

/// Prints a completion script.
pub(crate) fn completions(args: CompletionsArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    // clap panics on a closed pipe when it writes itself; a buffer lets us treat that as success.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kymo", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes manual pages.
pub(crate) fn man(args: ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(&args.directory)
        .with_context(|| format!("failed to make the directory {}", args.directory.display()))?;
    clap_mangen::generate_to(command, &args.directory)
        .with_context(|| format!("failed to write manual pages into {}", args.directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
