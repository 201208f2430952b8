//! What the code generator must know of the process: addresses and offsets that become part of the
//! code.

/// What emitting gives.
pub(crate) type Emitted = Result<(), iced_x86::IcedError>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CodegenContext {
    /// The table of the CPUs' counters.
    pub(crate) table: u64,
    /// From the thread pointer to the thread's `struct rseq`.
    pub(crate) rseq: i32,
    /// From the thread pointer to the word that points to the top of the thread's shadow stack.
    pub(crate) top: i32,
    /// Nanoseconds of one tick of the time stamp counter, times 2^32.
    pub(crate) tick: u64,
    /// Code near the stub that calls the functions below.
    pub(crate) calls: CallTargets,
}

/// Where the ways into functions of this crate are (`callout.rs`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallTargets {
    pub(crate) enter: u64,
    pub(crate) leave: u64,
    pub(crate) adopt: u64,
    pub(crate) handle: u64,
    pub(crate) acquired: u64,
    pub(crate) released: u64,
}
