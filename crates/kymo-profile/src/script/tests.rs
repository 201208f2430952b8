//! The printed samples of made-up machines and of real recordings.
use super::*;
use crate::load::model::replay;
use crate::load::tests::{Shape, recording, shape};
use crate::load::{LoadOptions, load};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

fn options(fields: &[Field]) -> ScriptOptions {
    let fields = vec![FieldRule::only(fields.iter().copied())];
    ScriptOptions { fields, inline: false, ..ScriptOptions::new() }
}

fn printed(recording: &Recording, options: &ScriptOptions) -> Vec<String> {
    let mut out = Vec::new();
    write(recording, options, &SymbolStore::default(), &mut out).expect("readable");
    let text = String::from_utf8_lossy(&out).into_owned();
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn fixture(name: &str) -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings").join(name);
    Recording::open(Arc::new(std::fs::File::open(path).expect("a fixture")), Vec::new()).expect("a recording")
}

/// What the obvious reader would print, by time and place, cut to microseconds as the text is.
fn expected(recording: &Recording, cpu: bool) -> Vec<String> {
    let mut samples = Vec::new();
    let machine = replay(recording, &LoadOptions::default(), 127, |_, s| {
        samples.push((s.comm, s.pid, s.tid, s.cpu, s.time_ns, s.period, s.event));
    })
    .expect("readable");
    let line = |(comm, pid, tid, on, time, period, event): (usize, i32, i32, u32, u64, u64, usize)| {
        let comm = machine.comm(comm);
        let on = if cpu { format!("[{on:03}] ") } else { String::new() };
        let name = &recording.events.list[event].name;
        let seconds = format!("{}.{:06}:", time / 1_000_000_000, time % 1_000_000_000 / 1000);
        let line = format!("{comm} {pid}/{tid} {on}{seconds} {period} {name}:");
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    samples.into_iter().map(line).collect()
}

const FIELDS: [Field; 7] =
    [Field::Comm, Field::Pid, Field::Tid, Field::Cpu, Field::Time, Field::Period, Field::Event];

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Checks that samples are printed in order of time wherever rounds are honest, each as the
    /// obvious reader sees it, members of a group by what they moved.
    #[test]
    fn samples_in_order(shape in shape(), choices in proptest::collection::vec(any::<u64>(), 0..250)) {
        let shape = Shape { time: true, all: true, ..shape };
        let recording = recording(&shape, &choices);
        prop_assert_eq!(printed(&recording, &options(&FIELDS)), expected(&recording, shape.cpu));
    }

    /// Checks that filters print exactly what they let through.
    #[test]
    fn filters(
        choices in proptest::collection::vec(any::<u64>(), 0..150),
        cpus in proptest::option::of(proptest::collection::hash_set(0..3u32, 1..3)),
        pids in proptest::option::of(proptest::collection::hash_set(98..124i32, 1..12)),
        tids in proptest::option::of(proptest::collection::hash_set(98..124i32, 1..12)),
        time in proptest::option::of((1000..1200u64, 1050..1500u64)),
    ) {
        let shape = Shape::of_events(2);
        let recording = recording(&shape, &choices);
        let with = ScriptOptions {
            cpus: cpus.clone().map(|s| s.into_iter().collect()),
            pids: pids.clone().map(|s| s.into_iter().collect()),
            tids: tids.clone().map(|s| s.into_iter().collect()),
            time: time.map(|span| TimeSpans(vec![span])),
            ..options(&FIELDS)
        };
        let load_options = LoadOptions {
            cpus: with.cpus.clone(),
            pids: with.pids.clone(),
            tids: with.tids.clone(),
            time: with.time.clone(),
            ..LoadOptions::default()
        };
        let loaded = load(&recording, &load_options, &|_, _, _| {}).expect("readable");
        let counted: u64 = loaded.totals.iter().map(|t| t.samples).sum();
        prop_assert_eq!(printed(&recording, &with).len() as u64, counted, "as many as the report counts");
    }
}

/// Checks that a tracepoint's own fields are printed by its print format, as perf prints them.
#[test]
fn tracepoint_fields() {
    let lines = printed(&fixture("tracepoint.data"), &options(&[Field::Event, Field::Trace]));
    let fork = lines.iter().find(|l| l.starts_with("sched:sched_process_fork:")).expect("a fork");
    let of = |name: &str| {
        let value =
            fork.split_whitespace().find_map(|w| w.strip_prefix(name)).unwrap_or_else(|| panic!("{fork}"));
        value.parse::<i64>().unwrap_or_else(|_| panic!("{fork}"))
    };
    assert!(of("pid=") > 0 && of("child_pid=") > of("pid="), "{fork}");
    assert!(fork.contains(" comm=spin ") && !fork.contains("common_"), "{fork}");
    let mut execs = lines.iter().filter(|l| l.starts_with("sched:sched_process_exec:"));
    assert!(execs.any(|e| e.contains("filename=./spin pid=")), "{lines:?}");
}

/// Checks that a sample of a group prints once for each counter that moved, and that what is
/// printed adds up to the counters' last values.
#[test]
fn group_reads() {
    let recording = fixture("group.data");
    let lines = printed(&recording, &options(&[Field::Period, Field::Event]));
    let mut sums = std::collections::BTreeMap::new();
    for line in &lines {
        let (period, event) = line.split_once(' ').expect("two fields");
        *sums.entry(event.trim_end_matches(':').to_string()).or_insert(0) +=
            period.parse::<u64>().expect("a period");
    }
    let mut last = std::collections::BTreeMap::new();
    let mut records = recording.records();
    while let Some(record) = records.next_record().expect("readable") {
        let events = &recording.events;
        if record.header.kind != abi::PERF_RECORD_SAMPLE {
            continue;
        }
        let Some(event) = events.event_of(&record) else { continue };
        let sample = events.list[event].layout.parse(record.header.misc, record.body).expect("a sample");
        for counter in sample.read.expect("counter values").counters() {
            let id = counter.id.or(sample.id).expect("an id");
            let name = events.list[events.by_id(id).expect("an event")].name.clone();
            let newest = last.entry((name, id)).or_insert(0);
            *newest = counter.value.max(*newest);
        }
    }
    let mut totals = std::collections::BTreeMap::new();
    for ((name, _), value) in last {
        if value > 0 {
            *totals.entry(name).or_insert(0) += value;
        }
    }
    assert_eq!(sums, totals);
    assert!(totals.len() > 1, "both counters moved: {totals:?}");
}

/// Checks that a recording without times is printed as it lies in the file.
#[test]
fn without_times_as_they_lie() {
    let shape = Shape { time: false, ..Shape::of_events(1) };
    let choices: Vec<u64> = (0..200u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let recording = recording(&shape, &choices);
    let fields = [Field::Comm, Field::Pid, Field::Tid, Field::Cpu, Field::Period];
    let mut samples = Vec::new();
    let machine = replay(&recording, &LoadOptions::default(), 127, |_, s| {
        samples.push((s.comm, s.pid, s.tid, s.cpu, s.period));
    })
    .expect("readable");
    let expected: Vec<String> = samples
        .into_iter()
        .map(|(comm, pid, tid, cpu, period)| {
            let line = format!("{} {pid}/{tid} [{cpu:03}] {period}", machine.comm(comm));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert!(expected.len() > 50);
    assert_eq!(printed(&recording, &options(&fields)), expected);
}
