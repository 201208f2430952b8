//! Watchpoints: every access to some bytes of memory, by all present and future threads.
//!
//! *You give it* [`Range`]s of a process's memory and the processes; *it gives you* rings of
//! records, in which each access is one sample, and an account of what could not be kept. Which
//! registers that takes, and whether they must take turns, is planned with the ledger of slots
//! ([`kymo_core::breakpoint`]) before anything is opened.
//!
//! ```text
//!  ranges --Schedule--> registers, turns --Watcher::arm--> breakpoints of this turn ---+
//!                                                                                      | hit
//!   filtered: on every CPU, strangers dropped in the kernel, with the value  <---------+--> bpf-output -> ring per CPU
//!   tasks:    of every thread on every CPU, inherited; value read afterwards <---------+--------------> ring per CPU
//! ```
//!
//! # Two scopes
//! - [`Scope::Filtered`] costs descriptors and time by CPUs, not by threads: 2,000 threads and 4
//!   addresses are 8 opens on two CPUs. A program in the kernel keeps the hits of the followed
//!   processes, and reads the memory before the thread goes on, so the new value is that of the
//!   access. The price: everybody on the machine who touches the same address of his own traps (a
//!   few microseconds), and the registers are taken from all. It needs the right to use BPF and
//!   events on CPUs.
//! - [`Scope::Tasks`] needs only the right to trace the processes: events of each thread, which new
//!   threads and children inherit. A thread made while the list of threads is walked can be missed.
//!
//! # Before or after the access
//! x86-64 traps after the access, at the next instruction. aarch64 traps before it, at the
//! instruction itself ([`TRAPS_BEFORE_ACCESS`]): what the kernel's program reads there is the old
//! value, and the new one is read some time afterwards.
//!
//! # Invariants
//! - **W1** What is armed is what the schedule's turn says, in all threads, or the call fails and
//!   nothing is armed.
//! - **W2** Each access by the followed while armed is a sample in a ring or counted as lost
//!   ([`Watcher::counts`], the rings' LOST records).
//! - **W3** Dropping a [`Watcher`] leaves nothing armed.
//! - **W4** The kernel's own accesses are left out unless asked for: it clears `.bss` at exec, and
//!   that is nobody's write.
//!
//! # Modules
//! `range`: ranges as registers; `schedule`: registers in turns; `opening`: [`Watcher`]; `attrs`:
//! its events; `entry`: a command held where its memory is laid out; `holder`: who holds registers.
mod attrs;
mod entry;
mod holder;
mod opening;
mod options;
mod range;
mod schedule;

pub use attrs::SAMPLE_TYPE;
pub use entry::{CommandAtEntry, hold_at_entry};
pub use holder::{Holders, holders};
pub use opening::{Armed, WatchError, Watcher};
pub use options::{Scope, WatchOptions};
pub use range::{Range, RangeError, WatchedPiece};
/// Whether a watchpoint traps before the access, at the instruction that makes it; else after it,
/// at the next one.
pub const TRAPS_BEFORE_ACCESS: bool = cfg!(target_arch = "aarch64");

pub use schedule::{BreakpointSlots, Register, Schedule, ScheduleError};
