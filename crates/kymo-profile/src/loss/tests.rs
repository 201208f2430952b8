//! Engine against model on made-up recordings, the named cases, and the picture.
use super::model::{self, Fake, FakeRecord};
use super::*;
use kymo_data::{Attr, EventSpec, Mark, PipeWriter, ReadAt, Recording, SampleId, abi, build};
use proptest::prelude::*;
use std::sync::Arc;

const NAMES: [&str; 2] = ["sched:sched_switch", "cpu-clock<&\"u\">"];

fn attr() -> Attr {
    let sample_type = abi::PERF_SAMPLE_IDENTIFIER
        | abi::PERF_SAMPLE_IP
        | abi::PERF_SAMPLE_TID
        | abi::PERF_SAMPLE_TIME
        | abi::PERF_SAMPLE_CPU;
    let mut attr = Attr { kind: abi::PERF_TYPE_SOFTWARE, sample_type, ..Attr::default() };
    attr.set(abi::ATTR_FLAG_SAMPLE_ID_ALL, true);
    attr
}

fn encode(fake: &Fake) -> Vec<u8> {
    let (attr, mut id) =
        (attr(), SampleId { time: Some(fake.time), cpu: Some(fake.cpu), ..SampleId::default() });
    id.id = Some(10);
    match fake.what {
        FakeRecord::Sample { event, bytes } => {
            let words = [10 + event as u64, 0x1234, 7 | 7 << 32, fake.time, u64::from(fake.cpu)];
            let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            body.resize(body.len().max(usize::from(bytes)), 0xee);
            build::record(abi::PERF_RECORD_SAMPLE, 2, &body)
        }
        FakeRecord::Comm => build::comm(&attr, &id, 7, 7, b"name", false),
        FakeRecord::Lost(lost) => build::lost(&attr, &id, lost),
        FakeRecord::LostSamples { event, lost } => {
            // As kymo writes it: no thread, the ring's CPU, no time.
            let id = SampleId { id: Some(10 + event as u64), pid: Some(-1), tid: Some(-1), time: None, ..id };
            build::lost_samples(&attr, &id, lost)
        }
        FakeRecord::Throttle { event, on } => {
            let kind = if on { abi::PERF_RECORD_THROTTLE } else { abi::PERF_RECORD_UNTHROTTLE };
            let id = SampleId { id: Some(10 + event as u64), ..id };
            let words = [fake.time, 10 + event as u64, 0];
            let mut body: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            body.extend(build::sample_id(&attr, &id));
            build::record(kind, 0, &body)
        }
        FakeRecord::Unwound { stacks } => Mark::Unwound(model::counts(stacks)).record(),
        FakeRecord::Pause { until } => Mark::Pause { start_ns: fake.time, end_ns: until }.record(),
    }
}

fn spec(name: &str, id: u64) -> EventSpec {
    EventSpec { attr: attr(), ids: vec![id], name: name.to_string() }
}

/// A recording of these streams: the first as a pipe, the others as the parts of a directory.
pub(super) fn recording(streams: &[Vec<Fake>]) -> Recording {
    let specs: Vec<EventSpec> = (0..).zip(NAMES).map(|(i, name)| spec(name, 10 + i)).collect();
    let mut pipe = PipeWriter::create(Vec::new(), &specs, &kymo_data::Features::default()).expect("a vector");
    let bytes = |stream: &Vec<Fake>| stream.iter().flat_map(encode).collect::<Vec<u8>>();
    pipe.append(&bytes(&streams[0])).expect("a vector");
    let main: Arc<dyn ReadAt> = Arc::new(pipe.finish().expect("a vector"));
    let parts = streams[1..].iter().map(|s| ("part".to_string(), Arc::new(bytes(s)) as Arc<dyn ReadAt>));
    Recording::open(main, parts.collect()).expect("a recording")
}

fn model(streams: &[Vec<Fake>]) -> LossTimeline {
    model::account(streams, &|fake| encode(fake).len() as u64, &NAMES)
}

