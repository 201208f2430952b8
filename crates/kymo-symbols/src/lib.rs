//! What files say about programs: symbols, lines, inlined functions, variables, places for probes, and how to unwind.
//!
//! *You give it* modules (files that a process maps, the kernel, perf maps) and either an address or what a person wrote;
//! *it gives you* the name that `perf report` would print for the address, or the address that the person meant.
//!
//! ```text
//!  address ──SymbolStore──▶ ModuleSymbols ──find──▶ symbol, inlined frames, lines
//!            locate: build-id cache, debuglink, debug folders, the file itself
//!            elf + plt | kallsyms | perf_map | vdso     (one loader per kind)
//!            cache: answers of earlier runs, by build id and the files that were there
//!  "parse(req->uri)", "server.c:120"  ──sites──▶ file offsets for probes   ──place::call──▶ registers and loads
//!  "queue.head->next:8:w"             ──place──▶ address, length, type
//!  registers + stack bytes            ──unwind─▶ frames
//! ```
//!
//! # Modules
//! - This one: names for addresses, as perf chooses them. [`demangle`]: mangled names in words.
//! - [`build_id_cache`]: copies of executables by build id, as perf keeps them.
//! - [`sites`]: from names, lines and markers to places in files, for probes.
//! - [`place`]: from what a person writes to an address to watch, and from a trap to the instruction that caused it.
//! - [`disassembly`]: the code of functions as instructions, and their source files.
//! - [`unwind`]: frames from stacks that were recorded as bytes.
//! - [`pool`]: work on all CPUs, or on one where no thread can be made.
//!
//! # Duties
//! Addresses come in the address space of their module; perf uses three of them:
//! - ELF user modules and the vdso: FILE OFFSETS (`ip - mapping.start + mapping.pgoff`);
//! - the kernel, kernel modules and perf maps: absolute addresses, as sampled.
//!
//! # Guarantees
//! - **I1** A table answers like perf's: the same candidates, the same choice between aliases, the same ends;
//!   where ranges overlap, the answer is the one that perf's search tree would reach first.
//! - **I2** No input makes a loader panic, or take more memory and work than [`Budget`] gives for the bytes that the file
//!   system stores of it.
//! - **I3** What could not be loaded is a [`Note`], never silence: a table without symbols says why.
//! - **I4** Everything here is `Sync`; a module is loaded once, on first use, however many threads ask.
//! - **I5** With a symbol cache the answers are the same as without.
//!
//! # Non-goals
//! Recordings: nothing here knows of samples. Running programs: memory is read through what the caller passes.
//!
//! # Example
//! ```
//! use kymo_symbols::{ModuleKey, SymbolOptions, SymbolStore};
//!
//! let store = SymbolStore::new(SymbolOptions::default());
//! let path = std::env::current_exe().expect("this program");
//! let symbols = store.get(&ModuleKey::file(path, None));
//! match symbols.find(0x4000) {
//!     Some(symbol) => println!("{} is in {}", 0x4000, symbol.name),
//!     None => println!("no symbol there; {:?}", symbols.notes()),
//! }
//! ```
//!
//! # Tests
//! They ask perf itself: recordings made by hand hold one sample per address, for every edge of every symbol of
//! compiled programs and of this machine's files. `KYMO_SYMBOL_FILES=a:b` adds files, `KYMO_MANGLED_NAMES=list` adds
//! names for the demangler, which is held against `c++filt`.
//!
//! # Known differences from perf 6.1
//! Symbols of kernel modules come from the symbol list, not from `.ko` files; `/proc/kcore` is not read. A file with a
//! damaged symbol table has no name for the first sample that asks perf. The list's symbols after the modules are the
//! kernel's, where perf invents `[kernel].N`. Jump stubs (`puts@plt`) are named as objdump names them, by the word that
//! they jump through, where perf counts them in the order of the relocations and knows `.plt` alone. A symbol of a
//! section that is not there does not end the table.

#![forbid(unsafe_code)]

mod arch;
mod budget;
pub mod build_id_cache;
mod cache;
mod code_map;
mod debuginfod;
pub mod demangle;
pub mod disassembly;
mod elf;
mod elf_symbols;
mod file_state;
mod function_starts;
mod hotspot;
mod inline;
mod kallsyms;
mod kernel;
mod locate;
mod machine;
mod mapped_files;
mod metered;
mod mini_debug_info;
mod module_symbols;
mod name;
mod options;
mod packing;
mod pclntab;
mod perf_map;
pub mod place;
mod plt;
pub mod pool;
mod python;
pub mod sites;
mod start_code;
mod store;
mod table;
mod tree;
pub mod unwind;
mod user;
mod vdso;

pub use arch::Arch;
pub use budget::Budget;
pub use cache::SymbolCache;
pub use code_map::{CodeMap, CodeMapBuilder, CodeRef};
pub use debuginfod::Debuginfod;
pub use file_state::FileState;
pub use hotspot::HotspotLibrary;
pub use inline::InlineFrame;
pub use locate::refused_home_folders;
pub use machine::{MachineFacts, RecordedMachine};
pub use mapped_files::{MappedCode, MappedFiles};
pub use module_symbols::ModuleSymbols;
pub use options::{Note, SymbolOptions, name_build_id_cache, use_symbol_cache};
pub use perf_map::read_code_file;
pub use python::PythonRuntime;
pub use store::{ModuleKey, SymbolStore};
pub use table::{SymbolRef, SymbolTable};
pub use user::{Absence, code_bias};
