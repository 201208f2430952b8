//! Enters a running process: one of its own threads loads the agent's library, and a socket is left
//! between the agent and us.
//!
//! *You give* a process; *it gives* a [`Client`] that talks to the agent there, or the
//! [`EnterError`] with the reason.
//!
//! ```text
//!   /proc: can it be entered at all?  (refusal.rs, target.rs)
//!   borrow a thread                   (hijacked_thread.rs, symbols.rs)
//!     socket, connect  to a listener of ours in its network namespace; the kernel says who connects   (connection.rs)
//!     recvmsg          we send the library, in a sealed file in memory: any root, any container   (library.rs)
//!     dlopen("/proc/self/fd/N")
//!     kymo_agent_start(the socket)
//!   give it back
//! ```
//! Whenever the agent is about to write code it asks for it, and all other threads are held
//! meanwhile (hold.rs). An agent that is there already is used again. For a command that is started
//! anew see [`Preload`]: it loads the library itself, and so does everything that it executes.
//!
//! # Guarantees
//! - Nothing is done to a process before /proc was asked whether it can be. No text of it is
//!   changed, no signal is sent to it.
//! - A borrowed thread is put back as it was: general and vector registers, signal mask, the system
//!   call that it was in. After a step that took too long, too; and when this process is killed, at
//!   whatever moment: the way home is there before the first borrowed call.
//! - What the process says is not believed: memory is read within bounds, messages are checked. No
//!   descriptor of it is ever taken: all memory that is shared is made here.
//!
//! # Limits
//! x86-64. A thread is borrowed where it holds no lock of the allocator, of the loader or of the C
//! library's list of stacks: as its system call and its callers show, where an [`Unwind`] walks its
//! stack, and else as far as its stack's words show. An allocator that is linked into a program without exported names is not recognised; then
//! `dlopen` can wait for a lock that its own thread holds: the time limit ends it, and the loader's
//! lock stays taken in that process. Programs that run under a shadow stack are not entered by
//! this. While this process is stopped (SIGSTOP) in the middle, the thread waits.
mod agent;
mod client;
mod clock;
mod code_writes;
mod connection;
mod counters;
mod execs;
mod guard;
mod hijacked_thread;
mod hold;
mod lease;
mod library;
mod memory;
mod preload;
mod preloadable;
mod reap;
mod refusal;
mod remote;
mod restart;
mod restoring;
mod rings;
mod room;
mod safe_place;
mod seccomp;
mod sigreturn;
mod symbols;
mod target;
mod unwind;

pub use agent::{enter, enter_unwinding, enter_unwinding_with_children, enter_with_children};
#[cfg(fuzzing)]
pub use client::exercise;
pub(crate) use client::is_interrupted;
pub use client::{Client, Outcome, ProbeCounts, ProtocolError, interrupt_by};
pub use clock::ProgramClock;
pub use code_writes::CodeWriter;
pub use execs::Execs;
pub use library::{Library, Unpacked};
pub use preload::{Arrival, Preload, Without};
pub use preloadable::preloadable;
pub use refusal::EnterError;
pub use remote::{
    CommandStop, CommandTracer, PatchOutcome, RegionCounts, RegionSizes, RemoteProcess, RemoteRegion,
    RemoteTarget, Restorer, RingSizes, SitePatch, StubOwner, ThreadLayout, provide_restorer, restore_probes,
};
pub use restoring::RESTORER;
pub use unwind::{Registers, Unwind, UnwoundStack};

/// So many random bits as text.
fn random() -> std::io::Result<String> {
    let mut bits = [0; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bits)?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}
