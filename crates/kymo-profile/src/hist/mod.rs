//! Tables of who took how much: rows by sort keys, with or without what they called.
//!
//! A row's *self* count is that of samples taken in it; its *total* adds, once per sample, those
//! taken in anything it called. Both follow perf: a function that is on a stack twice gains a
//! sample once, a sampled instruction is counted under its symbol and callers under their (possibly
//! inlined) frames.
mod hierarchy;
mod rows;
mod tree;

#[cfg(test)]
mod tests;

pub use hierarchy::{HierarchyNode, hierarchy};
pub use rows::{Hist, HistOptions, MAX_KEYS, Row, SortKey, UnknownSortKey};
pub(crate) use rows::{KEYS, cgroup_name, symbol_size};
pub use tree::{CallNode, CallTree, Order};
