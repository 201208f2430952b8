//! `kymo export`: a recording in the format of another tool.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap::builder::PossibleValue;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit, open};
use kymo_data::Recording;
use kymo_dataset::schema::Day;
use kymo_dataset::{DatasetFolder, RecordingOptions, RecordingRows, find};
use kymo_files::Export;
use kymo_profile::export::{ExportFormat, ExportSamples};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::unwind_samples::not_unwound;
use kymo_profile::wall::{WaitDetail, Wall, wait_detail};
use kymo_symbols::SymbolStore;
use tempfile::TempDir;

use super::external;
use super::filter::{self, FilterArgs, InputArgs};
use super::report::{SymbolArgs, written_unix_ns};

/// Write a recording in the format of another tool
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo export --to pprof -o profile.pb.gz          # go tool pprof -http=: profile.pb.gz\n  kymo export --to folded server.data | flamegraph.pl > graph.svg\n  kymo export --to pprof --wall --pid 1234 -o wait.pb.gz wall.data\n  kymo export --to parquet -o profiles perf.data   # tables for query engines; adds to a dataset"
)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    input: InputArgs,

    /// The format
    #[arg(long, value_name = "FORMAT", value_parser = Formats)]
    to: Target,

    /// Where it is written; without it to stdout, which must be no terminal. For parquet the folder
    /// of a dataset, a new one or one to add to; or its URL, s3://BUCKET/PATH, for kymo-store
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Of parquet: the service that the samples are of; unless given the name of each process
    #[arg(long, value_name = "NAME")]
    service: Option<String>,

    /// Of parquet: leave out the functions of files with a build id, for `kymo symbolize`
    #[arg(long)]
    no_symbols: bool,

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

/// What a recording is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// One file.
    File(ExportFormat),
    /// A folder of tables.
    Dataset,
}

/// The name of [`Target::Dataset`].
const PARQUET: &str = "parquet";

impl Target {
    fn all() -> impl Iterator<Item = Target> {
        ExportFormat::ALL.into_iter().map(Target::File).chain([Target::Dataset])
    }

    fn name(self) -> &'static str {
        match self {
            Target::File(format) => format.name(),
            Target::Dataset => PARQUET,
        }
    }
}

/// The names of formats as values of an option.
#[derive(Clone)]
struct Formats;

impl clap::builder::TypedValueParser for Formats {
    type Value = Target;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Target, clap::Error> {
        let names = clap::builder::PossibleValuesParser::new(Target::all().map(Target::name));
        let name = names.parse_ref(command, arg, value)?;
        let named = Target::all().find(|target| target.name() == name);
        named.ok_or_else(|| clap::Error::new(clap::error::ErrorKind::InvalidValue))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Target::all().map(|target| PossibleValue::new(target.name()))))
    }
}

/// Where the bytes go.
enum Sink {
    File(ExportFormat, BufWriter<Export>),
    Dataset(DatasetSink),
}

/// A dataset that rows are added to.
struct DatasetSink {
    folder: DatasetFolder,
    /// The folder that has the files of an object store until they are there.
    temporary: Option<TempDir>,
}

impl DatasetSink {
    fn open(output: &Path) -> anyhow::Result<DatasetSink> {
        if !external::is_url(output) {
            return Ok(DatasetSink { folder: DatasetFolder::open_or_create(output)?, temporary: None });
        }
        external::require_store()?;
        let temporary = tempfile::Builder::new().prefix("kymo-export.").tempdir();
        let temporary = temporary.context("failed to make a folder")?;
        let folder = DatasetFolder::open_or_create(temporary.path())?;
        Ok(DatasetSink { folder, temporary: Some(temporary) })
    }
}

impl Sink {
    /// One that cannot be written is said before a long reading.
    fn open(args: &ExportArgs) -> anyhow::Result<Sink> {
        let output = args.output.as_deref().unwrap_or(Path::new("-"));
        Ok(match args.to {
            Target::File(format) => {
                Sink::File(format, BufWriter::with_capacity(1 << 16, open::export(output)?))
            }
            Target::Dataset => Sink::Dataset(DatasetSink::open(output)?),
        })
    }
}

/// Options that do not fit the target.
fn refuse_words(args: &ExportArgs) -> anyhow::Result<()> {
    let name = args.to.name();
    match args.to {
        Target::Dataset if args.output.is_none() => {
            anyhow::bail!("--to {name} writes a folder: name it with -o DIR")
        }
        Target::File(_) if args.service.is_some() || args.no_symbols => {
            anyhow::bail!("--service and --no-symbols are for --to {PARQUET} only")
        }
        Target::File(_) if args.output.is_none() && io::stdout().is_terminal() => anyhow::bail!(
            "kymo export writes no {name} to a terminal: name a file with -o FILE, or redirect stdout"
        ),
        _ => Ok(()),
    }
}

