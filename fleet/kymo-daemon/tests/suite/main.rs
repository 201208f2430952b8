//! The daemon as a whole, against collectors and folders that fail.
//!
//! | file | what it checks |
//! |---|---|
//! | `pushing.rs` | what a collector gets, and what is kept when it does not take it |
//! | `grpc.rs` | the same by gRPC |
//! | `kills.rs` | what SIGKILL leaves |
//! | `object_store.rs` | what a bucket gets |
//! | `refusals.rs` | what is not accepted, and in which words |
mod daemon;
mod fake_collector;
mod grpc;
mod kills;
mod object_store;
mod pushing;
mod refusals;
