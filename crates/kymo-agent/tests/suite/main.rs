//! What the agent promises, in one binary: threads, futures, a real executor, misuse, a C program.

/// Counts for the tests of allocations. Other tests do not mind.
#[global_allocator]
static ALLOCATOR: kymo_agent::alloc::Counting<process::Tally> = kymo_agent::alloc::Counting(process::Tally);

mod c;
#[cfg(target_arch = "x86_64")]
mod called;
mod compiled;
mod counts;
mod executor;
#[cfg(target_arch = "x86_64")]
mod handled;
#[cfg(target_arch = "x86_64")]
mod hazards;
#[cfg(target_arch = "x86_64")]
mod held;
#[cfg(target_arch = "x86_64")]
mod inject;
#[cfg(target_arch = "x86_64")]
mod library;
#[cfg(target_arch = "x86_64")]
mod lifetimes;
#[cfg(target_arch = "x86_64")]
mod loaded;
mod misuse;
#[cfg(target_arch = "x86_64")]
mod probes;
mod process;
#[cfg(target_arch = "x86_64")]
mod records;
#[cfg(target_arch = "x86_64")]
mod returns;
#[cfg(target_arch = "x86_64")]
mod stepped;
#[cfg(target_arch = "x86_64")]
mod stress;
mod watch;
mod watch_misuse;
mod work;
