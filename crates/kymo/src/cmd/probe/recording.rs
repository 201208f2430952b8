//! `kymo probe -o`: the same probes as events of a recording.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use kymo_symbols::place::call;
use kymo_symbols::sites::{Place, ProbeSelector};

use super::ProbeArgs;
use crate::cmd::record::{self, RecordArgs};
use crate::exit;
use kymo_probe::arguments::is_result;

/// The arguments of `kymo record` alone.
#[derive(Parser)]
struct Record {
    #[command(flatten)]
    args: RecordArgs,
}

/// Records each hit, as `kymo record` would be asked to.
pub(super) fn run(args: &ProbeArgs, output: &Path) -> anyhow::Result<ExitCode> {
    let asked = Record::try_parse_from(words(args, output)).map_err(exit::usage)?;
    record::run(asked.args)
}

/// Whether it names functions: lines, markers and offsets do not return.
fn returns(selector: &str) -> bool {
    let place = ProbeSelector::parse(selector).map(|selector| selector.place);
    matches!(place, Ok(Place::Function { offset: 0, .. }))
}

/// What to type instead.
fn words(args: &ProbeArgs, output: &Path) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["kymo record".into(), "-o".into(), output.into()];
    for selector in &args.selectors {
        let whole = selector.strip_suffix("%return").unwrap_or(selector);
        let listed = call::arguments(whole);
        let mut events = vec![format!("probe:'{whole}'")];
        if selector != whole {
            events = vec![format!("probe:'{selector}'")];
        } else if let Some((name, parts)) = listed {
            // The list makes an event of the return where it has a part that is known there.
            let adds = args.ret && !parts.iter().any(|part| is_result(&part.expression));
            let between = if parts.is_empty() { "" } else { ", " };
            if adds {
                events = vec![format!("probe:'{}{between}ret)'", whole.trim_end().trim_end_matches(')'))];
            }
            let _ = name;
        } else if args.args && returns(selector) {
            let end = if args.ret { "$params, ret" } else { "$params" };
            events = vec![format!("probe:'{whole}({end})'")];
        } else if args.ret && returns(selector) {
            events.push(format!("probe:'{whole}%return'"));
        }
        words.extend(["-e".into(), events.join(",").into()]);
    }
    words.push(if args.callers { "-g" } else { "--no-call-graph" }.into());
    words.extend([
        "--engine".into(),
        args.engine.name().into(),
        "--probe-every".into(),
        args.every.to_string().into(),
    ]);
    if let Some(condition) = &args.condition {
        words.extend(["--probe-if".into(), condition.into()]);
    }
    let flags = [("-q", args.quiet), ("-i", args.no_inherit || (!args.pids.is_empty() && !args.children))];
    words.extend(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| flag.into()));
    if !args.pids.is_empty() {
        let pids: Vec<String> = args.pids.iter().map(i32::to_string).collect();
        words.extend(["-p".into(), pids.join(",").into()]);
    }
    match (&args.duration, args.command.is_empty()) {
        // As with perf: the recording lasts as long as the command.
        (Some(duration), true) => {
            words.extend(["--".into(), "sleep".into(), duration.as_secs_f64().to_string().into()]);
        }
        (None, true) => {}
        (_, false) => {
            words.push("--".into());
            words.extend(args.command.iter().cloned());
        }
    }
    words
}
