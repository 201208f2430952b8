//! The engine against the obvious reader: equal counts for everything that tells samples apart.
mod recorded;
mod simulate;

use super::*;
use crate::columns::RowField;
use crate::functions::{FunctionId, Functions};
use crate::hist::{Hist, HistOptions, SortKey};
use crate::load::model::{Frame, Names, Seen, replay};
use crate::profile::Profile;
use crate::raw_frames::{Place as RawPlace, walk_chain};
use crate::resolve::{ResolveOptions, Resolver};
use crate::timeline::{Mapping, Modules};
use crate::wall::OFF_CPU;
use kymo_symbols::{SymbolOptions, SymbolStore};
use proptest::prelude::*;
use simulate::{KERNEL, damaged};
pub(crate) use simulate::{Shape, recording, shape};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// An address as what it is: mode, path of the module, address in the module.
type Place = (u8, String, u64);

/// Everything that a sample is counted by.
type Sorted = BTreeMap<(usize, String, i32, i32, u32, Place, Vec<Place>), Count>;

fn place(modules: &Modules, mode: u8, ip: u64, mapping: Option<&Mapping>) -> Place {
    match mapping {
        Some(mapping) => {
            let module = modules.get(mapping.module);
            let name = format!("{} {:?}", String::from_utf8_lossy(&module.path), module.kind);
            (mode, name, mapping.module_address(ip))
        }
        None => (mode, "nowhere".to_string(), ip),
    }
}

fn by_engine(loaded: &Loaded, max_stack: usize) -> Sorted {
    let store = SymbolStore::default();
    let resolver = Resolver::new(&loaded.timeline, &store);
    let mut sorted = Sorted::new();
    for (key, count) in &loaded.groups {
        let chain = loaded.chains.get(key.chain);
        let modules = &loaded.timeline.modules;
        let at = |mode, ip| place(modules, mode, ip, resolver.mapping(chain.maps, mode, ip));
        let mut frames = Vec::new();
        walk_chain(&loaded.chains, chain, max_stack, |RawPlace { mode, ip, .. }| frames.push(at(mode, ip)));
        let comm = loaded.timeline.comm(key.comm).into_owned();
        let leaf = at(chain.mode, chain.ip);
        *sorted.entry((key.event as usize, comm, key.pid, key.tid, key.cpu, leaf, frames)).or_default() +=
            *count;
    }
    sorted
}

/// The model's counts, and whatever else can be compared.
struct Expected {
    sorted: Sorted,
    counts: RecordCounts,
    rows: Vec<ModelRow>,
}

/// Time, event, process, thread, its name, CPU, period, leaf and frames.
type ModelRow = (u64, usize, i32, i32, String, u32, u64, Place, Vec<Place>);

fn by_model(recording: &Recording, options: &LoadOptions, max_stack: usize) -> Expected {
    type Copied = (usize, usize, i32, i32, u32, u64, u64, Frame, Vec<Frame>);
    let mut samples: Vec<Copied> = Vec::new();
    let mut copy = |s: &Seen<'_>| {
        samples.push((s.event, s.comm, s.pid, s.tid, s.cpu, s.time_ns, s.period, s.leaf, s.frames.to_vec()));
    };
    let machine = replay(recording, options, max_stack, |_, seen| copy(seen)).expect("readable");
    let mut expected = Expected { sorted: Sorted::new(), counts: machine.counts.clone(), rows: Vec::new() };
    let at = |f: &Frame| place(&machine.modules, f.mode, f.ip, f.mapping.as_ref());
    let dims = options.dims;
    for (event, comm, pid, tid, cpu, time_ns, period, leaf, frames) in samples {
        let comm = machine.comm(comm);
        let count = Count { samples: 1, period, latency: 0 };
        let places: Vec<Place> = frames.iter().map(at).collect();
        expected.rows.push((time_ns, event, pid, tid, comm.clone(), cpu, period, at(&leaf), places.clone()));
        let key = (
            event,
            comm,
            if dims.pid || dims.tid { pid } else { 0 },
            if dims.tid { tid } else { 0 },
            if dims.cpu { cpu } else { 0 },
            at(&leaf),
            places,
        );
        *expected.sorted.entry(key).or_default() += count;
    }
    expected
}

fn load_with(recording: &Recording, options: &LoadOptions, workers: usize) -> Loaded {
    load(recording, &LoadOptions { workers, ..options.clone() }, &|_, _, _| {}).expect("readable")
}

