//! Queries about recordings as tools of the Model Context Protocol, on stdin and stdout.
//!
//! *You give it* the recordings that may be read ([`AllowedRecordings`]) and how to open them
//! ([`RecordingOpener`]). *It gives* a client, such as a coding assistant, one tool for each kind
//! of query, and answers as `kymo query --md` prints them.
//!
//! ```text
//!   client --- tools/call top {limit: 5} --> arguments --> text of a query           (tools)
//!                                            file ------> one that may be read       (access)
//!                                                           '--> loaded, kept        (loaded)
//!          <-- text, and JSON if small ----- answer, cut to a size                   (reply)
//! ```
//!
//! # Invariants
//! - **M1** Only recordings are read that the command line names, or regular files below its
//!   folder. What is said of any other path does not tell whether it is there.
//! - **M2** The text of an answer is that of `kymo query --md`, or a part of it that says what is
//!   left out and how to ask for it.
//! - **M3** A request, an answer, and what stays loaded are bounded.
//! - **M4** A request that the client cancels ends its query.
//! - **M5** Nothing but messages of the protocol is written to stdout.
#![forbid(unsafe_code)]

mod access;
mod loaded;
mod reply;
mod server;
mod tools;

pub use access::AllowedRecordings;
pub use loaded::{OpenRecording, ReadRecording, RecordingOpener};
pub use server::{ServeError, serve};
