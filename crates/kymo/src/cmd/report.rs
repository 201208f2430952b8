//! `kymo report`: where the time went.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kymo_data::Recording;
use kymo_files::Export;
use kymo_profile::emptied;
use kymo_profile::hist::{Hist, HistOptions, Order, SortKey};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::text::{Column, GraphOptions, TableOptions, shown, write_table};
use kymo_symbols::{SymbolOptions, SymbolStore};

use super::filter::{self, FilterArgs, InputArgs};
use kymo_cli::terminal::{self, ReadProgress, say};
use kymo_cli::{exit, open};
use kymo_profile::export;

/// Show where the time went: a table, call graphs, JSON, a flame graph or a page.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Print text (the default; accepted for scripts written for perf)
    #[arg(long)]
    stdio: bool,

    /// Count what a function called, too (the default where the recording has call chains)
    #[arg(long, overrides_with = "no_children")]
    children: bool,

    /// Count only what a function did itself
    #[arg(long, overrides_with = "children")]
    no_children: bool,

    /// Draw call graphs: none, or caller (from the outside in) or callee, and the least percentage of a branch: callee,2.5
    #[arg(short = 'g', long, value_name = "WORDS", num_args = 0..=1, default_missing_value = "graph")]
    call_graph: Option<String>,

    /// Draw call graphs from the outermost caller (short for -g caller)
    #[arg(short = 'G', long)]
    inverted: bool,

    /// What rows are told apart by: comm, pid, tgid, dso, symbol, cpu
    #[arg(short, long, value_name = "KEYS", value_delimiter = ',')]
    sort: Vec<String>,

    /// Columns: overhead, overhead_children, sample, period, and any sort key
    #[arg(short = 'F', long, value_name = "FIELDS", value_delimiter = ',')]
    fields: Vec<String>,

    /// Show the number of samples
    #[arg(short = 'n', long)]
    show_nr_samples: bool,

    /// Show the sum of the samples' periods
    #[arg(long)]
    show_total_period: bool,

    /// Only threads of these names
    #[arg(short = 'c', long, value_name = "NAMES", value_delimiter = ',')]
    comms: Vec<String>,

    /// Only these modules
    #[arg(short = 'd', long, value_name = "NAMES", value_delimiter = ',')]
    dsos: Vec<String>,

    /// Only these functions
    #[arg(short = 'S', long, value_name = "NAMES", value_delimiter = ',')]
    symbols: Vec<String>,

    #[command(flatten)]
    filter: FilterArgs,

    /// Leave out rows below this percentage
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = filter::percent)]
    percent_limit: f64,

    /// Do not show functions that the compiler inlined
    #[arg(long)]
    no_inline: bool,

    /// Show functions that the compiler inlined (the default)
    #[arg(long, overrides_with = "no_inline")]
    inline: bool,

    /// Look at no more than this many frames of a call chain
    #[arg(long, value_name = "N", default_value_t = 127)]
    max_stack: usize,

    /// Show events of a group one by one (the default; accepted for scripts written for perf)
    #[arg(long)]
    no_group: bool,

    /// Separate fields by this and do not pad them
    #[arg(short = 't', long, value_name = "SEP")]
    field_separator: Option<String>,

    /// Show the recording's facts before the table
    #[arg(long)]
    header: bool,

    /// Show the recording's facts and nothing else
    #[arg(long)]
    header_only: bool,

    /// Count the recording's records by type and show nothing else
    #[arg(long)]
    stats: bool,

    /// Write the report as JSON (docs/reference/formats/report-json.md)
    #[arg(long, conflicts_with_all = ["header", "header_only", "stats", "folded"])]
    json: bool,

    /// Write a flame graph, an SVG picture
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,

    /// Write one page with flame graph, table and timeline that opens without a network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write folded stacks, one line each, for flame graph tools
    #[arg(long, conflicts_with_all = ["header", "header_only", "stats"])]
    folded: bool,

    /// Draw what was lost, when and in which ring buffer: FILE.svg or FILE.html (also .json, .txt); - prints a table, or JSON with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stats", "folded", "flamegraph", "html"])]
    loss: Option<PathBuf>,

    #[command(flatten)]
    symbols_from: SymbolArgs,

    /// Threads that read the recording; 0 is one per CPU
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    jobs: usize,

    /// No notes and no progress
    #[arg(short, long)]
    quiet: bool,

    /// Say more about what was read and where symbols came from
    #[arg(short, long)]
    verbose: bool,
}

