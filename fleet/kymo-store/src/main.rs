//! kymo-store: what kymo does with a dataset in an object store. `kymo compact`, `kymo symbolize`
//! and `kymo export` start it for a URL.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod verbs;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The command line was not understood, as in kymo.
const USAGE: u8 = 129;

/// Work on a dataset in an object store.
#[derive(Debug, Parser)]
#[command(name = "kymo", version, infer_long_args = true)]
struct StoreArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Compact(verbs::compact::CompactArgs),
    Symbolize(verbs::symbolize::SymbolizeArgs),
    Add(verbs::add::AddArgs),
}

fn main() -> ExitCode {
    let args = match StoreArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // A closed pipe under --help is no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match args.verb {
        Verb::Compact(args) => verbs::compact::run(args),
        Verb::Symbolize(args) => verbs::symbolize::run(args),
        Verb::Add(args) => verbs::add::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Says one sentence on stderr.
fn say(sentence: &str) {
    let _ = writeln!(io::stderr(), "kymo: {sentence}");
}
