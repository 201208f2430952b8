//! User stacks from samples that carry registers and raw stack bytes (`--call-graph dwarf`).
//!
//! *You give* the user registers, the stack bytes and the [`AddressSpace`] of the process at that moment; *it gives*
//! the addresses of the frames, innermost first, and why the walk ended. Unwinding is a function of these three and
//! of the modules' files; nothing else is asked.
//!
//! ```text
//!  UnwindModules (one store, shared)          AddressSpace (per process, per moment)
//!  path + build id -> Module                  AVMA -> mapping -> Module + file offset
//!        | .eh_frame .eh_frame_hdr                   |
//!        | .debug_frame, read on first use           v
//!        +--------------------------------> Unwinder (one per thread)
//!                                           rules by (module, file offset), so that what one
//!                                           process taught serves every process with that file
//! ```
//!
//! # What a frame's address is
//!
//! The first address is the sampled instruction pointer. What the others are is chosen by [`Convention`]: as perf
//! prints them, for looking up symbols, or as the kernel writes them into a callchain.
//!
//! # Invariants
//!
//! - I1: no input panics or loops for ever: sections, rules, registers, stack bytes and mappings are all untrusted.
//!   A walk ends after `max_frames`; an expression after a fixed number of operations.
//! - I2: nothing is allocated on the way of a sample whose rules are known.
//! - I3: every walk ends with exactly one [`Stop`], counted in [`UnwindStats`].
//!
//! # Compared with perf 6.1
//!
//! perf walks with libunwind where its build has it (Debian's does), else with libdw. The rules followed here are
//! those of the ABI; where libunwind gives up although the data is there, this goes on:
//! the last word of the recorded stack is used; a register whose saved copy lies below the stack pointer (an epilogue
//! has just restored it) keeps its value; modules without `.eh_frame_hdr` are indexed; memory without unwind data is
//! followed by frame pointers with the caller's stack pointer set right.
//!
//! x86_64 only. For other machines a module is refused when it is read, see [`UnwindModules::problems`]; an aarch64
//! register file and rule set would stand beside [`UserRegs`] and the rules.

mod elf;
mod expression;
mod frames;
mod module;
mod regs;
mod rule;
mod space;
mod stats;
mod unwinder;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use elf::Image;
pub use module::{Module, ModuleProblem, Opener, UnwindModules};
pub use regs::UserRegs;
pub use space::{AddressSpace, Mapping};
pub use stats::{Stop, UnwindStats};
pub use unwinder::{Convention, Unwinder};

/// The most frames that perf keeps of a user stack.
#[doc(alias = "PERF_MAX_STACK_DEPTH")]
pub const MAX_FRAMES: usize = 127;
