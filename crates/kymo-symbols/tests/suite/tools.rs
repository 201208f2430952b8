//! The compilers and other tools that tests need.

use std::path::Path;
use std::process::Command;

use kymo_testing::skip;
use tempfile::TempDir;

/// Whether a tool is not installed; then the test is skipped, with that as the reason.
pub(crate) fn lacks(test: &str, tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = tools.iter().find(|tool| !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()));
    if let Some(tool) = missing {
        skip(test, format!("{tool} is not installed"));
    }
    missing.is_some()
}

/// A folder with these files; nothing where a tool is not installed, for which the test is skipped.
pub(crate) fn workshop(test: &str, tools: &[&str], files: &[(&str, &str)]) -> Option<TempDir> {
    if lacks(test, tools) {
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).expect("the source");
    }
    Some(dir)
}

/// Runs a compiler or tool in a folder and returns its output; fails with its words if it fails.
pub(crate) fn run(dir: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(dir).output().expect(program);
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
