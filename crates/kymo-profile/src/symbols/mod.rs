//! Names for addresses: symbol tables, inline frames and source lines.
//!
//! You give it a module ([`ModuleKey`]) and an address in that module's own address space; it gives you the
//! symbol that `perf report` and `perf script` would print for it, so that per-symbol sample counts can be
//! compared number by number.
//!
//! ```text
//!  ModuleKey --SymbolStore::get--> Arc<ModuleSymbols> --find(addr)--> SymbolRef { start, end, name }
//!                |  locate: build-id cache, debuglink, debug dirs, the file itself
//!                |  elf + plt | kallsyms | perf_map | vdso     (one loader per kind)
//!                +--> SymbolTable: sorted starts, names in one arena
//!                                                   --inline_frames(addr)--> function, file, line
//! ```
//!
//! [`sites`] goes the other way: from names, lines and markers to places in files, for probes.
//!
//! Address spaces, because perf uses three of them:
//! - ELF user modules and the vdso: FILE OFFSETS (`ip - mapping.start + mapping.pgoff`);
//! - the kernel, kernel modules and perf maps: absolute addresses, as sampled.
//!
//! Invariants:
//! - **I1** A table answers like perf's: the same candidates, the same choice between aliases, the same ends;
//!   where ranges overlap, the answer is the one that perf's search tree would reach first.
//! - **I2** No input makes a loader panic, or take more memory and work than [`Budget`] gives for the bytes that the file
//!   system stores of it.
//! - **I3** What could not be loaded is a [`Note`], never silence: a table without symbols says why.
//! - **I4** Everything here is `Sync`; a module is loaded once, on first use, however many threads ask.
//!
//! The tests ask perf itself: recordings made by hand hold one sample per address, for every edge of every symbol of
//! compiled programs and of this machine's files. `KYMO_SYMBOL_FILES=a:b` adds files, `KYMO_MANGLED_NAMES=list` adds
//! names for the demangler, which is held against `c++filt`.
//!
//! Known differences from perf 6.1: symbols of kernel modules come from the symbol list, not from `.ko` files;
//! `/proc/kcore` is not read; a file with a damaged symbol table has no name for the first sample that asks perf; the
//! list's symbols behind the modules are the kernel's, where perf invents `[kernel].N`; jump stubs (`puts@plt`) are named
//! as objdump names them, by the word that they jump through, where perf counts them in the order of the relocations and
//! knows `.plt` alone; a symbol of a section that is not there does not end the table.

pub(crate) mod budget;
pub mod demangle;
pub(crate) mod elf;
pub(crate) mod elf_symbols;
pub(crate) mod inline;
mod kallsyms;
mod kernel;
pub(crate) mod locate;
pub(crate) mod metered;
mod name;
mod perf_map;
mod plt;
pub mod sites;
mod store;
mod table;
mod tree;
pub(crate) mod user;
mod vdso;

pub use budget::Budget;
pub use inline::InlineFrame;
pub use store::{ModuleKey, ModuleSymbols, Note, SymbolOptions, SymbolStore};
pub use table::{SymbolRef, SymbolTable};
