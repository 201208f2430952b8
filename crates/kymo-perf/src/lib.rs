//! The kernel boundary of kymo: events, rings, /proc, /sys and tracefs.
//!
//! - [`sys`]: the one door for system calls, with a real kernel and a scripted one.
//! - [`evlist`]: event lists: open with fallbacks, rings, enable, disable, loss counts.
//! - [`ring`]: one mapped ring.
//! - [`proc`]: tasks, mappings and kernel modules as /proc tells them.
//! - [`workload`]: the command that is started to be observed.
#![deny(unsafe_code)]

pub mod cpu_list;
pub mod evlist;
pub mod machine;
pub mod pmu;
pub mod proc;
pub mod ring;
pub mod selector;
pub mod sys;
pub mod tracefs;
pub mod workload;
