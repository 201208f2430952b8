//! Each format, read back by a small reader of its own: the sums of each function are those of the
//! JSON report.
mod formats;
mod protobuf;

use super::*;
use crate::load::LoadOptions;
use crate::profile::Profile;
use crate::resolve::ResolveOptions;
use kymo_data::Recording;
use kymo_symbols::{SymbolOptions, SymbolStore};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Recordings with call chains, without them, with several events, and with many threads.
const RECORDINGS: [&str; 6] =
    ["callgraph.data", "plain.data", "group.data", "dwarf.data", "forkexec.data", "clock.data"];

/// Sums of a function: samples in it, with what it called, and the same for periods.
type Sums = [u64; 4];

/// Sums by event and function.
type Functions = BTreeMap<(String, String), Sums>;

/// A stack of an event, outermost first, with its samples and the sum of their periods.
struct CountedStack {
    event: String,
    names: Vec<String>,
    samples: u64,
    period: u64,
}

fn sums_of(stacks: impl IntoIterator<Item = CountedStack>) -> Functions {
    let mut functions = Functions::new();
    for stack in stacks {
        let mut add = |name: &str, at: usize| {
            let sums = functions.entry((stack.event.clone(), name.to_owned())).or_default();
            sums[at] += stack.samples;
            sums[at + 2] += stack.period;
        };
        if let Some(leaf) = stack.names.last() {
            add(leaf, 0);
        }
        let distinct: BTreeSet<&String> = stack.names.iter().collect();
        distinct.into_iter().for_each(|name| add(name, 1));
    }
    functions
}

/// What the JSON report says.
fn reported(profile: &ExportProfile) -> Functions {
    let mut text = Vec::new();
    json(profile, &mut text).expect("memory takes everything");
    let report: Value = serde_json::from_slice(&text).expect("JSON");
    let functions = report["functions"].as_array().expect("a list");
    let mut stacks = Vec::new();
    for event in report["events"].as_array().expect("a list") {
        let nodes = event["stacks"].as_array().expect("a list");
        for node in nodes.iter().filter(|node| node["self_samples"] != 0) {
            let (mut names, mut at) = (Vec::new(), Some(node));
            while let Some(node) = at {
                let function = &functions[node["function"].as_u64().expect("a number") as usize];
                if function["kind"] != "comm" {
                    names.push(function["name"].as_str().expect("a name").to_owned());
                }
                at = node["parent"].as_u64().map(|parent| &nodes[parent as usize]);
            }
            names.reverse();
            let number = |key: &str| node[key].as_u64().expect("a number");
            stacks.push(CountedStack {
                event: event["name"].as_str().expect("a name").to_owned(),
                names,
                samples: number("self_samples"),
                period: number("self_period"),
            });
        }
    }
    sums_of(stacks)
}

