//! What a recording stores, in perf's words: the settings of its events, its records one by one, its processes.
//!
//! Where releases of perf print differently, this is the form of the newest one.
mod attr;

pub use attr::{EventList, write_events};