/// Where symbols come from.
#[derive(Debug, Args, Clone)]
pub(crate) struct SymbolArgs {
    /// A directory that stands for / of the recorded machine
    #[arg(long, value_name = "DIR")]
    symfs: Option<PathBuf>,

    /// A kernel image with symbols
    #[arg(short = 'k', long, value_name = "FILE")]
    vmlinux: Option<PathBuf>,

    /// The kernel's symbol list
    #[arg(long, value_name = "FILE")]
    kallsyms: Option<PathBuf>,

    /// Show names as the files store them
    #[arg(long)]
    no_demangle: bool,

    /// Read perf maps whoever owns them
    #[arg(short = 'f', long)]
    force: bool,
}

impl SymbolArgs {
    /// A store by these options; nothing is loaded yet.
    pub(crate) fn store(&self) -> SymbolStore {
        SymbolStore::new(SymbolOptions {
            symfs: self.symfs.clone(),
            vmlinux: self.vmlinux.clone(),
            kallsyms: self.kallsyms.clone(),
            demangle: !self.no_demangle,
            force: self.force,
            ..SymbolOptions::default()
        })
    }
}

impl ReportArgs {
    /// Whether only a part of the recording is asked for.
    fn is_part(&self) -> bool {
        let rows = [&self.comms, &self.dsos, &self.symbols];
        self.filter.are_given() || rows.iter().any(|list| !list.is_empty())
    }
}

/// What the arguments mean for one recording.
struct Plan {
    load: LoadOptions,
    hist: HistOptions,
    table: TableOptions,
}

/// Reads a recording and prints or writes what was asked for.
pub(crate) fn run(args: ReportArgs) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let recording = open::recording(input)?;
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if args.header || args.header_only || args.loss.is_some() {
        if args.loss.is_some() && args.is_part() {
            return Err(exit::usage(anyhow::anyhow!(
                "--loss is about the whole recording: -C, --pid, --tid, --time, -c, -d and -S choose parts of it"
            )));
        }
        let loss = super::loss::scan(&recording, input, args.jobs, args.quiet)?;
        if args.header || args.header_only {
            super::header::write(&mut out, &recording, input, &loss)?;
        }
        if let Some(output) = &args.loss {
            return super::loss::write(&mut out, &recording, &loss, input, output, args.json, args.quiet);
        }
        if args.header_only {
            out.flush()?;
            return Ok(exit::of_reading(&recording, &loss.problems));
        }
    }
    let plan = plan(&args, &recording).map_err(exit::usage)?;
    let store = args.symbols_from.store();
    let progress = ReadProgress::new(args.quiet);
    let resolve = ResolveOptions { inline: !args.no_inline, max_stack: args.max_stack };
    let profile = Profile::open(&recording, &plan.load, resolve, &store, &|pass, done, all| {
        progress.at(pass, done, all)
    })
    .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    words(&args, &recording, &profile);

    if args.stats {
        super::header::write_stats(&mut out, &recording, &profile)?;
    } else if args.json || args.folded || args.flamegraph.is_some() || args.html.is_some() {
        write_exports(&args, &mut out, &recording, &profile, input)?;
    } else {
        let bare = write_tables(&mut out, &recording, &profile, &plan)?;
        if bare && !args.quiet {
            say(&emptied::of_rows(&profile, &plan.hist));
        }
    }
    out.flush().context("failed to write the report")?;
    if !args.quiet && !has_samples(&profile) {
        filter::say_why_empty(&recording, &plan.load);
    }
    Ok(exit::of_reading(&recording, &profile.loaded.summary.problems))
}

/// The hottest functions of a recording, a line each: share, function, module.
pub(crate) fn hottest(input: &std::path::Path, count: usize) -> anyhow::Result<Vec<String>> {
    let recording = open::recording(input)?;
    let store = SymbolStore::new(SymbolOptions::default());
    let profile =
        Profile::open(&recording, &LoadOptions::default(), ResolveOptions::default(), &store, &|_, _, _| {})?;
    let options = HistOptions {
        keys: vec![SortKey::Dso, SortKey::Symbol],
        children: false,
        comms: None,
        dsos: None,
        symbols: None,
    };
    // Of several events the one with most samples is what the recording is about.
    let totals = &profile.loaded.totals;
    let Some(event) = (0..totals.len()).max_by_key(|&e| totals[e].samples) else {
        return Ok(Vec::new());
    };
    let hist = Hist::new(&profile, event, &options);
    let line = |row: &kymo_profile::hist::Row| {
        let share = 100.0 * row.own.period as f64 / hist.total.period.max(1) as f64;
        let name = profile.frame_name(row.function);
        format!("{share:6.2}%  {}  ({})", shown(&name), shown(profile.module_name(row.function)))
    };
    Ok(hist.rows.iter().filter(|r| r.own.samples > 0).take(count).map(line).collect())
}

