//! Requests that cannot be meant.
use std::fmt;

/// The request itself is wrong: it is not understood, or means nothing. Nothing has been done.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Marks an error as one of the request.
pub fn usage(error: impl fmt::Display) -> anyhow::Error {
    UsageError(format!("{error:#}")).into()
}
