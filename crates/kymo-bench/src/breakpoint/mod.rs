//! `kymo bench breakpoint`: what watchpoints cost a program, and what it costs to keep account of their slots.
//!
//! `thread` and `enable` are perf's benchmarks of these names: the same work, options and output; there the kernel does the work.
//! `ledger` is kymo's own: `kymo_core::breakpoint` alone, raced against the account that kernels had before.

mod enable;
mod ledger;
mod race;
mod sweep;
mod thread;

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Subcommand;
use kymo_perf::caps;
use kymo_perf::explain::{self, Attempt};
use kymo_perf::selector::EventAttr;
use kymo_perf::sys::bindings::{HW_BREAKPOINT_LEN_1, HW_BREAKPOINT_RW};
use kymo_perf::sys::{ANY, BareThread, Descriptor, EventTarget, Kernel, Perf, Real};
use rustix::thread::futex;

use super::{Format, write_total};

/// Benchmarks of this collection.
#[derive(Debug, Subcommand)]
pub(crate) enum Breakpoint {
    Thread(thread::ThreadArgs),
    Enable(enable::EnableArgs),
    Ledger(Box<ledger::LedgerArgs>),
}

/// Runs the benchmark. `repeat` is what the verb was told; the benchmark's own option goes before it.
pub(crate) fn run(benchmark: &Breakpoint, format: Format, repeat: Option<u32>) -> anyhow::Result<ExitCode> {
    match benchmark {
        Breakpoint::Thread(args) => thread::run(args, format, repeat),
        Breakpoint::Enable(args) => enable::run(args, format, repeat),
        Breakpoint::Ledger(args) => ledger::run(args, format, repeat),
    }
}

/// As often as perf does it.
const REPEAT: u32 = 10;

/// A watchpoint of perf's benchmarks: reads and writes of one byte, in user code, by this thread and all that it makes from now on.
fn watch(byte: &u8) -> anyhow::Result<Descriptor> {
    let attr = EventAttr {
        kind: Perf::BREAKPOINT,
        bp_type: HW_BREAKPOINT_RW,
        config1: std::ptr::from_ref(byte).addr() as u64,
        config2: u64::from(HW_BREAKPOINT_LEN_1),
        exclude_kernel: true,
        exclude_hv: true,
        ..EventAttr::default()
    };
    let mut raw = attr.to_raw();
    raw.set_inherit(1);
    Real.open(&raw, &EventTarget::new(0, ANY)).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        let attempt = Attempt::new("the watchpoint", &raw, 0, ANY);
        anyhow::anyhow!("{}", explain::explain_open(errno, &attempt, &caps::probe()))
    })
}

/// What threads wait for that do nothing.
#[derive(Debug, Default)]
struct Go(AtomicU32);

impl Go {
    fn wait(&self) {
        // Acquire, here and below: pairs with the Release in give().
        while self.0.load(Ordering::Acquire) == 0 {
            // Whatever woke it, it looks again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, 0, None);
        }
    }

    fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }

    fn give(&self) -> io::Result<()> {
        self.0.store(1, Ordering::Release);
        futex::wake(&self.0, futex::Flags::PRIVATE, i32::MAX as u32)?;
        Ok(())
    }
}

/// A thread, or why there is none in words.
fn spawn(body: impl FnOnce() + Send + 'static) -> anyhow::Result<BareThread> {
    use anyhow::Context;
    BareThread::spawn(body).context("failed to create a thread; fewer threads need less")
}
