//! The arguments of `kymo report` as typed.

use std::path::PathBuf;
use std::sync::{Arc, Once};

use clap::Args;
use kymo_cli::perf_options::PerfOptions;
use kymo_data::Recording;
use kymo_profile::machine::symbol_options;
use kymo_symbols::{Debuginfod, SymbolOptions, SymbolStore};
use regex_lite::Regex;

use super::perf_options::ReportOptions;
use crate::cmd::filter::{self, FilterArgs, InputArgs};

/// Show where the time went: a table, call graphs, JSON, a flame graph or a page.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(super) input: InputArgs,

    /// Print text, also at a terminal
    #[arg(long)]
    pub(super) stdio: bool,

    /// Open the browser, or say why it cannot be opened (at a terminal it opens by itself, unless
    /// an option is about text or files)
    #[arg(long)]
    pub(super) tui: bool,

    /// Count what a function called, too (the default where the recording has call chains)
    #[arg(long, overrides_with = "no_children")]
    pub(super) children: bool,

    /// Count only what a function did itself
    #[arg(long, overrides_with = "children")]
    pub(super) no_children: bool,

    /// Draw call graphs: none, or caller (from the outside in) or callee, and the least percentage of a branch: callee,2.5; fractal: with shares of the branch above; folded: each stack as a line
    #[arg(short = 'g', long, value_name = "WORDS", num_args = 0..=1, default_missing_value = "graph")]
    pub(super) call_graph: Option<String>,

    /// Draw call graphs from the outermost caller (short for -g caller)
    #[arg(short = 'G', long)]
    pub(super) inverted: bool,

    /// What rows are told apart by: comm, pid, tgid, dso, symbol, cpu, parent, symbol_size, srcline, time, trace, cgroup, container,
    /// unit, pod, parallelism; with a + before the first one, besides comm, dso and symbol
    #[arg(short, long, value_name = "KEYS", value_delimiter = ',')]
    pub(super) sort: Vec<String>,

    /// Columns: overhead, overhead_children, overhead_sys, overhead_us, latency, latency_children,
    /// sample, period, and any sort key
    #[arg(short = 'F', long, value_name = "FIELDS", value_delimiter = ',')]
    pub(super) fields: Vec<String>,

    /// Show the number of samples
    #[arg(short = 'n', long)]
    pub(super) show_nr_samples: bool,

    /// Show the sum of the samples' periods
    #[arg(long)]
    pub(super) show_total_period: bool,

    /// Only threads of these names
    #[arg(short = 'c', long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) comms: Vec<String>,

    /// Only these modules
    #[arg(short = 'd', long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) dsos: Vec<String>,

    /// Only these functions
    #[arg(short = 'S', long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) symbols: Vec<String>,

    #[command(flatten)]
    pub(super) filter: FilterArgs,

    /// Only samples of these cgroups and of what is in them: paths, units (nginx.service), containers (by id) or pods; of a
    /// recording with --all-cgroups
    #[arg(long = "cgroup-name", value_name = "NAMES", value_delimiter = ',')]
    pub(super) cgroups: Vec<String>,

    /// Sort by the time that you wait: a sample counts less where several threads ran. With --wall:
    /// divide the time that passed, not that of all threads
    #[arg(long)]
    pub(super) latency: bool,

    /// Only samples at which so many threads ran, for example 1,4-7; of a recording with --latency
    #[arg(long, value_name = "LIST")]
    pub(super) parallelism: Option<String>,

    /// Divide the time of each thread into running, ready and waiting, and say for what, where, and
    /// who ended it; of a recording with --wall (also with --flamegraph, --html, --folded and
    /// --json)
    #[arg(long, conflicts_with_all = ["header", "header_only", "stats", "loss", "parallelism", "sort"])]
    pub(super) wall: bool,

    /// With --wall: the thread whose critical path is shown [default: the first of the process with
    /// most time; where that one sleeps, the busiest]
    #[arg(long, value_name = "TID", requires = "wall")]
    pub(super) path_of: Option<i32>,

    /// With --wall: what the calls of this function waited for, and their critical path; of a
    /// recording with `kymo record --wall --request FUNCTION`
    #[arg(long, value_name = "FUNCTION", requires = "wall", conflicts_with_all = ["latency", "path_of", "flamegraph", "html", "folded"])]
    pub(super) request: Option<String>,

    /// With --wall: so many threads and places at most
    #[arg(long, value_name = "N", requires = "wall", default_value_t = 20)]
    pub(super) top: usize,

    /// Leave out rows below this percentage [default: 0.05 on a terminal, 0 elsewhere]
    #[arg(long, value_name = "PERCENT", value_parser = filter::percent)]
    pub(super) percent_limit: Option<f64>,

    /// Do not show functions that the compiler inlined
    #[arg(long)]
    pub(super) no_inline: bool,

    /// Show functions that the compiler inlined (the default)
    #[arg(long, overrides_with = "no_inline")]
    pub(super) inline: bool,

    /// Look at no more than this many frames of a call chain
    #[arg(long, value_name = "N", default_value_t = 127)]
    pub(super) max_stack: usize,

    /// Show events of a group one by one (the default; accepted for scripts written for perf)
    #[arg(long)]
    pub(super) no_group: bool,

    /// Separate fields by this and do not pad them
    #[arg(short = 't', long, value_name = "SEP")]
    pub(super) field_separator: Option<String>,

    /// Show the recording's facts before the table
    #[arg(long)]
    pub(super) header: bool,

    /// Show the recording's facts and nothing else
    #[arg(long)]
    pub(super) header_only: bool,

    /// Count the recording's records by type and show nothing else
    #[arg(long)]
    pub(super) stats: bool,

    /// Write the report as JSON (docs/reference/formats/report-json.md)
    #[arg(long, conflicts_with_all = ["header", "header_only", "stats", "folded"])]
    pub(super) json: bool,

    /// Write a flame graph, an SVG picture
    #[arg(long, value_name = "FILE")]
    pub(super) flamegraph: Option<PathBuf>,

    /// Write one page with flame graph, table and timeline that opens without a network
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Write folded stacks, one line each, for flame graph tools; without FILE to stdout
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with_all = ["header", "header_only", "stats"])]
    pub(super) folded: Option<PathBuf>,

    /// Draw what was lost, when and in which ring buffer: FILE.svg or FILE.html (also .json, .txt); - prints a table, or JSON with --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["stats", "folded", "flamegraph", "html"])]
    pub(super) loss: Option<PathBuf>,

    #[command(flatten)]
    pub(super) rows: RowArgs,

    #[command(flatten)]
    pub(super) dump: DumpArgs,

    #[command(flatten)]
    pub(super) unused: UnusedArgs,

    #[command(flatten)]
    pub(super) perf: PerfOptions<ReportOptions>,

    #[command(flatten)]
    pub(super) symbols_from: SymbolArgs,

    /// Threads that read the recording; 0 is one per CPU
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    pub(super) jobs: usize,

    /// No notes and no progress
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Say more about what was read and where symbols came from
    #[arg(short, long)]
    pub(super) verbose: bool,
}

