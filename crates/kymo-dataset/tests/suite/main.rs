//! Datasets that are made of real recordings, and read again.
//!
//! | file | checks |
//! |---|---|
//! | `sums.rs` | sums over the tables are those of the report; sizes |
//! | `intervals.rs` | rows of a daemon, which are sums of an interval |
//! | `symbols.rs` | names that are found later |
//! | `generated.rs` | the fleet of `examples/fleet`, which is compiled in here, too |
//! | `compacted.rs` | the same rows in fewer files |
//! | `in_place.rs` | the same, in place: kills, other compactors, readers, files that come again |
//! | `memory_store.rs` | an object store in memory, with steps |
//! | `hostile.rs` | files that are damaged, or not ours |
#![allow(missing_docs)]

#[path = "../../examples/fleet/arguments.rs"]
mod arguments;
mod compacted;
#[path = "../../examples/fleet/fleet.rs"]
mod fleet;
mod generated;
mod hostile;
mod in_place;
mod intervals;
mod memory_store;
#[path = "../../examples/fleet/program.rs"]
mod program;
mod query;
mod sums;
mod symbols;
