//! What a function is called with: its parameters and its result, as a probe at its first instruction (or at its return) can read them.
//!
//! *You give it* a `ModuleFile` and where a function begins; *it gives you* its parameters, and for an expression over them
//! (`size`, `req->uri`, `*p`, `table[2].next`) a [`Fetch`]: the register to begin with, the pointers to follow, and how the value is shown.
//!
//! ```text
//!  debug information --routine.rs--> parameters, types      "req->uri" --fetch.rs--> Fetch { rdi, steps [8], text }
//!                         |                                                 ^
//!                         '--home.rs--> where each one is at the entry -----'
//!                              1. its location list says it of the first instruction
//!                              2. else the calling convention does (classes.rs), unless the compiler has changed the function
//! ```
//! Locations of unoptimized code are those behind the prologue: at the entry they are not true yet, and the convention is. A function that the compiler has changed
//! (`f.isra.0`, `f.constprop.0`) has a convention of its own: there only the list counts.
//!
//! # Invariants
//! - **A1** Files are untrusted: nothing in them makes this panic, loop, or allocate more than a small multiple of the bytes that were there.
//! - **A2** A value is exact or refused with a reason. A parameter after one whose passing is not known is not known either.
//! - **A3** What is answered can be read by a few loads: no expression needs more than [`MOST_STEPS`] of them.
//!
//! Known for x86-64 (System V). For Rust, whose convention is not fixed, what compilers do today is known for numbers, pointers, text, slices and values that are larger than two registers.

mod classes;
mod error;
mod fetch;
mod home;
mod list;
mod marker;
mod register;
mod routine;
mod signature;

pub use error::CallError;
pub use fetch::{Fetch, Text};
pub use list::{Part, arguments};
pub use marker::marker_arguments;
pub use register::Register;
pub use routine::{Parameter, Routine, Routines};

/// Whether a text can be an expression over parameters, whatever they are called.
///
/// # Errors
/// [`CallError::Syntax`].
pub fn check(text: &str) -> Result<(), CallError> {
    super::syntax::expression(text).map(drop).map_err(CallError::from)
}

/// Loads of one expression, without the text that it may end at.
pub const MOST_STEPS: usize = 12;
