//! Watches: from a place in a program to the accesses of all its threads, in their order.
//!
//! ```text
//!  place     what the user wrote -> address, length, type, read with the target's memory
//!  target    the processes, or the command, held until everything is armed
//!  rounds    records of all rings -> accesses in their order
//!  ledger    accesses -> values before and after, counts by instruction; condition: which of them count
//!  names     instruction and caller of an access, in words
//!  recording the same accesses as a perf.data file
//! ```
//! Registers are planned and events opened by [`kymo_perf::watch`].
pub mod condition;
pub mod ledger;
pub mod names;
pub mod place;
pub mod recording;
pub mod rounds;
pub mod target;
