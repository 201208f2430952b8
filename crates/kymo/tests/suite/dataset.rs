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

/// Checks that a dataset is compacted in place, with the same sums; that a recording which was
/// merged with others is not added again; and that one of the two ways must be chosen.
#[test]
fn a_dataset_is_compacted_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("profiles");
    let (first, second) = (fixture("callgraph.data"), fixture("forkexec.data"));
    let export = ["export", "-q", "--to", "parquet", "-o", text(&out)];
    kymo().succeed(export.into_iter().chain([text(&first)]));
    kymo().succeed(export.into_iter().chain([text(&second)]));
    let sums = query::queried(&dataset(&out));
    kymo().succeed(["compact", "--in-place", text(&out)]).says("rows of samples; ");
    assert_eq!(dataset(&out).files(Table::Hosts).expect("a list").len(), 1);
    assert_eq!(query::queried(&dataset(&out)), sums);
    let again = kymo().run(export.into_iter().chain([text(&second)]));
    assert_eq!(again.code, Some(1), "{}", again.stderr);
    again.says("already, and `kymo compact --in-place` has merged it with others");
    assert_eq!(kymo().run(["compact", text(&out)]).code, Some(129));
    assert_eq!(kymo().run(["compact", "--in-place", "-o", "new", text(&out)]).code, Some(129));
}

/// Checks that what adds a recording to a store is asked for before the recording is read.
#[test]
fn a_missing_program_for_stores_is_said() {
    let recording = fixture("callgraph.data");
    let words = ["export", "--to", "parquet", "-o", "s3://profiles/test", text(&recording)];
    let said = run(kymo().command(words).env("PATH", "/no-such-folder")).ends(1);
    said.says("there is no kymo-store beside kymo or on PATH: `make store`");
}

/// A copy of a file, written at another time.
fn copied(file: &Path, to: &Path, unix_seconds: u64) {
    std::fs::copy(file, to).expect("a copy");
    let moment = std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_seconds);
    let opened = std::fs::File::options().append(true).open(to).expect("ours");
    opened.set_modified(moment).expect("a time");
}

/// Checks that a copy of a recording is the same one, whatever the time of the file: of kymo, which
/// knows when it was made, and of another tool, which does not; of that the day is said to be that
/// of the file.
#[test]
fn a_copy_is_the_same_recording() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let own = at("own.data");
    kymo().succeed(["record", "-q", "-e", "cpu-clock:u", "-o", text(&own), "--", "seq", "300000"]);
    let today = kymo_dataset::schema::Day::of_ns(unix_ns() as i64).to_string();
    for (name, original) in [("own", own), ("foreign", fixture("callgraph.data"))] {
        let (file, copy, out) = (at("file.data"), at("copy.data"), at(name));
        copied(&original, &file, 1_700_000_000);
        copied(&original, &copy, 1_577_934_245);
        let export = |file: &Path| kymo().run(["export", "--to", "parquet", "-o", text(&out), text(file)]);
        let first = export(&file).ends(0);
        export(&copy).ends(1).says("has a recording of this host and moment already; remove it with `find ");
        let says_so = first.stderr.contains("does not say when it was recorded");
        assert_eq!(says_so, name == "foreign", "{}", first.stderr);
        let day = if says_so { "2023-11-14" } else { &today };
        let files = dataset(&out).files(Table::Samples).expect("a list");
        assert!(files.iter().all(|file| file.contains(&format!("day={day}"))), "{files:?}");
    }
}

fn unix_ns() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos()
}

/// Checks that recordings know the wall clock though no clock was asked for: the first sample lies
/// between the begin and the end of the command, and so does the begin of one without samples: it
/// was the moment when the machine was started.
#[test]
fn recordings_have_the_wall_clock() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let seldom = ["-e", "cpu-clock:u", "-c", "1000000000000"];
    for options in [&["-e", "cpu-clock:u"][..], &["-e", "cpu-clock:u", "-k", "CLOCK_MONOTONIC"], &seldom] {
        let before = unix_ns();
        let record = ["record", "-q", "-o", text(&file)].into_iter().chain(options.iter().copied());
        kymo().succeed(record.chain(["--", "seq", "300000"]));
        let after = unix_ns();
        let report = kymo().succeed(["report", "--json", "-i", text(&file)]).json();
        let start = u128::from(report["recording"]["start_unix_ns"].as_u64().expect("a time"));
        // The clock of events may be off by what tells it.
        let slack = 10_000_000;
        assert!((before - slack..after + slack).contains(&start), "{options:?}: {before} {start} {after}");
    }
}

