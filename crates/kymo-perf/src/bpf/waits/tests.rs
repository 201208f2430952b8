//! The programs against the kernel's verifier, records against damage, and sums against the
//! kernel's own.
use super::*;
use kymo_testing::skip;

/// Checks that the kernel accepts all programs, with and without the tracepoint behind the switch.
#[test]
fn programs_load() {
    for not_behind in [false, true] {
        let tracer = WaitTracer::start(None, &WaitOptions { not_behind, ..WaitOptions::default() });
        match tracer {
            Ok(tracer) => assert!(!(not_behind && tracer.has_stacks())),
            Err(error @ BpfError::Load { .. }) => panic!("{error}"),
            Err(error) => return skip("bpf::waits::programs_load", error.to_string()),
        }
    }
}

/// Checks that a record is read as it is written, and that other kinds and cut bytes are none.
#[test]
fn records() {
    let record = WaitRecord {
        kind: WaitKind::Wait,
        task_state: 2,
        tid: 7,
        pid: 6,
        waker: 5,
        blocked_ns: 100,
        runnable_ns: 20,
        run_ns: 3,
        short: ShortWaits { blocked_ns: 1000, runnable_ns: 200, waits: 9, preemptions: 4 },
        syscall: -1,
        arguments: [0x1234, 1],
    };
    let mut raw = record.to_raw();
    assert_eq!((raw.len() + 4) % 8, 0);
    assert_eq!((WaitRecord::parse(&raw), record.off_cpu_ns()), (Some(record), 1320));
    assert_eq!(WaitRecord::parse(&raw[..111]), None);
    raw[record::at::KIND as usize] = 5;
    assert_eq!(WaitRecord::parse(&raw), None);
    let most = WaitRecord { blocked_ns: u64::MAX, ..record };
    assert_eq!(most.off_cpu_ns(), u64::MAX);
}
