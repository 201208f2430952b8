//! Probes in functions of all shapes, and under running threads.
use super::library::Library;
use super::work::Stop;
use kymo_agent::patch::{Consumers, PatchError, Probe, Refusal, Site, attach, detach};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) fn shapes(test: &str) -> Option<Library> {
    Library::of(test, "shapes.S", &["-nostdlib", "-Wl,-Bsymbolic"])
}

fn put(sites: &[Site]) -> Vec<Probe> {
    attach(sites, Consumers::Count).expect("attached")
}

/// How often threads were too slow to answer: in traps without pause a thread may get no time to,
/// on a busy machine.
#[derive(Default)]
struct Patience {
    silent: u32,
}

impl Patience {
    /// Probes the functions and restores them; a silent thread is asked again.
    fn come_and_go(&mut self, sites: &[Site]) {
        match attach(sites, Consumers::Count) {
            Ok(probes) => while !self.answered(detach(&probes)) {},
            Err(error) => _ = self.answered(Err(error)),
        }
    }

    fn answered(&mut self, result: Result<(), PatchError>) -> bool {
        match result {
            Err(PatchError::Silent { .. }) if self.silent < 10 => {
                self.silent += 1;
                false
            }
            result => result.is_ok() || panic!("{result:?}"),
        }
    }
}

/// Those that return their argument plus one.
pub(crate) const PLUS_ONE: [&str; 21] = [
    "nop_first",
    "push_first",
    "long_first",
    "marked",
    "data_first",
    "address_first",
    "own_address",
    "call_first",
    "call_second",
    "call_memory_first",
    "call_register",
    "call_short",
    "call_stack",
    "jump_first",
    "jump_short_first",
    "branch_first",
    "count_branch_first",
    "table_jump",
    "helper",
    "red_zone",
    "nop_first",
];

/// Checks, for each shape of a function's begin, that it does the same with a probe, that all calls
/// are counted, and that its bytes come back.
#[test]
fn all_shapes_are_counted() {
    let Some(library) = shapes("probes::all_shapes_are_counted") else { return };
    let helper = library.function("helper") as usize as u64;
    for name in PLUS_ONE {
        let function = library.function(name);
        let probes = library.put(&[name], Consumers::Count);
        library.adds_one(name, 0..100, |_| helper);
        // `helper` is called by others and by itself; here only by itself.
        assert_eq!(probes[0].hits(), 100, "{name}");
        library.take(&probes);
        assert_eq!(function(7, helper), 8, "{name}");
        assert_eq!(probes[0].hits(), 100, "{name}");
    }
}

/// Checks that a loop through a function's first instruction is a hit each time, wherever the
/// branch is, and that functions of a few bytes with padding behind them are served.
#[test]
fn loops_and_the_shortest_functions_are_counted() {
    let Some(library) = shapes("probes::loops_and_the_shortest_functions_are_counted") else { return };
    for name in ["loop_to_begin", "tight_loop", "only_return", "marked_short", "right_behind"] {
        let loops = name.contains("loop");
        let probes = library.put(&[name], Consumers::Count);
        let calls = if loops { 1 } else { 10 };
        for _ in 0..calls {
            let result = library.function(name)(10, 0);
            assert!(!loops || result == 0, "{name}: {result}");
        }
        assert_eq!(probes[0].hits(), 10, "{name}");
        library.take(&probes);
    }
}

/// Checks that flags, registers and what lies below the stack pointer are as they were.
#[test]
fn a_hit_changes_nothing() {
    let Some(library) = shapes("probes::a_hit_changes_nothing") else { return };
    let probes = library.put(&["reads_carry", "only_nops", "red_middle"], Consumers::Count);
    let carry = library.function("calls_with_carry");
    assert_eq!((carry(0, 0), carry(1, 0), carry(2, 0)), (0, 1, 1));
    assert_eq!(library.function("keeps_registers")(0, 0), 0);
    assert_eq!(library.function("red_zone")(41, 0), 42);
    let hits: Vec<u64> = probes.iter().map(Probe::hits).collect();
    assert_eq!(hits, [3, 1, 1]);
    library.take(&probes);
}

