//! `kymo completions` and `kymo man`: both generated from the flags' own definitions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::open;

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
    let mut command = command.disable_help_subcommand(true);
    // So that each verb's page is called after kymo and the verb.
    command.build();
    page(&command, &args.directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of the commands below it.
fn page(command: &clap::Command, directory: &Path) -> anyhow::Result<()> {
    let manual = clap_mangen::Man::new(command.clone());
    let path = directory.join(manual.get_filename());
    let mut text = Vec::new();
    manual.render(&mut text)?;
    let write = |mut file: kymo_files::Export| file.write_all(&text).and_then(|()| file.finish());
    write(open::export(&path)?).with_context(|| format!("failed to write {}", path.display()))?;
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| page(below, directory))
}
