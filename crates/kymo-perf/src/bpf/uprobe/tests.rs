//! Probes of functions of this very program, hit a known number of times.
#![allow(unsafe_code, reason = "the address of a function in this program's file")]
use super::*;
use kymo_core::probe::value::{Compare, Operand, Test, register};
use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[inline(never)]
extern "C" fn leaf(x: u64) -> u64 {
    black_box(x) + 1
}

#[inline(never)]
extern "C" fn around(x: u64) -> u64 {
    (0..10).map(|i| leaf(black_box(x + i))).sum()
}

#[inline(never)]
extern "C" fn deep(x: u64) -> u64 {
    if black_box(x) == 0 { 0 } else { deep(x - 1) + black_box(1) }
}

/// The functions are all tests' own: one test at a time.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the function is in this program's file.
fn place(function: extern "C" fn(u64) -> u64) -> UprobeSite {
    let address = function as usize as u64;
    let maps = crate::proc::maps(std::process::id() as i32);
    let found = crate::proc::Mappings::new(&maps).find(|m| m.start <= address && address < m.end);
    let offset = found.map(|m| address - m.start + m.offset).expect("a mapping of this program");
    UprobeSite {
        path: std::env::current_exe().unwrap(),
        offset,
        returns: ReturnAction::Time,
        callers: true,
        ..UprobeSite::default()
    }
}

fn attached(test: &str, places: &[UprobeSite], options: &UprobeOptions) -> Option<Uprobes> {
    let own = [std::process::id() as i32];
    let attached = Uprobes::attach(places, &UprobeScope::Processes(&own), options);
    let may_be_refused = |error: &UprobeError| {
        matches!(error, UprobeError::Unavailable(_)) || !rustix::process::geteuid().is_root()
    };
    if let Err(error) = &attached
        && may_be_refused(error)
    {
        kymo_testing::skip(test, error);
        return None;
    }
    Some(attached.unwrap_or_else(|error| panic!("{error}")))
}

/// Checks hits, returns, their order in time, recursion and callers against what was called, with
/// both ways of attaching.
#[test]
fn hits_and_returns() {
    let _turn = turn();
    for attachment in [Attachment::Multi, Attachment::Events] {
        let places = [place(leaf), place(around), place(deep)];
        let options = UprobeOptions { attachment: Some(attachment), ..UprobeOptions::default() };
        let Some(probes) = attached("bpf::uprobe::hits_and_returns", &places, &options) else { return };
        for i in 0..100 {
            black_box(around(black_box(i)));
        }
        black_box(deep(black_box(20)));
        let [leaf, around, deep] = &probes.read()[..] else { panic!("three places") };
        assert_eq!((leaf.hits, around.hits, deep.hits), (1000, 100, 21));
        assert_eq!((leaf.latencies.count, around.latencies.count, deep.latencies.count), (1000, 100, 21));
        // A call takes longer than each call inside of it.
        assert!(around.latencies.total_ns >= leaf.latencies.total_ns);
        assert!(deep.latencies.max_ns >= deep.latencies.quantile_ns(0.5).unwrap() / 2);
        for reading in [leaf, around, deep] {
            let latencies = &reading.latencies;
            assert_eq!(latencies.buckets.iter().sum::<u64>(), latencies.count);
            assert!(latencies.max_ns <= latencies.total_ns);
            let (first, last) =
                latency::range_ns(latencies.buckets.iter().rposition(|&count| count > 0).unwrap() as u32);
            assert!((first..=last).contains(&latencies.max_ns), "{first} {} {last}", latencies.max_ns);
        }
        let callers = probes.callers();
        assert!(callers.iter().all(|caller| caller.pid == std::process::id() as i32));
        let of = |place: usize| callers.iter().filter(|c| c.place == place).map(|c| c.hits).sum::<u64>();
        assert_eq!((of(0), of(1), of(2)), (1000, 100, 21));
    }
}

/// Checks that returns are counted without being timed.
#[test]
fn counted_returns() {
    let _turn = turn();
    let counted = UprobeSite { returns: ReturnAction::Count, callers: false, ..place(leaf) };
    let Some(probes) = attached("bpf::uprobe::counted_returns", &[counted], &UprobeOptions::default()) else {
        return;
    };
    (0..100).for_each(|i| _ = black_box(leaf(black_box(i))));
    let read = &probes.read()[0];
    assert_eq!((read.hits, read.latencies.count, read.latencies.total_ns), (100, 100, 0));
}

/// Checks conditions on arguments and results, and that each third hit is timed while all are
/// counted.
#[test]
fn conditions() {
    let _turn = turn();
    let test =
        |register, compare, value| vec![vec![Test::number(Operand::register(register), compare, value)]];
    let first = register::argument(0).unwrap();
    let mut large = place(leaf);
    large.condition = test(first, Compare::GreaterEqual, 90);
    let mut even = place(deep);
    even.return_condition = test(register::RESULT, Compare::Less, 5);
    let Some(probes) = attached("bpf::uprobe::conditions", &[large, even], &UprobeOptions::default()) else {
        return;
    };
    for i in 0..100 {
        black_box(leaf(black_box(i)));
    }
    black_box(deep(black_box(20)));
    let read = probes.read();
    assert_eq!((read[0].hits, read[0].latencies.count), (10, 10));
    assert_eq!((read[1].hits, read[1].latencies.count), (21, 5));
    drop(probes);
    let options = UprobeOptions { every: 3, ..UprobeOptions::default() };
    let Some(probes) = attached("bpf::uprobe::conditions", &[place(leaf)], &options) else { return };
    for i in 0..300 {
        black_box(leaf(black_box(i)));
    }
    let read = probes.read();
    assert_eq!(read[0].hits, 300);
    // Each CPU counts for itself.
    assert!((80..=120).contains(&read[0].latencies.count), "{}", read[0].latencies.count);
}

