//! Errors of the protocol with an agent.
use kymo_core::probe::wire::Malformed;
use std::fmt;
use std::io;

/// How the conversation broke.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The process, or the agent's thread, is gone.
    Gone,
    /// There was no answer in time.
    Silent,
    /// The user has not waited for the answer.
    Interrupted,
    /// It is not the agent that talks there.
    Malformed(Malformed),
    /// The agent answered something else.
    Unexpected,
    /// The agent could not do it.
    Failed(String),
    /// The socket failed.
    Io(io::Error),
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolError::Gone => f.write_str("the process has ended, or its agent has"),
            ProtocolError::Silent => f.write_str("the agent did not answer in time; is the process stopped?"),
            ProtocolError::Interrupted => f.write_str("a signal came before the agent had answered"),
            ProtocolError::Malformed(error) => error.fmt(f),
            ProtocolError::Unexpected => {
                f.write_str("the agent answered another question; is it of the same version of kymo?")
            }
            ProtocolError::Failed(reason) => write!(f, "the agent could not do it: {reason}"),
            ProtocolError::Io(error) => write!(f, "talking to the agent failed: {error}"),
        }
    }
}

impl std::error::Error for ProtocolError {}

impl From<Malformed> for ProtocolError {
    fn from(error: Malformed) -> Self {
        ProtocolError::Malformed(error)
    }
}

pub(super) fn broken(error: rustix::io::Errno) -> ProtocolError {
    match error {
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => ProtocolError::Gone,
        error => ProtocolError::Io(error.into()),
    }
}
