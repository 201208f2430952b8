//! What came of an attempt to send a batch.

/// Why a batch was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It may be taken later.
    Later(String),
    /// The receiver says that it is wrong: sending it again would not help.
    Rejected(String),
}
