//! A fleet that was never there: a few real recordings, spread over many hosts and days.
//!
//! ```text
//! cargo run --release -p kymo-dataset --example fleet -- \
//!     A.data B.data --hosts 100 --samples 100000000 --out DIR
//! ```
//! Each recording is repeated until there are as many samples as wanted. Each repetition is on one
//! of the hosts and begins in one of the minutes, which a hash of its number chooses; samples of a
//! minute are added up as the daemon does. So the sums of the dataset are those of the recordings,
//! times the number of repetitions that is printed.
#![allow(missing_docs)]

mod arguments;
mod fleet;
mod program;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse(std::env::args().skip(1));
    match arguments.and_then(|arguments| fleet::make(&arguments)) {
        Ok(made) => {
            println!("{made}");
            ExitCode::SUCCESS
        }
        Err(sentence) => {
            eprintln!("fleet: {sentence}");
            ExitCode::FAILURE
        }
    }
}