/// Checks that a service is the process, where only its threads have samples: the main thread of
/// the program does nothing but join the others.
#[test]
fn a_service_is_the_process() {
    if !ready("dataset::a_service_is_the_process", &[Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (file, out) = (folder.path().join("perf.data"), folder.path().join("profiles"));
    let program = build("threads.c", &["-pthread"]);
    let record = ["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program), "4", "20"];
    kymo().succeed(record);
    kymo().succeed(["export", "-q", "--to", "parquet", "-o", text(&out), text(&file)]);
    let files = dataset(&out).files(Table::Samples).expect("a list");
    let name = program.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(files.iter().all(|file| file.contains(&format!("service={name}/"))), "{files:?}");
    let commands = query::rows(&dataset(&out), Table::Samples, &["command"]);
    assert!(commands.iter().any(|row| row[0].as_deref() == Some("worker-0")), "threads keep their names");
}

/// Checks that generated code is the same module, location and function in two runs of a program,
/// whose processes have other numbers and addresses.
#[test]
fn generated_code_is_one_module_in_all_processes() {
    if !ready("dataset::generated_code_is_one_module_in_all_processes", &[Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("profiles");
    let program = build("jitframes.c", &[]);
    for file in ["first.data", "second.data"] {
        let file = folder.path().join(file);
        let record = ["record", "-q", "-e", "cpu-clock:u", "-g", "-o", text(&file), "--", text(&program)];
        kymo().succeed(record.into_iter().chain(["300000"]));
        kymo().succeed(["export", "-q", "--to", "parquet", "-o", text(&out), text(&file)]);
    }
    let columns = ["kind", "module", "function", "location_id"];
    let rows = query::rows(&dataset(&out), Table::Frames, &columns);
    let mut files_of: BTreeMap<Vec<Option<String>>, u32> = BTreeMap::new();
    for row in rows.into_iter().filter(|row| row[0].as_deref() == Some("jit")) {
        *files_of.entry(row).or_default() += 1;
    }
    let inner = files_of.iter().find(|(row, _)| row[2].as_deref().is_some_and(|name| name.contains("inner")));
    let (row, files) = inner.unwrap_or_else(|| panic!("no generated code: {files_of:?}"));
    assert_eq!((row[1].as_deref(), *files), (Some("[JIT]"), 2), "{files_of:?}");
    assert!(files_of.keys().all(|row| row[1].as_deref() == Some("[JIT]")), "{files_of:?}");
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

/// The time of threads by state in a dataset's folder; idle states are those that they are named
/// by.
pub(crate) fn time_by_state(folder: &Path) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for row in query::rows(&dataset(folder), Table::Samples, &["state", "value"]) {
        let [Some(state), Some(value)] = &row[..] else { panic!("{row:?}") };
        let state = state.strip_prefix("idle: ").unwrap_or(state);
        let state = if state == "on-cpu" { "running" } else { state };
        *found.entry(state.to_owned()).or_default() += value.parse::<u64>().expect("a number");
    }
    found
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
    let found = time_by_state(&out);
    assert!(found.len() > 1, "{found:?}");
    assert_eq!(found, expected);
}

/// Records a command with its waits, and exports it with these options.
fn waits_of(folder: &Path, command: &str, options: &[&str]) -> (PathBuf, DatasetFolder) {
    let (file, out) = (folder.join("wall.data"), folder.join("profiles"));
    kymo().succeed(["record", "--wall", "-e", "cpu-clock", "-o", text(&file), "--", "sh", "-c", command]);
    let export = ["export", "-q", "--to", "parquet", "-o", text(&out), text(&file)];
    kymo().succeed(export.iter().chain(options).copied());
    (file, dataset(&out))
}

/// What a number of a column is.
fn number(text: &Option<String>) -> u64 {
    text.as_deref().expect("a value").parse().expect("a number")
}

/// A place of the table: the time, the waits, and the time by waker.
type Place = (u64, u64, BTreeMap<String, u64>);

/// By state and stack the waits of a dataset.
fn waits_by_stack(dataset: &DatasetFolder) -> BTreeMap<(String, String), Place> {
    let mut places: BTreeMap<(String, String), Place> = BTreeMap::new();
    for row in query::rows(dataset, Table::Samples, &["state", "stack_id", "waker", "value", "samples"]) {
        let [state, stack, waker, value, samples] = &row[..] else { panic!("{row:?}") };
        let key = (state.clone().expect("a state"), stack.clone().expect("a stack"));
        let place = places.entry(key).or_default();
        place.0 += number(value);
        place.1 += number(samples);
        if let Some(waker) = waker {
            *place.2.entry(waker.clone()).or_default() += number(value);
        }
    }
    places
}

/// A function of a program, if it has a name, and its module.
type Frame = (Option<String>, String);

/// By stack the functions outside of the kernel, innermost first.
fn frames_by_stack(dataset: &DatasetFolder) -> BTreeMap<String, Vec<Frame>> {
    let mut locations: BTreeMap<String, BTreeMap<u64, Frame>> = BTreeMap::new();
    let columns = ["location_id", "inline_depth", "function", "module"];
    for row in query::rows(dataset, Table::Frames, &columns) {
        let [Some(location), depth, function, Some(module)] = &row[..] else { panic!("{row:?}") };
        if module.starts_with('[') {
            continue;
        }
        let of_location = locations.entry(location.clone()).or_default();
        of_location.insert(number(depth), (function.clone(), module.clone()));
    }
    let mut stacks: BTreeMap<String, BTreeMap<u64, String>> = BTreeMap::new();
    for row in query::rows(dataset, Table::Stacks, &["stack_id", "depth", "location_id"]) {
        let [Some(stack), depth, Some(location)] = &row[..] else { panic!("{row:?}") };
        stacks.entry(stack.clone()).or_default().insert(number(depth), location.clone());
    }
    let frames = |stack: BTreeMap<u64, String>| {
        let functions = stack.into_values().filter_map(|location| locations.get(&location));
        functions.flat_map(|of_location| of_location.values().cloned()).collect()
    };
    stacks.into_iter().map(|(stack, of_stack)| (stack, frames(of_stack))).collect()
}

/// Whether a stack is one of a place of the query: of a program the functions that have names, four
/// at most; of a stack without any the innermost function.
fn is_at(stack: &[Frame], functions: &[&str], module: &str) -> bool {
    let is_library = |module: &str| module.starts_with("lib") || module.starts_with("ld-");
    // What a program begins with is no place.
    let is_named =
        |(function, of): &&Frame| function.as_deref().is_some_and(|name| name != "_start") && !is_library(of);
    if is_library(module) {
        let innermost = stack.first().and_then(|(function, _)| function.as_deref());
        return innermost == functions.first().copied() && !stack.iter().any(|frame| is_named(&frame));
    }
    let own = stack.iter().filter(|(_, of)| of == module).filter_map(|(function, _)| function.as_deref());
    let mut own: Vec<&str> = own.collect();
    own.dedup();
    own.truncate(4);
    own == functions
}

/// Checks waits against `kymo query waits`: the time of each state; and of each place the time, how
/// many waits there were, and who ended most of it.
#[test]
fn waits_have_the_wakers_of_the_query() {
    if require("dataset::waits_have_the_wakers_of_the_query", &[Need::Root]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Several, for the kernel leaves out a switch at times, and with it what a wait was for.
    let sleeps = "for each in 1 2 3 4 5; do sleep 0.05; done";
    let command = format!("({sleeps}; seq 1 200000) | sort -n | tail -1");
    let (file, dataset) = waits_of(folder.path(), &command, &["--wall"]);
    let answer = kymo().succeed(["query", text(&file), "waits 100000", "--json"]).json();
    let waits = &answer["waits"];
    let places = waits_by_stack(&dataset);
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for ((state, _), (time, ..)) in &places {
        let state = state.strip_prefix("idle: ").unwrap_or(state);
        let state = if state == "on-cpu" { "running" } else { state };
        *states.entry(state.to_owned()).or_default() += time;
    }
    let of_answer = waits["states"].as_array().expect("a list").iter();
    let expected: BTreeMap<String, u64> = of_answer
        .map(|state| {
            (state["state"].as_str().expect("a name").to_owned(), state["time_ns"].as_u64().expect("ns"))
        })
        .collect();
    assert_eq!(states, expected);

    let frames = frames_by_stack(&dataset);
    let mut ended = std::collections::BTreeSet::new();
    for row in waits["rows"].as_array().expect("a list") {
        let names = row["functions"].as_array().expect("a list").iter();
        let functions: Vec<&str> = names.map(|name| name.as_str().expect("a name")).collect();
        let (Some(module), Some(first)) = (row["module"].as_str(), functions.first()) else { continue };
        if first.starts_with("0x") || module.starts_with('[') {
            continue;
        }
        let state = row["state"].as_str().expect("a state");
        let is_idle = row["idle"].as_bool().expect("a flag") && state != "runnable";
        let state = if is_idle { format!("idle: {state}") } else { state.to_owned() };
        let is_here = |stack: &str| frames.get(stack).is_some_and(|stack| is_at(stack, &functions, module));
        let mut found = Place::default();
        for ((_, _), place) in places.iter().filter(|((of, stack), _)| *of == state && is_here(stack)) {
            found.0 += place.0;
            found.1 += place.1;
            place.2.iter().for_each(|(waker, time)| *found.2.entry(waker.clone()).or_default() += time);
        }
        assert_eq!(Some(found.0), row["time_ns"].as_u64(), "{row:#}");
        if state != "runnable" {
            assert_eq!(Some(found.1), row["waits"].as_u64(), "{row:#}");
        }
        found.2.retain(|waker, _| {
            !["a timer", "the network", "a disk", "an interrupt"].contains(&waker.as_str())
        });
        let most = found.2.iter().max_by_key(|(_, time)| **time).map(|(waker, _)| waker.as_str());
        assert_eq!(most, row["ended_by"].as_str(), "{row:#}");
        ended.extend(most.map(str::to_owned));
    }
    assert!(ended.contains("sort") && ended.len() > 1, "{ended:?}");
    let interrupted = places.values().any(|(.., wakers)| wakers.contains_key("a timer"));
    assert!(interrupted, "no sleep was ended by a timer: {places:?}");
}

/// Checks that a dataset of a recording with waits has the time on a CPU as samples and the rest as
/// waits: the sums are those of the report and of the states.
#[test]
fn samples_and_waits_of_one_recording() {
    if require("dataset::samples_and_waits_of_one_recording", &[Need::Root]).is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let command = "sleep 0.2; seq 1 300000 | sort -n | tail -1";
    let (file, dataset) = waits_of(folder.path(), command, &[]);
    let report = kymo().succeed(["report", "--json", "-i", text(&file)]).json();
    let events = report["events"].as_array().expect("a list");
    let clock = events.iter().find(|event| event["name"] == "cpu-clock").expect("samples");
    let states = kymo().succeed(["report", "--wall", "--json", "-i", text(&file)]).json();
    let states = states["states"].as_object().expect("an object").iter();
    let waits = states.filter(|(state, _)| *state != "running").filter_map(|(_, ns)| ns.as_u64());
    let mut found: BTreeMap<(String, bool), u64> = BTreeMap::new();
    for row in query::rows(&dataset, Table::Samples, &["event", "state", "value"]) {
        let key = (row[0].clone().expect("an event"), row[1].as_deref() == Some("on-cpu"));
        *found.entry(key).or_default() += number(&row[2]);
    }
    let expected = [
        (("cpu-clock".to_owned(), true), clock["period"].as_u64().expect("ns")),
        (("offcpu-time".to_owned(), false), waits.sum()),
    ];
    assert_eq!(found, expected.into());
}
