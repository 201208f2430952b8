//! The daemon as a whole, against collectors and folders that fail.
//!
//! | file | what it checks |
//! |---|---|
//! | `pushing.rs` | what a collector gets, and what is kept when it does not take it |
//! | `kills.rs` | what SIGKILL leaves |
//! | `refusals.rs` | what is not accepted, and in which words |
mod daemon;
mod fake_collector;
mod kills;
mod pushing;
mod refusals;
