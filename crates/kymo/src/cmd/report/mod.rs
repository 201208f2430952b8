//! `kymo report`: where the time went.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use kymo_data::Recording;
use kymo_profile::emptied;
use kymo_profile::export::ExportProfile;
use kymo_profile::first_look::{self, FirstLook, Share, first_look};
use kymo_profile::hist::Hist;
use kymo_profile::load::LoadOptions;
use kymo_profile::machine::symbol_options;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::text::{shortened, shown, write_hierarchy, write_table};
use kymo_profile::wall::{WaitDetail, Wall, recorded_calls, wait_detail};
use kymo_profile::{dump, export};
use kymo_symbols::{SymbolOptions, SymbolStore};

use super::filter;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit, open};

mod args;
mod browser;
mod perf_options;
mod plan;
mod wall;

pub(crate) use args::{ReportArgs, SymbolArgs};
pub(crate) use perf_options::ReportOptions;
use plan::{Plan, plan};

/// Characters of a function in the lines after a recording: more of them fill the screen.
const MOST_OF_NAME: usize = 100;

/// Whether it shows the recording in the terminal, not as text.
pub(crate) fn opens_browser(args: &ReportArgs, no_pager: bool) -> bool {
    browser::opens(args, no_pager)
}

/// Reads a recording and shows, prints or writes what was asked for. `in_browser`: see
/// [`opens_browser`].
pub(crate) fn run(args: ReportArgs, in_browser: bool) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = &args.perf.refusal {
        return Ok(exit::misused("report", refusal));
    }
    if let Some(sentence) = args.tui.then(|| browser::refusal(&args)).flatten() {
        return Err(exit::usage(anyhow::anyhow!("{sentence}")));
    }
    let input = args.input.path();
    let recording = open::recording(input)?;
    if in_browser {
        return browser::run(&args, &recording);
    }
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if !args.quiet {
        args.unused.notes().into_iter().for_each(say);
    }
    if args.dump.tasks || args.dump.mmaps {
        dump::write_tasks(&mut out, &recording, args.dump.mmaps)
            .with_context(|| format!("failed to read {}", input.display()))?;
        out.flush()?;
        return Ok(exit::of_reading(&recording, &[]));
    }
    if args.header || args.header_only || args.loss.is_some() {
        if args.loss.is_some() && args.is_part() {
            return Err(exit::usage(anyhow::anyhow!(
                "--loss is about the whole recording: -C, --pid, --tid, --time, -c, -d and -S choose parts of it"
            )));
        }
        let loss = super::loss::scan(&recording, input, args.jobs, args.quiet)?;
        if args.header || args.header_only {
            super::header::write(&mut out, &recording, input, &loss, args.dump.show_info)?;
        }
        if let Some(output) = &args.loss {
            return super::loss::write(&mut out, &recording, &loss, input, output, args.json, args.quiet);
        }
        if args.header_only {
            out.flush()?;
            return Ok(exit::of_reading(&recording, &loss.problems));
        }
    }
    if args.wall {
        return wall::run(&args, &recording, &mut out);
    }
    let mut plan = plan(&args, &recording).map_err(exit::usage)?;
    let store = args.symbols_from.store(&recording);
    if args.dump.raw {
        dump::write_raw(&mut out, &recording, &input.to_string_lossy(), &store)
            .with_context(|| format!("failed to read {}", input.display()))?;
    }
    let progress = ReadProgress::new(args.quiet);
    let mut profile = Profile::open(&recording, &plan.load, plan.resolve, &store, &|pass, done, all| {
        progress.at(pass, done, all)
    })
    .with_context(|| format!("failed to read {}", input.display()))?;
    progress.finish();
    if let Some(pattern) = &args.rows.ignore_callees {
        profile.ignore_callees(pattern);
    }
    plan.drop_repetition(&profile.loaded);
    words(&args, &recording, &profile);

    let mut no_row = None;
    let counts_records = args.stats || args.dump.raw;
    let is_table = !(counts_records || args.exports());
    if counts_records {
        super::header::write_stats(&mut out, &recording, &profile)?;
    } else if args.exports() {
        write_exports(&args, &mut out, &recording, &profile, input)?;
    } else if write_tables(
        &mut out,
        &recording,
        &profile,
        &plan,
        (args.rows.hierarchy, args.unused.no_skip_empty),
    )? {
        no_row = Some(emptied::of_rows(&profile, &plan.hist));
    }
    let unknown = emptied::of_cgroups(&profile.loaded.counts.cgroups, &plan.load);
    let why = match no_row {
        _ if args.quiet => None,
        Some(sentence) => Some(sentence),
        None if has_samples(&profile) => None,
        None => Some(unknown.unwrap_or_else(|| filter::why_empty(&recording, &plan.load))),
    };
    match why {
        // A remark of the table, as its other lines without rows.
        Some(sentence) if is_table => {
            sentence.lines().try_for_each(|line| writeln!(out, "# {}", shown(line)))?;
        }
        Some(sentence) => say(&sentence),
        None => {}
    }
    out.flush().context("failed to write the report")?;
    Ok(exit::of_reading(&recording, &profile.loaded.summary.problems))
}