/// Reads a recording and writes it.
pub(crate) fn run(args: ExportArgs) -> anyhow::Result<ExitCode> {
    refuse_words(&args).map_err(exit::usage)?;
    let recording = open::recording(args.input.path())?;
    let sink = Sink::open(&args)?;
    let mut load = LoadOptions {
        callchains: true,
        columns: true,
        workers: args.jobs,
        ..args.filter.load(&recording).map_err(exit::usage)?
    };
    // Tables have columns for what the cgroup is of.
    // Samples of an imported profile have its labels there.
    load.dims.cgroup = args.to == Target::Dataset || recording.features.imported.is_some();
    let resolve = ResolveOptions { inline: !args.no_inline, ..ResolveOptions::default() };
    match args.wall {
        true => write_wall(&args, &recording, (&load, resolve), sink),
        false => write_samples(&args, &recording, (&load, resolve), sink),
    }
}

fn write_samples(
    args: &ExportArgs,
    recording: &Recording,
    (load, resolve): (&LoadOptions, ResolveOptions),
    sink: Sink,
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
        damage::tell(recording.problems.iter().chain(problems));
        profile.notes.iter().for_each(|note| say(note));
        not_unwound(recording).iter().for_each(|sentence| say(sentence));
        if profile.loaded.totals.iter().all(|total| total.samples == 0) {
            say(&filter::why_empty(recording, load));
        }
    }
    let source = input.display().to_string();
    let samples = ExportSamples::of_profile(recording, &profile, &store, &source);
    match sink {
        Sink::File(format, out) => write_file(args, &samples, format, out)?,
        Sink::Dataset(dataset) => {
            let has_waits = wait_detail(recording) == WaitDetail::All;
            let wall = match has_waits {
                true => Wall::open(recording, (load, None), resolve, &store, &|_, _, _| {})
                    .with_context(|| format!("failed to read {}", input.display()))?,
                false => None,
            };
            let spans = |wall| ExportSamples::of_wall_with_addresses(recording, &wall, &store, &source);
            add_to_dataset(args, (samples, wall.map(spans)), &store, &dataset)?;
        }
    }
    Ok(exit::of_reading(recording, problems))
}

fn write_wall(
    args: &ExportArgs,
    recording: &Recording,
    (load, resolve): (&LoadOptions, ResolveOptions),
    sink: Sink,
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
        damage::tell(recording.problems.iter().chain(problems));
    }
    let source = input.display().to_string();
    match sink {
        Sink::File(format, out) => {
            write_file(args, &ExportSamples::of_wall(recording, &wall, &source), format, out)?;
        }
        Sink::Dataset(dataset) => {
            let spans = ExportSamples::of_wall_with_addresses(recording, &wall, &store, &source);
            add_to_dataset(args, (spans, None), &store, &dataset)?;
        }
    }
    Ok(exit::of_reading(recording, problems))
}

fn write_file(
    args: &ExportArgs,
    samples: &ExportSamples<'_>,
    format: ExportFormat,
    mut out: BufWriter<Export>,
) -> anyhow::Result<()> {
    let failed = || match &args.output {
        Some(path) => format!("failed to write {}", path.display()),
        None => "failed to write to stdout".to_owned(),
    };
    format.write(samples, &mut out).with_context(failed)?;
    out.flush().with_context(failed)?;
    let whole = out.into_inner().map_err(io::IntoInnerError::into_error);
    whole.and_then(Export::finish).with_context(failed)
}

fn add_to_dataset(
    args: &ExportArgs,
    (mut samples, mut waits): (ExportSamples<'_>, Option<ExportSamples<'_>>),
    store: &SymbolStore,
    sink: &DatasetSink,
) -> anyhow::Result<()> {
    // Tables have a day: that of the file, where the recording does not know its own.
    for of in std::iter::once(&mut samples).chain(&mut waits) {
        of.profile.written_unix_ns = written_unix_ns(args.input.path());
    }
    let (service, without_symbols) = (args.service.as_deref(), args.no_symbols);
    let options = RecordingOptions { service, without_symbols, ..RecordingOptions::default() };
    let mut rows = RecordingRows::new(&samples, options, store.options());
    if let Some(waits) = &waits {
        rows = rows.with_waits(waits, store.options());
    }
    let stem = rows.stem();
    let dataset = &sink.folder;
    // Samples that are there twice would be counted twice.
    if let Some(known) = find(dataset, &stem)? {
        let (name, shown) = (known.name, dataset.path().display());
        anyhow::ensure!(
            !known.is_merged,
            "{shown} has a recording of this host and moment already, and `kymo compact --in-place` has merged it with \
             others"
        );
        anyhow::bail!(
            "{shown} has a recording of this host and moment already; remove it with `find {shown} -name '{name}.parquet' \
             -delete` to replace it"
        );
    }
    if samples.profile.start_unix_ns.is_none() && !args.quiet {
        say(&format!(
            "{} does not say when it was recorded: its samples get the day of the file itself, {}, \
             which is another one if it was copied or touched",
            args.input.path().display(),
            Day::of_ns(stem.start_ns)
        ));
    }
    rows.into_files()?.iter().try_for_each(|file| dataset.put(file))?;
    match (&sink.temporary, &args.output) {
        (Some(_), Some(url)) => external::add_to_store(dataset.path(), url),
        _ => Ok(()),
    }
}
