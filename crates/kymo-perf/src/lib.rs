//! The kernel boundary of kymo: events, rings, /proc, /sys and tracefs.
//!
//! *You give it* what a person wrote (`-e cycles:u`, a process id, a command); *it gives you* open
//! events with mapped rings, what was there before (tasks, mappings, kernel modules), and for every
//! refusal of the kernel the reason and what to do about it.
//!
//! ```text
//!  "cycles:u,{a,b}" --selector--> attrs --evlist--> descriptors --ring--> Area (kymo-core) --> who drains it
//!                       |                    |
//!                    machine, pmu, tracefs   +--refused--> explain, caps --> a sentence and a command
//! ```
//!
//! # Guarantees
//! - Unsafe code is in `sys/`, `ring.rs`, `workload.rs`, `uring.rs`, `bpf/sys.rs` and
//!   `watch/entry.rs` only. Everything that opens events goes through the trait [`sys::Kernel`], so
//!   that refusals can be tested on a machine that refuses nothing.
//! - What a fallback changed is a [`evlist::Note`], never silence. After an error no descriptor is
//!   left open.
//! - The texts of /proc, /sys and tracefs are read as untrusted input.
//!
//! # Non-goals
//! Draining and writing (kymo-record), printing: sentences are returned, the binary prints them.
//!
//! # Modules
//! - [`sys`]: the one door for system calls, with a real kernel and a scripted one.
//! - [`evlist`]: event lists: open with fallbacks, rings, enable, disable, loss counts.
//! - [`ring`]: one mapped ring.
//! - [`proc`]: tasks, mappings and kernel modules as /proc tells them. [`cpu_list`]: `0-3,8`.
//! - [`selector`]: which events: the grammar of `-e`, resolved by [`machine`], [`pmu`] and
//!   [`tracefs`].
//! - [`caps`]: what this process may do here; [`explain`]: why the kernel refused, and what to run.
//! - [`catalog`]: every event of this machine; [`checklist`]: what works here, for people.
//! - [`user_probes`]: tracepoints in programs. [`patched`]: processes in which these would crash.
//! - [`workload`]: the command that is started to be observed; [`cgroup`]: a cgroup of its own for
//!   it.
//! - [`count`]: counters that are read instead of sampled, and what the kernel accounts anyway.
//! - `inject`: the agent's library into a running process, and the conversation with it (x86-64).
//! - [`uring`]: writes to a file that the kernel does by itself, several at once.
//! - [`watch`]: breakpoints on memory: planned with the ledger of slots, in turns, on every thread.
//! - [`bpf`]: following processes in the kernel, so that events on every CPU keep only their
//!   samples.
//!
//! # Example
//! What becomes of `cycles` on a machine without hardware counters? The scripted kernel has none.
//!
//! ```
//! use kymo_perf::evlist::{self, EvlistPlan, OpenEngine, Request, Targets};
//! use kymo_perf::sys::{Fake, Perf, attr_zeroed};
//! use std::sync::Arc;
//!
//! let mut attr = attr_zeroed();
//! (attr.type_, attr.config) = (Perf::HARDWARE, Perf::HW_CPU_CYCLES);
//! let plan = EvlistPlan { events: vec![Request::new("cycles", attr)], targets: Targets::tasks(vec![10, 11], &[0, 1]) };
//! let list = evlist::open(Arc::new(Fake::new().without_pmu()), plan, OpenEngine::Auto)?;
//! assert_eq!(list.descriptors(), 4); // two tasks on two CPUs
//! assert_eq!(list.events[0].request.name, "cpu-clock");
//! assert_eq!(list.notes.len(), 1); // and it says so
//! # Ok::<(), kymo_perf::evlist::OpenError>(())
//! ```
#![deny(unsafe_code)]

pub mod bpf;
pub mod caps;
pub mod catalog;
pub mod cgroup;
pub mod checklist;
pub mod count;
pub mod cpu_list;
pub mod evlist;
pub mod explain;
#[cfg(target_arch = "x86_64")]
pub mod inject;
pub mod machine;
pub mod patched;
pub mod pmu;
pub mod proc;
pub mod ring;
pub mod selector;
pub mod suggest;
pub mod sys;
pub mod tracefs;
pub mod uring;
pub mod user_probes;
pub mod watch;
pub mod workload;
