//! Probes that look at returns, where functions do not simply return.
use super::library::Library;
use kymo_agent::patch::{Consumers, DEPTH, Probe, attach, detach, returns_missed};
use std::panic::{AssertUnwindSafe, catch_unwind};

const LATENCY: [Consumers; 2] = [Consumers::CountReturns, Consumers::Latency];

fn library(test: &str) -> Option<Library> {
    Library::of(test, "returns.cc", &["-pthread", "-fexceptions", "-fno-optimize-sibling-calls"])
}

fn hits(probes: &[Probe]) -> Vec<u64> {
    probes.iter().map(Probe::hits).collect()
}

fn returns(probes: &[Probe]) -> Vec<u64> {
    probes.iter().map(|probe| probe.returns().expect("looked at")).collect()
}

/// Checks that plain calls return what they returned, that each return is counted, and that the
/// times are those of the calls.
#[test]
fn calls_return() {
    let Some(library) = library("returns::calls_return") else { return };
    for consumers in LATENCY {
        let probes = library.put(&["leaf", "tail", "halves", "extended"], consumers);
        for n in 0..100 {
            assert_eq!(library.function("tail")(n, 0), n as u32 + 1);
            assert_eq!(library.function("values")(n, 0), 1);
        }
        assert_eq!((hits(&probes), returns(&probes)), (vec![100; 4], vec![100; 4]));
        if let Some(latency) = probes[1].latencies() {
            let (median, mean) =
                (latency.quantile_ns(0.5).expect("calls"), latency.mean_ns().expect("calls"));
            assert!(latency.count == 100 && median < 1_000_000_000 && mean > 0.0, "{latency:?}");
        }
        library.take(&probes);
    }
}

/// Checks all shapes of functions with a look at their returns.
#[test]
fn all_shapes_return() {
    let Some(library) = super::probes::shapes("returns::all_shapes_return") else { return };
    let helper = library.function("helper") as usize as u64;
    for consumers in LATENCY {
        for name in &super::probes::PLUS_ONE[..19] {
            let probes = library.put(&[name], consumers);
            library.adds_one(name, 0..100, |_| helper);
            assert_eq!((hits(&probes), returns(&probes)), (vec![100], vec![100]), "{name}");
            library.take(&probes);
        }
        for name in ["only_return", "marked_short", "right_behind"] {
            let probes = library.put(&[name], consumers);
            library.function(name)(1, 0);
            assert_eq!(returns(&probes), [1], "{name}");
            library.take(&probes);
        }
        let probes = library.put(&["only_nops", "reads_carry"], consumers);
        let carry = library.function("calls_with_carry");
        assert_eq!((carry(0, 0), carry(1, 0), carry(2, 0)), (0, 1, 1));
        assert_eq!(library.function("keeps_registers")(0, 0), 0);
        assert_eq!(returns(&probes), [1, 3]);
        library.take(&probes);
        // Each turn is a hit, and each hit is a return when the function returns at last.
        let probes = library.put(&["loop_to_begin"], consumers);
        assert_eq!(library.function("loop_to_begin")(10, 0), 0);
        assert_eq!((hits(&probes), returns(&probes)), (vec![10], vec![10]));
        library.take(&probes);
    }
}

/// Checks that C++ exceptions pass through any number of probed frames, run what has to run, and
/// are caught where they were.
#[test]
fn exceptions_pass() {
    let Some(library) = library("returns::exceptions_pass") else { return };
    for consumers in LATENCY {
        let probes = library.put(&["throws", "catches"], consumers);
        library.adds_one("catches", 0..60, |n| n % 7);
        let depths: u64 = (0..60).map(|n| n % 7 + 1).sum();
        let returned: u64 = (0..60).filter(|n| n % 2 == 0).map(|n| n % 7 + 1).sum();
        assert_eq!((hits(&probes), returns(&probes)), (vec![depths, 60], vec![returned, 60]));
        library.take(&probes);
        assert_eq!(library.function("catches")(3, 3), 4);
    }
}

/// Checks that an exception passes two functions with one return address between them.
#[test]
fn exceptions_pass_tail_calls() {
    let Some(library) = library("returns::exceptions_pass_tail_calls") else { return };
    for consumers in LATENCY {
        let probes = library.put(&["throws_by_tail", "throws_alone", "catches_by_tail"], consumers);
        library.adds_one("catches_by_tail", 0..20, |_| 0);
        assert_eq!((hits(&probes), returns(&probes)), (vec![20; 3], vec![10, 10, 20]));
        library.take(&probes);
    }
}

