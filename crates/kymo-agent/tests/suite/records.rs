//! Probes that write events into rings.
use super::library::Library;
use super::probes::shapes;
use kymo_agent::patch::{Clock, Consumers, FilteredProbe, Measure, Probe, Record, Rings, detach};
use kymo_core::probe::value::{Compare, Condition, Operand, Test};
use kymo_core::probe::wire::{EventId, Fetch, FetchKind, ProbeAction};
use kymo_core::ring::Reader;

#[derive(Debug)]
struct Event {
    id: u64,
    ip: u64,
    pid: u32,
    tid: u32,
    time_ns: u64,
    cpu: u64,
    /// The raw data behind the number that it begins with, as its words; texts are not among them.
    rest: Vec<u64>,
}

/// Checks what raw data begins with; gives its words from byte 8 on.
fn raw(words: &[u64]) -> Vec<u64> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
    assert_eq!(
        (words[0], number(8) as usize, number(12)),
        (1, bytes.len() - 12, 0),
        "a period, a length, no kind"
    );
    words_of(&bytes[20..])
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect()
}

/// Takes all that a CPU's ring has, which is whole records.
pub(crate) fn take(rings: &Rings, cpu: usize) -> Vec<u8> {
    let mut reader = Reader::new(rings.area(cpu));
    let span = reader.begin().expect("a sane ring");
    let mut bytes = vec![0; span.len_bytes()];
    span.copy_to(&mut bytes);
    assert_eq!(span.whole_records_bytes(bytes.len()), bytes.len(), "only whole records");
    reader.release(span, bytes.len());
    bytes
}

/// Takes all whole events out of all rings; the events of each are in order.
fn drain(rings: &Rings) -> Vec<Vec<Event>> {
    let of = |cpu| {
        let words = words_of(&take(rings, cpu));
        let mut events = Vec::new();
        let mut at = 0;
        while at < words.len() {
            let length = (words[at] >> 48) as usize / 8;
            assert_eq!(words[at] & 0xffff_ffff_ffff, 9 | 2 << 32, "a sample of user code");
            let event = &words[at..at + length];
            events.push(Event {
                id: event[1],
                ip: event[2],
                pid: event[3] as u32,
                tid: (event[3] >> 32) as u32,
                time_ns: event[4],
                cpu: event[5],
                rest: raw(&event[6..]),
            });
            at += length;
        }
        assert!(events.windows(2).all(|two| two[0].time_ns <= two[1].time_ns));
        assert!(events.iter().all(|event| event.cpu == cpu as u64));
        events
    };
    (0..rings.cpus()).map(of).collect()
}

fn put(library: &Library, name: &str, record: Record) -> Vec<Probe> {
    library.put(&[name], Consumers::Record(record))
}

/// Of those hits that an action chooses.
pub(crate) fn filtered(measure: Measure, how: ProbeAction) -> Consumers {
    Consumers::Filtered(FilteredProbe::new(measure, how))
}

fn id(id: u64) -> Option<EventId> {
    Some(EventId { id, kind: 0 })
}

fn first_argument() -> Fetch {
    Fetch { operand: Operand::register(7), kind: FetchKind::Number }
}

fn rings(bytes: u32) -> &'static Rings {
    Rings::create(bytes, Clock::measured()).expect("rings")
}

