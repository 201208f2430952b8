//! Why a recording could not be made.
use crate::output::OutputError;
use crate::plan::PlanError;
use kymo_perf::evlist::{OpenError, RingError};
use std::io;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A ring could not be mapped.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output could not be made ready.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The scope that was asked for is not possible.
    #[error(transparent)]
    Scope(#[from] PlanError),
    /// The command could not be executed.
    #[error("failed to execute {command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The memory that is allowed is not enough.
    #[error(
        "{rings} rings of {ring_bytes} bytes and two buffers for each CPU need {needed} bytes, --max-memory allows {most}: allow more, or use smaller rings (-m)"
    )]
    Memory {
        /// How many rings.
        rings: usize,
        /// The size of each.
        ring_bytes: usize,
        /// What would do.
        needed: u64,
        /// What is allowed.
        most: u64,
    },
    /// Something that usually works did not.
    #[error("failed to {action}: {source}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// An error of the system, with what was being done.
pub(crate) fn system(action: &'static str) -> impl Fn(io::Error) -> RecordError {
    move |source| RecordError::System { action, source }
}