/// Checks that vector registers are left alone, also where a stub calls functions of the agent: at
/// a thread's first hit, and beyond the depth.
#[test]
fn vectors_are_kept() {
    let Some(library) = library("returns::vectors_are_kept") else { return };
    for consumers in LATENCY {
        let probes = library.put(&["touches_nothing", "vectors_below"], consumers);
        for _ in 0..10 {
            assert_eq!(library.function("vectors")(0, 0), 1);
        }
        // As many turns below each other as are more than the depth, on two threads; none without
        // AVX.
        let calls = hits(&probes);
        assert!(calls == [1420, 1420] || calls == [0, 0], "{calls:?}");
        library.take(&probes);
    }
}

/// Checks exceptions in a library that has an unwinder of its own, which knows nothing of the
/// process's.
#[test]
fn exceptions_pass_by_an_unwinder_of_the_librarys_own() {
    const TEST: &str = "returns::exceptions_pass_by_an_unwinder_of_the_librarys_own";
    let Some(library) = Library::of(
        TEST,
        "returns.cc",
        &["-pthread", "-fexceptions", "-fno-optimize-sibling-calls", "-static-libgcc", "-static-libstdc++"],
    ) else {
        return;
    };
    for consumers in LATENCY {
        let probes = library.put(&["throws", "catches"], consumers);
        library.adds_one("catches", 0..60, |n| n % 7);
        assert_eq!(returns(&probes), [(0..60).filter(|n| n % 2 == 0).map(|n| n % 7 + 1).sum::<u64>(), 60]);
        library.take(&probes);
    }
}

/// Checks that an exception finds its way through a frame that lies where another was which an
/// exception left, on the same thread and on one that has the dead thread's stack.
#[test]
fn what_exceptions_left_misleads_nobody() {
    let Some(library) = library("returns::what_exceptions_left_misleads_nobody") else { return };
    for consumers in LATENCY {
        let probes = library.put(&["throws_alone", "above_too"], consumers);
        for n in 0..20 {
            assert_eq!(library.function("abandons")(n, 0), n as u32 + 1, "{n}");
            assert_eq!(library.function("abandons_on_threads")(0, 0), 1);
        }
        assert_eq!((hits(&probes), returns(&probes)), (vec![80, 20], vec![10, 20]));
        library.take(&probes);
    }
}

extern "C-unwind" fn panics(n: i32) -> i32 {
    assert!(n % 2 == 0, "odd");
    n + 1
}

/// Checks that Rust panics pass through probed frames of C, and that a backtrace on the way ends.
#[test]
fn panics_pass() {
    let Some(library) = library("returns::panics_pass") else { return };
    let address = library.function("calls_back") as usize;
    let calls_back = super::library::calls_back(address);
    let probes = library.put(&["calls_back"], Consumers::CountReturns);
    for n in 0..20 {
        let result = catch_unwind(AssertUnwindSafe(|| calls_back(panics, n)));
        assert_eq!(result.ok(), (n % 2 == 0).then_some(n + 1));
    }
    assert_eq!((hits(&probes), returns(&probes)), (vec![20], vec![10]));
    library.take(&probes);
}

/// Checks that longjmp over probed frames leaves nothing behind that a later return would trip
/// over.
#[test]
fn jumps_land() {
    let Some(library) = library("returns::jumps_land") else { return };
    for consumers in LATENCY {
        let before = returns_missed();
        let probes = library.put(&["jumps", "lands", "leaf"], consumers);
        for n in 0..300 {
            assert_eq!(library.function("lands")(n, n % 9), n as u32 + 1, "{n}");
            assert_eq!(library.function("leaf")(n, 0), n as u32 + 1);
        }
        let returned: u64 = (0..300).filter(|n| n % 2 == 0).map(|n| n % 9 + 1).sum();
        assert_eq!(returns(&probes), [returned, 300, 300]);
        assert_eq!(returns_missed(), before);
        library.take(&probes);
    }
}

/// Checks that calls beyond the depth are counted and return, and that what returned was the depth.
#[test]
fn deep_recursion_returns() {
    let Some(library) = library("returns::deep_recursion_returns") else { return };
    let probes = library.put(&["recurses"], Consumers::CountReturns);
    let before = returns_missed();
    assert_eq!(library.function("recurses")(1000, 0), 1000);
    assert_eq!((hits(&probes), returns(&probes)), (vec![1001], vec![DEPTH as u64]));
    assert_eq!(returns_missed() - before, 1001 - DEPTH as u64);
    assert_eq!(library.function("recurses")(10, 0), 10);
    assert_eq!(returns(&probes), [DEPTH as u64 + 11]);
    library.take(&probes);
}

