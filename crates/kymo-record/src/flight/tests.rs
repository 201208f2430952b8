//! The parts of the flight recorder by themselves; whole ones are in the crate's suite.
use super::clock::SampleClock;
use super::lookback::{LOG_BYTES, Lookback};
use super::merge::Merge;
use super::snapshot::RingSnapshot;
use crate::coverage::{Coverage, RingCoverage};
use kymo_data::{Attr, EventSpec, RecordCursor, SampleId, abi, build, whole_records_bytes};
use proptest::prelude::*;

const COMMON: u64 = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME;

fn spec(id: u64, more: u64, flags: u64) -> EventSpec {
    let attr =
        Attr { sample_type: COMMON | more, flags: abi::ATTR_FLAG_SAMPLE_ID_ALL | flags, ..Attr::default() };
    EventSpec { attr, ids: vec![id], name: format!("event {id}") }
}

/// One that samples, with the CPU, and one that tracks, without.
fn specs() -> Vec<EventSpec> {
    vec![spec(7, abi::PERF_SAMPLE_CPU, 0), spec(8, 0, abi::ATTR_FLAG_TASK)]
}

fn sample(time: u64, words: usize) -> Vec<u8> {
    let mut body = vec![7, 0, time];
    body.extend(std::iter::repeat_n(time ^ 0x55, words));
    let header = u64::from(abi::PERF_RECORD_SAMPLE) | (8 + 8 * body.len() as u64) << 48;
    std::iter::once(header).chain(body).flat_map(u64::to_le_bytes).collect()
}

fn comm(time: u64, pid: i32, name: &str) -> Vec<u8> {
    let id = SampleId { time: Some(time), id: Some(8), ..SampleId::default() };
    build::comm(&specs()[1].attr, &id, pid, pid, name.as_bytes(), false)
}

/// What a ring holds of these records, which are in order of time.
fn snapshot(cpu: i32, parts: &[Vec<u8>], wrapped: bool) -> RingSnapshot {
    let newest_first: Vec<u8> = parts.iter().rev().flatten().copied().collect();
    RingSnapshot { cpu, task: -1, records: newest_first, wrapped, corrupt_bytes: 0 }
}

fn names(bytes: &[u8]) -> Vec<String> {
    let comms = RecordCursor::new(bytes).filter(|record| record.header.kind == abi::PERF_RECORD_COMM);
    let name = |record: &[u8]| {
        let end = record[16..].iter().position(|&byte| byte == 0).unwrap_or(0);
        String::from_utf8_lossy(&record[16..16 + end]).into_owned()
    };
    comms.map(|record| name(record.bytes)).collect()
}

proptest! {
    /// Checks F2: every record of every source once, in order of time, and those of one source in
    /// their own order; whatever the size of chunks.
    #[test]
    fn merged(
        rings in prop::collection::vec(prop::collection::vec((1..20u64, 0..6usize), 0..40), 0..4),
        events in prop::collection::vec(1..30u64, 0..20),
        chunk in 1..4000usize,
    ) {
        let clock = SampleClock::new(&specs());
        let (mut times, mut snapshots) = (Vec::new(), Vec::new());
        for (cpu, ring) in rings.iter().enumerate() {
            let mut now = 0;
            let parts: Vec<Vec<u8>> = ring.iter().map(|&(step, words)| {
                now += step;
                times.push(now);
                sample(now, words)
            }).collect();
            snapshots.push(snapshot(cpu as i32, &parts, false));
        }
        let mut now = 0;
        let log: Vec<u8> = events.iter().flat_map(|step| {
            now += step;
            times.push(now);
            comm(now, 1, "x")
        }).collect();
        let (merge, coverage) = Merge::new(&snapshots, [&log[..]].into_iter(), &clock);
        let mut all = Vec::new();
        merge.chunks(chunk, |part| all.extend_from_slice(part));
        times.sort_unstable();
        let found: Vec<u64> = clock.times_ns(&all).collect();
        prop_assert_eq!(found, times);
        prop_assert_eq!(all.len(), log.len() + snapshots.iter().map(|snapshot| snapshot.records.len()).sum::<usize>());
        for (ring, found) in rings.iter().zip(&coverage.rings) {
            let first = ring.first().map(|&(step, _)| step);
            let last = ring.iter().map(|&(step, _)| step).sum();
            prop_assert_eq!(found.span_ns, first.map(|first| (first, last)));
            prop_assert_eq!(found.samples, ring.len() as u64);
        }
        prop_assert_eq!(Merge::oldest_ns(&snapshots, &clock), rings.iter().filter_map(|ring| Some(ring.first()?.0)).min());
    }

    /// Checks that no bytes, whatever they are, make the parts panic, and that they are given on or
    /// left out whole.
    #[test]
    fn hostile_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..400), sizes in prop::collection::vec((0..50usize, 0..64u16), 0..20)) {
        for (at, size) in sizes {
            if let Some(place) = bytes.get_mut(at * 8 + 6..at * 8 + 8) {
                place.copy_from_slice(&size.to_le_bytes());
            }
        }
        let clock = SampleClock::new(&specs());
        let snapshots = [RingSnapshot { records: bytes.clone(), ..RingSnapshot::default() }];
        let (merge, _) = Merge::new(&snapshots, [&bytes[..]].into_iter(), &clock);
        let mut len = 0;
        merge.chunks(100, |part| len += part.len());
        prop_assert_eq!(len, 2 * whole_records_bytes(&bytes, bytes.len()));
        let mut lookback = Lookback::new(&specs());
        lookback.records(&bytes);
        lookback.advance(Some(1 << 40), &clock, true);
        lookback.told();
    }
}

