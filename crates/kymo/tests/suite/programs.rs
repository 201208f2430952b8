//! Builds the programs of `fixtures/programs`, each once for all tests.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the sources.
pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs")
}

/// The program built from `fixtures/programs/NAME` (`spin.c`, `inline.cc`, `hot.rs`), with flags beside `-O2 -g`.
///
/// Built programs stay in cargo's folder for tests, under a name that changes with the source and the flags, so that tests
/// and later runs share them.
pub(crate) fn build(name: &str, flags: &[&str]) -> PathBuf {
    let source = sources().join(name);
    let text = std::fs::read(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let mut hasher = DefaultHasher::new();
    (text, flags).hash(&mut hasher);
    let (stem, kind) = name.rsplit_once('.').expect("a name with an extension");
    // The name of the file is what a profiler shows as the process's name: it stays the program's.
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs/{stem}-{:016x}", hasher.finish()));
    let program = folder.join(stem);
    if program.exists() {
        return program;
    }
    std::fs::create_dir_all(&folder).expect("the folder for programs");
    // Tests run at the same time, in threads and in processes: each builds its own, and the first
    // one to end stays. A file that took its place would leave a program without names that runs.
    // No dots: rustc names its object files by what stands before the last one.
    let unique = format!("{stem}-{}-{:?}", std::process::id(), std::thread::current().id());
    let fresh = folder.join(unique.replace(['(', ')'], "-"));
    let mut command = match kind {
        "c" => compiler("cc", &["-O2", "-g", "-pthread"]),
        "cc" => compiler("c++", &["-O2", "-g", "-pthread"]),
        "rs" => compiler("rustc", &["--edition", "2021", "-O", "-g"]),
        _ => panic!("{name}: no compiler for this kind of file"),
    };
    command.args(flags).arg(&source).arg("-o").arg(&fresh);
    if kind != "rs" {
        // After the source: libraries serve what stands before them.
        command.args(["-ldl", "-lm"]);
    }
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    match std::fs::hard_link(&fresh, &program) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => panic!("{}: {error}", program.display()),
    }
    std::fs::remove_file(&fresh).expect("our file");
    program
}

fn compiler(name: &str, flags: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(flags);
    command
}
