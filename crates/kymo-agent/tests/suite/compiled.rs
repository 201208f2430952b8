//! What cargo and compilers made for these tests.
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A library of this crate, which cargo puts into this program's folder or beside it.
pub(crate) fn built(name: &str) -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let files = program.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    files.filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file))).max().map(|(_, file)| file)
}

/// Compiles a file of `tests/c`, into a file with its name; `None`, loudly, without a compiler, or
/// where this one cannot link statically.
pub(crate) fn compile(test: &str, source: &str, options: &[&str]) -> Option<(TempDir, PathBuf)> {
    let scratch = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let compiler = if source.extension().is_some_and(|kind| kind == "cc") { "g++" } else { "gcc" };
    let file = scratch.path().canonicalize().expect("a path").join(source.file_stem().expect("a name"));
    let compiled = Command::new(compiler).arg("-O1").arg("-o").args([&file, &source]).args(options).output();
    let failed = match compiled {
        Ok(compiled) if compiled.status.success() => return Some((scratch, file)),
        Ok(compiled) => {
            let words = String::from_utf8_lossy(&compiled.stderr).trim().to_owned();
            assert!(options.contains(&"-static"), "{words}");
            words
        }
        Err(error) => format!("no {compiler} here: {error}"),
    };
    kymo_testing::skip(test, failed);
    None
}
