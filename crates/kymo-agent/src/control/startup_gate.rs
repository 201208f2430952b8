//! The program's first thread, which waits in the agent's constructor until the probes are in
//! place.
//!
//! ```text
//!   WAITS  --writer-->  WRITES  --written-->  WAITS        the writer of sites has nobody to fear in between
//!     |
//!     '--Go, the tracer's end, or too long-->  RUNS
//! ```
//! It waits in a system call of its own, so it stands in no site of any library.
use crate::sys::raw;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const RUNS: u32 = 0;
const WAITS: u32 = 1;
const WRITES: u32 = 2;

/// A tracer that takes longer is in trouble, and the program is not to be.
const TRACER_TIMEOUT: Duration = Duration::from_secs(10);

static STATE: AtomicU32 = AtomicU32::new(RUNS);

/// Before there is anybody who could let it run.
pub(super) fn will_wait() {
    // Relaxed: the thread that reads it is made after this.
    STATE.store(WAITS, Ordering::Relaxed);
}

/// Returns when the program may run.
pub(super) fn wait() {
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

/// It, as somebody who holds it would.
#[derive(Debug)]
pub(super) struct StartupGate;

#[cfg(target_arch = "x86_64")]
impl crate::patch::Hold for StartupGate {
    fn hold(&mut self, _: &crate::patch::Request<'_>) -> Result<(), String> {
        let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
        if threads != 2 {
            return Err("a library of the program has made threads before it began".to_owned());
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
