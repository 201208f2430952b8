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
//! # Your part
//! - Begin with [`selector::parse()`] and [`selector::resolve()`], then [`evlist::open`]: these and
//!   [`workload`] are the interface of a recorder. The other modules each serve one question.
//! - Drain the rings in time; the kernel counts what it drops ([`evlist::Evlist::lost`]).
//! - Show [`evlist::Note`]s, and the sentences of [`explain`] when the kernel refuses.
//!
//! # Guarantees
//! - Everything that opens events goes through the trait [`sys::Kernel`], so that refusals can be
//!   tested on a machine that refuses nothing. Unsafe code is in the files that ARCHITECTURE.md
//!   lists.
//! - What a fallback changed is a [`evlist::Note`], never silence. After an error no descriptor is
//!   left open.
//! - The texts of /proc, /sys and tracefs are read as untrusted input.
//!
//! # Non-goals
//! Draining and writing (kymo-record), the meaning of samples (kymo-profile), printing.
//!
//! # Modules
//! - Events: [`selector`] is the grammar of `-e`, resolved by [`machine`], [`pmu`] and [`tracefs`];
//!   [`evlist`] opens lists with fallbacks and maps their rings ([`ring`]); [`count`] reads
//!   counters.
//! - The machine: [`caps`] is what this process may do here, [`checklist`] the same for people,
//!   [`explain`] why the kernel refused, [`catalog`] every event. [`suggest`]: names like one that
//!   does not exist.
//! - Processes: [`proc`] reads tasks, mappings and kernel modules; [`workload`] is the command that
//!   is started; [`cgroup`] is a cgroup of its own for it; [`cpu_list`] parses `0-3,8`.
//! - In the kernel: [`bpf`] follows processes, so that events on every CPU keep only their samples;
//!   [`watch`] sets breakpoints on memory.
//! - In programs: [`user_probes`] makes tracepoints of functions, [`patched`] names processes in
//!   which these would crash, `inject` puts the agent into a running process (x86-64).
//! - [`sys`]: the one door for system calls, with a real kernel and a scripted one. [`uring`]:
//!   several writes at once.
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
pub mod event_clock;
mod event_filter;
pub mod evlist;
pub mod explain;
pub mod hotplug;
pub mod hotspot;
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
