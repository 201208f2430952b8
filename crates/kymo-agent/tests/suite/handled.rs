//! Probes that look at memory, copy texts and tell callers apart.
#![allow(unsafe_code)]
use super::library::Library;
use super::probes::shapes;
use super::records::{filtered, take};
use kymo_agent::patch::{Clock, Consumers, Measure, Rings, detach};
use kymo_core::probe::value::{Compare, Condition, Operand, Test};
use kymo_core::probe::wire::{EventId, Fetch, FetchKind, ProbeAction};
use std::ffi::CStr;

/// As tests/c/fetches.c has them.
#[repr(C)]
struct Inner {
    number: i32,
    text: *const libc::c_char,
}

#[repr(C)]
struct Outer {
    first: u64,
    inner: *const Inner,
    name: [u8; 12],
}

fn library(test: &str) -> Option<Library> {
    Library::of(test, "fetches.c", &[])
}

fn operand(register: u8, steps: &[i32], bytes: u8, signed: bool) -> Operand {
    Operand { register, steps: steps.to_vec(), bytes, signed, bits: None }
}

const RDI: u8 = 7;
const RSI: u8 = 6;
const RAX: u8 = 0;

fn number(fetch: Operand) -> Fetch {
    Fetch { operand: fetch, kind: FetchKind::Number }
}

fn text(fetch: Operand, offset: i32, most: u8) -> Fetch {
    Fetch { operand: fetch, kind: FetchKind::String { offset, most } }
}

fn drain(rings: &Rings) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for cpu in 0..rings.cpus() {
        let bytes = take(rings, cpu);
        let mut at = 0;
        while at < bytes.len() {
            let length = u16::from_le_bytes([bytes[at + 6], bytes[at + 7]]) as usize;
            let event = &bytes[at..at + length];
            assert_eq!(u64::from_le_bytes(event[40..48].try_into().expect("eight")), cpu as u64);
            assert_eq!(u32::from_le_bytes(event[56..60].try_into().expect("four")) as usize, length - 60);
            let time = u64::from_le_bytes(event[32..40].try_into().expect("eight"));
            all.push((time, event[60..].to_vec()));
            at += length;
        }
    }
    all.sort();
    all.into_iter().map(|(_, raw)| raw).collect()
}

fn number_at(raw: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(raw[at..at + 8].try_into().expect("eight"))
}

fn text_at(raw: &[u8], at: usize) -> &CStr {
    let place = u32::from_le_bytes(raw[at..at + 4].try_into().expect("four"));
    let (from, length) = ((place & 0xffff) as usize, (place >> 16) as usize);
    CStr::from_bytes_with_nul(&raw[from..from + length]).expect("a text with its end")
}

/// Two pages of which the second cannot be read, and the address of the second.
fn brink() -> (*mut u8, u64) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    // SAFETY: its second half.
    unsafe { libc::mprotect(at.wrapping_byte_add(4096), 4096, libc::PROT_NONE) };
    (at.cast(), at as u64 + 4096)
}

