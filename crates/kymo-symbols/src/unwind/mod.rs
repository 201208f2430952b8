//! User stacks from samples that carry registers and raw stack bytes (`--call-graph dwarf`).
//!
//! *You give* the user registers, the stack bytes and the [`AddressSpace`] of the process at that
//! moment; *it gives* the addresses of the frames, innermost first, and why the walk ended.
//! Unwinding is a function of these three and of the modules' files; nothing else is asked.
//!
//! ```text
//!  UnwindModules (one store, shared)          AddressSpace (per process, per moment)
//!  path + build id -> Module                  AVMA -> mapping -> Module + file offset
//!        | .eh_frame .eh_frame_hdr                   |
//!        | .debug_frame, machine code,              v
//!        | read on first use                         |
//!        +--------------------------------> Unwinder (one per thread)
//!                                           rules by (module, file offset), so that what one
//!                                           process taught serves every process with that file
//! ```
//!
//! # What a frame's address is
//!
//! The first address is the sampled instruction pointer. What the others are is chosen by
//! [`Convention`]: as perf prints them, for looking up symbols, or as the kernel writes them into a
//! callchain.
//!
//! # Invariants
//!
//! - I1: no input panics or loops for ever: sections, rules, registers, stack bytes and mappings
//!   are all untrusted. A walk ends after `max_frames`; an expression after a fixed number of
//!   operations.
//! - I2: nothing is allocated on the way of a sample whose rules are known.
//! - I3: every walk ends with exactly one [`Stop`], counted in [`UnwindStats`].
//!
//! # Compared with perf 6.1
//!
//! perf walks with libunwind where its build has it (Debian's does), else with libdw. On programs
//! with unwind tables the frames are the same; `tests/suite/unwind.rs` records programs and
//! compares. Where they differ:
//!
//! - perf stops or guesses where a module has no `.eh_frame_hdr` (static programs) or only
//!   `.debug_frame`; the sections are indexed here, and walks reach the root.
//! - After an `exec`, perf 6.1 can take an old mapping of a file for its base and then finds no
//!   unwind data for the file.
//! - perf's unwinder keeps rules by address alone. A return address behind a call that never
//!   returns can be the first address of the next function, and then takes that function's rule.
//! - perf stops where a register's saved copy lies below the stack pointer (an epilogue has just
//!   restored it), and before the last recorded word.
//! - A sample in the kernel's `rt_sigreturn` is behind the trampoline's last instruction, which no
//!   unwind data covers: it is recognised here.
//! - perf shows no user frame at all when a sample has registers but not one byte of stack (a
//!   process that is just starting or ending); here it has the sampled address.
//! - Without unwind data perf follows the frame pointer; it then takes the caller's stack pointer
//!   from where it was, not from the frame, and loses the frames above if those have unwind data.
//!   Here the machine code says where the caller is (`machine_code`), and the frame pointer is
//!   followed where it does not.
//! - perf gives a last frame that is mapped nowhere; here the chain ends before it.
//!
//! How many stacks are complete, by kymo and by `perf script` on the same raw recordings
//! (`bench/runs/2026-11-21-unwind-complete.txt`):
//!
//! | program | kymo | perf | the rest of kymo's |
//! |---|---|---|---|
//! | C with frame pointers | 99.82 % | 99.64 % | address not mapped |
//! | C without | 100 % | 100 % | |
//! | C without, and tables for debuggers only | 99.82 % | 0.36 % | address not mapped |
//! | C++ with exceptions | 100 % | 100 % | |
//! | Rust | 100 % | 97.87 % | |
//! | CPython, 16 KiB of stack | 83.05 % | 83.05 % | stack bytes ran out |
//!
//! # Why not framehop
//!
//! framehop is the fast unwinder of this field, and was the first plan. It is not used because of
//! what it leaves out:
//!
//! - It follows the instruction, stack and frame pointers only. A caller whose rule needs another
//!   saved register (`rbx`, or `r10` where a stack is realigned) cannot be found, and the walk ends
//!   early.
//! - Where unwind data is missing or not understood it goes on by the frame pointer, so its error
//!   tells how that ended, not the cause to be counted that I3 asks for.
//! - Its cache is by address and set of modules: many short processes with the same files share
//!   nothing. Rules here are kept by file.
//!
//! Measured side by side (`bench/runs/2026-11-21-unwind.txt`, made by `examples/unwind_speed.rs`
//! and `examples/unwind_against_perf.rs`; frames are per sample, ns per frame, caches warm):
//!
//! | recording | equal to perf | framehop: frames, ns | here: frames, ns |
//! |---|---|---|---|
//! | C, stacks of all shapes (`deep.c`) | 568 of 569; perf stops earlier in the other | 8.2, 13.6 | 9.8, 30.3 |
//! | C++ exceptions | 70 of 70 | 12.7, 26.9 | 12.7, 28.7 |
//! | 24 short processes of shells and Python, mostly in the dynamic linker | 26 of 123; in 75 perf stops earlier, in 22 it skips callers, too | 23.2, 138.0 | 23.3, 28.5 |
//!
//! In the last one perf often finds no unwind data after an `exec` (above), and nearly all of its
//! frames are among ours. It is the worst case for comparing, and shows no error of ours, but
//! proves nothing either.
//!
//! So framehop is about twice as fast where its cache holds everything, and loses every sixth frame
//! there; it is five times slower where processes come and go. The cold first rounds in that file
//! cannot be compared: the rival's modules are loaded before its clock starts.
//!
//! # Instruction sets
//!
//! x86_64 and aarch64, by [`Arch`](crate::Arch); a recording of either is unwound on any machine.
//! 32-bit tasks of x86 are walked by their machine code, and end where that says nothing. A file
//! for another machine than the recorded one is refused when it is read, see
//! [`UnwindModules::problems`].
//!
//! On aarch64 a return address may carry a signature (pointer authentication). The bits of every
//! return address above the process's address space are cleared, whatever the tables say: code
//! without tables signs, too. The innermost frame of code without tables returns to the link
//! register if a call of that code lies before it, else along the frame record.

mod call_sites;
mod compat;
mod debug_files;
mod elf;
mod expression;
mod frames;
mod generated;
mod instructions;
mod machine_code;
mod module;
mod regs;
mod rule;
mod space;
mod stack;
mod stats;
mod step;
mod unwinder;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use elf::Image;
pub use generated::{CodeRules, GeneratedCode, GeneratedFrame, UnknownCode};
pub use module::{FileId, MappedFile, Module, ModuleProblem, Opener, Seen, UnwindModules, own_vdso};
pub use regs::UserRegs;
pub use space::{AddressSpace, Mapping};
pub use stats::{Stop, UnwindStats};
pub use unwinder::{Convention, Unwinder};

/// The most frames that perf keeps of a user stack.
#[doc(alias = "PERF_MAX_STACK_DEPTH")]
pub const MAX_FRAMES: usize = 127;
