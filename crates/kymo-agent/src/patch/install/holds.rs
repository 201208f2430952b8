//! The memory in which holds of locks are added up: the tracer's, while it is there.
use crate::patch::clock::tick;
use crate::patch::mapping::Mapping;
use crate::patch::os;
use crate::patch::runtime::holds::{self, Observation};
use crate::sys::{fork, lock, memory_file, rseq};
use kymo_core::holds::TABLE_BYTES;
use std::fs::File;
use std::io;
use std::sync::Mutex;

/// Addresses that stay for good: a thread may be in a stub that knows them.
#[derive(Clone, Copy, Debug)]
struct HoldMemory {
    table: Mapping,
    /// A page that a forked child finds empty.
    own: Mapping,
}

static MEMORY: Mutex<Option<HoldMemory>> = Mutex::new(None);

/// Adds holds up in a tracer's file from now on. `children`: so does what this process forks.
///
/// # Errors
/// Where the file is not as it was said to be, or memory or address space are short.
pub fn share(file: &File, children: bool) -> io::Result<()> {
    memory_file::check(file, TABLE_BYTES)?;
    let cpu_at = rseq::offset().ok_or_else(|| io::Error::other("the C library registers no rseq area"))?;
    let tick = tick();
    let mut memory = lock(&MEMORY);
    let memory = match *memory {
        Some(memory) => memory,
        None => {
            let made = HoldMemory { table: Mapping::reserve(TABLE_BYTES)?, own: Mapping::zeros(4096)? };
            made.own.on_fork(false)?;
            *memory.insert(made)
        }
    };
    memory.table.share(file, 0)?;
    holds::begin(Observation {
        table: memory.table.address(),
        own: memory.own.word(0),
        tick,
        cpu_at,
        no_cpu: os::possible_cpus() as u32,
        children,
    });
    Ok(())
}

/// Gives the tracer's memory back. What a thread adds that is in a stub now, nobody reads.
pub(crate) fn release() {
    // In a forked child the lock may be taken for good.
    if fork::is_child() {
        return;
    }
    holds::end();
    if let Some(memory) = *lock(&MEMORY) {
        memory.table.zero();
    }
}
