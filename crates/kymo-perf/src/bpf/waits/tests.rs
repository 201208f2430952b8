//! The programs against the kernel's verifier, records against damage, and sums against the
//! kernel's own.
use super::*;
use crate::bpf::insn::{Assembler, R1, R3};
use crate::bpf::types::Member;
use kymo_testing::skip;

/// Checks that the kernel accepts all programs, with and without the tracepoint behind the switch,
/// and with and without types of the tracepoints' arguments.
#[test]
fn programs_load() {
    for (not_behind, typed) in [(false, true), (true, true), (false, false), (true, false)] {
        let options = WaitOptions { not_behind, ..WaitOptions::default() };
        let kernel = if typed { KernelBtf::read() } else { None };
        match WaitTracer::start_with(None, &options, kernel) {
            Ok(tracer) => assert!(!(not_behind && tracer.has_stacks())),
            Err(error @ BpfError::Load { .. }) => panic!("{error}"),
            Err(error) => return skip("bpf::waits::programs_load", error.to_string()),
        }
    }
}

/// Checks that this kernel takes the programs with typed arguments: else the others would serve
/// silently.
#[test]
fn typed_programs_load() {
    let test = "bpf::waits::typed_programs_load";
    let Some(number) = KernelBtf::read().and_then(|kernel| kernel.tracepoint(c"sched_waking")) else {
        return skip(test, "this kernel shows no type information");
    };
    let Ok(types) = TaskTypes::load() else { return skip(test, "this kernel takes no types") };
    let mut program = Assembler::new();
    let (end, mut wanted) = (program.label(), Vec::new());
    program.load64(R3, R1, 0);
    program.load_member((R1, R3), 4, Member::Id, &mut wanted);
    program.show(end);
    let program = Program { wanted, ..program.finish().into() };
    attach_typed_program("kymo_trial", (c"sched_waking", number), &program, &types).expect("it is taken");
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
