//! The symbol cache: reports are the same without it, when it is filled, and from it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::exports::recordings;
use crate::programs::build;
use crate::tools::{Need, Said, kymo, require, run, skip, text};

/// What is asked of each recording.
const REPORTS: &[&[&str]] = &[
    &["report"],
    &["report", "--no-children", "-g", "none", "-F", "sample,dso,sym,srcline"],
    &["report", "--no-demangle", "--no-inline"],
    &["report", "--folded"],
    &["report", "--json"],
    &["script", "-F", "comm,ip,sym,dso,srcline"],
];

/// Runs a report whose cache is below this folder.
fn cached(report: &[&str], file: &Path, folder: &Path) -> Said {
    let (verb, options) = report.split_first().expect("a verb");
    let mut command = kymo().command([&[*verb, "-i", text(file)], options].concat());
    let command = command.env_remove("KYMO_SYMBOL_CACHE").env("XDG_CACHE_HOME", folder);
    run(command.env("KYMO_LOG", "kymo_symbols=debug"))
}

/// The same without a cache.
fn bare(report: &[&str], file: &Path) -> Said {
    let (verb, options) = report.split_first().expect("a verb");
    kymo().run([&[*verb, "-i", text(file)], options].concat())
}

/// The files of the cache.
fn files(folder: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(folder.join("kymo/symbols")).into_iter().flatten();
    list.map(|entry| entry.expect("an entry").path()).collect()
}

/// A recording of a program with inlined functions and lines.
fn recording(folder: &Path) -> PathBuf {
    let path = folder.join("perf.data");
    let program = build("inline.cc", &[]);
    kymo().succeed(["record", "-q", "-o", text(&path), "-F", "999", "--", text(&program), "200"]);
    path
}

/// Checks that each report says the same, byte for byte, without a cache, with an empty one, and
/// from a full one: of the recordings of `fixtures/recordings` and of a new one.
#[test]
fn reports_are_the_same() {
    let Some(()) = require("symbol_cache::reports_are_the_same", &[Need::Program("c++")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let mut all = recordings();
    all.push(recording(folder.path()));
    for file in all {
        let cache = tempfile::tempdir().expect("a folder");
        for report in REPORTS {
            let bare = bare(report, &file);
            for round in ["cold", "warm"] {
                let with = cached(report, &file, cache.path());
                assert_eq!(with.code, bare.code, "{round}: {}: {}", with.command, with.stderr);
                assert!(with.stdout == bare.stdout, "{round}: {} says something else", with.command);
            }
        }
    }
}

/// Checks that a report leaves a cache that only its owner can read, and that it can be switched
/// off in both ways; a variable that makes no sense is named.
#[test]
fn it_can_be_switched_off() {
    let Some(()) = require("symbol_cache::it_can_be_switched_off", &[Need::Program("c++")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = recording(folder.path());
    let with = |arguments: &[&str], variable: &str| {
        let mut command = kymo().command([arguments, &["report", "-i", text(&file)]].concat());
        run(command.env("XDG_CACHE_HOME", folder.path()).env("KYMO_SYMBOL_CACHE", variable)).ends(0)
    };
    with(&[], "off");
    with(&["--no-symbol-cache"], "");
    assert!(!folder.path().join("kymo").exists());
    with(&[], "much").says("KYMO_SYMBOL_CACHE is \"much\"");
    let kept = files(folder.path());
    assert!(!kept.is_empty());
    for path in &kept {
        let mode = fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    // No file has room in so small a cache; what is there stays.
    with(&[], "1K");
    assert_eq!(files(folder.path()).len(), kept.len());
}

/// Checks that a full disk and a folder of another user cost nothing but the cache: the report is
/// the same, and the log says what happened.
#[test]
fn a_full_disk_and_a_foreign_folder() {
    let test = "symbol_cache::a_full_disk_and_a_foreign_folder";
    let Some(()) = require(test, &[Need::Root, Need::Program("mount"), Need::Program("c++")]) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = recording(folder.path());
    let report = REPORTS[0];
    let bare = bare(report, &file);
    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).expect("a folder");
    std::os::unix::fs::chown(&foreign, Some(1000), Some(1000)).expect("root");
    let said = cached(report, &file, &foreign);
    assert!(said.stdout == bare.stdout && said.code == Some(0), "{}", said.stderr);
    said.says("no symbol cache");
    assert!(!foreign.join("kymo").exists());
    let full = folder.path().join("full");
    fs::create_dir(&full).expect("a folder");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8k", "none", text(&full)]).output();
    if !mounted.is_ok_and(|mount| mount.status.success()) {
        return skip(test, "a tmpfs cannot be mounted here");
    }
    fs::write(full.join("filler"), [1; 4096]).expect("one page of two");
    let said = cached(report, &file, &full);
    let again = cached(report, &file, &full);
    let left = files(&full).len();
    Command::new("umount").arg(text(&full)).status().expect("umount runs");
    assert!(said.stdout == bare.stdout && said.code == Some(0), "{}", said.stderr);
    assert!(again.stdout == bare.stdout && again.code == Some(0), "{}", again.stderr);
    said.says("is not written: No space left on device");
    assert!(left <= 1, "{left} files");
}