/// Returns whether the filters of rows left nothing of what was counted.
fn write_tables(
    out: &mut dyn Write,
    recording: &Recording,
    profile: &Profile,
    plan: &Plan,
) -> io::Result<bool> {
    let events = &recording.events.list;
    let counts = &profile.loaded.counts;
    writeln!(out, "# To display the recording's facts, use --header or --header-only.")?;
    writeln!(out, "#\n#\n# Total Lost Samples: {}\n#", counts.lost_samples)?;
    let (mut written, mut shown_rows, mut samples) = (false, false, 0);
    for (index, event) in events.iter().enumerate() {
        // The event that only tracks names and mappings has no samples, and no table.
        let empty = profile.loaded.totals[index].samples == 0;
        if empty
            && (is_dummy(event)
                || events.len() > 1 && event.leader == index && !has_samples(profile) && index > 0)
        {
            continue;
        }
        let hist = Hist::new(profile, index, &plan.hist);
        shown_rows |= hist.rows.iter().any(|row| !row.filtered);
        samples += hist.total.samples;
        if written {
            writeln!(out, "\n")?;
        }
        write_table(out, profile, &hist, &event.name, &plan.table)?;
        written = true;
    }
    writeln!(out, "\n")?;
    Ok(samples > 0 && !shown_rows)
}

fn is_dummy(event: &kymo_data::Event) -> bool {
    event.attr.kind == kymo_data::abi::PERF_TYPE_SOFTWARE && event.attr.config == 9
}

fn has_samples(profile: &Profile) -> bool {
    profile.loaded.totals.iter().any(|t| t.samples > 0)
}

fn write_exports(
    args: &ReportArgs,
    out: &mut dyn Write,
    recording: &Recording,
    profile: &Profile,
    input: &std::path::Path,
) -> anyhow::Result<()> {
    let mut export = export::collect(recording, profile, &input.display().to_string());
    let written = std::fs::metadata(input).ok().filter(|m| m.is_file()).and_then(|m| m.modified().ok());
    export.written_unix_ns = written
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|since| since.as_nanos().try_into().ok());
    if args.json {
        export::json(&export, &mut *out)?;
    }
    if args.folded {
        for event in &export.events {
            export::folded(&export, event, &mut *out)?;
        }
    }
    if let Some(path) = &args.flamegraph {
        let Some(event) = export.events.iter().max_by_key(|e| e.total_samples) else {
            bail!("{} has no samples, so there is nothing to draw", input.display());
        };
        let mut file = BufWriter::new(open::export(path)?);
        let drawn = export::flamegraph(&export, event, &mut file);
        drawn.with_context(|| format!("failed to write {}", path.display()))?;
        finish(file, path)?;
    }
    if let Some(path) = &args.html {
        let mut file = BufWriter::new(open::export(path)?);
        export::html(&export, &mut file).with_context(|| format!("failed to write {}", path.display()))?;
        finish(file, path)?;
    }
    Ok(())
}

/// Gives a result its name, now that all of it is there.
fn finish(file: BufWriter<Export>, path: &Path) -> anyhow::Result<()> {
    let whole = file.into_inner().map_err(|error| error.into_error());
    whole.and_then(Export::finish).with_context(|| format!("failed to write {}", path.display()))
}

/// What belongs on stderr: damage, losses, missing symbols.
fn words(args: &ReportArgs, recording: &Recording, profile: &Profile) {
    if args.quiet {
        return;
    }
    let counts = &profile.loaded.counts;
    for problem in recording.problems.iter().chain(&profile.loaded.summary.problems) {
        say(&problem.to_string());
    }
    if counts.lost_records > 0 {
        eprintln!(
            "kymo: the recording lost {} records in {} places because rings were full: record with a larger -m, or a lower -F",
            counts.lost_records, counts.lost_chunks
        );
    }
    if counts.unknown_ids > 0 {
        eprintln!(
            "kymo: {} samples belong to no event of this recording and are left out",
            counts.unknown_ids
        );
    }
    for note in &profile.notes {
        say(note);
    }
    if args.verbose {
        let loaded = &profile.loaded;
        eprintln!(
            "kymo: {} distinct stacks, {} functions, {} address space versions",
            loaded.chains.len(),
            profile.functions.len(),
            loaded.timeline.version_count()
        );
        if let Some(line) = kymo_profile::unwind_samples::unwound(&loaded.unwind) {
            eprintln!("kymo: {line}");
        }
    }
}

