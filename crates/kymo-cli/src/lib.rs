//! What every verb's command line shares: exit codes, signals, values, files by name, the terminal.
//!
//! *You give it* words and descriptors of a command line; *it gives you* values, opened files and one way to end.
//! Data goes to stdout; words go to stderr by this crate's `eprintln!`, which never panics:
//! `#[macro_use(eprintln, eprint)] extern crate kymo_cli;`.
//!
//! # Non-goals
//! What a verb does: that is in the libraries below. Arguments of a single verb: they are beside the verb.
#![forbid(unsafe_code)]
// It panics where stdout is gone: `writeln!` and an error instead.
#![deny(clippy::print_stdout)]

#[macro_use]
pub mod stderr;
pub mod attached;
pub mod damage;
pub mod event_args;
pub mod exit;
pub mod keys;
pub mod open;
pub mod pager;
pub mod parse;
pub mod perf_options;
pub mod screen;
pub mod signals;
pub mod terminal;
