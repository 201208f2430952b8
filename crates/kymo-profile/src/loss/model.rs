//! The obvious account: all records in memory, one after the other, lists of intervals, bins filled at the end.
use super::bins::limit;
use super::scan::real_time;
use super::*;
use kymo_data::UnwindCounts;

/// A record as a test makes it up. `cpu` is that of its ring.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fake {
    pub(super) cpu: u32,
    pub(super) time: u64,
    pub(super) what: FakeRecord,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum FakeRecord {
    Sample { event: usize, bytes: u16 },
    Comm,
    Lost(u64),
    LostSamples { event: usize, lost: u64 },
    Throttle { event: usize, on: bool },
    Pause { until: u64 },
    Unwound { stacks: u64 },
}

/// What tells something about the recording, not about a ring.
fn is_mark(fake: &Fake) -> bool {
    matches!(fake.what, FakeRecord::Pause { .. } | FakeRecord::Unwound { .. })
}

/// What a made-up mark counts.
pub(super) fn counts(stacks: u64) -> UnwindCounts {
    UnwindCounts {
        stacks,
        frames: 3 * stacks,
        ended: [stacks / 2; UnwindCounts::CAUSES],
        ..UnwindCounts::default()
    }
}

/// Whether a record has a time of its own ring.
fn is_timed(fake: &Fake) -> bool {
    let elsewhere = is_mark(fake) || matches!(fake.what, FakeRecord::LostSamples { .. });
    !elsewhere && real_time(Some(fake.time)).is_some()
}