/// Checks that numbers behind pointers and texts are in events as they are in memory, bounded, and
/// that what cannot be read is 0 or nothing and harms nobody.
#[test]
fn memory_is_read() {
    let Some(library) = library("handled::memory_is_read") else { return };
    let rings = Rings::create(1 << 18, Clock::measured()).expect("rings");
    let how = ProbeAction {
        event: Some(EventId { id: 5, kind: 9 }),
        fetches: vec![
            number(operand(RDI, &[], 8, false)),
            number(operand(RDI, &[8, 0], 4, true)),
            text(operand(RDI, &[8, 8], 8, false), 0, 200),
            text(operand(RDI, &[], 8, false), 16, 12),
            text(operand(RSI, &[], 8, false), 0, 5),
        ],
        ..ProbeAction::default()
    };
    let probes = library.put(&["takes"], Consumers::Record(rings.record(0).with_action(how)));
    let takes = library.function("takes");
    let inner = Inner { number: -7, text: c"some text".as_ptr() };
    let mut outer = Outer { first: 1, inner: &raw const inner, name: *b"exactlytwelv" };
    let given = c"longer than five";
    let call = |outer: *const Outer, text: u64| takes(outer as u64, text);
    assert_eq!(call(&raw const outer, given.as_ptr() as u64), 1);
    outer.inner = std::ptr::dangling();
    let (page, end) = brink();
    // SAFETY: the last three bytes of the page that can be written.
    unsafe { page.wrapping_add(4093).copy_from(b"abc".as_ptr(), 3) };
    call(&raw const outer, end - 3);
    call(&raw const outer, end);
    call(u64::MAX as *const Outer, 1 << 63);
    let events = drain(rings);
    assert_eq!((events.len(), probes[0].hits(), probes[0].lost()), (4, 4, Some(0)));
    let shown = |raw: &[u8]| {
        let texts = [32, 36, 40].map(|at| text_at(raw, at).to_str().expect("text").to_owned());
        (number_at(raw, 24) as i64, texts)
    };
    let texts = |texts: [&str; 3]| texts.map(str::to_owned);
    assert_eq!(u16::from_le_bytes([events[0][0], events[0][1]]), 9);
    assert_eq!(number_at(&events[0], 8), probes[0].address());
    assert_eq!(number_at(&events[0], 16), &raw const outer as u64);
    assert_eq!(shown(&events[0]), (-7, texts(["some text", "exactlytwelv", "longe"])));
    assert_eq!(shown(&events[1]), (0, texts(["", "exactlytwelv", "abc"])));
    assert_eq!(shown(&events[2]), (0, texts(["", "exactlytwelv", ""])));
    assert_eq!(shown(&events[3]), (0, texts(["", "", ""])));
    detach(&probes).expect("detached");
    // What is returned, of those that return something.
    let back = vec![vec![Test::number(operand(RAX, &[0], 1, false), Compare::Equal, u64::from(b's'))]];
    let how = ProbeAction {
        return_condition: back,
        return_event: Some(EventId { id: 6, kind: 9 }),
        return_fetches: vec![text(operand(RAX, &[], 8, false), 5, 100)],
        ..ProbeAction::default()
    };
    let probes = library.put(&["gives"], Consumers::Record(rings.record(0).with_action(how)));
    let gives = library.function("gives");
    (0..10).for_each(|n| _ = gives(c"some text".as_ptr() as u64, n));
    let events = drain(rings);
    assert_eq!((events.len(), probes[0].hits(), probes[0].returns()), (5, 10, Some(5)));
    assert!(events.iter().all(|raw| text_at(raw, 24) == c"text"));
    library.take(&probes);
}

/// Checks conditions of memory: those that hold count and no others, also where memory cannot be
/// read; and that one in N of them is timed.
#[test]
fn conditions_of_memory() {
    let Some(library) = library("handled::conditions_of_memory") else { return };
    let test = |compare, value: i64| Test::number(operand(RDI, &[8, 0], 4, true), compare, value as u64);
    let takes = library.function("takes");
    let call = |number: i32| {
        let inner = Inner { number, text: c"".as_ptr() };
        let outer = Outer { first: 1, inner: &raw const inner, name: [0; 12] };
        takes(&raw const outer as u64, 1)
    };
    let cases: [(Condition, u64); 4] = [
        (vec![vec![test(Compare::Less, 0)]], 50),
        (vec![vec![test(Compare::GreaterEqual, -1), test(Compare::LessEqual, 1)]], 3),
        (vec![vec![test(Compare::Equal, 7)], vec![test(Compare::Greater, 47)]], 3),
        (vec![vec![test(Compare::NotEqual, 0)]], 99),
    ];
    for (condition, expected) in cases {
        let how = ProbeAction { entry_condition: condition.clone(), ..ProbeAction::default() };
        let probes = library.put(&["takes"], filtered(Measure::Count, how));
        (-50..50).for_each(|n| assert_eq!(call(n), 1));
        takes(0, 1);
        takes(1 << 63, 1);
        assert_eq!((probes[0].hits(), probes[0].lost()), (expected, Some(0)), "{condition:?}");
        detach(&probes).expect("detached");
        call(0);
        assert_eq!(probes[0].hits(), expected, "a probe that is gone counts nothing");
    }
    let how = ProbeAction {
        entry_condition: vec![vec![test(Compare::GreaterEqual, 0)]],
        every: 10,
        ..ProbeAction::default()
    };
    let probes = library.put(&["takes"], filtered(Measure::Latency, how));
    (0..2000).for_each(|n| _ = call(n - 1000));
    let timed = probes[0].returns().expect("it looks");
    let cpus = std::thread::available_parallelism().map_or(64, usize::from) as u64;
    assert_eq!(probes[0].hits(), 1000);
    assert!(timed <= 100 && timed + cpus >= 100, "{timed}");
    library.take(&probes);
}

