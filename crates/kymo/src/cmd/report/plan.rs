//! What the arguments of `kymo report` mean for one recording.

use anyhow::bail;
use kymo_cli::terminal;
use kymo_data::Recording;
use kymo_profile::hist::{HistOptions, Order, SortKey};
use kymo_profile::load::{LoadOptions, Loaded, Parallelism};
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::text::{Column, GraphForm, GraphOptions, TableOptions};
use regex_lite::Regex;

use super::args::ReportArgs;
use crate::cmd::filter;

/// What the arguments mean for one recording.
pub(super) struct Plan {
    pub(super) load: LoadOptions,
    pub(super) resolve: ResolveOptions,
    pub(super) hist: HistOptions,
    pub(super) table: TableOptions,
    /// Whether the columns of latency are shown because the recording has context switches, and no
    /// option names them.
    latency_by_default: bool,
}

impl Plan {
    /// Leaves out columns of latency that no option names and that would repeat the columns beside
    /// them: as in perf, where at most 1 % of the samples were taken while several threads ran.
    pub(super) fn drop_repetition(&mut self, loaded: &Loaded) {
        let samples: u64 = loaded.totals.iter().map(|count| count.samples).sum();
        if self.latency_by_default && samples - loaded.single_threaded <= samples / 100 {
            self.table.columns.retain(|column| !is_latency(column));
        }
    }
}

fn is_latency(column: &Column) -> bool {
    matches!(column, Column::Latency | Column::ChildrenLatency)
}

/// Whether samples of some event have call chains, or stacks to make them of.
pub(super) fn has_chains(recording: &Recording) -> bool {
    use kymo_data::abi::{PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_STACK_USER};
    let with_chains = PERF_SAMPLE_CALLCHAIN | PERF_SAMPLE_STACK_USER;
    recording.events.list.iter().any(|event| event.attr.sample_type & with_chains != 0)
}

pub(super) fn plan(args: &ReportArgs, recording: &Recording) -> anyhow::Result<Plan> {
    let chains = has_chains(recording);
    let exports = args.json || args.folded.is_some() || args.flamegraph.is_some() || args.html.is_some();
    let chosen = !(args.comms.is_empty() && args.dsos.is_empty() && args.symbols.is_empty());
    if exports && (chosen || args.rows.symbol_filter.is_some()) {
        bail!(
            "-c, -d and -S choose rows of the table: --json, --flamegraph, --html and --folded take -C, --pid, --tid and --time"
        );
    }
    let drawn = chains && args.call_graph.as_deref() != Some("none");
    // As in perf, columns that were chosen without the totals are a flat table.
    let totals = args.fields.is_empty() || args.fields.iter().any(|f| f.trim() == "overhead_children");
    // Within a hierarchy, what a function called would be in another branch.
    let children = chains && !args.no_children && !exports && totals && !args.rows.hierarchy;
    let parallelism = args.parallelism.as_deref().map(|list| filter::numbers("--parallelism", list));
    let parallelism = parallelism.transpose()?;
    let has_switches = Parallelism::is_recorded(recording);
    let (columns, keys) = columns(args, children, has_switches)?;
    let latency = columns.iter().any(is_latency);
    if !has_switches && (latency || parallelism.is_some() || keys.contains(&SortKey::Parallelism)) {
        bail!(
            "the recording has no context switches, so nobody knows how many threads ran: record with `kymo record --latency`"
        );
    }
    if keys.len() > kymo_profile::hist::MAX_KEYS {
        bail!("at most {} sort keys can be combined", kymo_profile::hist::MAX_KEYS);
    }
    // As perf: from the outside in where callers gain what they called, also in a hierarchy, which cannot show that.
    let outside_in = children || args.rows.hierarchy && !args.no_children;
    let graph = if drawn { Some(graph(args, outside_in)?) } else { None };
    let list = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    let hist = HistOptions {
        keys,
        children,
        comms: list(&args.comms),
        dsos: list(&args.dsos),
        symbols: list(&args.symbols),
        symbol_part: args.rows.symbol_filter.clone(),
        parent: Some(args.rows.parent.clone().unwrap_or_else(default_parent)),
        only_with_parent: args.rows.exclude_other,
        hide_unresolved: args.rows.hide_unresolved,
        relative: args.rows.percentage == "relative",
        parallelism: parallelism.clone().filter(|_| !exports),
        by_latency: latency && columns.iter().find(|c| c.is_weight()).is_some_and(is_latency),
        time_quantum_ns: args.rows.time_quantum,
    };
    let of_cgroups = hist.keys.iter().any(|key| key.is_of_cgroup()) || !args.cgroups.is_empty();
    if of_cgroups && !has_cgroups(recording) {
        bail!("the recording has no cgroups of samples: record with `kymo record --all-cgroups`");
    }
    let deep = args.rows.ignore_callees.is_some() || hist.needs_stacks();
    let load = LoadOptions {
        dims: hist.dims(),
        callchains: chains && (children || drawn || exports || deep),
        columns: args.json || args.html.is_some(),
        workers: args.jobs,
        cgroups: list(&args.cgroups),
        // Rows are of the whole, as in perf; files for other tools have no whole.
        parallelism: parallelism.filter(|_| exports),
        latency,
        ..args.filter.load(recording)?
    };
    let table = TableOptions {
        columns,
        children,
        percent_limit: args.percent_limit.unwrap_or_else(usual_percent_limit),
        graph,
        separator: args.field_separator.clone(),
        look: terminal::look(),
        widths: args.rows.column_widths.clone(),
    };
    let named = args.latency || args.sort.iter().chain(&args.fields).any(|word| word.contains("latency"));
    let resolve = ResolveOptions {
        inline: !args.no_inline,
        max_stack: args.max_stack,
        lines: hist.keys.contains(&SortKey::SourceLine),
    };
    Ok(Plan { load, resolve, hist, table, latency_by_default: latency && !named })
}

