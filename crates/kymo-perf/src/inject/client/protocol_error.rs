//! Errors of the protocol with an agent.
use crate::inject::EnterError;
use kymo_core::probe::wire::{Malformed, Reply};
use std::io;

/// How the conversation broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The process, or the agent's thread, is gone.
    #[error("the process has ended, or its agent has")]
    Gone,
    /// There was no answer in time.
    #[error("the agent did not answer in time; is the process stopped?")]
    Silent,
    /// The user has not waited for the answer.
    #[error("a signal came before the agent had answered")]
    Interrupted,
    /// A filter of system calls holds for the agent's thread.
    #[error(
        "the program has restricted its own system calls (seccomp) on all threads, so its probes stay and count for nobody"
    )]
    Restricted,
    /// It is not the agent that talks there.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The agent answered something else.
    #[error("the agent answered another question; is it of the same version of kymo?")]
    Unexpected,
    /// The agent could not do it.
    #[error("the agent could not do it: {0}")]
    Failed(String),
    /// The socket failed.
    #[error("talking to the agent failed: {0}")]
    Io(io::Error),
}

impl ProtocolError {
    /// What a reply means that is not the answer to the question.
    pub(super) fn instead_of_answer(reply: Reply) -> ProtocolError {
        match reply {
            Reply::Failed { reason } => ProtocolError::Failed(reason),
            _ => ProtocolError::Unexpected,
        }
    }
}

impl From<ProtocolError> for EnterError {
    fn from(error: ProtocolError) -> Self {
        EnterError::NotLoaded(error.to_string())
    }
}

pub(super) fn broken(error: rustix::io::Errno) -> ProtocolError {
    match error {
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => ProtocolError::Gone,
        error => ProtocolError::Io(error.into()),
    }
}
