//! `kymo list`: the events that this machine offers, and the places in a program that can be probed.

mod probes;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use kymo_perf::caps;
use kymo_perf::catalog::{Availability, Catalog, CatalogEntry, CatalogSection, catalog};
use kymo_perf::machine::Machine;
use kymo_perf::suggest::nearest;
use kymo_perf::sys::Real;
use serde_json::json;

use kymo_cli::{open, terminal};

/// The shape of `--json`; raised when a field changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;
/// Names longer than this do not push the descriptions of all others to the right.
const NAME_COLUMNS: usize = 48;

/// List the events that can be recorded here, or the functions and markers of a program
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only events whose name matches one of these: a glob (`sched:*`), a part of the name, or a
    /// section (hardware or hw, software or sw, cache, pmu, tracepoint, breakpoint, raw)
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// List what `kymo probe` can be put on in this program or library: functions and USDT markers; FILTER is a glob of their names then
    #[arg(long, value_name = "BINARY")]
    probes: Option<OsString>,
    /// With --probes: show what each function takes and returns, where debug information tells
    #[arg(short = 'v', long, requires = "probes")]
    args: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Print JSON in the form of `perf list -j`: an array with EventName, EventType and what else is known
    #[arg(short = 'j', conflicts_with_all = ["json", "probes"])]
    perf_json: bool,
    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE", conflicts_with = "probes")]
    output: Option<PathBuf>,
    /// Leave out the descriptions
    #[arg(long)]
    no_desc: bool,
    /// Show the descriptions (the default)
    #[arg(short, long, overrides_with = "no_desc")]
    desc: bool,
}

/// Lists events on stdout; what could not be listed is said on stderr.
pub(crate) fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.probes {
        return probes::run(file, args.filters.first().map(String::as_str), args.json, args.args);
    }
    let machine = Machine::here();
    let caps = caps::probe();
    let filters: Vec<&str> = args.filters.iter().map(|word| filter(word)).collect();
    let mut found = catalog(&machine, &caps, &Real, &filters);
    if args.no_desc {
        found.entries.iter_mut().for_each(|entry| entry.description.clear());
    }
    let mut file = args.output.as_deref().map(open::export).transpose()?;
    let mut stdout = io::stdout().lock();
    let mut out = io::BufWriter::new(match &mut file {
        Some(file) => file as &mut dyn Write,
        None => &mut stdout,
    });
    if args.perf_json {
        writeln!(out, "{}", kymo_profile::text::json_pretty(&as_perf_json(&found))?)?;
    } else if args.json {
        writeln!(out, "{}", kymo_profile::text::json_pretty(&as_json(&found))?)?;
    } else {
        write_text(&mut out, &found)?;
    }
    out.flush()?;
    drop(out);
    if let (Some(file), Some(path)) = (file, &args.output) {
        file.finish().with_context(|| format!("failed to write {}", path.display()))?;
    }
    if !args.json && !args.perf_json {
        found.notes.iter().for_each(|note| eprintln!("kymo: {note}"));
    }
    if !found.entries.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(filter), true) = (args.filters.first(), found.notes.is_empty()) {
        let all = catalog(&machine, &caps, &Real, &[]);
        let hint = nearest(filter, all.entries.iter().map(|entry| entry.name.as_str()))
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        eprintln!("kymo: no event matches `{filter}`{hint}");
    }
    Ok(ExitCode::FAILURE)
}

/// A filter as typed, or the section that perf calls so.
fn filter(word: &str) -> &str {
    match word {
        "hw" => "hardware",
        "sw" => "software",
        "hwcache" => "cache",
        other => other,
    }
}

fn as_json(found: &Catalog) -> serde_json::Value {
    let events: Vec<serde_json::Value> = found
        .entries
        .iter()
        .map(|entry| {
            json!({
                "section": entry.section.name(),
                "name": entry.name,
                "aliases": entry.aliases,
                "description": entry.description,
                "available": entry.available.name(),
                "errno": match entry.available { Availability::No(errno) => Some(errno), _ => None },
                "form": entry.is_form,
            })
        })
        .collect();
    json!({
        "schema": "kymo-list",
        "schema_version": SCHEMA_VERSION,
        "events": events,
        "notes": found.notes,
    })
}