/// Compares one reading by the engine with one by the model.
fn check(recording: &Recording, options: &LoadOptions, max_stack: usize, workers: usize) {
    let loaded = load_with(recording, options, workers);
    let expected = by_model(recording, options, max_stack);
    let found = by_engine(&loaded, max_stack);
    for (key, count) in &found {
        assert_eq!(expected.sorted.get(key), Some(count), "{key:?} (engine right, model left)");
    }
    assert_eq!(found.len(), expected.sorted.len(), "rows that the engine has not: {:?}", {
        expected.sorted.keys().filter(|k| !found.contains_key(k)).collect::<Vec<_>>()
    });
    assert_eq!(loaded.counts, expected.counts);
    let mut totals = vec![Count::default(); recording.events.list.len()];
    for (key, count) in &expected.sorted {
        totals[key.0] += *count;
    }
    assert_eq!(loaded.totals, totals);
    let Some(columns) = &loaded.columns else { return };
    // In the model's own order.
    let store = SymbolStore::default();
    let resolver = Resolver::new(&loaded.timeline, &store);
    let row = |at: usize| -> ModelRow {
        let (row, thread) = (columns.row(at), columns.thread(at));
        let chain = loaded.chains.get(row.stack);
        let at = |mode, ip| place(&loaded.timeline.modules, mode, ip, resolver.mapping(chain.maps, mode, ip));
        let mut frames = Vec::new();
        walk_chain(&loaded.chains, chain, max_stack, |RawPlace { mode, ip, .. }| frames.push(at(mode, ip)));
        let comm = loaded.timeline.comm(thread.comm).into_owned();
        let (event, leaf) = (row.event as usize, at(chain.mode, chain.ip));
        (row.time_ns, event, thread.pid, thread.tid, comm, row.cpu, row.period, leaf, frames)
    };
    assert_eq!((0..columns.len()).map(row).collect::<Vec<_>>(), expected.rows);
}

fn options() -> impl Strategy<Value = LoadOptions> {
    let ids = || proptest::option::weighted(0.2, proptest::collection::hash_set(98..124i32, 1..12));
    let cpus = proptest::option::weighted(0.2, proptest::collection::hash_set(0..3u32, 1..3));
    let time = proptest::option::weighted(0.2, (1000..1100u64, 1050..1500u64));
    (any::<[bool; 4]>(), cpus, ids(), ids(), time, any::<bool>()).prop_map(
        |([pid, tid, cpu, callchains], cpus, pids, tids, time, columns)| LoadOptions {
            dims: Dims { pid, tid, cpu, ..Dims::default() },
            callchains,
            cpus: cpus.map(|set| set.into_iter().collect()),
            pids: pids.map(|set| set.into_iter().collect()),
            tids: tids.map(|set| set.into_iter().collect()),
            time: time.map(|span| TimeSpans(vec![span])),
            columns,
            workers: 0,
            ..LoadOptions::default()
        },
    )
}

fn choices(most: usize) -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), 0..most)
}

