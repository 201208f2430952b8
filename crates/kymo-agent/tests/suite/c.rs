//! The C API, from C.
use super::compiled::{built, compile};
use std::process::Command;

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
    let Some(library) = built("libkymo_agent.a") else {
        return kymo_testing::skip(name, "the static library was not built with this test");
    };
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let library = library.to_str().expect("a path");
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", include];
    let options = [&strict[..], &[library, "-ldl", "-lm", "-lgcc_s"]].concat();
    let Some((_scratch, program)) = compile(name, source, &options) else { return };
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
