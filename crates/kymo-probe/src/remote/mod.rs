//! The engine for programs that cannot load the agent: static ones, those of musl, and Go's. kymo
//! writes the stubs, and nothing else of it is in the program.
//!
//! ```text
//!   plan.rs      what can be patched: functions' begins; all of their exits, where calls are timed
//!   code.rs      the code as the process has it, and as its file has it
//!   build.rs     stubs and counters for one module's functions, where they will lie
//!   attached.rs  the engine: reads the counters, restores the code
//!   command.rs   a command, from before its first instruction
//!   event_plan.rs  which events, and what rings
//!   events.rs    events that the program writes into rings, for a recording
//!   kymo_perf::inject::RemoteTarget    maps memory, holds threads, writes
//! ```
//! # Invariants
//! - **M1** A call is counted once. In Go that is behind the check of the stack, for a function
//!   begins anew when its stack has grown.
//! - **M2** No return address is replaced: calls are timed where they end. A function of which one
//!   exit cannot be patched is left to the kernel, all of it.
//! - **M3** In Go no instruction is moved that can fault, and a goroutine that was stopped inside
//!   of
//!   a site is found before the site is written (`kymo_perf::inject::remote`, R2).
//! - **M4** Sites do not touch one another, nor what the kernel probes.
//!
//! # Limits
//! Hits are counted and calls timed, also by conditions of registers, and callers told apart. Of a
//! recording's events (`-e probe:`) values in registers are told. Other values and conditions,
//! markers and lines are the kernel's. What a program executes is a program of its own, which is
//! not followed.
mod attached;
mod build;
mod code;
mod command;
mod event_plan;
mod events;
mod plan;

pub(crate) use attached::enter;
pub(crate) use command::{StubLaunch, prepare};
pub(crate) use event_plan::EventRequest;
pub(crate) use events::StubEvents;

use crate::engine::ProbeRequest;
use kymo_core::probe::value::Condition;
use kymo_perf::inject::CodeWriter;

/// In words, how code was written, where that is not as usual here: a tracer writes it.
fn unusual(writer: CodeWriter) -> Option<&'static str> {
    writer.words().filter(|_| writer == CodeWriter::Ptrace)
}

/// What is said where the agent is not in the program.
pub(crate) const WORDS: &str = "without a library in the program: kymo wrote the probes' code into it";

/// Looks whether a request can be served this way.
///
/// # Errors
/// Why not.
fn check(request: &ProbeRequest) -> Result<(), &'static str> {
    let any = |chosen: fn(&(Condition, Condition)) -> &Condition| {
        request.conditions.iter().any(|both| !chosen(both).is_empty())
    };
    match () {
        () if !request.values.is_empty() => Err("it does not tell arguments"),
        () if any(|(_, back)| back) && !request.timed => {
            Err("the program cannot load the agent, and stubs alone see returns only of calls that are timed")
        }
        () => Ok(()),
    }
}
