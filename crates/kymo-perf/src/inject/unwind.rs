//! The interface to an unwinder. This crate reads no unwind tables: the caller brings an unwinder.
pub use crate::sys::ptrace::Registers;

/// The functions that a thread is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwoundStack {
    /// Where it stands, then return addresses, innermost first.
    pub addresses: Vec<u64>,
    /// The last one belongs to the function that the thread has begun in.
    pub complete: bool,
}

/// Walks the stacks of one process.
pub trait Unwind: Send {
    /// Reads what is needed of the files in a list of mappings (`/proc/PID/maps`), while the
    /// process still runs: a file may be in a file system that the process itself serves.
    fn prepare(&mut self, pid: i32, maps: &[u8]);

    /// Walks a stack by its bytes, from the stack pointer upwards. Reads no file.
    fn walk(&mut self, registers: &Registers, stack: &[u8]) -> UnwoundStack;
}