/// Checks that callers are told apart, exactly, by threads at the same time; and that a later probe
/// of the same place begins anew.
#[test]
fn callers_are_told_apart() {
    let Some(library) = library("handled::callers_are_told_apart") else { return };
    let how = ProbeAction { callers: true, ..ProbeAction::default() };
    for calls in [20_000_u64, 500] {
        let probes = library.put(&["takes"], filtered(Measure::Count, how.clone()));
        let (here, there) = (library.function("takes_here"), library.function("takes_there"));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..calls {
                        assert_eq!(here(1, 1) + there(1, 1), 3);
                    }
                });
            }
        });
        let (callers, others) = probes[0].callers().expect("it tells");
        assert_eq!((probes[0].hits(), probes[0].lost(), others), (6 * calls, Some(0), 0));
        // Three calls in two functions.
        assert_eq!(callers.values().copied().collect::<Vec<u64>>(), [2 * calls; 3], "{callers:x?}");
        let (here, there) = (here as *const () as u64, there as *const () as u64);
        let from = |range: std::ops::Range<u64>| callers.keys().filter(|at| range.contains(at)).count();
        assert_eq!((from(here..there), from(there..there + 64)), (1, 2), "{here:x} {there:x} {callers:x?}");
        detach(&probes).expect("detached");
    }
    library.assert_untouched();
}

/// Checks that the handler changes no register and no flag, vector registers included, and that
/// children of fork go on.
#[test]
fn nothing_else_changes() {
    let Some(library) = shapes("handled::nothing_else_changes") else { return };
    let how = ProbeAction { callers: true, ..ProbeAction::default() };
    for (name, driver) in [("only_nops", "keeps_registers"), ("reads_carry", "calls_with_carry")] {
        let probes = library.put(&[name], filtered(Measure::Count, how.clone()));
        let function = library.function(driver);
        if driver == "keeps_registers" {
            assert_eq!(function(0, 0), 0);
        } else {
            assert_eq!((function(0, 0), function(1, 0), function(2, 0)), (0, 1, 1));
        }
        assert!(probes[0].hits() > 0, "{name}");
        super::process::in_child(|| if driver == "keeps_registers" { function(0, 0) as i32 } else { 0 });
        detach(&probes).expect("detached");
    }
    let rings = Rings::create(1 << 16, Clock::measured()).expect("rings");
    let event = ProbeAction {
        event: Some(EventId { id: 1, kind: 1 }),
        fetches: vec![text(operand(RDI, &[], 8, false), 0, 20)],
        return_event: Some(EventId { id: 2, kind: 1 }),
        return_fetches: vec![text(operand(RAX, &[], 8, false), 0, 20)],
        ..ProbeAction::default()
    };
    let probes =
        library.put(&["keeps_registers"], Consumers::Record(rings.record(0).with_action(event.clone())));
    let inner = library.put(&["only_nops"], Consumers::Record(rings.record(0).with_action(event)));
    assert_eq!(library.function("keeps_registers")(0, 0), 0);
    assert_eq!(drain(rings).len(), 4);
    detach(&probes).expect("detached");
    detach(&inner).expect("detached");
    library.assert_untouched();
}
