//! `kymo query`: a question about a recording, answered as text, JSON or Markdown.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use clap::Args;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit, open};
use kymo_profile::query::{self, OpenError};
use kymo_profile::resolve::ResolveOptions;

use super::report::SymbolArgs;

/// Ask a question about a recording: what took most, who calls what, when, and where threads wait.
#[derive(Debug, Args)]
#[command(
    after_help = "Queries:\n  top [N] [functions|modules|threads|processes|cpus|states] [by self|total]\n  tree [P%]      inverted [P%]      callers of NAME [P%]      callees of NAME [P%]\n  annotate NAME      timeline [N] [by thread|cpu|state]      heatmap [N]      waits [N]      events\nand which rows count: where FIELD=VALUE,... and FIELD!=VALUE,...\n  time thread process cpu state event module function\n\nExamples:\n  kymo query perf.data 'top 20 by total where thread=1234 and time=+1.5..+2.5'\n  kymo query perf.data 'callers of malloc where module!=libc.so.6' --md\n  kymo query wall.data 'waits where state=lock' --json"
)]
pub(crate) struct QueryArgs {
    /// The recording, - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The question
    #[arg(value_name = "QUERY")]
    query: String,
    /// JSON
    #[arg(long, conflicts_with = "md")]
    json: bool,
    /// Markdown
    #[arg(long)]
    md: bool,
    /// Worker threads; as many as CPUs are usual
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

/// Reads a recording and answers the question.
pub(crate) fn run(args: QueryArgs) -> anyhow::Result<ExitCode> {
    let recording = open::recording(&args.file)?;
    let usage = |error| exit::usage(anyhow::Error::new(error));
    let asked = query::parse(&args.query, &recording).map_err(usage)?;
    let store = args.symbols.store(&recording);
    let progress = ReadProgress::new(args.quiet);
    let resolve = ResolveOptions::default();
    let data = query::open(&recording, &asked, (resolve, &store), args.jobs, &|pass, done, all| {
        progress.at(pass, done, all);
    });
    progress.finish();
    let data = match data {
        Ok(data) => data,
        Err(OpenError::Query(error)) => return Err(usage(error)),
        Err(error) => {
            return Err(error).with_context(|| format!("failed to read {}", args.file.display()));
        }
    };
    if !args.quiet {
        damage::tell(recording.problems.iter().chain(data.problems()));
        data.notes().iter().for_each(|note| say(note));
    }
    let answer = data.ask(&asked, &store, &AtomicBool::new(false)).map_err(usage)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match () {
        () if args.json => query::write_json(&mut out, &args.query, &answer),
        () if args.md => query::write_markdown(&mut out, &answer),
        () => query::write_text(&mut out, &answer),
    }
    .and_then(|()| out.flush())
    .context("failed to write the answer")?;
    Ok(exit::of_reading(&recording, data.problems()))
}
