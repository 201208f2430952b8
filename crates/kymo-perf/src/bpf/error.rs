//! Why tasks could not be followed in the kernel.
use crate::tracefs::TracefsError;
use std::io;

/// What failed, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// This process may not.
    #[error("tasks cannot be followed in the kernel: {0}")]
    Unavailable(super::Unavailable),
    /// A map was refused.
    #[error("failed to make the BPF map of {what} ({entries} entries): {cause}{}", memory_hint(cause))]
    Map {
        /// What it is to hold.
        what: &'static str,
        /// How many at most.
        entries: u32,
        /// The system's words.
        cause: io::Error,
    },
    /// The kernel's verifier refused a program.
    #[error("failed to load the BPF program `{program}`: {cause}{}", with_log(log))]
    Load {
        /// Its name.
        program: &'static str,
        /// The end of what the verifier said; may be empty.
        log: String,
        /// The system's words.
        cause: io::Error,
    },
    /// A program could not be attached.
    #[error("failed to attach the BPF program `{program}` to `{point}`: {cause}")]
    Attach {
        /// Its name.
        program: &'static str,
        /// The tracepoint.
        point: String,
        /// The system's words.
        cause: io::Error,
    },
    /// The kernel takes no type information.
    #[error("failed to load type information into the kernel: {0}")]
    Types(io::Error),
    /// Tracepoints cannot be looked up.
    #[error("{}{}", .0, .0.hint().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Tracefs(TracefsError),
    /// This kernel's tracepoint lacks a field.
    #[error("the tracepoint `{point}` of this kernel has no field `{field}`")]
    Field {
        /// The tracepoint.
        point: String,
        /// The field.
        field: String,
    },
    /// Targets could not be entered into the map.
    #[error("failed to enter {targets} targets into the BPF map of followed tasks: {cause}")]
    Enter {
        /// How many.
        targets: usize,
        /// The system's words.
        cause: io::Error,
    },
    /// Neither way of attaching works here.
    #[error("{raw}; and without raw tracepoints: {tracepoint}")]
    Both {
        /// Why not by raw tracepoints.
        raw: Box<BpfError>,
        /// Why not by tracepoint events.
        tracepoint: Box<BpfError>,
    },
}

fn with_log(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; the kernel's verifier says:\n{log}") }
}

fn memory_hint(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::EPERM) => {
            "; before Linux 5.11 its memory must be permitted: run `ulimit -l unlimited` as root first"
        }
        _ => "",
    }
}
