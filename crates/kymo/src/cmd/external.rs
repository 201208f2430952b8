//! `kymo sql`, `kymo daemon`, and `kymo-store` for datasets in object stores: programs of their own,
//! so that this one is built without a query engine and without the clients of object stores. kymo
//! executes them, as git and cargo do.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

/// The variable that has the path of this program, for those that it becomes.
const OWN_PATH: &str = "KYMO_PROGRAM";

/// Ask the profiles of one machine or of many, in SQL (a program of its own: kymo-sql).
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(
    after_help = "`kymo sql --help` has the options of kymo-sql. Where there is no kymo-sql beside kymo or on PATH,\n`make sql` builds it.\n\nExamples:\n  kymo sql --list\n  kymo sql --query top-functions perf.data\n  kymo sql 'SELECT service, SUM(value) FROM samples GROUP BY service' s3://profiles/prod"
)]
pub(crate) struct SqlArgs {
    /// Words for kymo-sql
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Profile this machine all the time (a program of its own: kymo-daemon).
#[derive(Debug, Args)]
#[command(disable_help_flag = true, disable_version_flag = true)]
#[command(
    after_help = "`kymo daemon --help` has the options of kymo-daemon. Where there is no kymo-daemon beside kymo or on\nPATH, `make daemon` builds it."
)]
pub(crate) struct DaemonArgs {
    /// Words for kymo-daemon
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Becomes kymo-sql.
pub(crate) fn sql(args: SqlArgs) -> anyhow::Result<ExitCode> {
    become_program("sql", args.words)
}

/// Becomes kymo-daemon.
pub(crate) fn daemon(args: DaemonArgs) -> anyhow::Result<ExitCode> {
    become_program("daemon", args.words)
}

/// Whether a dataset is in an object store.
pub(crate) fn is_url(dataset: &Path) -> bool {
    dataset.to_str().is_some_and(|text| text.contains("://"))
}

/// Becomes kymo-store, with this verb and the words after it.
pub(crate) fn become_store(verb: &str) -> anyhow::Result<ExitCode> {
    let words = std::env::args_os().skip(1).skip_while(|word| word != verb);
    become_program("store", words.collect())
}

/// Whether there is a kymo-store, before anything long is begun for it.
pub(crate) fn require_store() -> anyhow::Result<()> {
    let (program, mut command) = program("store");
    let answered = command.arg("--version").output();
    answered.map(|_| ()).map_err(|error| not_executed("store", &program, error))
}

/// Adds the files of a dataset in a folder to the one of a URL, by kymo-store.
pub(crate) fn add_to_store(folder: &Path, url: &Path) -> anyhow::Result<()> {
    let (program, mut command) = program("store");
    let status = command.arg("add").arg(folder).arg(url).status();
    let status = status.map_err(|error| not_executed("store", &program, error))?;
    // It has said why.
    anyhow::ensure!(status.success(), "the recording was not added to {}", url.display());
    Ok(())
}

/// Executes the program of a verb in the place of this process, so that its status and the signals
/// to it are its own.
fn become_program(verb: &str, words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let (program, mut command) = program(verb);
    let error = command.args(words).exec();
    Err(not_executed(verb, &program, error))
}

/// The program of a verb, and what executes it.
fn program(verb: &str) -> (PathBuf, Command) {
    let name = format!("kymo-{verb}");
    let own = std::env::current_exe().ok();
    let program = beside(own.as_deref(), &name).unwrap_or_else(|| PathBuf::from(&name));
    let mut command = Command::new(&program);
    // A program elsewhere on PATH reads recordings by this kymo, not by another one or none.
    own.iter().for_each(|own| _ = command.env(OWN_PATH, own));
    (program, command)
}

/// Why a program was not executed, and what builds it.
fn not_executed(verb: &str, program: &Path, error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return anyhow::anyhow!(
            "there is no kymo-{verb} beside kymo or on PATH: `make {verb}` in kymo's sources builds it into target/fleet/release"
        );
    }
    anyhow::Error::new(error).context(format!("failed to execute {}", program.display()))
}

/// The program in the folder of kymo. In a folder that all may write to, what others put there is
/// not executed.
fn beside(own: Option<&Path>, name: &str) -> Option<PathBuf> {
    let path = own?.parent()?.join(name);
    let owner = std::fs::symlink_metadata(&path).ok()?.uid();
    let is_trusted = owner == 0 || owner == rustix::process::geteuid().as_raw();
    (is_trusted && path.is_file()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a program beside kymo is found, that PATH is left where there is none, and that
    /// one which another user put there is not taken.
    #[test]
    fn a_program_beside_kymo_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let kymo = folder.path().join("kymo");
        assert_eq!(beside(Some(&kymo), "kymo-sql"), None);
        let program = folder.path().join("kymo-sql");
        std::fs::write(&program, "").expect("a file");
        assert_eq!(beside(Some(&kymo), "kymo-sql"), Some(program.clone()));
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip(
                "external::a_program_beside_kymo_is_found",
                "needs root to give files away",
            );
        }
        std::os::unix::fs::chown(&program, Some(65534), None).expect("root gives it away");
        assert_eq!(beside(Some(&kymo), "kymo-sql"), None);
    }
}
