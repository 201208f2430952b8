//! The program's first thread, which waits in the agent's constructor until the probes are in
//! place.
//!
//! ```text
//!   COMES --here-->  WAITS  --writer-->  WRITES  --written-->  WAITS
//!     |                |                 nobody is to be feared in between
//!     '----------------'--Go, the tracer's end, or too long-->  RUNS
//! ```
//! At `Go` the agent's thread ends, and the first thread waits until it is gone: what a program may
//! do only with one thread, it may do then (`unshare(CLONE_NEWUSER)`). And the C library carries
//! out a change of user in all threads, and ends the program if the results differ: a thread of
//! ours does not have the capabilities that the program has given to its own thread alone.
//!
//! It waits in a system call of its own, so it stands in no site of any library. Nothing is written
//! before it is here, where what it calls is not counted.
use crate::sys::clock::own_tid;
use crate::sys::raw;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const RUNS: u32 = 0;
const WAITS: u32 = 1;
const WRITES: u32 = 2;
const COMES: u32 = 3;

/// A tracer that takes longer is in trouble, and the program is not to be.
const TRACER_TIMEOUT: Duration = Duration::from_secs(10);

/// A thread with nothing left to do takes no longer to end.
const END_TIMEOUT: Duration = Duration::from_secs(2);

static STATE: AtomicU32 = AtomicU32::new(RUNS);
/// The agent's thread, when it is about to end; or 0.
static ENDS: AtomicI32 = AtomicI32::new(0);

/// Before there is anybody who could let it run.
pub(super) fn will_wait() {
    // Relaxed: the thread that reads it is made after this.
    STATE.store(COMES, Ordering::Relaxed);
}

/// Returns when the program may run.
pub(super) fn wait() {
    // Release: pairs with the Acquire in hold(). If it may run already, it does.
    _ = STATE.compare_exchange(COMES, WAITS, Ordering::Release, Ordering::Relaxed);
    raw::wake(&STATE);
    let until = Instant::now() + TRACER_TIMEOUT;
    loop {
        // Acquire: pairs with the Release in let_run() and release(): the code that runs now is
        // what was written.
        let state = STATE.load(Ordering::Acquire);
        if state == RUNS {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        // Who writes is waited for: it ends by itself.
        let gives_up = state == WAITS && left.is_zero();
        if gives_up && STATE.compare_exchange(WAITS, RUNS, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        raw::wait_while(&STATE, state, left.clamp(Duration::from_millis(10), Duration::from_secs(1)));
    }
}

/// It runs from here on.
pub(super) fn let_run() {
    // Release: pairs with the Acquire in wait().
    STATE.store(RUNS, Ordering::Release);
    raw::wake(&STATE);
}

/// It runs when the agent's thread, which calls this and ends, is gone.
pub(super) fn let_go() {
    // Relaxed: published by the Release in let_run().
    ENDS.store(own_tid(), Ordering::Relaxed);
    let_run();
}

/// After [`wait`]: waits until the agent's thread is gone, if it ends now. Not by joining it: a
/// thread that ends may need a lock of the dynamic linker, which has called us.
pub(super) fn wait_for_end() {
    let tid = ENDS.load(Ordering::Relaxed);
    let until = Instant::now() + END_TIMEOUT;
    let is_there = || std::fs::exists(format!("/proc/self/task/{tid}")).unwrap_or(false);
    while tid != 0 && is_there() && Instant::now() < until {
        std::thread::yield_now();
    }
}

/// It, as somebody who holds it would.
#[derive(Debug)]
pub(super) struct StartupGate;

impl crate::patch::Hold for StartupGate {
    fn hold(&mut self, _: &crate::patch::Request<'_>) -> Result<(), String> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        if threads != 2 {
            return Err("a library of the program has made threads before it began".to_owned());
        }
        // The making of this thread comes to its end.
        while STATE.load(Ordering::Relaxed) == COMES {
            raw::wait_while(&STATE, COMES, Duration::from_millis(10));
        }
        // Acquire: as if it had been stopped here.
        match STATE.compare_exchange(WAITS, WRITES, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => Err("the program runs already".to_owned()),
        }
    }

    fn holds(&self) -> bool {
        true
    }

    fn release(&mut self) {
        // Release: pairs with the Acquire in wait().
        STATE.store(WAITS, Ordering::Release);
        raw::wake(&STATE);
    }
}
