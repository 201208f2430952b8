//! The kernel boundary of kymo: events, rings, /proc, /sys and tracefs.
#![deny(unsafe_code)]

pub mod machine;
pub mod pmu;
pub mod selector;
pub mod tracefs;
