//! The part of kymo that lives inside a program.
//!
//! *You give* it a call where your program switches tasks, or let it wrap your futures. *It gives*
//! numbers per task and per group of tasks, read inside the program or shown by
//! `kymo stat --tasks -p PID` from outside.
//!
//! # Modules
//! - [`task`]: groups, tasks, futures as tasks, switches; what is counted and how.
//! - [`alloc`]: an allocator that counts for tasks.
//! - [`fence`]: the barrier that makes reading for `kymo_core::probe` free.
//! - `patch`: probes of functions, on x86-64.
//! - [`watch`]: a handler that is called at every access to some bytes, by any thread.
//! - `trigger`: functions to be hit, for benches.
//! - [`table`]: what other processes see of them, in bytes.
//!
//! Other languages find the same in `include/kymo.h`.
//!
//! # Kernel and architecture
//! Linux, 64 bits. CPU time without system calls needs restartable sequences (Linux 4.18, glibc
//! 2.35) on x86-64 or aarch64; elsewhere it costs a system call when a turn lasts longer than some
//! microseconds. Counters of the processor are read in user code on x86-64.
#![deny(unsafe_code)]

pub mod alloc;
mod capi;
#[cfg(target_arch = "x86_64")]
mod control;
pub mod fence;
#[cfg(target_arch = "x86_64")]
pub mod patch;
mod sys;
pub mod table;
pub mod task;
#[cfg(target_arch = "x86_64")]
pub mod trigger;
pub mod watch;
