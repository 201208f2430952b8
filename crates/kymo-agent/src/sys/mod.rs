//! The door to the operating system and the processor.
//!
//! # Safety
//! What is unsafe here is of four kinds: C functions with pointers to locals, memory that the
//! kernel maps and nobody else frees, the thread's own restartable-sequences area, which lives as
//! long as the thread, and what the kernel hands to a signal handler.
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod memory_file;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pass;
pub(crate) mod perf_event;
#[cfg(target_arch = "x86_64")]
pub(crate) mod raw;
#[cfg(target_arch = "x86_64")]
pub(crate) mod restriction;
pub(crate) mod rseq;
pub(crate) mod signal;
pub(crate) mod watchpoint;

/// Locks, also after a panic: nothing here panics halfway through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