fn plan(args: &ReportArgs, recording: &Recording) -> anyhow::Result<Plan> {
    let chains = recording.events.list.iter().any(|e| {
        use kymo_data::abi::{PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_STACK_USER};
        e.attr.sample_type & (PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_STACK_USER) != 0
    });
    let exports = args.json || args.folded || args.flamegraph.is_some() || args.html.is_some();
    if exports && !(args.comms.is_empty() && args.dsos.is_empty() && args.symbols.is_empty()) {
        bail!(
            "-c, -d and -S choose rows of the table: --json, --flamegraph, --html and --folded take -C, --pid, --tid and --time"
        );
    }
    let drawn = chains && args.call_graph.as_deref() != Some("none");
    // As in perf, columns that were chosen without the totals are a flat table.
    let totals = args.fields.is_empty() || args.fields.iter().any(|f| f.trim() == "overhead_children");
    let children = chains && !args.no_children && !exports && totals;
    let keys = match &args.sort[..] {
        [] => HistOptions::DEFAULT_KEYS.to_vec(),
        words => words.iter().map(|w| w.parse()).collect::<Result<Vec<SortKey>, _>>()?,
    };
    let (columns, keys) = columns(args, children, keys)?;
    if keys.len() > kymo_profile::hist::MAX_KEYS {
        bail!("at most {} sort keys can be combined", kymo_profile::hist::MAX_KEYS);
    }
    let graph = if drawn { Some(graph(args, children)?) } else { None };
    let list = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    let hist = HistOptions {
        keys,
        children,
        comms: list(&args.comms),
        dsos: list(&args.dsos),
        symbols: list(&args.symbols),
    };
    let load = LoadOptions {
        dims: hist.dims(),
        callchains: chains && (children || drawn || exports),
        samples: if args.json || args.html.is_some() { export::INSTANTS } else { 0 },
        workers: args.jobs,
        ..args.filter.load()?
    };
    let table = TableOptions {
        columns,
        children,
        percent_limit: args.percent_limit,
        graph,
        separator: args.field_separator.clone(),
        look: terminal::look(),
    };
    Ok(Plan { load, hist, table })
}

/// The columns, and the sort keys among them when the fields were given.
fn columns(
    args: &ReportArgs,
    children: bool,
    keys: Vec<SortKey>,
) -> anyhow::Result<(Vec<Column>, Vec<SortKey>)> {
    if !args.fields.is_empty() {
        let mut columns = args.fields.iter().map(|w| w.parse()).collect::<Result<Vec<Column>, _>>()?;
        // Keys of -s that are no field stand behind the fields, as in perf.
        for key in keys.into_iter().filter(|_| !args.sort.is_empty()).map(Column::Key) {
            if !columns.contains(&key) {
                columns.push(key);
            }
        }
        let keys =
            columns.iter().filter_map(|c| if let Column::Key(key) = c { Some(*key) } else { None }).collect();
        return Ok((columns, keys));
    }
    let mut columns = Vec::new();
    if children {
        columns.push(Column::Children);
    }
    columns.push(Column::Overhead);
    if args.show_nr_samples {
        columns.push(Column::Samples);
    }
    if args.show_total_period {
        columns.push(Column::Period);
    }
    columns.extend(keys.iter().map(|k| Column::Key(*k)));
    Ok((columns, keys))
}

/// `graph,0.5,caller`: perf's words in any order; those that kymo always does are accepted.
fn graph(args: &ReportArgs, children: bool) -> anyhow::Result<GraphOptions> {
    let mut order = if children || args.inverted { Order::Caller } else { Order::Callee };
    let mut least_percent = 0.5;
    for word in args.call_graph.as_deref().unwrap_or("graph").split(',').map(str::trim) {
        match word {
            "caller" => order = Order::Caller,
            "callee" => order = Order::Callee,
            "graph" | "function" | "percent" | "" => {}
            number => match number.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => least_percent = percent,
                _ => bail!(
                    "-g {word}: expected none, caller, callee, graph or the least percentage of a branch"
                ),
            },
        }
    }
    Ok(GraphOptions { order, least_percent })
}
