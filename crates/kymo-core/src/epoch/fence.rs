//! The two halves of the barrier between a reader and the writer that waits for it.
use crate::sync::{Ordering, fence, yield_now};

/// A barrier in two halves: what a reader did before [`light`](Fence::light) and what a writer did
/// before [`heavy`](Fence::heavy) is not missed by both: one of them sees the other's.
///
/// An implementation that makes a system call in `heavy` (membarrier) can make `light` nothing but
/// an order for the compiler. That is for crates that may make system calls; [`Symmetric`] needs
/// none.
pub trait Fence: Send + Sync {
    /// The reader's half. Called at every entry to a section: a few instructions at most.
    fn light(&self);

    /// The writer's half. Called twice per grace period.
    fn heavy(&self);

    /// What a writer does between two looks at a reader that is still inside; `turn` counts its
    /// looks. May sleep.
    fn pause(&self, turn: u32) {
        let _ = turn;
        yield_now();
    }
}

/// Both halves are a fence of the processor: about 5 to 20 ns for a reader, right everywhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Symmetric;

impl Fence for Symmetric {
    #[inline]
    fn light(&self) {
        // SeqCst: pairs with `heavy`.
        fence(Ordering::SeqCst);
    }

    fn heavy(&self) {
        // SeqCst: pairs with `light`.
        fence(Ordering::SeqCst);
    }
}