/// The first screen of a recording, a line each: hottest functions, their callers in the program,
/// what hides names, and of wall time what it is divided into; and the options of the report that
/// shows more.
pub(crate) fn first_look_lines(input: &Path, count: usize) -> anyhow::Result<(Vec<String>, String)> {
    let recording = open::own_recording(input)?;
    let store = SymbolStore::new(symbol_options(&recording, SymbolOptions::default()));
    let load = LoadOptions { callchains: true, ..LoadOptions::default() };
    let resolve = ResolveOptions::default();
    let profile = Profile::open(&recording, &load, resolve, &store, &|_, _, _| {})?;
    let FirstLook { hottest, callers, nameless } = first_look(&profile, &recording.events.list, count);
    let line = |share: &Share| {
        let function = shown(&share.function);
        let function = shortened(&function, MOST_OF_NAME);
        format!("{:6.2}%  {function}  ({})", share.percent, shown(&share.module))
    };
    let mut lines: Vec<String> = hottest.iter().map(line).collect();
    if !callers.is_empty() {
        lines.push("called by these functions of the program:".to_owned());
        lines.extend(callers.iter().map(line));
    }
    lines.extend(nameless.map(|words| shown(&words).into_owned()));
    let Some(wall) = Wall::open(&recording, (&load, None), resolve, &store, &|_, _, _| {})? else {
        return Ok((lines, String::new()));
    };
    lines.push("the time of all threads:".to_owned());
    lines.extend(wall.first_look(count).iter().map(|words| shown(words).into_owned()));
    // Names that a shell takes as they are.
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_:.-".contains(c));
    let calls = recorded_calls(&recording).into_iter().find(is_plain);
    let request = calls.map_or_else(String::new, |function| format!(" --request {function}"));
    Ok((lines, format!(" --wall{request}")))
}