fn engine(streams: &[Vec<Fake>], workers: usize) -> LossTimeline {
    scan(&recording(streams), workers, &|_, _| {}).expect("bytes in memory")
}

fn at(cpu: u32, time: u64, what: FakeRecord) -> Fake {
    Fake { cpu, time, what }
}

fn sample(cpu: u32, time: u64) -> Fake {
    at(cpu, time, FakeRecord::Sample { event: 0, bytes: 0 })
}

fn fake() -> impl Strategy<Value = Fake> {
    let event = 0..2usize;
    // Times near each other, far apart, and those that mean none. They go backwards as often as not.
    let time = prop_oneof![8 => 1000u64..4000, 2 => 1u64..1_000_000_000, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()];
    let what = prop_oneof![
        6 => (event.clone(), prop_oneof![Just(0u16), Just(60_000u16)]).prop_map(|(event, bytes)| FakeRecord::Sample { event, bytes }),
        3 => (1..1000u64).prop_map(FakeRecord::Lost),
        1 => Just(FakeRecord::Comm),
        1 => (event.clone(), 0..3000u64).prop_map(|(event, lost)| FakeRecord::LostSamples { event, lost }),
        1 => (event, any::<bool>()).prop_map(|(event, on)| FakeRecord::Throttle { event, on }),
        1 => (1000..5000u64).prop_map(|until| FakeRecord::Pause { until }),
        1 => (0..5000u64).prop_map(|stacks| FakeRecord::Unwound { stacks }),
    ];
    (0..3u32, time, what).prop_map(|(cpu, time, what)| Fake { cpu, time, what })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Checks that the engine finds what the model finds, with one worker and with several, in recordings of several
    /// chunks and several files, with losses anywhere, times that go backwards, and records without a time.
    #[test]
    fn engine_is_model(streams in prop::collection::vec(prop::collection::vec(fake(), 0..120), 1..4)) {
        let want = model(&streams);
        for workers in [1, 3] {
            let got = engine(&streams, workers);
            prop_assert_eq!(&got, &want);
        }
        // L3.
        let most = want.rings.iter().map(|r| r.lost_ns).max().unwrap_or(0);
        let sum = want.rings.iter().map(|r| u128::from(r.lost_ns)).sum::<u128>();
        prop_assert!(most <= want.any_lost_ns && u128::from(want.any_lost_ns) <= sum);
        prop_assert!(want.any_lost_ns <= want.elapsed_ns());
        for ring in &want.rings {
            prop_assert_eq!(ring.cells.iter().map(|c| c.lost_ns).sum::<u64>(), ring.lost_ns);
            prop_assert_eq!(ring.cells.iter().map(|c| c.bytes).sum::<u64>(), ring.bytes);
        }
    }

    /// Checks that damaged bytes neither panic nor break the invariants.
    #[test]
    fn damage_is_survived(stream in prop::collection::vec(fake(), 1..40), flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20)) {
        let mut bytes: Vec<u8> = stream.iter().flat_map(encode).collect();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let head = PipeWriter::create(Vec::new(), &[spec("a", 10)], &kymo_data::Features::default());
        let mut pipe = head.expect("a vector");
        pipe.append(&bytes).expect("a vector");
        let file: Arc<dyn ReadAt> = Arc::new(pipe.finish().expect("a vector"));
        if let Ok(recording) = Recording::open(file, Vec::new()) {
            let timeline = scan(&recording, 2, &|_, _| {}).expect("bytes in memory");
            prop_assert!(timeline.any_lost_ns <= timeline.elapsed_ns());
            for ring in &timeline.rings {
                prop_assert!(ring.cells.len() as u64 <= MOST_BINS && ring.lost_ns <= timeline.elapsed_ns());
            }
        }
    }
}

