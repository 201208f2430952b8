//! Rows of known waits.
