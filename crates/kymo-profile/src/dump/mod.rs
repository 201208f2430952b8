//! What a recording stores, in perf's words: the settings of its events, its header, its records
//! one by one, its processes.
//!
//! Where releases of perf print differently, this is the form of the newest one.
mod attr;
mod header;
mod record;
mod tasks;

pub use attr::{EventList, write_events};
pub(crate) use header::civil;
pub use header::write_header;
pub use record::record_line;
pub use tasks::write_tasks;