/// The events with the keys of `perf list -j`.
fn as_perf_json(found: &Catalog) -> Vec<serde_json::Value> {
    let kind = |section| match section {
        CatalogSection::Hardware => "Hardware event",
        CatalogSection::Software => "Software event",
        CatalogSection::Cache => "Hardware cache event",
        CatalogSection::Pmu => "Kernel PMU event",
        CatalogSection::Tracepoint => "Tracepoint event",
        CatalogSection::Breakpoint => "Hardware breakpoint",
        CatalogSection::Raw => "Raw event descriptor",
    };
    let unit = |entry: &CatalogEntry| match (entry.section, entry.name.split_once('/')) {
        (CatalogSection::Tracepoint, _) => "tracepoint".to_owned(),
        (CatalogSection::Software, _) => "software".to_owned(),
        (CatalogSection::Breakpoint, _) => "breakpoint".to_owned(),
        (_, Some((pmu, _))) => pmu.to_owned(),
        _ => "cpu".to_owned(),
    };
    found
        .entries
        .iter()
        .map(|entry| {
            let mut event = serde_json::Map::new();
            event.insert("Unit".into(), unit(entry).into());
            event.insert("EventName".into(), entry.name.clone().into());
            if let Some(alias) = entry.aliases.first() {
                event.insert("EventAlias".into(), alias.clone().into());
            }
            event.insert("EventType".into(), kind(entry.section).into());
            if !entry.description.is_empty() {
                event.insert("BriefDescription".into(), entry.description.clone().into());
            }
            event.into()
        })
        .collect()
}

fn write_text(out: &mut dyn Write, found: &Catalog) -> io::Result<()> {
    let look = terminal::look();
    let (bold, dim, plain) = if look.color { ("\x1b[1m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    for section in CatalogSection::ALL {
        let entries: Vec<&CatalogEntry> =
            found.entries.iter().filter(|entry| entry.section == section).collect();
        let Some(first) = entries.first() else { continue };
        // Where a whole section has the same fault, saying it once is enough.
        let common =
            entries.iter().all(|entry| entry.available == first.available).then_some(first.available);
        let heading = common.map_or(String::new(), note);
        writeln!(out, "{bold}{}{plain}{heading}", section.name())?;
        let names: Vec<String> = entries.iter().map(|entry| shown(entry)).collect();
        let column = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(NAME_COLUMNS);
        for (entry, name) in entries.iter().zip(&names) {
            let remark = if common.is_some() { String::new() } else { note(entry.available) };
            let mut line = format!("  {name:column$}  {}{remark}", entry.description);
            if let Some(width) = look.width
                && line.chars().count() > width
            {
                line = line.chars().take(width.saturating_sub(2)).chain("..".chars()).collect();
            }
            let line = line.trim_end();
            match entry.available {
                Availability::No(_) => writeln!(out, "{dim}{line}{plain}")?,
                _ => writeln!(out, "{line}")?,
            }
        }
    }
    Ok(())
}

/// The name with its other spellings, as `perf list` shows them.
fn shown(entry: &CatalogEntry) -> String {
    std::iter::once(&entry.name).chain(&entry.aliases).map(String::as_str).collect::<Vec<_>>().join(" OR ")
}

fn note(available: Availability) -> String {
    match available {
        Availability::Yes => String::new(),
        Availability::UserOnly => " [user space only: append `u`]".into(),
        Availability::CpusOnly => " [whole CPUs only: -a or -C]".into(),
        Availability::No(errno) => match io::Error::from_raw_os_error(errno).kind() {
            io::ErrorKind::NotFound => " [not on this machine]".into(),
            io::ErrorKind::PermissionDenied => " [not permitted: see `kymo doctor`]".into(),
            _ => " [cannot be opened here]".into(),
        },
    }
}
