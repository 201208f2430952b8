//! `kymo report --wall`: where each thread's time went, waiting included.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit};
use kymo_data::Recording;
use kymo_profile::load::LoadOptions;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::wall::{
    TextOptions, WaitDetail, Wall, recorded_calls, wait_detail, write_wall, write_wall_json,
};

use super::args::ReportArgs;
use super::write_export;

/// Reads a recording and prints or writes what was asked for.
pub(super) fn run(args: &ReportArgs, recording: &Recording, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let store = args.symbols_from.store(recording);
    let resolve =
        ResolveOptions { inline: !args.no_inline, max_stack: args.max_stack, ..ResolveOptions::default() };
    let progress = ReadProgress::new(args.quiet);
    let load = LoadOptions { workers: args.jobs, ..args.filter.load(recording)? };
    let request = args.request.as_deref();
    let wall = Wall::open(recording, (&load, request), resolve, &store, &|pass, done, all| {
        progress.at(pass, done, all)
    })
    .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    let Some(mut wall) = wall else {
        return Err(exit::usage(anyhow::anyhow!(
            "{} does not tell where threads waited: record with `kymo record --wall`",
            input.display()
        )));
    };
    if wait_detail(recording) == WaitDetail::Switches && !args.quiet {
        say(
            "the recording has context switches only: it tells how long threads waited, not for what, and nobody who woke them; `kymo record --wall` as root tells all",
        );
    }
    if !args.quiet {
        damage::tell(recording.problems.iter().chain(&wall.summary.problems));
    }
    if let Some(calls) = wall.calls.as_ref().filter(|calls| calls.calls.is_empty()) {
        if calls.are_recorded(recording) {
            say(&format!(
                "no call of {} began and ended in {}: {} began",
                calls.function,
                input.display(),
                calls.unfinished
            ));
            return Ok(exit::of_reading(recording, &wall.summary.problems));
        }
        let known = recorded_calls(recording);
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(exit::usage(anyhow::anyhow!(
            "no call of {} returned in {}, which has calls of these functions: {known}; record with `kymo record --wall --request {}`",
            calls.function,
            input.display(),
            calls.function
        )));
    }
    if args.latency {
        wall.weigh_by_latency();
    }
    let options = TextOptions { rows: args.top, path_of: args.path_of };
    if args.json {
        write_wall_json(out, &wall, &options)?;
    } else if args.exports() {
        let export = wall.export(recording, &input.display().to_string());
        write_export(args, out, export, input)?;
    } else {
        write_wall(out, &wall, &options)?;
    }
    out.flush().context("failed to write the report")?;
    Ok(exit::of_reading(recording, &wall.summary.problems))
}