/// Checks that a snapshot tells the name that a task had at its oldest sample, and the later ones
/// at their times (F3); and that a task which ended long before is forgotten.
#[test]
fn names_as_of_the_oldest_sample() {
    let clock = SampleClock::new(&specs());
    let mut lookback = Lookback::new(&specs());
    lookback.before(&comm(0, 1, "init"));
    lookback.records(&[comm(10, 1, "old"), comm(20, 1, "older"), comm(30, 1, "new")].concat());
    lookback.records(&comm(15, 2, "two"));
    lookback.advance(Some(25), &clock, false);
    assert_eq!(names(&lookback.told()), ["older", "two"]);
    let log: Vec<u8> = lookback.log().flatten().copied().collect();
    assert_eq!(names(&log), ["new"]);
    lookback.advance(Some(30), &clock, false);
    assert_eq!(names(&lookback.told()), ["older", "two"], "what happened at the oldest sample's time stays");
    let id = SampleId { time: Some(31), id: Some(8), ..SampleId::default() };
    lookback.records(&build::exit(&specs()[1].attr, &id, 2, 2, 2, 2));
    for _ in 0..3 {
        lookback.advance(None, &clock, false);
    }
    assert_eq!(names(&lookback.told()), ["new"], "nothing is left to need the others");
}

/// Checks F4: however much happens while samples stay as old as they are, the log is bounded, and
/// nobody's name is lost.
#[test]
fn a_bounded_log() {
    let clock = SampleClock::new(&specs());
    let mut lookback = Lookback::new(&specs());
    let chunk: Vec<u8> = (0..1000).flat_map(|pid| comm(50, pid, "name")).collect();
    let mut most = 0;
    for _ in 0..2 * LOG_BYTES / chunk.len() {
        lookback.records(&chunk);
        if lookback.is_long() {
            lookback.advance(Some(1), &clock, true);
        }
        most = most.max(lookback.log().map(<[u8]>::len).sum());
    }
    assert!(most <= LOG_BYTES + chunk.len(), "{most}");
    assert_eq!(names(&lookback.told()).len(), 1000);
}

/// Checks the words about a snapshot: complete where no ring has forgotten, else as far as all
/// rings reach.
#[test]
fn words_about_coverage() {
    let ring = |cpu, first: u64, last: u64, overwritten| RingCoverage {
        cpu,
        task: -1,
        span_ns: Some((first * 1_000_000, last * 1_000_000)),
        samples: 10,
        overwritten,
    };
    let said = |rings: &[RingCoverage]| Coverage { rings: rings.to_vec() }.to_string();
    assert_eq!(said(&[]), "the rings were empty");
    assert_eq!(said(&[RingCoverage::default()]), "the rings were empty");
    assert_eq!(said(&[ring(0, 500, 1500, false)]), "10 samples of 1.000 s, all since the start");
    assert_eq!(
        said(&[
            ring(0, 500, 4500, false),
            ring(1, 4000, 4250, true),
            RingCoverage { cpu: 2, ..RingCoverage::default() }
        ]),
        "20 samples of 4.000 s, complete for the last 0.500 s: CPU 0 4.000 s, CPU 1 0.500 s, CPU 2 nothing"
    );
    let many: Vec<_> = (0..9).map(|cpu| ring(cpu, 1000 + cpu as u64, 2000, true)).collect();
    assert_eq!(said(&many), "90 samples of 1.000 s, complete for the last 0.992 s");
}
