//! What a recording stores, in perf's words: the settings of its events, its header, its records
//! one by one, its processes.
//!
//! Where releases of perf print differently, this is the form of the newest one.
mod attr;
mod header;
mod raw;
mod record;
mod tasks;

pub use attr::{EventList, write_events};
pub(crate) use header::civil;
pub use header::write_header;
pub use raw::write_raw;
pub use record::record_line;
pub use tasks::write_tasks;

/// Why a dump was not printed.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The recording could not be read.
    #[error(transparent)]
    Read(#[from] kymo_data::ReadError),
    /// The text could not be written.
    #[error("failed to write the dump")]
    Write(#[from] std::io::Error),
}