/// Checks that what cannot be patched is refused with its reason.
#[test]
fn what_cannot_be_patched_is_refused() {
    let Some(library) = shapes("probes::what_cannot_be_patched_is_refused") else { return };
    let why = |name| library.plan(name).map(|site| site.address).expect_err(name);
    assert!(matches!(why("jumped_into"), Refusal::JumpInto { .. }), "{}", why("jumped_into"));
    assert!(matches!(why("table_into"), Refusal::JumpInto { .. }), "{}", why("table_into"));
    assert!(matches!(why("call_inside"), Refusal::CallInside { .. }), "{}", why("call_inside"));
    assert_eq!(why("too_short"), Refusal::TooShort { bytes: 1 });
    assert!(matches!(why("system_call"), Refusal::Unmovable { .. }), "{}", why("system_call"));
    assert!(matches!(why("breakpoint"), Refusal::TrapInside { .. }), "{}", why("breakpoint"));
}

/// Checks that a second probe in the same bytes, and bytes that changed since the plan, are
/// refused, and leave everything as it was.
#[test]
fn a_site_has_one_patch() {
    let Some(library) = shapes("probes::a_site_has_one_patch") else { return };
    let (first, other) =
        (library.plan("nop_first").expect("a plan"), library.plan("push_first").expect("a plan"));
    let probes = put(std::slice::from_ref(&first));
    let again = attach(&[other.clone(), first.clone()], Consumers::Count).map(|_| ());
    assert!(matches!(again, Err(PatchError::Taken { .. })), "{again:?}");
    let twice = attach(&[other.clone(), other], Consumers::Count).map(|_| ());
    assert!(matches!(twice, Err(PatchError::Taken { .. })), "{twice:?}");
    detach(&probes).expect("detached");
    let detached_twice = detach(&probes);
    assert!(matches!(detached_twice, Err(PatchError::Changed { .. })), "{detached_twice:?}");
    library.assert_untouched();
}

/// Checks, with two threads that call, that no hit of a probe is lost or doubled while other probes
/// come and go thousands of times, and that the program computes the same.
#[test]
fn probes_come_and_go_under_running_threads() {
    let Some(library) = shapes("probes::probes_come_and_go_under_running_threads") else { return };
    let helper = library.function("helper") as usize as u64;
    let steady = library.put(&["long_first"], Consumers::Count);
    let names = &PLUS_ONE[..20];
    let passing: Vec<Site> = names
        .iter()
        .filter(|name| **name != "long_first")
        .map(|name| library.plan(name).expect("a plan"))
        .collect();
    let (ends, calls, wrong) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let functions: Vec<_> = names.iter().map(|name| library.function(name)).collect();
                let mut n = 0;
                while !ends.load(Ordering::Relaxed) {
                    for function in &functions {
                        n += 1;
                        if function(n, helper) != n as u32 + 1 {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ends = Stop(&ends);
        let mut patience = Patience::default();
        let begin = Instant::now();
        let mut rounds = 0;
        while rounds < 3000 && begin.elapsed() < Duration::from_secs(5) {
            let some = &passing[rounds % passing.len()..(rounds % passing.len() + 3).min(passing.len())];
            patience.come_and_go(some);
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds} rounds");
        eprintln!("{rounds} rounds in {:?}", begin.elapsed());
    });
    assert_eq!(wrong.into_inner(), 0);
    assert_eq!(steady[0].hits(), calls.into_inner());
    library.take(&steady);
}

/// Where a function is in its file.
fn in_file(function: u64) -> (std::path::PathBuf, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let place = maps.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (begin, end) = fields.first()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (begin, end, offset) = (number(begin)?, number(end)?, number(fields.get(2)?)?);
        let file = fields.get(5).filter(|_| (begin..end).contains(&function))?;
        Some((file.into(), function - begin + offset))
    });
    place.expect("it is mapped from a file")
}

