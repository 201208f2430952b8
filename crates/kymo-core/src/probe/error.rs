//! Why a consumer was not registered.
use super::key::Key;
use std::fmt;

/// A registration that did not happen. Nothing is left of it after the next
/// [`synchronize`](super::Registry::synchronize).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of fields say what they are")]
pub enum Error<R> {
    /// The site cannot be armed.
    Refused { key: Key, reason: R },
    /// The probe is there already, with another semaphore. Both by their offsets.
    OtherSemaphore { key: Key, has: Option<u64>, asked: Option<u64> },
    /// The site could not be restored earlier; nobody knows what is there.
    Broken { key: Key },
}

impl<R: fmt::Debug> fmt::Display for Error<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |offset: &Option<u64>| offset.map_or("none".to_owned(), |offset| format!("{offset:#x}"));
        match self {
            Error::Refused { key, reason } => write!(f, "the site of {key} cannot be armed: {reason:?}"),
            Error::OtherSemaphore { key, has, asked } => write!(
                f,
                "{key} is probed with semaphore {}, not {}: a place has one; name the same one",
                name(has),
                name(asked)
            ),
            Error::Broken { key } => write!(
                f,
                "{key} could not be restored after an earlier probe; restart the program to probe it"
            ),
        }
    }
}

impl<R: fmt::Debug> std::error::Error for Error<R> {}
