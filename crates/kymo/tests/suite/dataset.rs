//! Tables for query engines: `kymo export --to parquet`, `kymo symbolize`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use kymo_dataset::{DatasetFolder, Table};

use crate::exports::recordings;
use crate::programs::build;
use crate::tools::{Need, kymo, ready, require, run, text};

#[allow(dead_code, unreachable_pub, reason = "shared with the tests of kymo-dataset")]
#[path = "../../../kymo-dataset/tests/suite/query.rs"]
mod query;

fn fixture(name: &str) -> PathBuf {
    recordings().into_iter().find(|file| file.ends_with(name)).expect("a fixture")
}

fn dataset(folder: &Path) -> DatasetFolder {
    DatasetFolder::open(folder).expect("a dataset")
}

/// Checks that recordings are added to a dataset, each once, and that the service is the one that
/// was asked for.
#[test]
fn recordings_are_added_to_a_dataset() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("profiles");
    let (first, second) = (fixture("callgraph.data"), fixture("forkexec.data"));
    let export = ["export", "-q", "--to", "parquet", "-o", text(&out)];
    kymo().succeed(export.into_iter().chain([text(&first)]));
    let named = ["--service", "shop", text(&second)];
    kymo().succeed(export.into_iter().chain(named));
    let files = dataset(&out).files(Table::Samples).expect("a list");
    assert!(files.iter().any(|file| file.contains("/service=shop/")), "{files:?}");
    assert_eq!(dataset(&out).files(Table::Hosts).expect("a list").len(), 2);
    let again = kymo().run(export.into_iter().chain([text(&second)]));
    assert_eq!(again.code, Some(1), "{}", again.stderr);
    again.says("has a recording of this host and moment already; remove it with `find ");
}

/// Checks what is refused before a recording is read: no folder, a folder of other files, options
/// of other formats, and a file in the place of a dataset.
#[test]
fn folders_that_are_no_datasets() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = fixture("callgraph.data");
    std::fs::write(folder.path().join("notes.txt"), "mine").expect("a file");
    let notes = folder.path().join("notes.txt");
    for (words, sentence) in [
        (vec!["export", "--to", "parquet"], "--to parquet writes a folder: name it with -o DIR"),
        (
            vec!["export", "--to", "parquet", "-o", text(folder.path())],
            "is no dataset of kymo: it has no files in hosts/",
        ),
        (
            vec!["export", "--to", "folded", "--no-symbols", "-o", "/dev/null"],
            "--service and --no-symbols are for --to parquet only",
        ),
        (vec!["export", "--to", "parquet", "-o", text(&notes)], "notes.txt: Not a directory"),
    ] {
        let said = kymo().run(words.iter().copied().chain([text(&input)]));
        assert_ne!(said.code, Some(0), "{words:?}");
        said.says(sentence);
    }
    let said = kymo().run(["symbolize", text(folder.path())]);
    assert_ne!(said.code, Some(0));
    said.says("is no dataset of kymo");
    assert_eq!(std::fs::read_to_string(notes).expect("still there"), "mine");
}

/// The build id that binutils read.
fn build_id(program: &Path) -> String {
    let said = run(Command::new("readelf").arg("-n").arg(program)).ends(0).stdout;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.expect("a build id").to_owned()
}

/// Checks that functions that are named later have the sums of those that were named at once: from
/// the program by its build id, and from a debug file without code.
#[test]
fn names_that_are_found_later() {
    const TEST: &str = "dataset::names_that_are_found_later";
    if !ready(TEST, &[Need::Program("c++"), Need::Program("objcopy"), Need::Program("readelf")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let whole = build("inline.cc", &["-Wl,--build-id"]);
    let (program, file) = (at("inlining"), at("perf.data"));
    std::fs::copy(&whole, &program).expect("a copy");
    kymo().succeed([
        "record",
        "-g",
        "-F",
        "499",
        "-e",
        "cpu-clock:u",
        "-o",
        text(&file),
        "--",
        text(&program),
    ]);
    let export = |name: &str, more: &[&str]| {
        let out = at(name);
        let words = ["export", "-q", "--to", "parquet", "-o", text(&out), text(&file)];
        kymo().succeed(words.iter().chain(more).copied());
        out
    };
    let at_once = query::queried(&dataset(&export("at-once", &[])));
    let (later, by_debug_file) = (export("later", &["--no-symbols"]), export("debug", &["--no-symbols"]));
    let unnamed = query::queried(&dataset(&later));
    assert!(unnamed.keys().any(|(_, name)| name == "[inlining]"), "{unnamed:?}");
    assert_ne!(unnamed, at_once);
    std::fs::remove_file(&program).expect("ours");
    let id = build_id(&whole);
    let place = |root: &str| {
        let folder = at(root).join(".build-id").join(&id[..2]);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder.join(format!("{}.debug", &id[2..]))
    };
    std::fs::copy(&whole, place("whole")).expect("a copy");
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&whole).arg(place("hollow"))).ends(0);
    kymo().succeed(["symbolize", "--debug-dir", text(&at("whole")), text(&later)]);
    assert_eq!(query::queried(&dataset(&later)), at_once);
    kymo().succeed(["symbolize", "--debug-dir", text(&at("hollow")), text(&by_debug_file)]);
    let named = query::queried(&dataset(&by_debug_file));
    // Without code, `_start` and jump stubs have no names.
    let of_program = query::rows(&dataset(&later), Table::Frames, &["function", "module", "file"]);
    let with_source =
        of_program.iter().filter(|row| row[1].as_deref() == Some("inlining") && row[2].is_some());
    let mut functions = 0;
    for name in with_source.filter_map(|row| row[0].clone()) {
        let key = at_once.keys().find(|(_, function)| *function == name).expect("it is there");
        assert_eq!(named.get(key), at_once.get(key), "{name}");
        functions += 1;
    }
    assert!(functions > 1, "{of_program:?}");
    let said = kymo().succeed(["symbolize", "--debug-dir", text(&at("whole")), text(&later)]);
    assert!(said.stderr.contains("0 files replaced"), "{}", said.stderr);
}

/// Checks that the time of threads by state is that of `kymo report --wall`, to the nanosecond.
#[test]
fn wall_time_by_state() {
    if require("dataset::wall_time_by_state", &[Need::Root]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("wall.data"), folder.path().join("profiles"));
    let command = "sleep 0.3; seq 1 300000 | tail -1; ls -R /usr/lib > /dev/null";
    kymo().succeed(["record", "--wall", "-e", "cpu-clock", "-o", text(&file), "--", "sh", "-c", command]);
    kymo().succeed(["export", "-q", "--to", "parquet", "--wall", "-o", text(&out), text(&file)]);
    let report = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let states = report["states"].as_object().expect("an object");
    let expected: BTreeMap<String, u64> =
        states.iter().map(|(state, ns)| (state.clone(), ns.as_u64().expect("a number"))).collect();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for row in query::rows(&dataset(&out), Table::Samples, &["state", "value"]) {
        let [Some(state), Some(value)] = &row[..] else { panic!("{row:?}") };
        let state = state.strip_prefix("idle: ").unwrap_or(state);
        let state = if state == "on-cpu" { "running" } else { state };
        *found.entry(state.to_owned()).or_default() += value.parse::<u64>().expect("a number");
    }
    assert!(found.len() > 1, "{found:?}");
    assert_eq!(found, expected);
}