/// What `streams` lost; `sizes` are the records' sizes in bytes, `names` the events'.
pub(super) fn account(streams: &[Vec<Fake>], sizes: &dyn Fn(&Fake) -> u64, names: &[&str]) -> LossTimeline {
    let all = || streams.iter().flatten();
    let timed = || all().filter(|f| is_timed(f));
    let span = timed().map(|f| (f.time, f.time)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let (first, end) = span.unwrap_or((0, 0));
    // What was made up of what was there before has no time, and its CPU means nothing.
    let made_up = |f: &Fake| f.what == FakeRecord::Comm && real_time(Some(f.time)).is_none();
    let mut cpus: Vec<u32> = all().filter(|f| !is_mark(f) && !made_up(f)).map(|f| f.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    // The narrowest bins that are few enough.
    let mut shift = 0;
    while (end >> shift) - (first >> shift) + 1 > limit(cpus.len()) {
        shift += 1;
    }
    let bin_ns = 1u64 << shift;
    let (first_bin, last_bin) = (first / bin_ns, end / bin_ns);
    let cut = |list: Vec<Stretch>| -> Vec<Stretch> {
        let cut = |s: &Stretch| Stretch { start_ns: s.start_ns.max(first), end_ns: s.end_ns.min(end) };
        union(&list.iter().map(cut).collect::<Vec<_>>())
    };
    let overlap = |list: &[Stretch], bin: u64| -> u64 {
        let (from, to) = (u128::from(bin) * u128::from(bin_ns), u128::from(bin + 1) * u128::from(bin_ns));
        let part =
            |s: &Stretch| u128::from(s.end_ns).min(to).saturating_sub(u128::from(s.start_ns).max(from));
        list.iter().map(|s| part(s) as u64).sum()
    };
    let mut out = LossTimeline { span, bin_ns, first_bin, ..LossTimeline::default() };
    let mut of_any = Vec::new();
    for cpu in cpus {
        let sum = |number: &dyn Fn(&Fake) -> u64| all().filter(|f| f.cpu == cpu).map(number).sum::<u64>();
        let lost_records = sum(&|f| if let FakeRecord::Lost(lost) = f.what { lost } else { 0 });
        let lost_samples = sum(&|f| if let FakeRecord::LostSamples { lost, .. } = f.what { lost } else { 0 });
        let is_late = lost_samples > lost_records;
        let lost = span.map_or(Vec::new(), |span| union(&lost_by(streams, cpu, span, is_late)));
        let throttled = cut((0..names.len()).flat_map(|event| throttled(streams, cpu, event, end)).collect());
        let cell = |bin: u64| {
            let inside = || timed().filter(|f| f.cpu == cpu && f.time / bin_ns == bin);
            Cell {
                samples: inside().filter(|f| matches!(f.what, FakeRecord::Sample { .. })).count() as u64,
                bytes: inside().map(sizes).sum(),
                lost_ns: overlap(&lost, bin),
                throttled_ns: overlap(&throttled, bin),
            }
        };
        out.rings.push(RingLoss {
            ring: Ring::Cpu(cpu),
            samples: sum(&|f| u64::from(matches!(f.what, FakeRecord::Sample { .. }))),
            bytes: timed().filter(|f| f.cpu == cpu).map(sizes).sum(),
            lost_records,
            lost_chunks: sum(&|f| u64::from(matches!(f.what, FakeRecord::Lost(_)))),
            lost_samples,
            lost_ns: length(&lost),
            throttles: sum(&|f| u64::from(matches!(f.what, FakeRecord::Throttle { on: true, .. }))),
            throttled_ns: length(&throttled),
            cells: if span.is_some() { (first_bin..=last_bin).map(cell).collect() } else { Vec::new() },
        });
        of_any.extend_from_slice(&lost);
        out.lost.extend(lost.iter().map(|&s| (Ring::Cpu(cpu), s)));
        out.throttled.extend(throttled.iter().map(|&s| (Ring::Cpu(cpu), s)));
    }
    let any = union(&of_any);
    out.any_lost_ns = length(&any);
    if span.is_some() && !out.rings.is_empty() {
        out.any_cells = (first_bin..=last_bin).map(|bin| overlap(&any, bin)).collect();
    }
    let pause = |f: &Fake| match f.what {
        FakeRecord::Pause { until } => Some(Stretch { start_ns: f.time, end_ns: until }),
        _ => None,
    };
    let unwound =
        |f: &Fake| if let FakeRecord::Unwound { stacks } = f.what { Some(counts(stacks)) } else { None };
    out.unwound = all().filter_map(unwound).reduce(|a, b| UnwindCounts {
        stacks: a.stacks + b.stacks,
        frames: a.frames + b.frames,
        ended: std::array::from_fn(|cause| a.ended[cause] + b.ended[cause]),
        ..a
    });
    out.pauses = cut(all().filter_map(pause).collect());
    out.events = names.iter().enumerate().map(|(event, name)| of_event(streams, event, name)).collect();
    out
}

/// The stretches in which a ring lost records; `is_late`: also after its last one.
fn lost_by(streams: &[Vec<Fake>], cpu: u32, (first, end): (u64, u64), is_late: bool) -> Vec<Stretch> {
    let mut lost = Vec::new();
    let mut latest = None;
    for stream in streams {
        let mut before = None;
        for fake in stream.iter().filter(|f| f.cpu == cpu && is_timed(f)) {
            if let FakeRecord::Lost(_) = fake.what {
                lost.push(Stretch { start_ns: before.unwrap_or(first), end_ns: fake.time });
            }
            before = Some(fake.time);
        }
        latest = latest.max(before);
    }
    lost.extend(is_late.then(|| Stretch { start_ns: latest.unwrap_or(first), end_ns: end }));
    lost
}

/// The stretches in which an event was throttled on a ring.
fn throttled(streams: &[Vec<Fake>], cpu: u32, event: usize, end_ns: u64) -> Vec<Stretch> {
    let mut throttled = Vec::new();
    let mut since = None;
    for fake in streams.iter().flatten().filter(|f| f.cpu == cpu && real_time(Some(f.time)).is_some()) {
        match fake.what {
            FakeRecord::Throttle { event: e, on: true } if e == event => since = since.or(Some(fake.time)),
            FakeRecord::Throttle { event: e, on: false } if e == event => {
                throttled.extend(since.take().map(|start_ns| Stretch { start_ns, end_ns: fake.time }));
            }
            _ => {}
        }
    }
    throttled.extend(since.map(|start_ns| Stretch { start_ns, end_ns }));
    throttled
}

fn of_event(streams: &[Vec<Fake>], event: usize, name: &str) -> EventLoss {
    let mut loss = EventLoss { name: name.to_string(), ..EventLoss::default() };
    for fake in streams.iter().flatten() {
        match fake.what {
            FakeRecord::Sample { event: e, .. } if e == event => loss.samples += 1,
            FakeRecord::LostSamples { event: e, lost } if e == event => loss.lost_samples += lost,
            FakeRecord::Throttle { event: e, on: true } if e == event => loss.throttles += 1,
            _ => {}
        }
    }
    loss
}

/// Which points of time are in some stretch: between any two neighbouring ends all are or none is.
fn union(list: &[Stretch]) -> Vec<Stretch> {
    let mut ends: Vec<u64> = list.iter().flat_map(|s| [s.start_ns, s.end_ns]).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut out: Vec<Stretch> = Vec::new();
    for pair in ends.windows(2) {
        if !list.iter().any(|s| s.start_ns <= pair[0] && pair[1] <= s.end_ns) {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.end_ns == pair[0] => last.end_ns = pair[1],
            _ => out.push(Stretch { start_ns: pair[0], end_ns: pair[1] }),
        }
    }
    out
}

fn length(list: &[Stretch]) -> u64 {
    list.iter().map(|s| s.end_ns - s.start_ns).sum()
}