/// Checks that calls which are too deep to be timed are counted as such by their probe, and that
/// this count, too, begins with the attach.
#[test]
fn calls_too_deep_are_counted_as_untimed() {
    let Some(library) = library("returns::calls_too_deep_are_counted_as_untimed") else { return };
    for _ in 0..2 {
        let probes = library.put(&["recurses"], Consumers::Latency);
        assert_eq!(library.function("recurses")(1000, 0), 1000);
        assert_eq!((hits(&probes), returns(&probes)), (vec![1001], vec![DEPTH as u64]));
        assert_eq!(probes[0].untimed(), Some(1001 - DEPTH as u64));
        library.take(&probes);
    }
}

/// Checks handlers of signals that call probed functions, on a stack of their own.
#[test]
fn signals_on_their_own_stack_return() {
    let Some(library) = library("returns::signals_on_their_own_stack_return") else { return };
    let probes = library.put(&["on_signal", "leaf", "interrupted", "storms"], Consumers::Latency);
    assert_eq!(library.function("storms")(500, 0), 500);
    assert_eq!((hits(&probes), returns(&probes)), (vec![500, 500, 500, 1], vec![500, 500, 500, 1]));
    library.take(&probes);
}

/// Checks that both processes return from a fork inside probed functions, and that the child's
/// calls are not counted here.
#[test]
fn both_processes_return_from_a_fork() {
    let Some(library) = library("returns::both_processes_return_from_a_fork") else { return };
    let probes = library.put(&["forks", "forks_below"], Consumers::CountReturns);
    library.adds_one("forks_below", 0..10, |_| 0);
    assert_eq!((hits(&probes), returns(&probes)), (vec![10, 10], vec![10, 10]));
    library.take(&probes);
}

/// Checks coroutines that leave a probed function open while others run, and one that returns on
/// another thread.
#[test]
fn coroutines_return() {
    let Some(library) = library("returns::coroutines_return") else { return };
    let probes =
        library.put(&["yields", "task", "coroutines", "travels", "migrates"], Consumers::CountReturns);
    assert_eq!(library.function("coroutines")(0, 0), 20);
    assert_eq!(returns(&probes), [20, 2, 1, 0, 0]);
    for _ in 0..5 {
        assert_eq!(library.function("migrates")(0, 0), 1);
    }
    assert_eq!(returns(&probes), [25, 2, 1, 5, 5]);
    library.take(&probes);
}

/// Checks that threads may end inside probed functions, thousands of them one after another.
#[test]
fn threads_end_inside() {
    let Some(library) = library("returns::threads_end_inside") else { return };
    let probes = library.put(&["ends_thread", "thread_body", "exits"], Consumers::CountReturns);
    library.adds_one("exits", 0..1000, |_| 0);
    assert_eq!((hits(&probes), returns(&probes)), (vec![1000; 3], vec![0, 0, 1000]));
    library.take(&probes);
}

/// Checks that a probe may go while calls are inside, and that these return.
#[test]
fn a_probe_may_go_while_calls_are_inside() {
    let Some(library) = library("returns::a_probe_may_go_while_calls_are_inside") else { return };
    let address = library.function("calls_back") as usize;
    let calls_back = super::library::calls_back(address);
    let sites = [library.plan("calls_back").expect("a plan")];
    thread_local! {
        static PROBES: std::cell::RefCell<Vec<Probe>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    extern "C-unwind" fn goes(n: i32) -> i32 {
        PROBES.with_borrow_mut(|probes| detach(probes).expect("detached"));
        n + 1
    }
    for n in 0..10 {
        PROBES.set(attach(&sites, Consumers::CountReturns).expect("attached"));
        assert_eq!(calls_back(goes, n), n + 1);
        library.assert_untouched();
    }
}

/// Checks that a thread which blocks all signals again and again, and calls probed functions
/// meanwhile, neither ends the process nor keeps probes from coming and going.
#[test]
fn threads_that_block_signals_live() {
    let Some(library) = library("returns::threads_that_block_signals_live") else { return };
    // The first attach is what makes the difference.
    let steady = library.put(&["blocks_all"], Consumers::Count);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let blocks = library.function("blocks_all");
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(blocks(100, 0), 1);
            }
        });
        for round in 0..100 {
            let consumers = LATENCY[round % 2];
            let probes = library.put(&["leaf"], consumers);
            detach(&probes).expect("detached");
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    library.take(&steady);
    kymo_agent::patch::leave();
    assert_eq!(library.function("blocks_all")(10, 0), 1);
}

