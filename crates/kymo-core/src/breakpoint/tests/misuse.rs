//! Requests that make no sense, and corners that are easily missed.
use super::*;

/// Checks that what makes no sense is refused with EINVAL by engine and model alike, and changes
/// nothing.
#[test]
fn requests_without_sense() {
    fn check<A: Accounts>(account: &A) {
        let task = account.task(TaskId(1));
        let unknown = CpuId(3);
        for target in [
            Target::TaskOn(&task, unknown),
            Target::Cpu(unknown),
            Target::Cpus(&[C0, unknown]),
            Target::Cpu(CpuId(u32::MAX)),
            Target::Cpus(&[]),
        ] {
            let error = account.reserve(target, Kind::WRITE).err().expect("it makes no sense");
            assert_eq!(error.errno(), 22, "{error}");
        }
        assert!(account.is_unused());
    }
    check(&ledger(X86));
    check(&model::OneList::new(X86).expect("a sound config"));
}

/// Checks that a task of another ledger is refused, not counted in the wrong counts.
#[test]
fn a_task_of_another_ledger() {
    let (mine, other) = (ledger(X86), ledger(X86));
    let stranger = other.task(TaskId(8));
    for target in [Target::Task(&stranger), Target::TaskOn(&stranger, C0)] {
        assert_eq!(mine.reserve(target, Kind::READ).err(), Some(Error::OtherLedger(TaskId(8))));
        assert_eq!(mine.holders(target, Kind::READ, 1).err(), Some(Error::OtherLedger(TaskId(8))));
    }
    assert!(mine.is_unused() && other.is_unused());
}

/// Checks which bits are a kind, how it is written, and which registers it needs.
#[test]
fn kinds() {
    for (bits, text, pool) in [
        (1, "r", Pool::Data),
        (2, "w", Pool::Data),
        (3, "rw", Pool::Data),
        (4, "x", Pool::Instructions),
        (5, "rx", Pool::Data),
        (6, "wx", Pool::Data),
    ] {
        let kind = Kind::from_bits(bits).expect("a kind");
        assert_eq!((kind.bits(), kind.to_string().as_str(), kind.pool()), (bits, text, pool));
    }
    for bits in [0, 7, 8, u32::MAX] {
        assert_eq!(Kind::from_bits(bits), Err(Error::BadKind { bits }));
    }
}

/// Checks that a ledger which cannot be is not made, whatever is asked for.
#[test]
fn configs_without_sense() {
    let slots = Slots::Shared(4);
    for config in [
        Config { cpus: 0, slots },
        Config { cpus: usize::MAX, slots },
        Config { cpus: 1, slots: Slots::Shared(17) },
        Config { cpus: 1, slots: Slots::Separate { data: 4, instructions: usize::MAX } },
    ] {
        let error = Ledger::new(config).expect_err("it makes no sense");
        assert_eq!(error.errno(), 22, "{error}");
        assert_eq!(model::OneList::new(config).err(), Some(error));
    }
}

/// Checks that hardware without breakpoints refuses everything with ENOSPC, and says so.
#[test]
fn no_hardware() {
    let ledger = ledger(Config { cpus: 2, slots: Slots::Shared(0) });
    let task = ledger.task(TaskId(1));
    for target in [Target::Task(&task), Target::TaskOn(&task, C1), Target::Cpu(C0), Target::AllCpus] {
        let error = ledger.reserve(target, Kind::WRITE).expect_err("there is nothing");
        assert_eq!(error.errno(), 28);
        assert!(error.to_string().contains("the hardware has none"), "{error}");
    }
    assert!(ledger.is_unused());
}

