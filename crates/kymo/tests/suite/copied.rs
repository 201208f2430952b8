//! Programs that belong to one test.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::build;

/// So that there is room behind each return for what a probe puts there.
pub(crate) const ROOMY: &str = "-falign-functions=32";

/// A built program as an argument, for good; tests share it.
pub(crate) fn built(name: &str, flags: &[&str]) -> &'static str {
    build(name, flags).into_os_string().into_string().expect("a path of text").leak()
}

/// A copy of a built program in a folder of its own: the kernel's probes of other tests are in every process of one file.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) folder: tempfile::TempDir,
}

impl Program {
    /// Builds and copies it.
    pub(crate) fn of(name: &str, flags: &[&str]) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let stem = Path::new(name).file_stem().expect("a name");
        let path = folder.path().canonicalize().expect("a path").join(stem);
        // By another process: what this one has open for writing while another test forks cannot be executed as long as that child lives.
        let copied = Command::new("cp").arg(build(name, flags)).arg(&path).status().expect("cp");
        assert!(copied.success(), "{}", path.display());
        Program { path, folder }
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().expect("a path of text")
    }

    /// The path of a file in its folder.
    pub(crate) fn beside(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a path of text").to_owned()
    }
}
