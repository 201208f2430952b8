//! Taking orders from a tracer: one thread, which is there as long as a tracer is.
//!
//! ```text
//!   loaded by the tracer:  kymo_agent_start(socket)  --.
//!   preloaded:             KYMO_AGENT_AT=where to connect --> thread "kymo-agent": packet, do, answer, ...
//!                                                              |
//!   Leave, or the socket's end (the tracer left, crashed, was killed): everything is removed, the thread ends
//! ```
//! Loading the library starts nothing; where it is preloaded, what the program executes is looked
//! at from then on (`exec_interpose.rs`). What the tracer says is checked like anything from
//! outside (`kymo_core::probe::wire`).
//!
//! A program that restricts its own system calls is left before it does (`filters.rs`).
//!
//! It is there on x86-64 only, as what it commands is: `patch/`.
//!
//! # Invariants
//! - **C1** At most one tracer at a time; another one is told so.
//! - **C2** When the conversation ends, however it does, no site of it is armed any more.
//! - **C3** A forked child has no such thread, and takes no orders meant for its parent.
//! - **C4** The thread blocks the program's signals: no handler of the program runs on it.
mod engine;
mod exec_interpose;
mod filters;
mod hold;
mod maps;
mod patching;
mod peer;
mod preload_check;
mod semaphore;
mod session;
mod stage;
mod start;
mod startup_gate;