/// Checks the definition by hand: a loss between two records of its own ring, whatever other rings wrote meanwhile.
#[test]
fn an_interval_belongs_to_its_ring() {
    let stream = vec![
        sample(0, 1000),
        sample(1, 1000),
        sample(0, 1100),
        sample(1, 1250),
        at(0, 1300, FakeRecord::Lost(7)),
        sample(0, 1300),
        at(1, 1350, FakeRecord::Lost(1)),
        sample(0, 2000),
    ];
    let loss = engine(&[stream], 1);
    assert_eq!(loss.elapsed_ns(), 1000);
    assert_eq!(
        loss.rings.iter().map(|r| (r.lost_ns, r.lost_records)).collect::<Vec<_>>(),
        [(200, 7), (100, 1)]
    );
    assert_eq!(loss.any_lost_ns, 250, "1100 to 1350: the two overlap");
    assert!((loss.mean_lost_time_share() - 0.15).abs() < 1e-9);
    assert!((loss.lost_share() - 8.0 / 14.0).abs() < 1e-9);
}

/// Checks losses at the edges: a LOST before any record of its ring counts from the recording's begin, and where the
/// kernel counted more than LOST records tell, the ring lost from its last record to the recording's end.
#[test]
fn losses_at_the_edges() {
    let stream = vec![
        sample(0, 1000),
        at(1, 1200, FakeRecord::Lost(5)),
        sample(1, 1200),
        sample(0, 1900),
        at(1, 0, FakeRecord::LostSamples { event: 0, lost: 5 }),
        at(0, 0, FakeRecord::LostSamples { event: 1, lost: 9 }),
        sample(1, 2000),
    ];
    let loss = engine(&[stream], 2);
    let stretch = |start_ns, end_ns| Stretch { start_ns, end_ns };
    assert_eq!(loss.lost, [(Ring::Cpu(0), stretch(1900, 2000)), (Ring::Cpu(1), stretch(1000, 1200))]);
    assert_eq!((loss.lost_records(), loss.lost_samples(), loss.lost_late(), loss.lost()), (5, 14, 9, 14));
    assert_eq!(loss.events.iter().map(|e| e.lost_samples).collect::<Vec<_>>(), [5, 9]);
}

/// Checks that a recording without records, or without any time, gives counts and no timeline.
#[test]
fn nothing_and_no_time() {
    let nothing = engine(&[Vec::new()], 1);
    assert_eq!((nothing.rings.len(), nothing.span, nothing.lost()), (0, None, 0));
    let timeless = engine(&[vec![sample(0, 0), at(0, 0, FakeRecord::Lost(3))]], 1);
    assert_eq!((timeless.span, timeless.lost(), timeless.samples()), (None, 3, 1));
    assert_eq!(timeless.rings[0].cells, []);
}

/// Checks that past the limit on intervals the lost time is the same but for being called an estimate, with any
/// number of workers.
#[test]
fn more_intervals_than_are_kept() {
    let stream: Vec<Fake> =
        (0..MOST_INTERVALS as u64 + 2).map(|i| at(0, 1000 + 10 * i, FakeRecord::Lost(1))).collect();
    let whole = recording(&[stream]);
    let one = scan(&whole, 1, &|_, _| {}).expect("bytes in memory");
    assert!(one.estimated && one.lost.is_empty());
    assert_eq!(one.rings[0].lost_ns, one.elapsed_ns(), "everything from the first LOST to the last");
    assert_eq!(one.any_lost_ns, one.elapsed_ns());
    assert_eq!(scan(&whole, 3, &|_, _| {}).expect("bytes in memory"), one);
}

/// Checks that CPU numbers beyond any kernel's do not make rings.
#[test]
fn nonsense_cpus_are_one_ring() {
    let stream: Vec<Fake> = (0..50).map(|i| sample(1 << 20 | i, 1000 + u64::from(i))).collect();
    let loss = engine(&[stream], 1);
    assert_eq!(loss.rings.iter().map(|r| (r.ring, r.samples)).collect::<Vec<_>>(), [(Ring::Unknown, 50)]);
}