/// Checks that of many CPUs all get a slot or none, also where the list names one twice (B5).
#[test]
fn all_cpus_or_none() {
    let ledger = ledger(X86);
    let _full: Vec<_> =
        (0..4).map(|_| ledger.reserve(Target::Cpu(CpuId(2)), Kind::WRITE).expect("it fits")).collect();
    for target in [Target::AllCpus, Target::Cpus(&[C0, C1, CpuId(2)]), Target::Cpus(&[C0, C0, C0, C0, C0])] {
        assert_eq!(ledger.reserve(target, Kind::WRITE).expect_err("one is full").errno(), 28);
        assert_eq!((ledger.taken(C0, Pool::Data), ledger.taken(C1, Pool::Data)), (Ok(0), Ok(0)));
    }
    let twice = ledger.reserve(Target::Cpus(&[C0, C0]), Kind::WRITE).expect("it fits");
    assert_eq!((twice.cpus(), twice.task()), (&[C0, C0][..], None));
    assert_eq!(ledger.taken(C0, Pool::Data), Ok(2));
    drop(twice);
    assert_eq!(ledger.taken(C0, Pool::Data), Ok(0));
}

/// Checks that a CPU where nothing runs now (offline) still limits who may run anywhere, since it
/// can come back.
#[test]
fn a_cpu_where_nothing_runs() {
    let ledger = ledger(X86);
    let task = ledger.task(TaskId(1));
    let full: Vec<_> =
        (0..4).map(|_| ledger.reserve(Target::Cpu(CpuId(2)), Kind::WRITE).expect("it fits")).collect();
    assert!(ledger.reserve(Target::Task(&task), Kind::WRITE).is_err());
    let _bound = ledger.reserve(Target::TaskOn(&task, C0), Kind::WRITE).expect("that CPU is free");
    drop(full);
    ledger.reserve(Target::Task(&task), Kind::WRITE).expect("all are free").release();
}

/// Checks that data and instructions compete for shared registers and do not for separate ones, and
/// that a change between them which is refused leaves everything as it was (B5).
#[test]
fn a_change_of_kind() {
    let shared = ledger(Config { cpus: 1, slots: Slots::Shared(1) });
    let task = shared.task(TaskId(1));
    let mut held = shared.reserve(Target::Task(&task), Kind::WRITE).expect("it fits");
    assert!(shared.reserve(Target::Task(&task), Kind::EXECUTE).is_err());
    held.modify(Kind::EXECUTE).expect("the same register");
    assert_eq!(held.kind(), Kind::EXECUTE);

    let arm = ledger(Config { cpus: 2, slots: Slots::Separate { data: 1, instructions: 1 } });
    let task = arm.task(TaskId(1));
    let mut data = arm.reserve(Target::AllCpus, Kind::WRITE).expect("it fits");
    let code = arm.reserve(Target::TaskOn(&task, C1), Kind::EXECUTE).expect("other registers");
    let error = data.modify(Kind::EXECUTE).expect_err("CPU 1 has none left");
    assert_eq!(error.errno(), 28);
    assert_eq!(data.kind(), Kind::WRITE);
    let taken = |cpu| (arm.taken(cpu, Pool::Data), arm.taken(cpu, Pool::Instructions));
    assert_eq!((taken(C0), taken(C1)), ((Ok(1), Ok(0)), (Ok(1), Ok(1))));
    drop(code);
    data.modify(Kind::EXECUTE).expect("all are free");
    assert_eq!((taken(C0), taken(C1)), ((Ok(0), Ok(1)), (Ok(0), Ok(1))));
    drop(data);
    assert!(arm.is_unused());
}

/// Checks that a reservation outlives the handles of its task and of the ledger, and that a task's
/// place in the list is used again.
#[test]
fn a_reservation_stands_alone() {
    let ledger = ledger(X86);
    let held = ledger.reserve(Target::Task(&ledger.task(TaskId(5))), Kind::WRITE).expect("it fits");
    assert_eq!(ledger.taken(C1, Pool::Data), Ok(1));
    // A task with the same number is another task.
    let namesake = ledger.task(TaskId(5));
    let all: Vec<_> =
        (0..4).map(|_| ledger.reserve(Target::Task(&namesake), Kind::WRITE).expect("its own four")).collect();
    drop((all, namesake));
    for number in 0..1_000 {
        drop(ledger.task(TaskId(number)));
    }
    assert_eq!(ledger.shards.iter().map(|shard| shard.entries()).max(), Some(2), "places are used again");
    drop(ledger);
    assert_eq!(held.task(), Some(TaskId(5)));
    held.release();
}