/// Checks that functions are probed and restored under a running thread while the kernel has a
/// uprobe at the same places of the file for another process: a trap of ours that the kernel took
/// for its own would send the thread into the middle of a jump.
#[test]
fn a_uprobe_of_another_process_at_the_same_place() {
    const TEST: &str = "probes::a_uprobe_of_another_process_at_the_same_place";
    let Some(library) = shapes(TEST) else { return };
    let names = ["push_first", "nop_first", "long_first"];
    let probe = |name: &str, pid: u32| {
        let (file, offset) = in_file(library.function(name) as usize as u64);
        super::process::uprobe(&file, offset, pid as i32)
    };
    // It has the library, so that the kernel has put its traps there, and has read the
    // instructions.
    let (file, _) = in_file(library.function("marked") as usize as u64);
    let mut other = std::process::Command::new("sleep");
    let mut other = other.arg("600").env("LD_PRELOAD", &file).spawn().expect("sleep");
    let maps = format!("/proc/{}/maps", other.id());
    let name = file.to_str().expect("UTF-8");
    super::inject::soon("it loads the library", || {
        std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains(name))
    });
    // This process must have a uprobe, too: otherwise the kernel takes no trap of it for one.
    let own = probe("marked", std::process::id());
    let others: std::io::Result<Vec<_>> = names.iter().map(|name| probe(name, other.id())).collect();
    if let Some(error) = own.as_ref().err().or(others.as_ref().err()) {
        kymo_testing::skip(TEST, format!("no uprobes here: {error}"));
    } else {
        let sites: Vec<Site> = names.iter().map(|name| library.plan(name).expect("a plan")).collect();
        let (ends, wrong) = (AtomicBool::new(false), AtomicU64::new(0));
        assert_eq!(library.function("marked")(1, 0), 2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let functions = names.map(|name| library.function(name));
                while !ends.load(Ordering::Relaxed) {
                    let is_wrong = functions.iter().any(|function| function(1, 0) != 2);
                    wrong.fetch_add(u64::from(is_wrong), Ordering::Relaxed);
                }
            });
            let _ends = Stop(&ends);
            let mut patience = Patience::default();
            for _ in 0..300 {
                patience.come_and_go(&sites);
            }
        });
        assert_eq!(wrong.into_inner(), 0);
    }
    drop((own, others));
    library.assert_untouched();
    other.kill().and_then(|()| other.wait()).expect("it sleeps");
}

/// Checks that a thread which gets no CPU for longer than any thread may be silent, because others
/// keep its CPU busy, is waited for: its function is probed, and its calls are counted.
#[test]
fn a_thread_without_a_cpu_is_not_silent() {
    let Some(library) = shapes("probes::a_thread_without_a_cpu_is_not_silent") else { return };
    let site = library.plan("push_first").expect("a plan");
    let (ends, busy, calls) = (AtomicBool::new(false), AtomicBool::new(true), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            super::process::bind_to_one_cpu();
            super::process::run_when_idle();
            let function = library.function("push_first");
            while !ends.load(Ordering::Relaxed) {
                function(1, 0);
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        while calls.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        for _ in 0..4 {
            scope.spawn(|| {
                super::process::bind_to_one_cpu();
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // They have the CPU for longer than two seconds, and give it back.
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(3));
            busy.store(false, Ordering::Relaxed);
        });
        let attached = attach(std::slice::from_ref(&site), Consumers::Count);
        let before = calls.load(Ordering::Relaxed);
        while attached.is_ok() && calls.load(Ordering::Relaxed) < before + 10 {
            std::thread::yield_now();
        }
        ends.store(true, Ordering::Relaxed);
        busy.store(false, Ordering::Relaxed);
        let probes = attached.expect("a thread that gets no CPU is waited for");
        assert!(probes[0].hits() >= 9, "{}", probes[0].hits());
        detach(&probes).expect("detached");
    });
    library.assert_untouched();
}

