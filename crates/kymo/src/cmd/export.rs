//! `kymo export`: a recording in the format of another tool.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValue;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{exit, open};
use kymo_data::Recording;
use kymo_files::Export;
use kymo_profile::export::{ExportFormat, ExportSamples};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::unwind_samples::not_unwound;
use kymo_profile::wall::Wall;

use super::filter::{self, FilterArgs, InputArgs};
use super::report::SymbolArgs;

/// Write a recording in the format of another tool
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo export --to pprof -o profile.pb.gz          # go tool pprof -http=: profile.pb.gz\n  kymo export --to folded server.data | flamegraph.pl > graph.svg\n  kymo export --to pprof --wall --pid 1234 -o wait.pb.gz wall.data"
)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    input: InputArgs,

    /// The format
    #[arg(long, value_name = "FORMAT", value_parser = Formats)]
    to: ExportFormat,

    /// Where it is written; without it to stdout, which must be no terminal
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// The time of all threads, waiting included, instead of samples; of a recording with --wall
    #[arg(long)]
    wall: bool,

    #[command(flatten)]
    filter: FilterArgs,

    /// Do not show functions that the compiler inlined
    #[arg(long)]
    no_inline: bool,

    #[command(flatten)]
    symbols: SymbolArgs,

    /// Threads that read the recording; 0 is one per CPU
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    jobs: usize,

    /// No notes and no progress
    #[arg(short, long)]
    quiet: bool,
}

/// The names of formats as values of an option.
#[derive(Clone)]
struct Formats;

impl clap::builder::TypedValueParser for Formats {
    type Value = ExportFormat;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<ExportFormat, clap::Error> {
        let names = clap::builder::PossibleValuesParser::new(ExportFormat::ALL.map(ExportFormat::name));
        let name = names.parse_ref(command, arg, value)?;
        let named = ExportFormat::ALL.into_iter().find(|format| format.name() == name);
        named.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidValue))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(ExportFormat::ALL.into_iter().map(|format| PossibleValue::new(format.name()))))
    }
}

/// Reads a recording and writes it.
pub(crate) fn run(args: ExportArgs) -> anyhow::Result<ExitCode> {
    if args.output.is_none() && io::stdout().is_terminal() {
        return Err(exit::usage(anyhow::anyhow!(
            "kymo export writes no {} to a terminal: name a file with -o FILE, or redirect stdout",
            args.to.name()
        )));
    }
    let recording = open::recording(args.input.path())?;
    // A file that cannot be written is said before a long reading.
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    let out = BufWriter::with_capacity(1 << 16, open::export(output)?);
    let load = LoadOptions {
        callchains: true,
        columns: true,
        workers: args.jobs,
        ..args.filter.load(&recording).map_err(exit::usage)?
    };
    let resolve = ResolveOptions { inline: !args.no_inline, ..ResolveOptions::default() };
    match args.wall {
        true => write_wall(&args, &recording, (&load, resolve), out),
        false => write_samples(&args, &recording, (&load, resolve), out),
    }
}

fn write_samples(
    args: &ExportArgs,
    recording: &Recording,
    (load, resolve): (&LoadOptions, ResolveOptions),
    out: BufWriter<Export>,
) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let store = args.symbols.store(recording);
    let progress = ReadProgress::new(args.quiet);
    let profile =
        Profile::open(recording, load, resolve, &store, &|pass, done, all| progress.at(pass, done, all))
            .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    let problems = &profile.loaded.summary.problems;
    if !args.quiet {
        recording.problems.iter().chain(problems).for_each(|problem| say(&problem.to_string()));
        profile.notes.iter().for_each(|note| say(note));
        not_unwound(recording).iter().for_each(|sentence| say(sentence));
        if profile.loaded.totals.iter().all(|total| total.samples == 0) {
            say(&filter::why_empty(recording, load));
        }
    }
    let samples = ExportSamples::of_profile(recording, &profile, &store, &input.display().to_string());
    write(args, &samples, out)?;
    Ok(exit::of_reading(recording, problems))
}

fn write_wall(
    args: &ExportArgs,
    recording: &Recording,
    (load, resolve): (&LoadOptions, ResolveOptions),
    out: BufWriter<Export>,
) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let store = args.symbols.store(recording);
    let progress = ReadProgress::new(args.quiet);
    let wall = Wall::open(recording, (load, None), resolve, &store, &|pass, done, all| {
        progress.at(pass, done, all);
    })
    .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    let wall = wall.ok_or_else(|| {
        exit::usage(anyhow::anyhow!(
            "{} does not tell where threads waited: record with `kymo record --wall`",
            input.display()
        ))
    })?;
    let problems = &wall.summary.problems;
    if !args.quiet {
        recording.problems.iter().chain(problems).for_each(|problem| say(&problem.to_string()));
    }
    let samples = ExportSamples::of_wall(recording, &wall, &input.display().to_string());
    write(args, &samples, out)?;
    Ok(exit::of_reading(recording, problems))
}

fn write(args: &ExportArgs, samples: &ExportSamples<'_>, mut out: BufWriter<Export>) -> anyhow::Result<()> {
    let failed = || match &args.output {
        Some(path) => format!("failed to write {}", path.display()),
        None => "failed to write to stdout".to_owned(),
    };
    args.to.write(samples, &mut out).with_context(failed)?;
    out.flush().with_context(failed)?;
    let whole = out.into_inner().map_err(io::IntoInnerError::into_error);
    whole.and_then(Export::finish).with_context(failed)
}
