//! The obvious query: what an engine makes of the tables.
use kymo_data::Recording;
use kymo_dataset::{DatasetFile, DatasetFolder, RecordingOptions, RecordingRows, Table, TableReader};
use kymo_profile::export::ExportSamples;
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::wall::Wall;
use kymo_symbols::{SymbolOptions, SymbolStore};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Samples in a function, with what it called, and the same for values.
pub(crate) type Sums = [u64; 4];

/// Sums by event and function.
pub(crate) type Functions = BTreeMap<(String, String), Sums>;

/// Recordings with call chains, without them, with several events, and with many threads.
pub(crate) const RECORDINGS: [&str; 6] =
    ["callgraph.data", "plain.data", "group.data", "dwarf.data", "forkexec.data", "clock.data"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings").join(name)
}

/// Runs a check on the samples of a recording.
pub(crate) fn with_samples<T>(path: &Path, check: impl FnOnce(&ExportSamples<'_>) -> T) -> T {
    let file = std::fs::File::open(path).expect("a recording");
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("readable");
    let store = SymbolStore::new(SymbolOptions::default());
    let load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
    let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
    let profile = profile.expect("readable");
    check(&ExportSamples::of_profile(&recording, &profile, &store, "test"))
}

/// Runs a check on the samples and the spans of a recording of wall time.
pub(crate) fn with_waits<T>(
    path: &Path,
    check: impl FnOnce(&Profile, &Wall, [&ExportSamples<'_>; 2]) -> T,
) -> T {
    let file = std::fs::File::open(path).expect("a recording");
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("readable");
    let store = SymbolStore::new(SymbolOptions::default());
    let load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
    let resolve = ResolveOptions::default();
    let profile = Profile::open(&recording, &load, resolve, &store, &|_, _, _| {}).expect("readable");
    let wall = Wall::open(&recording, (&load, None), resolve, &store, &|_, _, _| {});
    let wall = wall.expect("readable").expect("waits");
    let samples = ExportSamples::of_profile(&recording, &profile, &store, "test");
    let spans = ExportSamples::of_wall_with_addresses(&recording, &wall, &store, "test");
    check(&profile, &wall, [&samples, &spans])
}

pub(crate) fn files_of(samples: &ExportSamples<'_>, options: RecordingOptions<'_>) -> Vec<DatasetFile> {
    RecordingRows::new(samples, options, &SymbolOptions::default()).into_files().expect("files")
}

/// A dataset of a recording in a folder.
pub(crate) fn dataset_of(path: &Path, folder: &Path, options: RecordingOptions<'_>) -> DatasetFolder {
    let dataset = DatasetFolder::open_or_create(folder).expect("a folder");
    let files = with_samples(path, |samples| files_of(samples, options));
    files.iter().for_each(|file| dataset.put(file).expect("put"));
    dataset
}

/// What the stacks of a profile sum to, as the JSON report does.
pub(crate) fn reported(samples: &ExportSamples<'_>) -> Functions {
    let mut functions = Functions::new();
    for (event, number) in samples.profile.events.iter().zip(0..) {
        for (node, at) in event.stacks.nodes.iter().zip(0..).filter(|(node, _)| node.self_samples > 0) {
            let mut path = Vec::new();
            samples.path(number, at, &mut path);
            path.reverse();
            let names = path.into_iter().map(|function| samples.function(function).name.clone());
            add(
                &mut functions,
                &event.name,
                &names.collect::<Vec<_>>(),
                [node.self_samples, node.self_period],
            );
        }
    }
    functions
}

fn add(functions: &mut Functions, event: &str, names: &[String], [samples, value]: [u64; 2]) {
    let mut count = |name: &str, at: usize| {
        let sums = functions.entry((event.to_owned(), name.to_owned())).or_default();
        sums[at] += samples;
        sums[at + 2] += value;
    };
    names.first().into_iter().for_each(|leaf| count(leaf, 0));
    names.iter().collect::<BTreeSet<_>>().into_iter().for_each(|name| count(name, 1));
}

/// The rows of the files of a table, as the texts of some columns.
pub(crate) fn rows(dataset: &DatasetFolder, table: Table, columns: &[&str]) -> Vec<Vec<Option<String>>> {
    let mut all = Vec::new();
    for path in dataset.files(table).expect("a list") {
        let reader = TableReader::open(&dataset.path().join(path), table).expect("readable");
        let values: Vec<Vec<Option<String>>> = columns.iter().map(|column| texts(&reader, column)).collect();
        all.extend((0..reader.row_count()).map(|row| values.iter().map(|of| of[row].clone()).collect()));
    }
    all
}

fn texts(reader: &TableReader, column: &str) -> Vec<Option<String>> {
    if let Ok(values) = reader.int64(column) {
        return values.into_iter().map(|value| value.map(|value| value.to_string())).collect();
    }
    if let Ok(values) = reader.int32(column) {
        return values.into_iter().map(|value| value.map(|value| value.to_string())).collect();
    }
    let values = reader.text(column).expect("a column of numbers or texts");
    values.into_iter().map(|value| value.map(|text| text.as_utf8().expect("UTF-8").to_owned())).collect()
}

/// The same sums from the tables, by the views that the page of the format gives.
pub(crate) fn queried(dataset: &DatasetFolder) -> Functions {
    let number = |text: &Option<String>| text.as_deref().expect("a value").parse::<i64>().expect("a number");
    // MAX(function) GROUP BY location_id, inline_depth: null loses against a name.
    let mut frames: BTreeMap<i64, BTreeMap<i64, (Option<String>, String)>> = BTreeMap::new();
    for row in rows(dataset, Table::Frames, &["location_id", "inline_depth", "function", "module"]) {
        let module = row[3].clone().expect("a module");
        let at = frames.entry(number(&row[0])).or_default().entry(number(&row[1])).or_default();
        *at = (at.0.clone().max(row[2].clone()), module);
    }
    let mut stacks: BTreeMap<i64, BTreeMap<i64, i64>> = BTreeMap::new();
    for row in rows(dataset, Table::Stacks, &["stack_id", "depth", "location_id"]) {
        stacks.entry(number(&row[0])).or_default().insert(number(&row[1]), number(&row[2]));
    }
    let mut functions = Functions::new();
    for row in rows(dataset, Table::Samples, &["event", "stack_id", "value", "samples", "leaf_location_id"]) {
        let stack = stacks.get(&number(&row[1]));
        assert_eq!(stack.is_some(), row[4].is_some(), "a stack has an innermost frame");
        let names: Vec<String> = (stack.into_iter().flat_map(BTreeMap::values))
            .flat_map(|location| frames[location].values())
            .map(|(function, module)| match function {
                Some(function) => function.clone(),
                None if module.starts_with('[') => module.clone(),
                None => format!("[{module}]"),
            })
            .collect();
        let counts = [number(&row[3]) as u64, number(&row[2]) as u64];
        add(&mut functions, row[0].as_deref().expect("an event"), &names, counts);
    }
    functions
}