/// Checks that a thread which makes a process is waited for, however long that takes: the C library
/// blocks all signals until the process runs its program.
#[test]
fn a_thread_that_makes_a_process_is_waited_for() {
    let test = "probes::a_thread_that_makes_a_process_is_waited_for";
    let Some(library) = shapes(test) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    if !std::process::Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        kymo_testing::skip(test, "no mkfifo here".to_owned());
        return;
    }
    let site = library.plan("push_first").expect("a plan");
    let path = std::ffi::CString::new(fifo.to_str().expect("UTF-8")).expect("no 0");
    let (tell, told) = std::sync::mpsc::channel();
    let spawner = std::thread::spawn(move || {
        tell.send(super::process::own_thread()).expect("the test waits");
        super::process::run_behind_fifo(&path);
    });
    let status = format!("/proc/self/task/{}/stat", told.recv().expect("it tells"));
    super::inject::soon("it makes a process", || {
        std::fs::read_to_string(&status).is_ok_and(|stat| stat.contains(") D "))
    });
    let writer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(4));
        std::fs::File::options().write(true).open(fifo).expect("opened");
    });
    let attached = attach(&[site], Consumers::Count);
    writer.join().expect("no panic");
    spawner.join().expect("no panic");
    let probes = attached.expect("a thread that makes a process is waited for");
    library.function("push_first")(1, 0);
    assert_eq!(probes[0].hits(), 1);
    library.take(&probes);
}

/// Checks sites inside functions: markers of one byte and of five, with what lies below the stack
/// pointer, and those that are refused.
#[test]
fn markers_inside_functions_are_counted() {
    let Some(library) = shapes("probes::markers_inside_functions_are_counted") else { return };
    for (name, offset, result) in [("marker", 5, 8), ("wide_marker", 5, 8)] {
        let site = library.plan_inside(name, offset).unwrap_or_else(|why| panic!("{name}: {why}"));
        let returns = attach(std::slice::from_ref(&site), Consumers::CountReturns).map(|_| ());
        assert!(
            matches!(returns, Err(PatchError::Refused { why: Refusal::NotTheEntry { .. }, .. })),
            "{returns:?}"
        );
        let probes = put(&[site]);
        for _ in 0..10 {
            assert_eq!(library.function(name)(7, 0), result, "{name}");
        }
        assert_eq!(probes[0].hits(), 10, "{name}");
        detach(&probes).expect("detached");
    }
    let inside = library.plan_inside("marker", 6).map(|_| ());
    assert!(inside.is_ok(), "{inside:?}");
    let within = library.plan_inside("long_first", 2).expect_err("no instruction");
    assert!(matches!(within, Refusal::NotAnInstruction { .. }), "{within}");
    let before = library.plan_inside("marker", u64::MAX).expect_err("before the function");
    assert!(matches!(before, Refusal::NotAnInstruction { .. }), "{before}");
    let computed = library.plan_inside("table_jump", 2).expect_err("an unknown jump");
    assert!(matches!(computed, Refusal::ComputedJumps { .. }), "{computed}");
    library.assert_untouched();
}

/// Checks that a library which is unloaded takes its probes along, and that one that comes in its
/// place can be probed.
#[test]
fn libraries_come_and_go() {
    for _ in 0..5 {
        let Some(library) = shapes("probes::libraries_come_and_go") else { return };
        let probes = library.put(&["long_first", "push_first"], Consumers::Count);
        assert_eq!(library.function("long_first")(7, 0), 8);
        assert_eq!(probes[0].hits(), 1);
        let _alone = library.unload();
        let gone = detach(&probes);
        assert!(matches!(gone, Err(PatchError::Changed { .. })), "{gone:?}");
    }
}

/// Checks that threads which block every signal are named, not killed, and that probes work again
/// when they are gone.
#[test]
fn a_thread_that_blocks_traps_is_named() {
    let Some(library) = shapes("probes::a_thread_that_blocks_traps_is_named") else { return };
    let sites = [library.plan("push_first").expect("a plan")];
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        super::process::block_all_signals();
        tell.send(super::process::own_thread()).expect("the test waits");
        let _ = ended.recv();
    });
    let tid = told.recv().expect("it tells");
    let refused = attach(&sites, Consumers::Count).map(|_| ());
    assert!(matches!(refused, Err(PatchError::BlocksTraps { tid: its }) if its == tid), "{refused:?}");
    library.assert_untouched();
    drop(end);
    thread.join().expect("no panic");
    let probes = put(&sites);
    assert_eq!(library.function("push_first")(1, 0), 2);
    assert_eq!(probes[0].hits(), 1);
    library.take(&probes);
}
