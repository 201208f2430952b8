//! Places to watch: from what a person writes to an address, and from a trap back to the instruction that caused it.
//!
//! *You give it* `EXPR[:len][:r|w|rw|x]` and a [`Target`] (modules with their files, memory to follow pointers); *it gives
//! you* a [`Watch`] (address, length, access, type, how to print the value) or one sentence that says why not.
//!
//! ```text
//!  "queue.head->next:8:w" ──parse──▶ Request ──resolve──▶ Watch { avma, len_bytes, access, ... } ──pieces──▶ registers
//!                                                │ symbols, DWARF types of the modules' files
//!                                                └ memory: pointers are followed once, now
//!  trap at 0x401136 ──accessing_instruction──▶ 0x40112f: mov %eax,0x2ee3(%rip)
//! ```
//!
//! What is understood, in C, C++ and Rust:
//! - `0x404040`, `symbol`, `symbol+0x10`, `'any symbol(int)'`, `crate::module::STATIC`, `ns::Class::member`, `file.c:name`;
//! - `variable.field.field`, `tuple.0`, `array[3]`, `a->b`, `*pointer`, `*(pointer).field`, with and without parentheses;
//! - a field through a pointer (`p.x`) follows it, as `->` does; so do those of smart pointers (`Box`, `Arc`, `std::unique_ptr`);
//! - elements of slices, `Vec`, `std::vector`, `std::array`; fields of enums by variant (`state.Busy.0`) or of the one that is there (`state.0`).
//!
//! Without a length the whole object is meant; without an access, `w` for data and `x` for functions. `r` becomes `rw`.
//!
//! # How to use it
//! 1. [`parse`] each argument: errors of spelling come before anything is touched.
//! 2. Make the [`Target`]: [`ModuleFile::open`] for each file that is mapped, [`modules_of`] to place them. For a program
//!    that does not run yet, its file with bias 0 answers whether names exist; resolve again after the exec for addresses.
//! 3. [`resolve()`] when the target has filled its pointers. [`Watch::pieces`] are what registers can hold.
//! 4. For a hit, [`accessing_instruction`] with the code of the function that [`Module`]'s symbols give for the trap.
//!
//! # Invariants
//! - **I1** Files and memory of the target are untrusted: nothing in them makes this panic, loop, or allocate more than a
//!   small multiple of the bytes that were really there.
//! - **I2** A place is exact or refused: where the answer would be a guess (several variables of a name, a thread-local),
//!   the error says so and lists what to write.
//! - **I3** No memory is read unless the expression follows a pointer, asks for an element of a container or for a field of an enum.
//! - **I4** What is read of the debug information grows with the units that have the name, not with all of it (`scan.rs`).

mod access;
pub mod call;
mod debug;
mod error;
mod field;
mod module;
mod near;
mod owner;
mod request;
mod resolve;
mod scan;
mod steps;
mod symbol;
mod syntax;
mod types;
mod value;
mod variable;
mod watch;

pub use access::{accessing_instruction, is_exclusive};
pub use error::{Candidate, ResolveError};
pub use module::{Mapping, Module, ModuleFile, Target, modules_of};
pub use owner::{DataAt, data_at};
pub use request::{Access, Request};
pub use resolve::resolve;
pub use syntax::{SyntaxError, parse};
pub use value::ValueKind;
pub use watch::{SymbolAt, Watch};
