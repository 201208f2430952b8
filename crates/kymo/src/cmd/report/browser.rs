//! `kymo report` at a terminal: when the browser opens, and how it begins.

use std::process::ExitCode;

use anyhow::Context as _;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{exit, screen};
use kymo_data::Recording;
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::query::{Dataset, FilterField, Weight};
use kymo_profile::resolve::ResolveOptions;

use super::args::ReportArgs;
use super::{plan, sentences};
use crate::cmd::browse::{self, Start, Subject};
use crate::cmd::filter;

/// Whether the browser opens for these arguments: at a terminal, unless an option is about text.
/// `no_pager`: text is wanted where it is.
pub(super) fn opens(args: &ReportArgs, no_pager: bool) -> bool {
    args.tui || !no_pager && screen::is_possible() && text_option(args).is_none()
}

/// Why `--tui` cannot be had.
pub(super) fn refusal(args: &ReportArgs) -> Option<String> {
    browse::refusal(text_option(args), "the report")
}

/// The first option that says something of text or files, which the browser has no place for.
fn text_option(args: &ReportArgs) -> Option<&'static str> {
    let (rows, dump) = (&args.rows, &args.dump);
    let draws_none =
        args.call_graph.as_deref().is_some_and(|words| words.split(',').any(|w| w.trim() == "none"));
    let options = [
        (args.stdio, "--stdio"),
        (draws_none, "-g none"),
        (!args.sort.is_empty(), "--sort"),
        (!args.fields.is_empty(), "--fields"),
        (args.show_nr_samples, "--show-nr-samples"),
        (args.show_total_period, "--show-total-period"),
        (!args.symbols.is_empty(), "--symbols"),
        (!args.cgroups.is_empty(), "--cgroup-name"),
        (args.latency, "--latency"),
        (args.parallelism.is_some(), "--parallelism"),
        (args.wall, "--wall"),
        (args.field_separator.is_some(), "--field-separator"),
        (args.header, "--header"),
        (args.header_only, "--header-only"),
        (args.stats, "--stats"),
        (args.json, "--json"),
        (args.flamegraph.is_some(), "--flamegraph"),
        (args.html.is_some(), "--html"),
        (args.folded.is_some(), "--folded"),
        (args.loss.is_some(), "--loss"),
        (rows.hierarchy, "--hierarchy"),
        (rows.parent.is_some(), "--parent"),
        (rows.exclude_other, "--exclude-other"),
        (rows.ignore_callees.is_some(), "--ignore-callees"),
        (rows.hide_unresolved, "--hide-unresolved"),
        (rows.show_cpu_utilization, "--show-cpu-utilization"),
        (!rows.column_widths.is_empty(), "--column-widths"),
        (dump.tasks, "--tasks"),
        (dump.mmaps, "--mmaps"),
        (dump.raw, "--dump-raw-trace"),
        (dump.show_info, "--show-info"),
    ];
    options.into_iter().find(|(given, _)| *given).map(|(_, name)| name)
}

/// Reads a recording and shows it in the terminal.
pub(super) fn run(args: &ReportArgs, recording: &Recording) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let chains = plan::has_chains(recording);
    let load = LoadOptions {
        callchains: chains,
        columns: true,
        workers: args.jobs,
        ..args.filter.load(recording).map_err(exit::usage)?
    };
    let resolve =
        ResolveOptions { inline: !args.no_inline, max_stack: args.max_stack, ..ResolveOptions::default() };
    let store = args.symbols_from.store(recording);
    let progress = ReadProgress::new(args.quiet);
    let profile = Profile::open(recording, &load, resolve, &store, &|pass, done, all| {
        progress.at(pass, done, all);
    })
    .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    let unused = args.unused.notes().into_iter().map(str::to_owned);
    let problems = profile.loaded.summary.problems.clone();
    let damage = recording.problems.iter().chain(&problems).map(ToString::to_string);
    let notes: Vec<String> = damage.chain(unused).chain(sentences(recording, &profile)).collect();
    let notes = if args.quiet { Vec::new() } else { notes };
    let data = Dataset::of_profile(recording, profile);
    let events: Vec<_> = data.events().into_iter().filter(|event| event.samples.is_some()).collect();
    let done = exit::of_reading(recording, &problems);
    if events.is_empty() {
        notes.iter().for_each(|note| say(note));
        say(&filter::why_empty(recording, &load));
        return Ok(done);
    }
    let outside_in = args.inverted
        || args.call_graph.as_deref().is_some_and(|words| words.split(',').any(|w| w.trim() == "caller"));
    let start = Start {
        recording: input.display().to_string(),
        events,
        chains,
        subject: if outside_in && chains { Subject::Calls } else { Subject::Functions },
        by: if chains && !args.no_children { Weight::Total } else { Weight::Own },
        relative: args.rows.percentage == "relative",
        least_percent: args.percent_limit.unwrap_or(0.0),
        part: args.rows.symbol_filter.clone().unwrap_or_default(),
        names: [(FilterField::Thread, args.comms.clone()), (FilterField::Module, args.dsos.clone())],
        notes,
        live: false,
    };
    browse::run(recording, (&data, &store), start, done)
}
