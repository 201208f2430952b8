//! kymo-sql: SQL over the profiles of one machine or of many. `kymo sql` starts it.
//!
//! The words of the command line become datasets (`dataset.rs`), these become tables of a query
//! engine (`engine.rs`), and its answer is written as text, JSON or CSV (`output/`).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout)]

mod builtin;
mod dataset;
mod engine;
mod format;
mod live;
mod output;
mod parameters;
mod progress;
mod recording;
mod sentence;
mod tables;

use std::ffi::OsString;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;

use crate::dataset::{Dataset, Source};
use crate::output::{Output, OutputFormat};
use crate::parameters::Assignment;
use crate::progress::QueryProgress;
use crate::sentence::FileGone;

/// The command line was not understood, as in kymo.
const USAGE: u8 = 129;
/// How long threads that still work may take to end.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a query is asked whose files a compaction removes meanwhile.
const MOST_TRIES: u32 = 5;
/// Ended by Ctrl-C, as a shell shows it.
const INTERRUPTED: u8 = 130;

/// Ask the profiles of one machine or of many, in SQL.
///
/// The tables are samples, stacks, frames, builds and hosts; the views location_functions,
/// stack_frames and samples_by_host put them together. Queries only read.
#[derive(Debug, Parser)]
#[command(name = "kymo sql", version, infer_long_args = true)]
#[command(
    after_help = "Sources:\n  DIR                  a dataset: a folder that `kymo export --to parquet` or `kymo daemon` has written\n  s3://BUCKET/PATH     a dataset in S3 or what speaks like it; gs:// and az:// too\n  FILE                 a recording of `kymo record`\n\nExamples:\n  kymo sql --list\n  kymo sql --query top-functions --param service=web s3://profiles/prod\n  kymo sql 'SELECT service, SUM(value) FROM samples GROUP BY service' DIR --json"
)]
struct SqlArgs {
    /// The query (not with --file or --query), then datasets or recordings
    #[arg(value_name = "QUERY|SOURCE")]
    words: Vec<OsString>,
    /// Read the query from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "query")]
    file: Option<PathBuf>,
    /// Run one of the queries that come with kymo
    #[arg(short, long, value_name = "NAME")]
    query: Option<String>,
    /// A value for a column of the query's `params`; may be given several times
    #[arg(short, long, value_name = "NAME=VALUE")]
    param: Vec<Assignment>,
    /// List the queries that come with kymo, and what they answer
    #[arg(short, long, exclusive = true)]
    list: bool,
    /// JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// CSV
    #[arg(long)]
    csv: bool,
    /// Threads; as many as CPUs are usual
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Memory that a query may hold before it uses temporary files, as 500M or 4G; half of what is
    /// free is usual
    #[arg(long, value_name = "SIZE", value_parser = memory_bytes)]
    memory: Option<usize>,
}

fn memory_bytes(text: &str) -> Result<usize, String> {
    SessionContext::parse_capacity_limit("--memory", text)
        .map_err(|_| "expected a number with K, M or G after it".to_owned())
}

fn main() -> ExitCode {
    let args = match SqlArgs::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // A closed pipe under --help is no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(&args) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "kymo sql: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &SqlArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        return list();
    }
    let mut words = args.words.iter();
    let query = match (&args.file, &args.query) {
        (Some(file), _) => {
            std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?
        }
        (None, Some(name)) => match builtin::query(name) {
            Some(query) => query.text.to_owned(),
            None => bail!("there is no query {name}: `kymo sql --list` lists them"),
        },
        (None, None) => match words.next() {
            Some(word) => word.to_str().context("the query is not UTF-8")?.to_owned(),
            None => {
                let _ = writeln!(
                    io::stderr(),
                    "kymo sql: there is no query: give one, or --query NAME, or --list"
                );
                return Ok(ExitCode::from(USAGE));
            }
        },
    };
    let sources = words.map(|word| Source::of(word)).collect::<anyhow::Result<Vec<_>>>()?;
    if sources.is_empty() {
        let _ = writeln!(io::stderr(), "kymo sql: there is nothing to ask: name a dataset or a recording");
        return Ok(ExitCode::from(USAGE));
    }
    let threads = args
        .jobs
        .map_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get), usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .context("failed to start threads")?;
    let done = runtime.block_on(async {
        tokio::select! {
            done = answer(args, &query, sources, threads) => done.map(|()| ExitCode::SUCCESS),
            _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
        }
    });
    // What still reads, spills or converts gets a moment to remove its files.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    done
}

/// Asks the sources, and writes the answer.
async fn answer(args: &SqlArgs, query: &str, sources: Vec<Source>, threads: usize) -> anyhow::Result<()> {
    let (mut datasets, mut recordings) = (Vec::new(), Vec::new());
    for source in sources {
        match source {
            Source::Dataset(dataset) => datasets.push(dataset),
            Source::Recording(path) => recordings.push(path),
        }
    }
    // Lives as long as the query reads it.
    let mut _converted = None;
    if !recordings.is_empty() {
        let folder = recording::convert(recordings).await?;
        datasets.push(Dataset::folder(folder.path())?);
        _converted = Some(folder);
    }
    for _ in 1..MOST_TRIES {
        let mut out = Output::default();
        match ask(args, query, &datasets, threads, &mut out).await {
            Err(error) if error.is::<FileGone>() && !out.is_written => {}
            done => return done.and_then(|()| out.finish()),
        }
    }
    let mut out = Output::default();
    ask(args, query, &datasets, threads, &mut out).await.and_then(|()| out.finish())
}

/// Asks the datasets once, and writes the answer.
async fn ask(
    args: &SqlArgs,
    query: &str,
    datasets: &[Dataset],
    threads: usize,
    out: &mut Output,
) -> anyhow::Result<()> {
    let context = engine::new(threads, args.memory)?;
    dataset::register(&context, datasets).await?;
    let frame = engine::plan(&context, query, &args.param).await?;
    let tasks = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.map_err(sentence::of_query)?;
    let progress = QueryProgress::start(Arc::clone(&plan));
    let stream = execute_stream(plan, tasks).map_err(sentence::of_query)?;
    let format = match () {
        () if args.json => OutputFormat::Json,
        () if args.csv => OutputFormat::Csv,
        () => OutputFormat::Text,
    };
    output::write(stream, progress, format, query, out).await
}

fn list() -> anyhow::Result<ExitCode> {
    let mut out = BufWriter::new(io::stdout().lock());
    let width = builtin::QUERIES.iter().map(|query| query.name.len()).max().unwrap_or(0);
    for query in &builtin::QUERIES {
        writeln!(out, "{:width$}  {}", query.name, query.question()).context("failed to write the list")?;
    }
    out.flush().context("failed to write the list")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the reader of our output went away, which is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
            || cause.to_string().contains("Broken pipe")
    })
}
