//! The C API, from C.
use std::path::{Path, PathBuf};
use std::process::Command;

fn library() -> Option<PathBuf> {
    // In this program's folder or beside it: cargo builds all kinds of the library before its
    // tests, and puts them here or there.
    let program = std::env::current_exe().ok()?;
    let folders = program.ancestors().skip(1).take(2);
    let libraries = folders.map(|folder| folder.join("libkymo_agent.a"));
    libraries
        .filter_map(|file| Some((file.metadata().ok()?.modified().ok()?, file)))
        .max()
        .map(|(_, file)| file)
}

/// Checks the fibers, jobs and mistakes of `tests/c/fibers.c`, compiled with all warnings against
/// the header and the static library.
#[test]
fn a_c_program_counts_its_fibers() {
    run("c::a_c_program_counts_its_fibers", "fibers.c");
}

/// Checks the watches of `tests/c/watches.c`: hits of several threads, a stop in the handler,
/// refusals.
#[test]
fn a_c_program_watches_its_memory() {
    run("c::a_c_program_watches_its_memory", "watches.c");
}

/// Compiles a program and runs it; it says "done" at its end, or "skip" and why.
fn run(name: &str, source: &str) {
    if Command::new("gcc").arg("--version").output().is_err() {
        return kymo_testing::skip(name, "no gcc here");
    }
    let Some(library) = library() else {
        return kymo_testing::skip(name, "the static library was not built with this test");
    };
    let (here, scratch) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().expect("a folder"));
    let program = scratch.path().join("program");
    let compiled = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/c").join(source))
        .arg(library)
        .args(["-ldl", "-lm", "-lgcc_s", "-o"])
        .arg(&program)
        .output()
        .expect("gcc runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).output().expect("it starts");
    let said = String::from_utf8_lossy(&ran.stdout);
    if let Some(why) = said.strip_prefix("skip: ") {
        return kymo_testing::skip(name, why.trim());
    }
    assert!(ran.status.success() && said.ends_with("done\n"), "{:?}\n{said}", ran.status);
}

/// Checks that the header declares each function that the library has, and none else.
#[test]
fn the_header_has_all_functions() {
    let functions = |text: &str, before: &str| -> Vec<String> {
        let named = text.match_indices("kymo_").filter(|&(at, _)| {
            let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..at];
            line.ends_with(before) && !line.trim_start().starts_with(['*', '/']) && !line.starts_with("    ")
        });
        let name = |(at, _): (usize, &str)| {
            let name: String = text[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            text[at + name.len()..].starts_with('(').then_some(name)
        };
        let mut names: Vec<String> = named.filter_map(name).collect();
        names.sort();
        names
    };
    let library = functions(include_str!("../../src/capi.rs"), "extern \"C\" fn ");
    let header = functions(include_str!("../../include/kymo.h"), "");
    assert!(library.len() >= 10, "{library:?}");
    assert_eq!(library, header);
}