/// Checks that the holders of what is missing are told: the CPU, and the tasks that have most
/// there, up to a limit.
#[test]
fn who_holds_it() {
    let ledger = ledger(X86);
    let tasks: Vec<_> = (0..5).map(|number| ledger.task(TaskId(number))).collect();
    let mut held = vec![ledger.reserve(Target::Cpu(C1), Kind::WRITE).expect("it fits")];
    for task in &tasks[..3] {
        held.extend((0..2).map(|_| ledger.reserve(Target::Task(task), Kind::WRITE).expect("it fits")));
        held.push(ledger.reserve(Target::TaskOn(task, C1), Kind::READ).expect("it fits"));
    }
    held.push(ledger.reserve(Target::Task(&tasks[3]), Kind::WRITE).expect("it fits"));
    assert!(ledger.reserve(Target::AllCpus, Kind::WRITE).is_err());
    let own = Holder::Cpu { cpu: C1, slots: 1 };
    let of = |task| Holder::Task { task: TaskId(task), cpu: C1, slots: 3 };
    let mut all = ledger.holders(Target::AllCpus, Kind::WRITE, 10).expect("it makes sense");
    all.sort_by_key(|holder| match holder {
        Holder::Cpu { .. } => 0,
        Holder::Task { task, .. } => task.0 + 1,
    });
    assert_eq!(all, [own, of(0), of(1), of(2)]);
    assert_eq!(ledger.holders(Target::AllCpus, Kind::WRITE, 2).expect("it makes sense").len(), 3);
    assert_eq!(ledger.holders(Target::Task(&tasks[1]), Kind::WRITE, 10), Ok(vec![own, of(1)]));
    assert_eq!(ledger.holders(Target::TaskOn(&tasks[4], C0), Kind::WRITE, 10), Ok(vec![]));
    let two = Holder::Task { task: TaskId(0), cpu: C0, slots: 2 };
    assert!(ledger.holders(Target::Cpu(C0), Kind::WRITE, 10).expect("it makes sense").contains(&two));
    assert_eq!(own.to_string(), "CPU 1 has 1 for whoever runs there");
    assert_eq!(two.to_string(), "task 0 has 2 when it runs on CPU 0");
}

/// Checks that each error is a sentence with the numbers that are needed to find the mistake, and
/// has the kernel's number.
#[test]
fn errors_are_sentences() {
    let ledger = ledger(Config { cpus: 2, slots: Slots::Separate { data: 1, instructions: 0 } });
    let task = ledger.task(TaskId(1234));
    let _held = ledger.reserve(Target::Task(&task), Kind::WRITE).expect("it fits");
    let refused = |target, kind| ledger.reserve(target, kind).expect_err("it does not fit");
    for (error, errno, parts) in [
        (refused(Target::Task(&task), Kind::READ), 28, ["watch data", "for task 1234: 1 of the 1"]),
        (refused(Target::TaskOn(&task, C1), Kind::READ), 28, ["watch data", "task 1234 on CPU 1"]),
        (refused(Target::AllCpus, Kind::WRITE), 28, ["watch data", "for CPU 0: 1 of the 1"]),
        (refused(Target::Cpu(C1), Kind::EXECUTE), 28, ["instructions", "the hardware has none"]),
        (refused(Target::Cpu(CpuId(7)), Kind::READ), 22, ["CPU 7", "made for 2"]),
        (refused(Target::Cpus(&[]), Kind::READ), 22, ["empty", "at least one"]),
        (Error::OtherLedger(TaskId(3)), 22, ["task 3", "another ledger"]),
        (Error::BadKind { bits: 7 }, 22, ["0x7", "4 execute"]),
        (Error::BadCpus { cpus: 0 }, 22, ["0 CPUs", "1 to"]),
        (Error::BadSlots { slots: 99 }, 22, ["99", "at most 16"]),
        (Error::NoMemory { cpus: 5 }, 12, ["memory", "5 CPUs"]),
    ] {
        let text = error.to_string();
        assert_eq!(error.errno(), errno, "{error:?}");
        assert!(parts.iter().all(|part| text.contains(part)), "{error:?}: {text}");
    }
}