impl ReportArgs {
    /// Whether only a part of the recording is asked for.
    pub(super) fn is_part(&self) -> bool {
        let rows = [&self.comms, &self.dsos, &self.symbols];
        let part =
            self.parallelism.is_some() || self.rows.symbol_filter.is_some() || self.rows.hide_unresolved;
        part || self.filter.are_given() || rows.iter().any(|list| !list.is_empty())
    }

    /// Whether the result is a file for other tools, not a table.
    pub(super) fn exports(&self) -> bool {
        self.json || self.folded.is_some() || self.flamegraph.is_some() || self.html.is_some()
    }
}

/// Which rows a table has, and how they are shown.
#[derive(Debug, Args)]
pub(super) struct RowArgs {
    /// Show the values of each sort key within those of the keys before it
    #[arg(long, conflicts_with = "children")]
    pub(super) hierarchy: bool,

    /// What percentages are of when filters hide rows: absolute is of all samples, relative of those that are left
    #[arg(long, value_name = "absolute|relative", value_parser = ["absolute", "relative"], default_value = "absolute", hide_possible_values = true)]
    pub(super) percentage: String,

    /// Callers that the sort key parent looks for, a regular expression
    #[arg(short = 'p', long, value_name = "REGEX", value_parser = regex)]
    pub(super) parent: Option<Regex>,

    /// Only rows with a parent (see -p)
    #[arg(short = 'x', long)]
    pub(super) exclude_other: bool,

    /// Count what these functions call as their own, a regular expression
    #[arg(long, value_name = "REGEX", value_parser = regex)]
    pub(super) ignore_callees: Option<Regex>,

    /// Leave out samples in code without a symbol
    #[arg(short = 'U', long)]
    pub(super) hide_unresolved: bool,

    /// Only functions whose names have this part
    #[arg(long, value_name = "PART")]
    pub(super) symbol_filter: Option<String>,

    /// The step of the sort key time, in ms, us, ns or s
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = quantum)]
    pub(super) time_quantum: u64,

    /// Show what share was in the kernel and what in programs
    #[arg(long, alias = "showcpuutilization")]
    pub(super) show_cpu_utilization: bool,

    /// Widths of the columns; 0 is as wide as needed
    #[arg(short = 'w', long, value_name = "WIDTHS", value_delimiter = ',')]
    pub(super) column_widths: Vec<usize>,
}

