//! `kymo probe -o`: the same probes as events of a recording.

use std::path::PathBuf;
use std::process::ExitCode;

use kymo_symbols::place::call;
use kymo_symbols::sites::{Place, ProbeSelector};

use kymo_cli::event_args::EventArgs;

use super::ProbeArgs;
use crate::cmd::record::{self, RecordArgs};
use kymo_probe::arguments::is_result;

/// Records each hit, as `kymo record` does with these probes as events.
pub(super) fn run(args: ProbeArgs, output: PathBuf) -> anyhow::Result<ExitCode> {
    let texts = args.selectors.iter().map(|selector| events(&args, selector).join(",")).collect();
    record::run(RecordArgs {
        events: EventArgs::new(texts),
        output,
        chains: args.callers,
        no_call_graph: !args.callers,
        engine: args.engine,
        probe_condition: args.condition,
        probe_every: args.every,
        quiet: args.quiet,
        no_inherit: args.no_inherit || (!args.pids.is_empty() && !args.children),
        pids: args.pids,
        duration: args.duration,
        command: args.command,
        ..RecordArgs::default()
    })
}

/// Whether it names functions: lines, markers and offsets do not return.
fn returns(selector: &str) -> bool {
    let place = ProbeSelector::parse(selector).map(|selector| selector.place);
    matches!(place, Ok(Place::Function { offset: 0, .. }))
}

/// The events of one selector, as `kymo record -e` takes them.
fn events(args: &ProbeArgs, selector: &str) -> Vec<String> {
    let whole = selector.strip_suffix("%return").unwrap_or(selector);
    if selector != whole {
        return vec![format!("probe:'{selector}'")];
    }
    if let Some((_, parts)) = call::arguments(whole) {
        // The list makes an event of the return where it has a part that is known there.
        if args.ret && !parts.iter().any(|part| is_result(&part.expression)) {
            let between = if parts.is_empty() { "" } else { ", " };
            return vec![format!("probe:'{}{between}ret)'", whole.trim_end().trim_end_matches(')'))];
        }
    } else if args.args && returns(selector) {
        let end = if args.ret { "$params, ret" } else { "$params" };
        return vec![format!("probe:'{whole}({end})'")];
    } else if args.ret && returns(selector) {
        return vec![format!("probe:'{whole}'"), format!("probe:'{whole}%return'")];
    }
    vec![format!("probe:'{whole}'")]
}
