//! The kernel boundary of kymo: events, rings, /proc, /sys and tracefs.
//!
//! - [`sys`]: the one door for system calls, with a real kernel and a scripted one.
//! - [`evlist`]: event lists: open with fallbacks, rings, enable, disable, loss counts.
//! - [`ring`]: one mapped ring.
//! - [`proc`]: tasks, mappings and kernel modules as /proc tells them.
//! - [`selector`]: which events: the grammar of `-e`, resolved by [`machine`], [`pmu`] and [`tracefs`].
//! - [`caps`]: what this process may do here; [`explain`]: why the kernel refused, and what to run.
//! - [`catalog`]: every event of this machine; [`checklist`]: what works here, for people.
//! - [`workload`]: the command that is started to be observed.
#![deny(unsafe_code)]

pub mod caps;
pub mod catalog;
pub mod checklist;
pub mod cpu_list;
pub mod evlist;
pub mod explain;
pub mod machine;
pub mod pmu;
pub mod proc;
pub mod ring;
pub mod selector;
pub mod sys;
pub mod tracefs;
pub mod workload;
