//! Stubs that need nothing of this crate in the program: no C library, no thread-local memory, no
//! function to call but what is written beside them. A tracer writes them into programs that
//! cannot load the agent, and the agent uses them to time calls where they end
//! (`install/call_sites.rs`).
//!
//! ```text
//!  at a function's begin            at an exit               routines, once for all stubs
//!   [unless a forked child]          moved: add rsp, 8         enter: (identity, depth, now) into
//!   lock inc hits                           pop rbx                   a free slot of the table
//!   [call enter]                     call leave                leave: finds the slot, frees it,
//!   moved: push rbp ..               moved: ret                       a bucket of the site += 1
//!   jmp behind them
//! ```
//! Where only some hits are counted, the comparisons of `predicate.rs` come first. A call that is
//! not to be timed is forgotten at its begin, or at its end: otherwise what a call before it at the
//! same place has left would count as its begin.
//!
//! In Go the check of the stack comes first, because a function begins anew after its stack has
//! grown, and nothing may be below the stack pointer before it.
//!
//! # How a call is known
//! | convention | identity | depth |
//! |---|---|---|
//! | C | the stack pointer where the frame begins, and the site | 1 |
//! | Go | the goroutine (r14), and the site | from the frame's begin to the stack's upper end |
//!
//! The table is an array of buckets of eight slots. A slot is taken by `lock cmpxchg` of
//! its identity, by the only thread that can have that identity then. Where a bucket is full, the
//! call is counted as missed. A call that never returned leaves its slot to the next one at the
//! same place.
//!
//! ```text
//!   stub.rs     the stub of a site
//!   calls.rs    the table of calls that are under way, and its routines
//!   callers.rs  the table of callers, and its routine
//!   events.rs   events in rings that all threads write
//!   go.rs       what may be moved in Go's code
//! ```
//!
//! # Invariants
//! - **F1** No register changes. In C no flag does, and nothing in the red zone. In Go flags are
//!   dead where a stub changes them: at a function's begin, behind the check, at its exits.
//! - **F2** In Go no return address into a stub is on a goroutine's stack when the runtime may walk
//!   it: it cannot stop a goroutine in code that it does not know.
//! - **F3** In Go no instruction is moved that can fault ([`FreestandingError::Faults`]): the
//!   runtime looks up in which function a fault was.
mod callers;
mod calls;
mod events;
mod go;
mod stub;
#[cfg(test)]
mod tests;

pub use callers::{CallerCount, CallerTable, callers_routine};
pub use calls::{CALL_TABLE_BYTES, CallCounts, CallTable, RoutineAddresses, routines};
pub use events::{EventRings, StubEvent, slot_bytes};
pub use stub::{FreestandingSpec, HitCounter, StubEvents, freestanding_stub};

use super::context::Emitted;
use crate::patch::install::refusal::Refusal;
use iced_x86::code_asm::{CodeAssembler, r8, rdi, rdx, rsi};
use std::fmt;

/// More sites than this have no number in an identity.
pub const MOST_TIMED_SITES: u32 = 1 << 16;
/// Spreads identities over the buckets: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// What may lie below the stack pointer of C code.
const RED_ZONE: i32 = 128;
/// What a stub keeps before it calls a routine (`stub.rs`), and the return address.
const STUB_KEEPS: i32 = 3 * 8 + 8;
/// What a routine keeps.
const ROUTINE_KEEPS: i32 = 4 * 8;

/// Whose rules the code at a site keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// The processor's ABI: a red zone, and a stack that does not move.
    C,
    /// Go's.
    Go,
}

impl Convention {
    /// From the stack pointer in a routine, behind [`keep`], to where the frame of the function
    /// begins, which is where its return address is.
    fn frame_at(self) -> i32 {
        match self {
            Convention::C => ROUTINE_KEEPS + STUB_KEEPS + RED_ZONE,
            Convention::Go => ROUTINE_KEEPS + STUB_KEEPS,
        }
    }
}

/// A routine's begin: keeps what it uses besides rax and rcx, which its caller keeps.
fn keep(a: &mut CodeAssembler) -> Emitted {
    a.push(rdx)?;
    a.push(rsi)?;
    a.push(rdi)?;
    a.push(r8)
}

/// A routine's end.
fn finish(a: &mut CodeAssembler) -> Emitted {
    a.pop(r8)?;
    a.pop(rdi)?;
    a.pop(rsi)?;
    a.pop(rdx)?;
    a.ret()
}

/// Why a site cannot have such a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreestandingError {
    /// Go's runtime would look up a fault of this instruction, and not find its function.
    Faults(u64),
    /// An instruction of this site, or a stub, does not reach what it needs.
    OutOfReach(u64),
    /// A call ends here by a jump to another function, and what that one returns is not known yet.
    NoReturn(u64),
}

impl fmt::Display for FreestandingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreestandingError::Faults(at) => write!(
                f,
                "the instruction at {at:#x} may fault, and Go's runtime looks up where in a function that was"
            ),
            FreestandingError::OutOfReach(at) => {
                write!(f, "the code at {at:#x} does not reach what it needs from another place")
            }
            FreestandingError::NoReturn(at) => Refusal::EndsByJump { at: *at }.fmt(f),
        }
    }
}

impl std::error::Error for FreestandingError {}