/// What nobody misses on a screen; everything where a program may read it.
fn usual_percent_limit() -> f64 {
    if terminal::is_read_by_a_person() { 0.05 } else { 0.0 }
}

/// Whether samples of some event say which cgroup they are of.
fn has_cgroups(recording: &Recording) -> bool {
    use kymo_data::abi::PERF_SAMPLE_CGROUP;
    recording.events.list.iter().any(|event| event.attr.sample_type & PERF_SAMPLE_CGROUP != 0)
}

/// perf's parents where nobody says which: system calls and page faults.
fn default_parent() -> Regex {
    // SANITY: the expression is a constant, and a test compiles it.
    Regex::new("^sys_|^do_page_fault").expect("a regular expression")
}

/// The columns, and the sort keys among them.
fn columns(
    args: &ReportArgs,
    children: bool,
    has_switches: bool,
) -> anyhow::Result<(Vec<Column>, Vec<SortKey>)> {
    let sort = sort_words(&args.sort)?;
    let mut columns;
    if args.fields.is_empty() {
        columns = weights(&sort, children, args.latency, has_switches);
        if args.rows.show_cpu_utilization {
            columns.extend([Column::Kernel, Column::User]);
        }
        if args.show_nr_samples {
            columns.push(Column::Samples);
        }
        if args.show_total_period {
            columns.push(Column::Period);
        }
        columns.extend(sort);
    } else {
        columns = args.fields.iter().map(|w| w.parse()).collect::<Result<Vec<Column>, _>>()?;
        // Keys of -s that are no field stand behind the fields, as in perf.
        let more = sort.into_iter().filter(|_| !args.sort.is_empty());
        let more: Vec<Column> = more.filter(|column| !columns.contains(column)).collect();
        columns.extend(more);
    }
    let keys = columns.iter().filter_map(|c| if let Column::Key(key) = c { Some(*key) } else { None });
    let keys = keys.collect();
    Ok((columns, keys))
}

/// The columns of shares, which stand before the sort keys: that of what is sorted by comes first.
fn weights(sort: &[Column], children: bool, by_latency: bool, has_switches: bool) -> Vec<Column> {
    // As perf: where -s names one of the two kinds, the other is left out.
    let named = |kind: &[Column]| sort.iter().any(|column| kind.contains(column));
    let of_time = [Column::Children, Column::Overhead];
    let of_latency = [Column::ChildrenLatency, Column::Latency];
    let with_time = !named(&of_latency);
    let with_latency = (has_switches || by_latency) && !named(&of_time);
    let mut columns = Vec::new();
    for at in if children { 0..2 } else { 1..2 } {
        let pair = [(with_time, of_time[at]), (with_latency, of_latency[at])];
        let pair = if by_latency { [pair[1], pair[0]] } else { pair };
        columns.extend(pair.into_iter().filter(|(wanted, _)| *wanted).map(|(_, column)| column));
    }
    columns.retain(|column| !sort.contains(column));
    columns
}

/// The words of `-s`: sort keys, and columns among them. A `+` before the first one adds to the usual keys.
fn sort_words(words: &[String]) -> anyhow::Result<Vec<Column>> {
    let usual = || HistOptions::DEFAULT_KEYS.map(Column::Key).to_vec();
    let Some((first, rest)) = words.split_first() else { return Ok(usual()) };
    let (mut columns, first) = match first.strip_prefix('+') {
        Some(first) => (usual(), first),
        None => (Vec::new(), &first[..]),
    };
    for word in std::iter::once(first).chain(rest.iter().map(|word| &word[..])) {
        let column = match word.parse() {
            Ok(column) => column,
            Err(_) => Column::Key(word.parse::<SortKey>()?),
        };
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    Ok(columns)
}

/// `fractal,0.5,caller`: perf's words in any order; those that kymo always does are accepted.
fn graph(args: &ReportArgs, outside_in: bool) -> anyhow::Result<GraphOptions> {
    let mut order = if outside_in || args.inverted { Order::Caller } else { Order::Callee };
    let (mut form, mut least_percent) = (GraphForm::Graph, 0.5);
    for word in args.call_graph.as_deref().unwrap_or("graph").split(',').map(str::trim) {
        match word {
            "caller" => order = Order::Caller,
            "callee" => order = Order::Callee,
            "graph" => form = GraphForm::Graph,
            "fractal" => form = GraphForm::Fractal,
            "folded" => form = GraphForm::Folded,
            "function" | "percent" | "" => {}
            number => match number.parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => least_percent = percent,
                _ => bail!(
                    "-g {word}: expected none, caller, callee, graph, fractal, folded or the least percentage of a branch"
                ),
            },
        }
    }
    Ok(GraphOptions { form, order, least_percent })
}
