//! Sites: the places in programs and libraries that a probe can be put on, found by what a person types.
//!
//! You give a [`ProbeSelector`] and the modules of a program ([`ProbeModule`]); you get [`Site`]s: a file and an offset in it, which is how both the
//! kernel and kymo's agent know a place, whatever address it has in which process.
//!
//! ```text
//!  'lib.so:func*'    --parse--> module glob + name glob   --+
//!  'file.c:120'                 file suffix + line (DWARF) -+--find(modules)--> [Site { module, offset, name, length, semaphore }]
//!  'usdt:prov:name'             .note.stapsdt             --+                   or what is missing, with all names to suggest one from
//! ```
//!
//! Modules of a process that runs come from its mappings, which the caller reads; those of a command that has not started are
//! found as the dynamic linker will find them ([`libraries()`]).
//!
//! Invariants:
//! - **S1** Every site lies in a part of the file that is loaded executable: no name and no damaged table makes another byte a site.
//! - **S2** Two names of one place are one site.
//! - **S3** No input makes this panic or allocate more than a small multiple of the bytes it read.
//!
//! A function of several instances is found as a whole: `f` is also `f.isra.0` and `f.constprop.0`, which the compiler made of it; parts of
//! functions (`f.cold`, `f.part.0`) are found by their own names alone. A function that picks its implementation when the program starts (IFUNC) is no
//! site: its implementations are.

mod entries;
mod exits;
mod find;
mod go;
mod libraries;
mod lines;
mod module;
mod runtime;
mod selector;
#[cfg(test)]
mod tests;
mod unwind_tables;
mod usdt;

pub use exits::{CallIdentity, CallSites, Exit, ExitWhen};
pub use find::{MissingSite, Site, SiteKind, find, module_matches};
pub use libraries::{Search, libraries};
pub use module::{Function, ModuleError, ProbeModule, leaves_calls, stack_walker, switches_stacks};
pub use runtime::Runtime;
pub use selector::{Place, ProbeSelector, SelectorError, glob};
pub use usdt::Marker;
