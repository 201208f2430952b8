//! Profiles that were exported come back with the same sums; damaged ones are refused.
mod foreign;
mod lines;

use super::*;
use crate::export::{ExportFormat, ExportSamples, Totals};
use crate::load::LoadOptions;
use crate::profile::Profile;
use crate::resolve::ResolveOptions;
use kymo_data::Recording;
use kymo_symbols::{SymbolOptions, SymbolStore};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Self and total of samples, then of periods, by event and function.
type Sums = BTreeMap<(String, String), [u64; 4]>;

/// The sums of a recording, and its samples in a format.
fn read(file: std::fs::File, format: ExportFormat) -> (Sums, Vec<u8>) {
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("readable");
    let store = SymbolStore::new(SymbolOptions::default());
    let mut load = LoadOptions { callchains: true, columns: true, workers: 1, ..LoadOptions::default() };
    load.dims.cgroup = recording.features.imported.is_some();
    let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
    let profile = profile.expect("readable");
    let samples = ExportSamples::of_profile(&recording, &profile, &store, "test");
    let mut sums = Sums::new();
    for event in &samples.profile.events {
        let totals = Totals::new(event, samples.profile.functions.len());
        for (number, function) in samples.profile.functions.iter().enumerate() {
            let (own, total) = (totals.own[number], totals.total[number]);
            if total.samples > 0 && !function.module.is_empty() {
                let of_function = sums.entry((event.name.clone(), function.name.clone())).or_default();
                let more = [own.samples, total.samples, own.period, total.period];
                of_function.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
        }
    }
    let mut bytes = Vec::new();
    format.write(&samples, &mut bytes).expect("memory takes everything");
    (sums, bytes)
}

fn fixture(name: &str) -> std::fs::File {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings").join(name);
    std::fs::File::open(path).expect("a fixture")
}

/// The recording of an imported profile.
fn recorded(profile: &ImportedProfile) -> std::fs::File {
    let file = tempfile::tempfile().expect("a file");
    write(profile, "test", &file).expect("it can be written");
    file
}

/// Checks M1 for profiles of pprof: the recording that is made of an export has the sums of the one
/// that was exported, event by event.
#[test]
fn pprof_comes_back_with_the_same_sums() {
    for name in ["callgraph.data", "plain.data", "group.data", "dwarf.data", "forkexec.data"] {
        let (expected, bytes) = read(fixture(name), ExportFormat::Pprof);
        let profile = pprof(&bytes[..]).expect("a profile");
        let (found, _) = read(recorded(&profile), ExportFormat::Pprof);
        assert_eq!(found, expected, "{name}");
    }
}

/// Checks M1 for folded stacks, which have samples only, and that they are the same when they are
/// written again.
#[test]
fn folded_stacks_come_back() {
    for name in ["callgraph.data", "plain.data", "dwarf.data", "forkexec.data"] {
        let (expected, bytes) = read(fixture(name), ExportFormat::Folded);
        let profile = folded(&bytes[..]).expect("folded stacks");
        let (found, again) = read(recorded(&profile), ExportFormat::Folded);
        // Numbers of samples have become values.
        let numbers = |sums: Sums, first: usize| -> BTreeMap<String, [u64; 2]> {
            sums.into_iter().map(|((_, name), sums)| (name, [sums[first], sums[first + 1]])).collect()
        };
        assert_eq!(numbers(found, 2), numbers(expected, 0), "{name}");
        let lines = |bytes: &[u8]| -> Vec<String> {
            let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&again), lines(&bytes), "{name}");
    }
}

/// Checks that a small file of very many empty entries is refused before they fill the memory.
#[test]
fn a_profile_of_empty_entries_is_refused() {
    let empty_samples = [0x12, 0].repeat(MOST_ENTRIES + 1);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &empty_samples).expect("memory");
    let packed = packed.finish().expect("memory");
    assert!(packed.len() < empty_samples.len() / 100);
    assert!(matches!(pprof(&packed[..]), Err(ImportError::Large(_))));
}

proptest! {
    /// Checks M2: damaged profiles give a profile or an error, which can be written.
    #[test]
    fn damaged_profiles(at in 0usize..4000, byte in any::<u8>(), cut in 0usize..4000) {
        let (_, bytes) = read(fixture("plain.data"), ExportFormat::Pprof);
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain).expect("gzip");
        let place = at % plain.len();
        plain[place] = byte;
        plain.truncate(plain.len() - cut % plain.len());
        if let Ok(profile) = pprof(&plain[..]) {
            recorded(&profile);
        }
    }
}
