//! Probes that write events into rings.
use super::library::Library;
use super::probes::{alone, shapes};
use kymo_agent::patch::{Clock, Condition, Consumers, Probe, Record, Relation, Rings, attach, detach};
use kymo_core::ring::Reader;
use std::time::Duration;

/// One event, as its words.
#[derive(Debug)]
struct Event {
    id: u64,
    ip: u64,
    pid: u32,
    tid: u32,
    time_ns: u64,
    cpu: u64,
    rest: Vec<u64>,
}

/// Takes all whole events out of all rings; the events of each are in order.
fn drain(rings: &Rings) -> Vec<Vec<Event>> {
    let of = |cpu| {
        let mut reader = Reader::new(rings.area(cpu));
        let span = reader.begin().expect("a sane ring");
        let mut bytes = vec![0; span.len_bytes()];
        span.copy_to(&mut bytes);
        let count = span.whole_records_bytes(bytes.len());
        assert_eq!(count, bytes.len(), "only whole records");
        reader.release(span, count);
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
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
                rest: event[6..].to_vec(),
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
    let site = library.plan(name).unwrap_or_else(|why| panic!("{name}: {why}"));
    attach(&[site], Consumers::Record(record)).unwrap_or_else(|why| panic!("{why}"))
}

fn rings(bytes: u32) -> &'static Rings {
    Rings::create(bytes, Clock::measured()).expect("rings")
}

fn monotonic() -> u64 {
    Duration::as_nanos(&super::process::cpu(libc::CLOCK_MONOTONIC_RAW)) as u64
}

/// Checks that each hit is an event with its site, thread, CPU, arguments and time, and that nothing else changes.
#[test]
fn hits_are_events() {
    let _alone = alone();
    let Some(library) = shapes("records::hits_are_events") else { return };
    let rings = rings(1 << 16);
    let probes = put(&library, "nop_first", rings.record(77).with_arguments());
    let function = library.function("nop_first");
    let begin = monotonic();
    for n in 0..100 {
        assert_eq!(function(n, 1000 + n), n as u32 + 1);
    }
    let end = monotonic();
    let mut events: Vec<Event> = drain(rings).into_iter().flatten().collect();
    events.sort_by_key(|event| event.rest[4]);
    assert_eq!((events.len(), probes[0].hits(), probes[0].lost()), (100, 100, Some(0)));
    for (n, event) in events.iter().enumerate() {
        let ids = (event.id, event.ip, event.pid, event.tid as i32);
        assert_eq!(ids, (77, probes[0].address(), std::process::id(), super::process::own_thread()));
        // The ABI's word, then cx, dx, si, di, r8, r9.
        assert_eq!((event.rest[0], event.rest[3], event.rest[4]), (2, 1000 + n as u64, n as u64));
        // The clock was measured, in a machine that may be stopped at any moment.
        let slack = 10_000_000;
        assert!((begin - slack..end + slack).contains(&event.time_ns), "{begin} {event:?} {end}");
    }
    detach(&probes).expect("detached");
    let probes = put(&library, "only_nops", rings.record(78));
    assert_eq!(library.function("keeps_registers")(0, 0), 0);
    assert_eq!(drain(rings).into_iter().flatten().map(|event| event.id).collect::<Vec<_>>(), [78]);
    detach(&probes).expect("detached");
    let probes = put(&library, "reads_carry", rings.record(79));
    let carry = library.function("calls_with_carry");
    assert_eq!((carry(0, 0), carry(1, 0), carry(2, 0)), (0, 1, 1));
    detach(&probes).expect("detached");
    library.assert_untouched();
}

/// Checks that what does not fit into a ring is counted, and that the rest is whole, with two threads and a ring that wraps many times.
#[test]
fn what_does_not_fit_is_counted() {
    let _alone = alone();
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

/// Checks each relation against the arguments that meet it, and one in N.
#[test]
fn conditions_choose() {
    let _alone = alone();
    let Some(library) = shapes("records::conditions_choose") else { return };
    let rings = rings(1 << 18);
    let minus = u64::MAX;
    let arguments = [0, 1, 5, 6, 7, 1 << 40, minus];
    let cases = [
        (Relation::Equal, 6, vec![6]),
        (Relation::NotEqual, 6, vec![0, 1, 5, 7, 1 << 40, minus]),
        (Relation::Less, 6, vec![0, 1, 5]),
        (Relation::Greater, 6, vec![7, 1 << 40, minus]),
        (Relation::LessSigned, 6, vec![0, 1, 5, minus]),
        (Relation::GreaterSigned, 6, vec![7, 1 << 40]),
    ];
    let function = library.function("push_first");
    let seen = |argument: usize| -> Vec<u64> {
        let events = drain(rings).into_iter().flatten();
        events.map(|event| event.rest[[4, 3][argument]]).collect()
    };
    for (relation, value, expected) in cases {
        for argument in [0_u8, 1] {
            let condition = Condition { argument, relation, value };
            let probes = put(&library, "push_first", rings.record(5).with_arguments().only_if(condition));
            for given in arguments {
                let other = 6;
                if argument == 0 {
                    function(given, other)
                } else {
                    function(other, given)
                };
            }
            let mut found = seen(usize::from(argument));
            found.sort_unstable();
            assert_eq!(found, expected, "{relation:?} {argument}");
            assert_eq!(probes[0].hits(), arguments.len() as u64);
            detach(&probes).expect("detached");
        }
    }
    for every in [1_u64, 2, 7, 16, 100] {
        let probes = put(&library, "push_first", rings.record(6).with_arguments().every(every as u32));
        for n in 0..1000 {
            function(n, 0);
        }
        // On each CPU by itself, and all of them began at 0.
        let found = seen(0).len() as u64;
        let cpus = rings.cpus() as u64;
        assert!(found <= 1000 / every && found + cpus > 1000 / every, "one of {every}: {found}");
        detach(&probes).expect("detached");
    }
    library.assert_untouched();
}

/// Checks that a forked child writes nothing.
#[test]
fn a_child_writes_nothing() {
    let _alone = alone();
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
