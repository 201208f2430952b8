//! Probes that look at returns, in threads that signals interrupt at each instruction of the stubs.
#![allow(unsafe_code)]
use super::library::Library;
use kymo_agent::patch::{Consumers, DEPTH, Probe, returns_missed};

/// What the handler does, and on which stack, as in `stepped.cc`.
const JUMPS: u64 = 1;
const JUMPS_BELOW: u64 = 2;
const LOW: u64 = 4;
const HIGH: u64 = 8;
const ABANDONED: u64 = 16;

/// Steps through `leaf` or `lands` with each of these, and asserts that no more than `most` returns
/// were missed: entries that stay would leave no room for the recursion at the end.
fn step(test: &str, which: u64, stride: usize, most: u64, ways: &[u64]) {
    let Some(library) = Library::of(test, "stepped.cc", &["-pthread"]) else { return };
    let names = ["leaf", "recurses", "jumps", "lands", "leaves"];
    // SAFETY: its type there.
    let step: extern "C" fn(i32, i32, i32) -> i64 =
        unsafe { std::mem::transmute(library.function("step") as usize) };
    for consumers in [Consumers::CountReturns, Consumers::Latency] {
        for &way in ways {
            let before = returns_missed();
            let probes = library.put(&names, consumers);
            let steps = step(which as i32, way as i32, stride as i32);
            let returns: Vec<_> = probes.iter().map(|probe| probe.returns().expect("looked at")).collect();
            library.take(&probes);
            if steps == -2 {
                return kymo_testing::skip(test, "this thread's restartable sequences cannot be taken away");
            }
            let missed = returns_missed() - before;
            assert!(steps > 40, "{way}: {steps} steps, {missed} missed");
            let hits: Vec<_> = probes.iter().map(Probe::hits).collect();
            assert!(
                missed <= most,
                "{way}: {missed} missed, {steps} steps, {hits:?} hits, {returns:?} returns"
            );
            assert_eq!(returns[1] + missed, hits[1], "{way}: {steps} steps");
            assert!(returns[1] >= DEPTH as u64, "{way}");
        }
    }
}

/// Checks that handlers which return leave nothing behind, wherever they interrupt a call and on
/// whatever stack they run.
#[test]
fn handlers_that_return_leave_nothing() {
    step("stepped::handlers_that_return_leave_nothing", 0, 50, 0, &[0, LOW, HIGH]);
}

/// Checks the same where a handler finds what a longjmp has left before, while the interrupted call
/// takes it for alive.
#[test]
fn handlers_that_return_leave_nothing_of_what_was_abandoned() {
    let ways = [ABANDONED, ABANDONED | LOW, ABANDONED | HIGH];
    step("stepped::handlers_that_return_leave_nothing_of_what_was_abandoned", 0, 10, 0, &ways);
}

/// Checks that handlers which jump out of a call leave nothing behind that stays, wherever they
/// interrupt it.
#[test]
fn handlers_that_jump_leave_nothing() {
    let ways = [JUMPS, JUMPS | LOW, JUMPS | HIGH, JUMPS_BELOW, JUMPS_BELOW | LOW];
    step("stepped::handlers_that_jump_leave_nothing", 0, 50, 0, &ways);
}

/// Checks that what is left on a signal stack above the thread's own, where calls of the thread
/// cannot tell it from their callers, stays as little as the handler left at one time.
#[test]
fn handlers_that_jump_from_above_leave_one() {
    step("stepped::handlers_that_jump_from_above_leave_one", 0, 50, 1, &[JUMPS_BELOW | HIGH]);
}

/// Checks the same where calls of the agent's functions are interrupted, which forget what a
/// longjmp has left.
#[test]
fn handlers_in_the_midst_of_forgetting() {
    let ways = [0, HIGH, JUMPS, JUMPS | HIGH, JUMPS_BELOW | LOW];
    step("stepped::handlers_in_the_midst_of_forgetting", 1, 4, 0, &ways);
}
