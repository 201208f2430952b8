//! The one atomic type of the ring, from the standard library or from loom.
#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;

#[cfg(loom)]
pub(super) use loom::sync::atomic::fence;
pub(super) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::fence;