/// Checks that coroutines return whose threads have ended, however many threads came after them and
/// took their shadow stacks.
#[test]
fn coroutines_outlive_their_threads() {
    let Some(library) = library("returns::coroutines_outlive_their_threads") else { return };
    let probes = library.put(&["waits", "outlived", "begins"], Consumers::CountReturns);
    for _ in 0..2 {
        assert_eq!(library.function("outlives")(150, 0), 150);
    }
    assert_eq!((hits(&probes), returns(&probes)), (vec![300; 3], vec![300; 3]));
    library.take(&probes);
}

/// Asserts that nothing is left of what was abandoned before: a recursion as deep as returns are
/// looked at has room, and each of its returns is seen.
fn assert_room(library: &Library) {
    let probes = library.put(&["recurses"], Consumers::CountReturns);
    let before = returns_missed();
    let deepest = DEPTH as u64 - 1;
    for _ in 0..3 {
        assert_eq!(u64::from(library.function("recurses")(deepest, 0)), deepest);
    }
    let all = 3 * DEPTH as u64;
    assert_eq!((returns_missed() - before, hits(&probes), returns(&probes)), (0, vec![all], vec![all]));
    library.take(&probes);
}

/// Checks that calls which a longjmp has left from far below leave room for others, though nothing
/// has overwritten their stack.
#[test]
fn long_jumps_from_far_below_leave_room() {
    let Some(library) = library("returns::long_jumps_from_far_below_leave_room") else { return };
    for consumers in LATENCY {
        let before = returns_missed();
        let probes = library.put(&["jumps", "lands", "leaf"], consumers);
        let mut returned = 0;
        for n in 0..200 {
            let depth = if n % 3 == 0 { 58 } else { n % 58 };
            assert_eq!(library.function("lands")(n, depth), n as u32 + 1, "{n}");
            assert_eq!(library.function("leaf")(n, 0), n as u32 + 1);
            returned += if n % 2 == 0 { depth + 1 } else { 0 };
        }
        assert_eq!((returns(&probes), returns_missed() - before), (vec![returned, 200, 200], 0));
        library.take(&probes);
        assert_room(&library);
    }
}

/// Checks that exceptions which handlers of signals throw, on the thread's stack and on their own,
/// pass, and leave nothing that later returns miss.
#[test]
fn handlers_that_throw_leave_room() {
    let Some(library) = library("returns::handlers_that_throw_leave_room") else { return };
    for consumers in LATENCY {
        for on_its_own in 0..2 {
            let before = returns_missed();
            let probes = library.put(&["on_throw", "sends_below", "leaf", "throws_out"], consumers);
            assert_eq!(library.function("throws_out")(300, on_its_own), 300);
            let below: u64 = (0..300).map(|n| n % 9 + 1).sum();
            assert_eq!(hits(&probes), [300, below, 301, 1]);
            assert_eq!((returns(&probes), returns_missed() - before), (vec![0, 0, 301, 1], 0));
            library.take(&probes);
            assert_room(&library);
        }
    }
}

/// Checks that calls which look as if they were left, because a coroutine above them on the same
/// stack makes calls itself, return and throw all the same.
#[test]
fn coroutines_inside_of_a_stack_return() {
    for options in [&[][..], &["-static-libgcc", "-static-libstdc++"]] {
        let mut all = vec!["-pthread", "-fexceptions", "-fno-optimize-sibling-calls"];
        all.extend(options);
        let Some(library) = Library::of("returns::coroutines_inside_of_a_stack_return", "returns.cc", &all)
        else {
            return;
        };
        for consumers in LATENCY {
            let before = returns_missed();
            let names = ["resumes", "resumes_by_tail", "resumes_below", "leaf", "embeds"];
            let probes = library.put(&names, consumers);
            for depth in [0, 1, 7, 50] {
                let seen = returns(&probes);
                assert_eq!(library.function("embeds")(20, depth), 20);
                let now = returns(&probes);
                let more: Vec<u64> = now.iter().zip(&seen).map(|(now, seen)| now - seen).collect();
                assert_eq!(more, [10, 10, 10 * (depth + 1), 20, 1]);
            }
            assert_eq!((library.function("leaf")(1, 0), returns_missed() - before), (2, 0));
            library.take(&probes);
            assert_room(&library);
        }
    }
}
