//! The one atomic type of the ring, from the standard library or from loom.
#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;

pub(super) use std::sync::atomic::Ordering;
