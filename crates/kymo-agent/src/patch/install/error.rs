//! Why probes could not be put in place or taken away.
use super::refusal::Refusal;
use std::{fmt, io};

/// A batch of probes that could not be attached or detached.
#[derive(Debug)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum PatchError {
    /// One site is refused now, though its plan was good.
    Refused { at: u64, why: Refusal },
    /// The bytes at the site are not the planned ones: somebody else has changed them.
    Changed { at: u64 },
    /// There is a probe already.
    Taken { at: u64 },
    /// A thread has blocked SIGILL: coming to the site at the wrong moment would end the process.
    BlocksTraps { tid: i32 },
    /// A thread did not tell where it stands.
    Silent { tid: i32 },
    /// The process's threads were to be held, and could not be.
    NotHeld { why: String },
    /// The process may not write its own code, so the one who holds its threads has to, and nobody
    /// does, or why they could not be held.
    NotForced { why: Option<String> },
    /// All counters are taken.
    Full,
    /// The C library does not register restartable sequences.
    NoSequences,
    /// This is a forked child: the probes in it are its parent's.
    Child,
    /// The system refused something.
    System { what: &'static str, error: io::Error },
}

impl PatchError {
    /// Whether it stands against one site only.
    pub(crate) fn concerns_one_site(&self) -> bool {
        matches!(self, PatchError::Refused { .. } | PatchError::Changed { .. } | PatchError::Taken { .. })
    }

    pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> PatchError {
        move |error| PatchError::System { what, error }
    }
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PatchError::Refused { at, why } => {
                write!(f, "the function at {at:#x} cannot be probed in the program: {why}")
            }
            PatchError::Changed { at } => write!(
                f,
                "the code at {at:#x} is not what it was when the probe was planned: another tool patches it, or the library was replaced; plan again"
            ),
            PatchError::Taken { at } => write!(f, "there is a probe at {at:#x} already"),
            PatchError::BlocksTraps { tid } => write!(
                f,
                "thread {tid} has blocked SIGILL, so code cannot be changed under it; use the kernel's probes (--engine kernel)"
            ),
            PatchError::Silent { tid } => write!(
                f,
                "thread {tid} did not answer within two seconds; it may block all signals; use the kernel's probes (--engine kernel)"
            ),
            PatchError::NotHeld { why } => write!(f, "the program's threads could not be held: {why}"),
            PatchError::NotForced { why } => {
                write!(
                    f,
                    "the program may not write its own code (it is not dumpable since it changed its user, or proc_mem.force_override forbids it), so only a tracer that holds its threads can, and "
                )?;
                match why {
                    Some(why) => write!(f, "these could not be held: {why}"),
                    None => write!(f, "none does; use the kernel's probes (--engine kernel)"),
                }
            }
            PatchError::Full => write!(f, "all counters for probes are taken; attach fewer"),
            PatchError::NoSequences => write!(
                f,
                "the program's C library does not register restartable sequences (glibc does from 2.35 on); use the kernel's probes (--engine kernel)"
            ),
            PatchError::Child => {
                write!(f, "this process was forked after the agent began; the probes in it are its parent's")
            }
            PatchError::System { what, error } => write!(f, "failed to {what}: {error}"),
        }
    }
}

impl std::error::Error for PatchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PatchError::Refused { why, .. } => Some(why),
            PatchError::System { error, .. } => Some(error),
            _ => None,
        }
    }
}