/// So many choices, made of one.
fn choices_of(seed: u64, count: u64) -> Vec<u64> {
    (0..count).map(|n| (seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Checks that the engine counts every sample of a made-up machine as the model does, whatever
    /// is asked for.
    #[test]
    fn counts_equal_the_models(
        shape in shape(),
        choices in choices(300),
        options in options(),
        max_stack in 1..10usize,
        workers in 1..4usize,
    ) {
        check(&recording(&shape, &choices), &options, max_stack, workers);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Checks that the result is the same for any number of workers, in a file of many chunks and
    /// in a directory.
    #[test]
    fn workers_do_not_change_the_result(
        shape in shape(),
        seed in any::<u64>(),
        fat in 10_000..40_000usize,
        directory in any::<bool>(),
    ) {
        let shape = Shape { fat, directory, time: true, all: true, ..shape };
        let recording = recording(&shape, &choices_of(seed, 400));
        let dims = Dims { pid: true, tid: true, cpu: true, ..Dims::default() };
        let options = LoadOptions { dims, callchains: true, columns: true, ..LoadOptions::default() };
        check(&recording, &options, 127, 1);
        let in_order = |workers| {
            let loaded = load_with(&recording, &options, workers);
            let groups: Vec<_> = loaded
                .groups
                .iter()
                .map(|(key, count)| {
                    let chain = loaded.chains.get(key.chain);
                    let words: Vec<u64> = loaded.chains.raw(chain).words().collect();
                    (GroupKey { chain: 0, ..*key }, chain.maps, chain.mode, chain.ip, words, *count)
                })
                .collect();
            let stacks: Vec<_> = (0..loaded.chains.len() as u32)
                .map(|id| loaded.chains.get(id))
                .map(|c| (c.maps, c.mode, c.ip, loaded.chains.bytes(c).to_vec()))
                .collect();
            let Loaded { totals, columns, time_range, counts, summary, .. } = loaded;
            (groups, totals, columns, stacks, time_range, counts, summary)
        };
        let one = in_order(1);
        prop_assert!(one.6.bytes > 2 << 20, "more than two chunks");
        for workers in [2, 3, 8] {
            prop_assert!(in_order(workers) == one, "{} workers", workers);
        }
    }
}

proptest! {
    /// Checks that counting while reading and counting columns come to the same, whatever is asked
    /// for, also where bytes of the file are damaged.
    #[test]
    fn counted_at_once_or_afterwards(
        shape in shape(),
        choices in choices(300),
        options in options(),
        time_quantum_ns in 0..20u64,
        damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..20),
        workers in 1..4usize,
    ) {
        let Some(recording) = damaged(&shape, &choices, &damage) else { return Ok(()) };
        let of = |columns| {
            let dims = Dims { time_quantum_ns, ..options.dims };
            let loaded = load_with(&recording, &LoadOptions { columns, dims, ..options.clone() }, workers);
            let groups: Vec<_> = loaded
                .groups
                .iter()
                .map(|(key, count)| {
                    let (chain, extra) = (loaded.chains.get(key.chain), loaded.extras.get(key.extra).clone());
                    let words: Vec<u64> = loaded.chains.raw(chain).words().collect();
                    let key = GroupKey { chain: 0, extra: 0, ..*key };
                    (key, extra, chain.maps, chain.mode, chain.ip, words, *count)
                })
                .collect();
            if let Some(kept) = &loaded.columns {
                let samples: u64 = loaded.totals.iter().map(|total| total.samples).sum();
                assert_eq!(kept.len() as u64, samples, "each sample is a row");
                assert!(kept.time().is_sorted(), "rows are by time");
            }
            (groups, loaded.totals, loaded.single_threaded, loaded.time_range, loaded.counts)
        };
        prop_assert_eq!(of(false), of(true));
    }
}

/// Checks that a file of a few KB which unpacks to more samples than it has bytes is counted, but
/// not held in memory.
#[test]
fn packed_recordings_cannot_fill_memory() {
    let samples = 1_200_000;
    let recording = simulate::packed(samples);
    assert!(recording.data_bytes() < 100_000, "{}", recording.data_bytes());
    let loaded = load_with(&recording, &LoadOptions::default(), 2);
    assert_eq!(loaded.totals[0].samples, samples as u64);
    let options = LoadOptions { columns: true, workers: 2, ..LoadOptions::default() };
    let error = load(&recording, &options, &|_, _, _| {}).expect_err("too many");
    let words = error.to_string();
    assert!(words.starts_with("the recording has more than 1048576 samples"), "{words}");
}

/// A symbol list for the made-up machine's kernel: 16 functions, one of them with a hole behind it.
fn kallsyms() -> &'static std::path::Path {
    static LIST: std::sync::LazyLock<tempfile::NamedTempFile> = std::sync::LazyLock::new(|| {
        let mut text = format!("{KERNEL:016x} T _text\n{KERNEL:016x} T _stext\n");
        for n in 0..16u64 {
            text += &format!("{:016x} t k_function_{n}\n", KERNEL + 0x100 + n * 0x1000);
        }
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("a temporary file");
        file
    });
    LIST.path()
}

fn symbol_store() -> SymbolStore {
    let nowhere = std::path::PathBuf::from("/nonexistent");
    SymbolStore::new(SymbolOptions {
        kallsyms: Some(kallsyms().to_path_buf()),
        symfs: Some(nowhere.clone()),
        buildid_dir: Some(nowhere),
        ..SymbolOptions::default()
    })
}

/// A row's values under the sort keys, as text.
fn values(
    keys: &[SortKey],
    functions: &Functions,
    module: &str,
    function: FunctionId,
    comm: &str,
    (pid, tid, cpu): (i32, i32, u32),
) -> Vec<String> {
    let of = |key: &SortKey| match key {
        SortKey::Comm => comm.to_string(),
        SortKey::Thread => tid.to_string(),
        SortKey::Process => pid.to_string(),
        SortKey::Dso => module.to_string(),
        SortKey::Symbol => {
            let f = functions.get(function);
            format!("{:?} {:#x} {:#x} {module}", f.name, f.start, f.end)
        }
        SortKey::Cpu => cpu.to_string(),
        other => unreachable!("the model does not know {other:?}"),
    };
    keys.iter().map(of).collect()
}

fn within(list: &Option<Vec<String>>, value: &str) -> bool {
    list.as_ref().is_none_or(|l| l.iter().any(|wanted| wanted == value))
}

type RowCounts = BTreeMap<Vec<String>, (Count, Count)>;

fn rows_by_model(recording: &Recording, event: usize, load: &LoadOptions, hist: &HistOptions) -> RowCounts {
    let store = symbol_store();
    let mut names = Names::new(recording, &store, true);
    let mut samples = Vec::new();
    let machine = replay(recording, load, 127, |machine, seen| {
        if seen.event != event {
            return;
        }
        let leaf = names.leaf(machine, &seen.leaf);
        let mut frames = Vec::new();
        seen.frames.iter().for_each(|frame| names.frame(machine, frame, &mut frames));
        let count = Count { samples: 1, period: seen.period, latency: 0 };
        samples.push((seen.comm, (seen.pid, seen.tid, seen.cpu), leaf, frames, count));
    })
    .expect("readable");
    let mut rows = RowCounts::new();
    for (comm, ids, leaf, frames, count) in samples {
        let comm = machine.comm(comm);
        // A row that the sample is counted in: its values, and whether filters show it.
        let row = |function: FunctionId| {
            let of = names.functions.get(function);
            let module = of.module.map_or("[unknown]", |m| &machine.modules.get(m).short_name);
            let shown = within(&hist.comms, &comm)
                && within(&hist.dsos, module)
                && within(&hist.symbols, of.name.as_deref().unwrap_or(""));
            (values(&hist.keys, &names.functions, module, function, &comm, ids), shown)
        };
        let own = row(leaf);
        let mut mine = vec![own.clone()];
        if hist.children {
            mine.extend(frames.iter().map(|f| row(*f)));
        }
        mine.sort();
        mine.dedup();
        for (values, _) in mine.into_iter().filter(|r| r.1) {
            rows.entry(values).or_default().1 += count;
        }
        if own.1 {
            rows.entry(own.0).or_default().0 += count;
        }
    }
    rows
}

fn rows_by_engine(recording: &Recording, event: usize, load: &LoadOptions, hist: &HistOptions) -> RowCounts {
    let store = symbol_store();
    let resolve = ResolveOptions::default();
    let profile = Profile::open(recording, load, resolve, &store, &|_, _, _| {}).expect("readable");
    let mut rows = RowCounts::new();
    for row in Hist::new(&profile, event, hist).rows.iter().filter(|r| !r.filtered) {
        let comm = profile.loaded.timeline.comm(row.group.comm);
        let ids = (row.group.pid, row.group.tid, row.group.cpu);
        let module = profile.module_name(row.function);
        let values = values(&hist.keys, &profile.functions, module, row.function, &comm, ids);
        let before = rows.insert(values, (row.own, row.total));
        assert_eq!(before, None, "one row for the same values");
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Checks that rows under any sort keys and filters have the counts that the model finds sample
    /// by sample.
    #[test]
    fn rows_equal_the_models(
        shape in shape(),
        choices in choices(200),
        keys in proptest::sample::subsequence(
            vec![SortKey::Comm, SortKey::Thread, SortKey::Process, SortKey::Dso, SortKey::Symbol, SortKey::Cpu], 1..=6,
        ).prop_shuffle(),
        children in any::<bool>(),
        filters in any::<[u8; 3]>(),
    ) {
        let recording = recording(&shape, &choices);
        let list = |on: bool, words: &[&str]| on.then(|| words.iter().map(|w| w.to_string()).collect());
        let hist = HistOptions {
            keys,
            children,
            comms: list(filters[0] % 3 == 0, &["sh", ":111"]),
            dsos: list(filters[1] % 3 == 0, &["libc.so.6", "[kernel.kallsyms]"]),
            symbols: list(filters[2] % 3 == 0, &["k_function_0", "k_function_1", ""]),
            ..HistOptions::default()
        };
        let load = LoadOptions { dims: hist.dims(), callchains: true, ..LoadOptions::default() };
        for event in 0..recording.events.list.len() {
            let mut expected = rows_by_model(&recording, event, &load, &hist);
            let mut found = rows_by_engine(&recording, event, &load, &hist);
            if !children {
                // Without children the total is the row's own.
                expected.values_mut().for_each(|r| r.1 = r.0);
            }
            expected.retain(|_, r| r.1.samples > 0);
            found.retain(|_, r| r.1.samples > 0);
            prop_assert_eq!(found, expected, "keys {:?}", &hist.keys);
        }
    }
}

/// Checks an early look: one chunk in four has about a quarter of the samples, from nearly all of
/// the time, each of them one of the whole; the whole is the same with and without it; and a
/// compressed recording has none.
#[test]
fn an_early_look_is_a_part_of_the_whole() {
    let shape = Shape { chains: true, fat: 4000, ..Shape::of_events(1) };
    let choices: Vec<u64> = (0..8000u64).map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let recording = recording(&shape, &choices);
    let options = LoadOptions { callchains: true, columns: true, workers: 2, ..LoadOptions::default() };
    let symbols = SymbolOptions::default();
    let first = FirstPass::read(&recording, &options, &symbols, &|_, _, _| {}).expect("readable");
    let one_in = NonZeroUsize::new(4).expect("not zero");
    let part = first.some_samples(one_in, &|_| {}).expect("readable").expect("its chunks are known");
    let whole = first.samples(&|_, _, _| {}, &|_| {}).expect("readable");
    let rows = |loaded: &Loaded| {
        let columns = loaded.columns.as_ref().expect("asked for");
        let row =
            |row| [columns.time()[row], columns.get(RowField::Cpu, row), columns.get(RowField::Period, row)];
        (0..columns.len()).map(row).collect::<Vec<_>>()
    };
    let (part, all) = (rows(&part), rows(&whole));
    let share = part.len() as f64 / all.len() as f64;
    assert!(all.len() > 1000 && (0.1..0.4).contains(&share), "{share} of {}", all.len());
    let known: std::collections::HashSet<_> = all.iter().collect();
    assert!(part.iter().all(|row| known.contains(row)));
    let span = |rows: &[[u64; 3]]| rows.last().expect("rows")[0] - rows[0][0];
    assert!(span(&part) > span(&all) / 2, "{} of {}", span(&part), span(&all));
    assert_eq!(all, rows(&load(&recording, &options, &|_, _, _| {}).expect("readable")));
    let packed = simulate::packed(1000);
    let first = FirstPass::read(&packed, &options, &symbols, &|_, _, _| {}).expect("readable");
    assert!(first.some_samples(one_in, &|_| {}).expect("readable").is_none());
}

/// Checks that a reading without the stacks of waits has all samples, those of waits as if they had
/// no call chain, and the others as they are.
#[test]
fn stacks_of_waits_are_left_out() {
    let shape = Shape { chains: true, ..Shape::of_events(2) };
    let mut recording = recording(&shape, &choices_of(7, 2000));
    recording.events.list[0].name = OFF_CPU.to_owned();
    let rows = |without_wait_stacks| {
        let options =
            LoadOptions { callchains: true, columns: true, without_wait_stacks, ..LoadOptions::default() };
        let loaded = load_with(&recording, &options, 2);
        let columns = loaded.columns.as_ref().expect("asked for");
        let row = |at: usize| {
            let (row, thread) = (columns.row(at), columns.thread(at));
            let chain = loaded.chains.get(row.stack);
            let words: Vec<u64> = loaded.chains.raw(chain).words().collect();
            let comm = loaded.timeline.comm(thread.comm).into_owned();
            let identity = (row.time_ns, row.event, row.cpu, row.period, thread.pid, thread.tid, comm);
            (identity, (chain.maps, chain.mode, chain.ip), words)
        };
        (0..columns.len()).map(row).collect::<Vec<_>>()
    };
    let mut expected = rows(false);
    let of_waits = expected.iter_mut().filter(|(identity, _, words)| identity.1 == 0 && !words.is_empty());
    let changed = of_waits.map(|(_, _, words)| words.clear()).count();
    assert!(changed > 100 && expected.iter().any(|(_, _, words)| !words.is_empty()), "{changed}");
    assert_eq!(rows(true), expected);
}
