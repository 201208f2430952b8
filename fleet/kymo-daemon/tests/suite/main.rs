//! The daemon as a whole, against collectors and folders that fail.
//!
//! | file | what it checks |
//! |---|---|
//! | `pushing.rs` | what a collector gets, and what is kept when it does not take it |
//! | `grpc.rs` | the same by gRPC |
//! | `tls.rs` | the same over TLS, and which certificates are accepted |
//! | `away.rs` | that each sample arrives once when a collector or store comes back, or is counted |
//! | `off_cpu.rs` | that the time off the CPU is what the kernel says |
//! | `full_disk.rs` | that a disk without room costs those intervals only |
//! | `kills.rs` | what SIGKILL leaves |
//! | `object_store.rs` | what a bucket gets |
//! | `refusals.rs` | what is not accepted, and in which words |
mod away;
mod daemon;
mod fake_collector;
mod full_disk;
mod grpc;
mod kills;
mod object_store;
mod off_cpu;
mod pushing;
mod refusals;
mod tls;