/// What is shown of the recording instead of a table.
#[derive(Debug, Args)]
pub(super) struct DumpArgs {
    /// Show the recorded processes and threads as a tree
    #[arg(long)]
    pub(super) tasks: bool,

    /// The same with what each has mapped
    #[arg(long)]
    pub(super) mmaps: bool,

    /// Show every record: where it is, its bytes and its fields, then --stats
    #[arg(short = 'D', long = "dump-raw-trace", conflicts_with_all = ["header", "header_only", "folded", "flamegraph", "html"])]
    pub(super) raw: bool,

    /// Show more of the recording's facts: CPUs, nodes, caches
    #[arg(short = 'I', long)]
    pub(super) show_info: bool,
}

/// Options of perf that change nothing here.
#[derive(Debug, Args)]
pub(super) struct UnusedArgs {
    /// Accepted for scripts written for perf: kymo report disassembles nothing
    #[arg(short = 'M', long, value_name = "STYLE")]
    disassembler_style: Option<String>,

    /// Accepted for scripts written for perf: events of a group are shown one by one
    #[arg(long, overrides_with = "no_group")]
    group: bool,

    /// Accepted for scripts written for perf: events without samples are left out
    #[arg(long, hide = true, overrides_with = "no_skip_empty")]
    skip_empty: bool,

    /// Show a table for every event, also without samples
    #[arg(long, overrides_with = "skip_empty")]
    pub(super) no_skip_empty: bool,
}

impl UnusedArgs {
    /// What somebody who gave such an option should know.
    pub(super) fn notes(&self) -> Vec<&'static str> {
        let notes = [
            (
                self.disassembler_style.is_some(),
                "-M has no effect: kymo report disassembles nothing; `kymo annotate` has it, too",
            ),
            (self.group, "--group has no effect: the events of a group are shown one by one"),
        ];
        notes.into_iter().filter(|(given, _)| *given).map(|(_, note)| note).collect()
    }
}

/// A regular expression as one value of the command line.
fn regex(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|error| error.to_string())
}

/// `100ms` in nanoseconds.
fn quantum(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => 0,
    };
    let steps = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    steps.filter(|ns| *ns > 0).ok_or_else(|| "write a number with ns, us, ms or s, for example 100ms".into())
}

/// Where symbols come from.
#[derive(Debug, Args, Clone)]
pub(crate) struct SymbolArgs {
    /// A directory that stands for / of the recorded machine
    #[arg(long, value_name = "DIR")]
    pub(super) symfs: Option<PathBuf>,

    /// A kernel image with symbols
    #[arg(short = 'k', long, value_name = "FILE")]
    pub(super) vmlinux: Option<PathBuf>,

    /// The kernel's symbol list
    #[arg(long, value_name = "FILE")]
    pub(super) kallsyms: Option<PathBuf>,

    /// Show names as the files store them
    #[arg(long, overrides_with = "demangle")]
    pub(super) no_demangle: bool,

    /// Make names of compiled languages readable (the default)
    #[arg(long, overrides_with = "no_demangle")]
    pub(super) demangle: bool,

    /// Name as perf does: `_start` and jump stubs of stripped programs are addresses, and a caller
    /// that ends with its call is the function after it
    #[arg(long)]
    pub(super) no_entry_names: bool,

    /// Fetch no symbols, though DEBUGINFOD_URLS is set
    #[arg(long)]
    pub(super) no_debuginfod: bool,

    /// Read perf maps whoever owns them
    #[arg(short = 'f', long)]
    pub(super) force: bool,
}

impl SymbolArgs {
    /// Only with files that are here.
    pub(crate) fn without_downloads(self) -> SymbolArgs {
        SymbolArgs { no_debuginfod: true, ..self }
    }

    /// A store for a recording by these options; nothing is loaded yet.
    pub(crate) fn store(&self, recording: &Recording) -> SymbolStore {
        let announce = |sentence: &str| kymo_cli::eprintln!("kymo: {sentence}");
        static ABOUT_HOME: Once = Once::new();
        ABOUT_HOME.call_once(|| kymo_symbols::refused_home_folders().iter().for_each(|text| announce(text)));
        let fetcher = if self.no_debuginfod { None } else { Debuginfod::configured(announce) };
        let options = SymbolOptions {
            symfs: self.symfs.clone(),
            vmlinux: self.vmlinux.clone(),
            kallsyms: self.kallsyms.clone(),
            demangle: !self.no_demangle,
            entry_names: !self.no_entry_names,
            debuginfod: fetcher.map(Arc::new),
            force: self.force,
            ..SymbolOptions::default()
        };
        SymbolStore::new(symbol_options(recording, options))
    }
}