/// Runs a check on the samples of each recording: as they are, and with names that no format can
/// take as they are.
fn each_recording(check: impl Fn(&str, &ExportSamples<'_>)) {
    for name in RECORDINGS {
        let recording = opened(name);
        let store = SymbolStore::new(SymbolOptions::default());
        let load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
        let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
        let profile = profile.expect("readable");
        let mut samples = ExportSamples::of_profile(&recording, &profile, &store, name);
        check(name, &samples);
        make_hostile(&mut samples);
        check(name, &samples);
    }
}

/// Runs a check on folded stacks that were imported.
fn with_imported(text: &str, check: impl Fn(&ExportSamples<'_>)) {
    let file = tempfile::tempfile().expect("a file");
    let profile = crate::import::folded(text.as_bytes()).expect("folded stacks");
    crate::import::write(&profile, "folded", &file).expect("it can be written");
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("readable");
    let store = SymbolStore::new(SymbolOptions::default());
    let load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
    let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
    check(&ExportSamples::of_profile(&recording, &profile.expect("readable"), &store, "imported"));
}

fn opened(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings").join(name);
    let file = std::fs::File::open(path).expect("a fixture");
    Recording::open(Arc::new(file), Vec::new()).expect("readable")
}

fn make_hostile(samples: &mut ExportSamples<'_>) {
    for (number, function) in samples.profile.functions.iter_mut().enumerate() {
        function.name = format!("(1) \"{number}\";\n\u{1b}[2J</script>\u{202e} {}", function.name);
        function.module.push_str("\nfn=(1) x");
    }
    for thread in &mut samples.profile.threads {
        thread.comm = format!("\"\n{}\\", thread.comm);
    }
    samples.profile.title = "\"\n# callgrind format".to_owned();
}

/// Runs a check on spans of wall time.
fn with_wall(check: impl Fn(&ExportSamples<'_>)) {
    let recording = opened("plain.data");
    let mut samples = ExportSamples::of_wall(&recording, &crate::wall::tests::chain(), "wall");
    check(&samples);
    make_hostile(&mut samples);
    check(&samples);
}

/// A recording in a format.
fn written(format: ExportFormat, samples: &ExportSamples<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    format.write(samples, &mut bytes).expect("memory takes everything");
    bytes
}

/// Checks S1 to S3: rows sum to the nodes, the frames of a stack are those of the node, and tracks
/// have all rows in order of time.
#[test]
fn rows_are_those_of_the_call_tree() {
    each_recording(|name, samples| {
        let mut path = Vec::new();
        let mut counts: Vec<Vec<(u64, u64)>> =
            samples.profile.events.iter().map(|event| vec![(0, 0); event.stacks.nodes.len()]).collect();
        let mut rows = 0;
        for row in samples.by_time() {
            rows += 1;
            let count = &mut counts[row.event as usize][row.node as usize];
            *count = (count.0 + row.samples, count.1 + row.period);
            samples.path(row.event, row.node, &mut path);
            let locations = samples.locations.stack(row.stack).iter().rev();
            let frames = locations.flat_map(|at| {
                let location = &samples.locations.list[*at as usize];
                samples.locations.lines(location).iter().rev().map(|line| line.function)
            });
            assert_eq!(frames.collect::<Vec<_>>(), path, "{name}");
        }
        for (event, counts) in samples.profile.events.iter().zip(counts) {
            let expected: Vec<_> =
                event.stacks.nodes.iter().map(|node| (node.self_samples, node.self_period)).collect();
            assert_eq!(counts, expected, "{name}");
        }
        let of_tracks: usize = samples.tracks().iter().map(|track| samples.row_count(track)).sum();
        assert_eq!(of_tracks, rows, "{name}");
        for track in samples.tracks() {
            let rows: Vec<SampleRow> = samples.rows_of(track).collect();
            assert!(rows.is_sorted_by_key(|row| row.begin_ns), "{name}");
            assert!(rows.iter().all(|row| (row.thread, row.event) == (track.thread, track.event)), "{name}");
        }
    });
}

/// Checks that locations lie in their mappings.
#[test]
fn locations_lie_in_their_mappings() {
    each_recording(|name, samples| {
        let locations = &samples.locations;
        assert!(!locations.list.is_empty(), "{name}");
        for location in &locations.list {
            assert!(!locations.lines(location).is_empty(), "{name}");
            if let Some(mapping) = location.mapping {
                let mapping = &locations.mappings[mapping as usize];
                // The call lies before the address that the mapping was found by.
                let range = mapping.start.saturating_sub(1)..mapping.end;
                assert!(range.contains(&location.address), "{name}: {mapping:?} {location:?}");
            }
        }
    });
}

/// Checks that spans say who ended them: a thread without a name by its number, as the query of waits
/// does; an interrupt by what it did. Who made a thread ready ended no wait.
#[test]
fn spans_name_who_ended_them() {
    let recording = opened("plain.data");
    let wall = crate::wall::tests::chain();
    let store = SymbolStore::new(SymbolOptions::default());
    for samples in [
        ExportSamples::of_wall(&recording, &wall, "wall"),
        ExportSamples::of_wall_with_addresses(&recording, &wall, &store, "wall"),
    ] {
        let mut found = Vec::new();
        for row in samples.by_time() {
            let state = row.state.expect("a state").name();
            found.push((samples.thread(row.thread).tid, state, row.waits, samples.waker(&row)));
        }
        found.sort();
        let expected = [
            (1, "condition", 1, Some(":3")),
            (1, "runnable", 0, None),
            (3, "condition", 1, Some(":4")),
            (3, "runnable", 0, None),
            (4, "runnable", 0, None),
            (4, "timer", 1, Some("a timer")),
            (5, "idle: condition", 1, None),
        ];
        assert_eq!(found, expected.map(|(tid, state, waits, waker)| (tid, state.to_owned(), waits, waker)));
    }
}