fn ticks() -> u64 {
    // SAFETY: an instruction that every processor here has.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Checks that each hit is an event with its site, thread, CPU, arguments and time, and that
/// nothing else changes.
#[test]
fn hits_are_events() {
    let Some(library) = shapes("records::hits_are_events") else { return };
    let rings = Rings::create(1 << 16, Clock::TICKS).expect("rings");
    let probes = put(&library, "nop_first", rings.record(77).with_arguments());
    let function = library.function("nop_first");
    let begin = ticks();
    for n in 0..100 {
        assert_eq!(function(n, 1000 + n), n as u32 + 1);
    }
    let end = ticks();
    let mut events: Vec<Event> = drain(rings).into_iter().flatten().collect();
    events.sort_by_key(|event| event.rest[1]);
    assert_eq!((events.len(), probes[0].hits(), probes[0].lost()), (100, 100, Some(0)));
    for (n, event) in events.iter().enumerate() {
        let ids = (event.id, event.ip, event.pid, event.tid as i32);
        assert_eq!(ids, (77, probes[0].address(), std::process::id(), super::process::own_thread()));
        // The place, then di, si, dx, cx, r8, r9.
        assert_eq!(event.rest[..3], [probes[0].address(), n as u64, 1000 + n as u64]);
        assert_eq!(event.rest.len(), 7);
        assert!((begin..=end).contains(&event.time_ns), "{begin} {event:?} {end}");
    }
    detach(&probes).expect("detached");
    let probes = put(&library, "only_nops", rings.record(78));
    assert_eq!(library.function("keeps_registers")(0, 0), 0);
    assert_eq!(drain(rings).into_iter().flatten().map(|event| event.id).collect::<Vec<_>>(), [78]);
    detach(&probes).expect("detached");
    let probes = put(&library, "reads_carry", rings.record(79));
    let carry = library.function("calls_with_carry");
    assert_eq!((carry(0, 0), carry(1, 0), carry(2, 0)), (0, 1, 1));
    library.take(&probes);
}

/// Checks that what does not fit into a ring is counted, and that the rest is whole, with two
/// threads and a ring that wraps many times.
#[test]
fn what_does_not_fit_is_counted() {
    let Some(library) = shapes("records::what_does_not_fit_is_counted") else { return };
    let rings = rings(4096);
    let probes = put(&library, "long_first", rings.record(1).with_arguments());
    let function = library.function("long_first");
    let calls = 200_000_u64;
    let mut read = 0;
    std::thread::scope(|scope| {
        let one = || {
            for n in 0..calls {
                assert_eq!(function(n, 0), n as u32 + 1);
            }
        };
        let threads = [scope.spawn(one), scope.spawn(one)];
        while threads.iter().any(|thread| !thread.is_finished()) {
            read += drain(rings).iter().map(Vec::len).sum::<usize>() as u64;
        }
    });
    read += drain(rings).iter().map(Vec::len).sum::<usize>() as u64;
    let lost = probes[0].lost().expect("it records");
    assert_eq!((probes[0].hits(), read + lost), (2 * calls, 2 * calls), "{read} read, {lost} lost");
    assert!(read > 0 && lost > 0, "{read} read, {lost} lost");
    detach(&probes).expect("detached");
}

/// A test of a register that arguments are passed in, from 0 on, or of what is returned.
fn test(argument: usize, bytes: u8, signed: bool, compare: Compare, value: i64) -> Test {
    let register = [7, 6, 2, 1, 8, 9, 0][argument];
    let operand = Operand { bytes, signed, ..Operand::register(register) };
    Test::number(operand, compare, value as u64)
}

/// Checks each comparison, width and sign against the arguments that meet it, lists that are
/// joined, and one in N; of records and of counts.
#[test]
fn conditions_choose() {
    use Compare::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
    let Some(library) = shapes("records::conditions_choose") else { return };
    let rings = rings(1 << 18);
    let minus = u64::MAX;
    let arguments = [0, 1, 5, 6, 7, 1 << 40, minus];
    let one = |test: Test| vec![vec![test]];
    let first = |compare, value| one(test(0, 8, false, compare, value));
    let signed = |compare, value| one(test(0, 8, true, compare, value));
    let cases: Vec<(Condition, Vec<u64>)> = vec![
        (first(Equal, 6), vec![6]),
        (first(NotEqual, 6), vec![0, 1, 5, 7, 1 << 40, minus]),
        (first(Less, 6), vec![0, 1, 5]),
        (first(LessEqual, 6), vec![0, 1, 5, 6]),
        (first(Greater, 6), vec![7, 1 << 40, minus]),
        (first(GreaterEqual, 6), vec![6, 7, 1 << 40, minus]),
        (signed(Less, 6), vec![0, 1, 5, minus]),
        (signed(LessEqual, -1), vec![minus]),
        (signed(Greater, 6), vec![7, 1 << 40]),
        (signed(GreaterEqual, 0), vec![0, 1, 5, 6, 7, 1 << 40]),
        // Of the lower bytes alone.
        (one(test(0, 4, false, Equal, 0)), vec![0, 1 << 40]),
        (one(test(0, 4, true, Equal, -1)), vec![minus]),
        (one(test(0, 2, false, Equal, 0xffff)), vec![minus]),
        (one(test(0, 2, true, Less, 0)), vec![minus]),
        (one(test(0, 1, false, Equal, 255)), vec![minus]),
        (one(test(0, 1, true, Equal, -1)), vec![minus]),
        (
            vec![
                vec![test(0, 8, false, Greater, 0), test(0, 8, false, Less, 6)],
                vec![test(0, 8, true, Equal, -1)],
            ],
            vec![1, 5, minus],
        ),
        (vec![vec![test(0, 8, false, Greater, 0), test(1, 8, false, Equal, 7)]], vec![]),
        (vec![vec![test(0, 8, false, Less, 5), test(1, 8, false, Equal, 6)]], vec![0, 1]),
    ];
    let function = library.function("push_first");
    let seen = || -> Vec<u64> { drain(rings).into_iter().flatten().map(|event| event.rest[1]).collect() };
    for (condition, expected) in cases {
        let how = ProbeAction { entry_condition: condition.clone(), ..ProbeAction::default() };
        let event = ProbeAction { event: id(5), fetches: vec![first_argument()], ..how.clone() };
        let probes = put(&library, "push_first", rings.record(0).with_action(event));
        arguments.iter().for_each(|given| _ = function(*given, 6));
        let mut found = seen();
        found.sort_unstable();
        assert_eq!(found, expected, "{condition:?}");
        assert_eq!(probes[0].hits(), expected.len() as u64, "{condition:?}");
        detach(&probes).expect("detached");
        for look in [Measure::Count, Measure::CountReturns, Measure::Latency] {
            let probes = library.put(&["push_first"], filtered(look, how.clone()));
            for given in arguments {
                assert_eq!(function(given, 6), (given as u32).wrapping_add(1));
            }
            let counted = (probes[0].hits(), probes[0].returns().unwrap_or(expected.len() as u64));
            assert_eq!(counted, (expected.len() as u64, expected.len() as u64), "{look:?} {condition:?}");
            detach(&probes).expect("detached");
        }
    }
    for every in [1_u64, 2, 7, 16, 100] {
        let times = ProbeAction { every: every as u32, ..ProbeAction::default() };
        let event = ProbeAction { event: id(6), fetches: vec![first_argument()], ..times.clone() };
        let probes = put(&library, "push_first", rings.record(0).with_action(event));
        let timed = library.put(&["long_first"], filtered(Measure::Latency, times));
        let other = library.function("long_first");
        for n in 0..1000 {
            function(n, 0);
            other(n, 0);
        }
        // On each CPU by itself, and all of them began at 0.
        let (found, timed_calls) = (seen().len() as u64, timed[0].returns().expect("it looks"));
        let cpus = rings.cpus() as u64;
        for found in [found, timed_calls] {
            assert!(found <= 1000 / every && found + cpus > 1000 / every, "one of {every}: {found}");
        }
        assert_eq!((probes[0].hits(), timed[0].hits()), (1000, 1000));
        detach(&probes).expect("detached");
        detach(&timed).expect("detached");
    }
    library.assert_untouched();
}

/// Checks that returns are events with what was returned, whereto and the rest of the registers as
/// they are, and that conditions on what is returned choose returns: of events, counts and
/// latencies.
#[test]
fn returns_are_events() {
    let Some(library) = shapes("records::returns_are_events") else { return };
    let rings = rings(1 << 18);
    let returned = |bytes, signed| Fetch {
        operand: Operand { bytes, signed, ..Operand::register(0) },
        kind: FetchKind::Number,
    };
    let back = vec![vec![test(6, 4, true, Compare::Less, 0), test(6, 4, true, Compare::Greater, -50)]];
    let fetches = vec![returned(4, true), returned(1, false)];
    let event = ProbeAction {
        return_event: id(31),
        return_fetches: fetches,
        return_condition: back.clone(),
        ..ProbeAction::default()
    };
    let function = library.function("push_first");
    let probes = put(&library, "push_first", rings.record(0).with_action(event));
    for n in 0..100_u64 {
        let given = n.wrapping_sub(100);
        assert_eq!(function(given, 0), (given as u32).wrapping_add(1));
    }
    let events: Vec<Event> = drain(rings).into_iter().flatten().collect();
    // -99 to 0 come back.
    let expected: Vec<i64> = (-49..0).collect();
    let mut found: Vec<i64> = events.iter().map(|event| event.rest[2] as i64).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    for event in &events {
        assert_eq!(event.rest[0], probes[0].address());
        assert_eq!((event.ip, event.rest[3]), (event.rest[1], event.rest[2] & 0xff));
        assert_ne!(event.ip, event.rest[0]);
    }
    assert_eq!((probes[0].hits(), probes[0].returns(), probes[0].lost()), (100, Some(49), Some(0)));
    detach(&probes).expect("detached");
    for look in [Measure::CountReturns, Measure::Latency] {
        let how = ProbeAction { return_condition: back.clone(), ..ProbeAction::default() };
        let probes = library.put(&["push_first"], filtered(look, how));
        (0..100_u64).for_each(|n| _ = function(n.wrapping_sub(100), 0));
        assert_eq!((probes[0].hits(), probes[0].returns()), (100, Some(49)), "{look:?}");
        detach(&probes).expect("detached");
    }
    let event = ProbeAction { return_event: id(32), ..ProbeAction::default() };
    let probes = put(&library, "keeps_registers", rings.record(0).with_action(event));
    assert_eq!(library.function("keeps_registers")(0, 0), 0);
    assert_eq!(drain(rings).into_iter().flatten().count(), 1);
    detach(&probes).expect("detached");
    // Both, of those that the condition lets pass.
    let both = ProbeAction {
        entry_condition: vec![vec![test(0, 8, false, Compare::Less, 90)]],
        event: id(33),
        fetches: vec![first_argument()],
        return_event: id(34),
        return_fetches: vec![returned(4, false)],
        ..ProbeAction::default()
    };
    let probes = put(&library, "push_first", rings.record(0).with_action(both));
    (0..100_u64).for_each(|n| assert_eq!(function(n, 0), n as u32 + 1));
    let mut events: Vec<Event> = drain(rings).into_iter().flatten().collect();
    events.sort_by_key(|event| event.time_ns);
    let found: Vec<(u64, u64)> =
        events.iter().map(|event| (event.id, *event.rest.last().expect("a value"))).collect();
    let expected: Vec<(u64, u64)> = (0..90).flat_map(|n| [(33, n), (34, n + 1)]).collect();
    assert_eq!((found, probes[0].hits(), probes[0].returns()), (expected, 90, Some(90)));
    library.take(&probes);
}

/// Checks that a forked child writes nothing.
#[test]
fn a_child_writes_nothing() {
    let Some(library) = Library::of("records::a_child_writes_nothing", "returns.cc", &["-pthread"]) else {
        return;
    };
    let rings = rings(1 << 14);
    let probes = put(&library, "forks", rings.record(9));
    let below = put(&library, "forks_below", rings.record(10));
    for n in 0..5 {
        assert_eq!(library.function("forks_below")(n, 0), n as u32 + 1);
    }
    let child = put(&library, "leaf", rings.record(11));
    super::process::in_child(|| library.function("leaf")(1, 0) as i32 - 2);
    let ids: Vec<u64> = drain(rings).into_iter().flatten().map(|event| event.id).collect();
    assert_eq!((ids.len(), ids.contains(&11)), (10, false), "{ids:?}");
    for probes in [probes, below, child] {
        detach(&probes).expect("detached");
    }
}