/// Returns whether the filters of rows left nothing of what was counted.
fn write_tables(
    out: &mut dyn Write,
    recording: &Recording,
    profile: &Profile,
    plan: &Plan,
    (hierarchy, shows_empty): (bool, bool),
) -> io::Result<bool> {
    let events = &recording.events.list;
    let counts = &profile.loaded.counts;
    writeln!(out, "# To display the recording's facts, use --header or --header-only.")?;
    writeln!(out, "#\n#\n# Total Lost Samples: {}\n#", counts.lost_samples)?;
    // Where nothing was sampled, the first event's empty table says so.
    let first_event = events.iter().position(|event| !is_dummy(event)).unwrap_or(0);
    let is_left_out = |index| !shows_empty && (has_samples(profile) || index > first_event);
    let (mut written, mut shown_rows, mut samples) = (false, false, 0);
    for (index, event) in events.iter().enumerate() {
        // The event that only tracks names and mappings has no samples, and no table.
        let empty = profile.loaded.totals[index].samples == 0;
        if empty && (is_dummy(event) || is_left_out(index)) {
            continue;
        }
        let hist = Hist::new(profile, index, &plan.hist);
        shown_rows |= hist.rows.iter().any(|row| !row.filtered);
        samples += hist.total.samples;
        if written {
            writeln!(out, "\n")?;
        }
        if hierarchy {
            write_hierarchy(out, profile, &hist, &event.name, &plan.hist, &plan.table)?;
        } else {
            write_table(out, profile, &hist, &event.name, &plan.table)?;
        }
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
    let export = export::collect(recording, profile, &input.display().to_string());
    write_export(args, out, export, input)
}

/// When a file was written, ns since 1970; of what is no file nothing.
pub(crate) fn written_unix_ns(path: &Path) -> Option<u64> {
    let written = std::fs::metadata(path).ok().filter(|m| m.is_file()).and_then(|m| m.modified().ok());
    let since = written?.duration_since(std::time::UNIX_EPOCH).ok()?;
    since.as_nanos().try_into().ok()
}

/// Writes the files that were asked for.
fn write_export(
    args: &ReportArgs,
    out: &mut dyn Write,
    mut export: ExportProfile,
    input: &Path,
) -> anyhow::Result<()> {
    export.written_unix_ns = written_unix_ns(input);
    if args.json {
        export::json(&export, &mut *out)?;
    }
    if let Some(path) = &args.folded {
        let mut file = if path == Path::new("-") { None } else { Some(BufWriter::new(open::export(path)?)) };
        for event in &export.events {
            match &mut file {
                Some(file) => export::folded(&export, event, file),
                None => export::folded(&export, event, &mut *out),
            }
            .with_context(|| format!("failed to write {}", path.display()))?;
        }
        file.map_or(Ok(()), |file| open::finish(file, path))?;
    }
    if let Some(path) = &args.flamegraph {
        let Some(event) = export.events.iter().max_by_key(|e| e.total_samples) else {
            bail!("{} has no samples, so there is nothing to draw", input.display());
        };
        let mut file = BufWriter::new(open::export(path)?);
        let drawn = export::flamegraph(&export, event, &mut file);
        drawn.with_context(|| format!("failed to write {}", path.display()))?;
        open::finish(file, path)?;
    }
    if let Some(path) = &args.html {
        let mut file = BufWriter::new(open::export(path)?);
        export::html(&export, &mut file).with_context(|| format!("failed to write {}", path.display()))?;
        open::finish(file, path)?;
    }
    Ok(())
}

/// What should be known of a recording besides its samples and its damage: losses, missing symbols.
fn sentences(recording: &Recording, profile: &Profile) -> Vec<String> {
    let mut sentences = Vec::new();
    let counts = &profile.loaded.counts;
    if counts.lost_records > 0 {
        sentences.push(format!(
            "the recording lost {} records in {} places because rings were full: record with a larger -m, or a lower -F",
            counts.lost_records, counts.lost_chunks
        ));
    }
    if counts.unknown_ids > 0 {
        sentences.push(format!(
            "{} samples belong to no event of this recording and are left out",
            counts.unknown_ids
        ));
    }
    sentences.extend(profile.notes.iter().cloned());
    sentences.extend(kymo_profile::unwind_samples::not_unwound(recording));
    sentences.extend(kymo_profile::not_shown::not_shown(recording, &counts.by_type));
    if wait_detail(recording) == WaitDetail::All {
        sentences.push(
            "these are samples of threads that ran; --wall shows the time of all threads, waits among it"
                .to_owned(),
        );
    }
    sentences
}

/// What belongs on stderr.
fn words(args: &ReportArgs, recording: &Recording, profile: &Profile) {
    if args.quiet {
        return;
    }
    damage::tell(recording.problems.iter().chain(&profile.loaded.summary.problems));
    sentences(recording, profile).iter().for_each(|sentence| say(sentence));
    // Advice to a person; scripts read stderr for what is wrong with the recording.
    if let Some(words) = first_look::nameless(profile).filter(|_| io::stderr().is_terminal()) {
        say(&shown(&words));
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
