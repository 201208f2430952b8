//! A recording shown to the user's browser, by a server of this process on the loopback address.
//!
//! *You give it* a recording that was read ([`ShownRecording`]) when it is there, in a
//! [`ShownSlot`]; *it gives you* an address with a secret in it at once, and answers the page that
//! the browser gets there.
//!
//! ```text
//!   browser --- GET /?token=... ----------> guard --> page, which asks for the rest
//!           --- GET /profile?after=0 ------> guard --> trees whole, timeline coarse, when read
//!           --- GET /select?event=0&... --> guard --> sums by node of what is selected
//!           --- GET /entries?event=0&... -> guard --> what is selected, over time
//!           --- GET /heatmap?event=0&... -> guard --> what each part of each second has
//!           --- GET /code?function=7&... -> guard --> a function's lines and instructions
//!           --- GET /query?q=top+10 ------> guard --> what `kymo query --json` prints
//! ```
//!
//! The Firefox Profiler can show it, too ([`Server::with_symbols`]). Its page, of another site,
//! gets a profile with addresses, and asks for names, source files and code:
//!
//! ```text
//!   profiler page --- GET /TOKEN/profile.json ----> profiler --> addresses by thread and time
//!                 --- POST /TOKEN/symbolicate/v5 -> profiler --> names of addresses
//!                 --- POST /TOKEN/source/v1 ------> profiler --> a file that an address is of
//!                 --- POST /TOKEN/asm/v1 ---------> profiler --> instructions of a module
//! ```
//!
//! # Invariants
//! - **S1** Nothing is answered without the token, to another host name, or for a page of another
//!   origin: such a request learns only that there is a server (`guard`).
//! - **S2** A request names no file: there are seven paths, and all others are not there. The
//!   profiler names files, and gets those only that debug information has for the address it asks.
//! - **S6** Of other origins only the profiler's is answered, only with the token of its paths, and
//!   only there: it does not know that of the page (`profiler`).
//! - **S3** So many connections at most, each with a deadline, and a limit for the size of its
//!   head; who sends slowly or reads slowly blocks nobody else for ever (`server`).
//! - **S4** Who hangs up ends the query that he asked.
//! - **S7** What the page asks about a reading is answered of that reading, or refused: its numbers
//!   of nodes and threads mean nothing in another one (`server`).
//! - **S5** A recording that is cut or replaced meanwhile is said with each answer. What is shown
//!   was read before, so that answers fit together.
#![forbid(unsafe_code)]

mod answer;
mod guard;
mod profiler;
mod reader;
mod server;
mod shown;
mod symbol_api;
#[cfg(test)]
mod tests;

pub use reader::{OpenRecording, ReadOptions, RecordingReader};
pub use server::Server;
pub use shown::{ShownFile, ShownRecording, ShownSlot};
pub use symbol_api::SymbolApi;