/// Checks values of hits and returns, in both ways of attaching: numbers, signs, bits, texts with
/// and without a length, memory that cannot be read; that nothing is lost while somebody reads, and
/// that what nobody reads is counted as lost.
#[test]
fn values() {
    let _turn = turn();
    let first = register::argument(0).unwrap();
    let number = |register, bytes, signed, bits| Operand { register, steps: Vec::new(), bytes, signed, bits };
    let whole = |register| number(register, 8, false, None);
    #[repr(C)]
    struct Pointed {
        word: u64,
        text: [u8; 8],
        length: u64,
    }
    let long = [b'x'; 80];
    let record = Pointed { word: 0xffff_fff0_0000_0abc, text: *b"ab\"\0wxyz", length: 6 };
    let at = |steps: &[i32], bytes| Operand { steps: steps.to_vec(), bytes, ..whole(first) };
    let characters = |offset, length| Value::Text { address: whole(first), offset, length, most: None };
    let values = vec![
        Value::Number(number(first, 1, false, None)),
        Value::Number(at(&[0], 8)),
        Value::Number(Operand { signed: true, bits: Some((32, 32)), ..at(&[0], 8) }),
        Value::Number(Operand { bits: Some((4, 4)), ..at(&[0], 1) }),
        characters(8, None),
        characters(8, Some(at(&[16], 8))),
        Value::Number(at(&[0, 0], 8)),
        Value::Text { address: at(&[16], 8), offset: 0, length: None, most: None },
    ];
    for attachment in [Attachment::Multi, Attachment::Events] {
        let probed = UprobeSite {
            values: Some(values.clone()),
            return_values: Some(vec![Value::Number(whole(register::RESULT))]),
            ..place(leaf)
        };
        let options = UprobeOptions { attachment: Some(attachment), ..UprobeOptions::default() };
        let Some(probes) = attached("bpf::uprobe::values", &[probed], &options) else { return };
        let address = std::ptr::from_ref(&record).expose_provenance() as u64;
        black_box(leaf(black_box(address)));
        let mut found = Vec::new();
        probes.records(&mut |record| {
            found.push((record.returned, record.pid, record.latency_ns, record.values()))
        });
        let own = std::process::id() as i32;
        let [(false, pid, None, entry), (true, _, Some(_), back)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(*pid, own);
        let of = |bytes: &[u8]| CapturedValue::Text { bytes: bytes.to_vec(), cut: false };
        let expected = [
            CapturedValue::Number(address & 0xff),
            CapturedValue::Number(record.word),
            CapturedValue::Number(-16i64 as u64),
            CapturedValue::Number(0xb),
            of(b"ab\""),
            of(b"ab\"\0wx"),
            CapturedValue::Unreadable(None),
            CapturedValue::Unreadable(Some(6)),
        ];
        assert_eq!(entry[..], expected);
        assert_eq!(back[..], [CapturedValue::Number(address + 1)]);
        assert_eq!((record.text.len() as u64, record.length), (8, 6));
        // A text that goes on.
        black_box(leaf(black_box(long.as_ptr().expose_provenance() as u64 - 8)));
        let mut all = Vec::new();
        probes.records(&mut |record| all.push(record.values()));
        assert!(
            all.len() == 2
                && matches!(&all[0][4], CapturedValue::Text { bytes, cut: true } if bytes.len() == super::values::TEXT_BYTES)
        );
        // More than the ring holds.
        (0..12_000).for_each(|i| _ = black_box(leaf(black_box(i))));
        let told = probes
            .records(&mut |record| assert!(record.values().len() == if record.returned { 1 } else { 8 }));
        let lost = probes.read()[0].lost;
        assert!(lost > 0 && told as u64 + lost == 24_000, "{told} {lost}");
        black_box(leaf(black_box(1)));
        assert_eq!(probes.records(&mut |_| ()), 2, "there is place again");
    }
}

/// Checks that a place that is no instruction of a file, and a process that is gone, are refused
/// with a reason.
#[test]
fn refusals() {
    let _turn = turn();
    let none = UprobeSite { path: "/no/such/file".into(), ..place(leaf) };
    let own = [std::process::id() as i32];
    let Err(error) = Uprobes::attach(&[none], &UprobeScope::Processes(&own), &UprobeOptions::default())
    else {
        panic!("attached to nothing")
    };
    if rustix::process::geteuid().is_root() {
        assert!(error.to_string().contains("No such file"), "{error}");
    }
}

/// Checks that instructions whose opcodes the kernel mistakes are told from those that look like
/// them.
#[test]
fn vector_instructions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("code");
    let cases: [(&[u8], bool); 8] = [
        (&[0x62, 0xf2, 0x7d, 0x28, 0x7a, 0xc6], true), // vpbroadcastb %esi,%ymm16
        (&[0xc5, 0xf9, 0x74, 0xc1], true),             // vpcmpeqb %xmm1,%xmm0,%xmm0
        (&[0x8f, 0xe8, 0x78, 0x90, 0xc0], true),       // XOP
        (&[0x8f, 0x00, 0xc3], false),                  // pop (%rax)
        (&[0xf3, 0x0f, 0x1e, 0xfa, 0xc5], false),      // endbr64
        (&[0x66, 0x0f, 0x1f, 0x44, 0, 0], false),      // nop
        (&[0x55, 0xc5], false),                        // push %rbp
        (&[0x7a, 0x10], false),                        // jp
    ];
    for (code, mistaken) in cases {
        std::fs::write(&path, code).unwrap();
        assert_eq!(is_mistaken(&path, 0), mistaken && cfg!(target_arch = "x86_64"), "{code:x?}");
    }
}
