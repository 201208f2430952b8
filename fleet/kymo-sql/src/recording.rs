//! Recordings as datasets: `kymo export` converts them into a private folder, which is removed with
//! the answer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

/// Converts recordings into one dataset in a private temporary folder. Where the caller is dropped
/// first, the conversion is stopped by the folder that goes away.
///
/// # Errors
/// There is no `kymo`, it refuses a recording, or there is no space.
pub(crate) async fn convert(recordings: Vec<PathBuf>) -> anyhow::Result<TempDir> {
    let convert_all = move || -> anyhow::Result<TempDir> {
        let folder =
            tempfile::Builder::new().prefix("kymo-sql.").tempdir().context("failed to make a folder")?;
        let program = kymo();
        recordings.iter().try_for_each(|recording| export(&program, recording, folder.path()))?;
        Ok(folder)
    };
    tokio::task::spawn_blocking(convert_all).await.context("the conversion broke off")?
}

fn export(program: &Path, recording: &Path, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command
        .arg("export")
        .arg("--to")
        .arg("parquet")
        .arg("--quiet")
        .arg("-o")
        .arg(folder)
        .arg("-i")
        .arg(recording);
    // The reason of a refusal is on stderr, in kymo's words.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().with_context(|| {
        format!("failed to start {}, which reads recordings for `kymo sql`", program.display())
    })?;
    if !status.success() {
        bail!("{} could not be converted into a dataset", recording.display());
    }
    Ok(())
}

/// The `kymo` that became this program, else that beside it, else that on PATH.
fn kymo() -> PathBuf {
    if let Some(caller) = std::env::var_os("KYMO_PROGRAM").map(PathBuf::from).filter(|path| path.is_file()) {
        return caller;
    }
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join("kymo")));
    beside.filter(|path| path.is_file()).unwrap_or_else(|| PathBuf::from("kymo"))
}
