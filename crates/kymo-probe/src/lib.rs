//! Probes of functions and watches of memory: from what a user asks to engines that count.
//!
//! *You give it* selectors of functions, lines and markers, what to measure there, and processes or a command; *it gives
//! you* [`engine::Service`]s: engines that count by themselves, and that you read when you like.
//!
//! ```text
//!  "libc.so.6:malloc(size)" --modules, arguments, condition--> sites, values, conditions
//!        --serve::serve--> inproc    in the program: the agent patches functions (attached, or from the first instruction: launched)
//!                           remote    in a program that cannot load the agent: by stubs alone
//!                           kernel    uprobes with BPF programs: what is left
//!  "-e probe:malloc"        --kernel_events, program_events--> events of a recording
//!  "-e mem:queue.head"      --memory_events-----------------> breakpoints of a recording
//!  "queue.head:w"           --watch-------------------------> accesses in their order
//!  locks                    --holds-------------------------> how long each is held, recorded
//! ```
//!
//! # Duties
//! Read the engines: what nobody reads in time is counted as lost. Print what [`serve::serve`] adds to `words`.
//!
//! # Guarantees
//! - The observed program goes on, whatever happens to this process; what cannot be done safely is refused with the reason.
//! - A site is counted by one engine. Where the first choice refuses, the second takes it, and the reason is among the words.
//!
//! # Non-goals
//! Arguments, tables and terminals (the binary); what is patched and how (kymo-agent); system calls (kymo-perf).
#![forbid(unsafe_code)]

mod actions;
mod agent;
mod agent_events;
pub mod arguments;
pub mod callers;
pub mod capability;
pub mod condition;
pub mod engine;
pub mod error;
mod event_format;
mod exit_sites;
pub mod exits;
mod forecast;
pub mod holds;
mod inproc;
mod kernel;
pub mod kernel_events;
pub mod launched;
pub mod memory_events;
pub mod modules;
pub mod program_events;
#[cfg(target_arch = "x86_64")]
mod remote;
pub mod serve;
mod several;
pub mod watch;
