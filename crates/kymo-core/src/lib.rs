//! Engines of kymo without an operating system.
//!
//! Each engine is a folder whose listing shows its evidence: `mod.rs` (contract, drawing, numbered invariants), the
//! engine, `model.rs` (the most obvious correct code, the oracle of the tests and the baseline of the benches), `tests.rs`
//! and, where threads meet, `loom.rs`.
//!
//! Nothing here makes a system call, does I/O, or reads a clock.
//!
//! - [`ring`]: the byte ring that a kernel (or an agent in a process) fills and one reader drains.
#![deny(unsafe_code)]

pub mod ring;
