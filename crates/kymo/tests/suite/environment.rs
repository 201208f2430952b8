//! The tests' own environment: what a user of perf has on a machine does not reach the tools that
//! tests run.

use std::path::Path;
use std::process::Command;

use crate::programs::build;
use crate::scenario::{fresh_folder, record};
use crate::tools::{Need, kymo, perf, ready, run, text};

/// Checks that a build-id cache in the user's home, with another program under the recorded build
/// id, changes the names of neither tool in tests, and that it would change them otherwise.
#[test]
fn a_full_cache_of_the_user_changes_no_name() {
    const TEST: &str = "environment::a_full_cache_of_the_user_changes_no_name";
    if !ready(TEST, &[Need::Perf, Need::Program("objcopy"), Need::Program("readelf")]) {
        return;
    }
    let program = build("spin.c", &["-Wl,--build-id"]);
    let events = ["-e", "cpu-clock:u", "-F", "999"];
    let recording = record(&perf(), "environment", &events, &[text(&program)]).path;
    let said = run(Command::new("readelf").arg("-n").arg(&program)).ends(0).stdout;
    let id = said.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build id");
    let home = fresh_folder("environment-home");
    let cached = home.join(".debug/.build-id").join(&id[..2]).join(&id[2..]);
    std::fs::create_dir_all(&cached).expect("our folder");
    let renamed = ["--redefine-sym", "spin=POISONED"];
    run(Command::new("objcopy").args(renamed).arg(&program).arg(cached.join("elf"))).ends(0);
    let report = ["report", "-i", text(&recording), "--stdio", "-s", "sym"];
    for tool in [perf(), kymo()] {
        let said = run(tool.command(report).env("HOME", &home)).ends(0).stdout;
        assert!(said.contains("] spin") && !said.contains("POISONED"), "{}: {said}", tool.name);
    }
    let cache = home.join(".debug");
    let named = [&["--buildid-dir", text(&cache)], &report[..]].concat();
    kymo().succeed(named).prints("POISONED");
}

/// Checks that perf prints a tracepoint in its own form, whether or not plugins of libtraceevent
/// are installed.
#[test]
fn plugins_of_perf_change_no_line() {
    const TEST: &str = "environment::plugins_of_perf_change_no_line";
    if !ready(TEST, &[Need::Perf, Need::Root, Need::Tracepoints]) {
        return;
    }
    if !Path::new(&format!("/usr/lib/{}-linux-gnu/traceevent/plugins", std::env::consts::ARCH)).is_dir() {
        return kymo_testing::skip(TEST, "libtraceevent1-plugin is not installed (make setup)");
    }
    let recording = record(&perf(), "plugins", &["-e", "sched:sched_switch", "-c", "1"], &["sleep", "0.1"]);
    let said = perf().succeed(["script", "-i", text(&recording.path)]).stdout;
    assert!(said.contains("prev_comm=sleep") && said.contains("==> next_comm="), "{said}");
}