/// Says what keeps a text from being well-formed XML; knows what the picture uses: no comments, no CDATA, no doctype.
fn xml_fault(text: &str) -> Option<String> {
    let entity = |text: &str| {
        text.split('&')
            .skip(1)
            .all(|t| ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|e| t.starts_with(e)))
    };
    let (mut open, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        if before.contains('>') && open.last() != Some(&"style") || !entity(before) {
            return Some(format!("text: {before}"));
        }
        let Some(end) = tag.find('>') else { return Some(format!("no end: {tag}")) };
        let (tag, after) = (&tag[1..end], &tag[end + 1..]);
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes another"));
            }
        } else {
            // Attributes: name="value", the value without a quotation mark in it.
            let words: Vec<&str> = tag[name.len()..].trim_end_matches('/').split('"').collect();
            let names = words.iter().step_by(2).filter(|w| !w.trim().is_empty());
            if words.len().is_multiple_of(2)
                || !names.clone().all(|n| n.starts_with(' ') && n.ends_with('='))
                || !entity(tag)
            {
                return Some(format!("tag: {tag}"));
            }
            if !tag.ends_with('/') {
                open.push(name);
            }
        }
        rest = after;
    }
    let control = text.chars().find(|c| c.is_control() && *c != '\n');
    control
        .map(|c| format!("control character {c:?}"))
        .or((!open.is_empty()).then(|| format!("{open:?} is open")))
}

fn drawn(loss: &LossTimeline) -> (String, String) {
    let evil = "</script><svg onload=\"x\">&'\x1b\n\u{ffff}";
    let caption = picture::Caption { command: evil.repeat(20), facts: evil.to_string() };
    let (mut svg, mut html) = (Vec::new(), Vec::new());
    picture::svg(loss, &caption, &mut svg).expect("a vector");
    picture::html(loss, &caption, &mut html).expect("a vector");
    (String::from_utf8(svg).expect("text"), String::from_utf8(html).expect("text"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Checks that whatever was recorded, the picture is well-formed, the same each time, loads nothing and takes no
    /// markup from names.
    #[test]
    fn pictures_are_well_formed(stream in prop::collection::vec(fake(), 0..60)) {
        let loss = engine(&[stream], 1);
        let (svg, html) = drawn(&loss);
        prop_assert_eq!(xml_fault(&svg), None);
        prop_assert_eq!((&svg, &html), (&drawn(&loss).0, &drawn(&loss).1));
        prop_assert!(!svg.contains("onload=\"") && html.matches("</script>").count() == 2);
        for from_elsewhere in ["href", "src=", "@import", "url(h"] {
            prop_assert!(!html.contains(from_elsewhere), "{}", from_elsewhere);
        }
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }
}

/// Checks that many CPUs share lanes, so that the picture stays a picture, and that each lane names its CPUs and adds
/// up what they lost; and that pauses and throttling are drawn and named where they were.
#[test]
fn many_rings_share_lanes() {
    let mut stream = Vec::new();
    for cpu in 0..272u32 {
        stream.extend([sample(cpu, 1000), at(cpu, 2000, FakeRecord::Lost(2)), sample(cpu, 2000)]);
    }
    let (plain, _) = drawn(&engine(&[stream.clone()], 1));
    assert!(plain.matches("<g>").count() <= 65, "at most 64 lanes and the one for all");
    assert!(plain.contains("CPU 0 - 4: lost 10 records") && plain.contains("CPU 270 - 271: lost 4 records"));
    assert!(!plain.contains("paused by") && !plain.contains("class=\"throttled\""));
    stream.push(at(0, 1500, FakeRecord::Pause { until: 1600 }));
    stream.push(at(0, 1700, FakeRecord::Throttle { event: 0, on: true }));
    let (marked, _) = drawn(&engine(&[stream], 1));
    assert!(marked.contains("paused by") && marked.contains("class=\"throttled\""));
    assert!(marked.matches("class=\"pause\"").count() == 2, "the pause and its legend");
}
