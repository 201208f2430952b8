//! The door to the operating system and the processor.
//!
//! # Safety
//! What is unsafe here is of three kinds: C functions with pointers to locals, memory that the kernel maps and nobody else
//! frees, and the thread's own restartable-sequences area, which lives as long as the thread.
pub(crate) mod clock;
pub(crate) mod fork;
pub(crate) mod memory_file;
pub(crate) mod perf_event;
pub(crate) mod rseq;
