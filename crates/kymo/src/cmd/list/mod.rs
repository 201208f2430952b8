//! `kymo list`: the events that this machine offers, and the places in a program that can be probed.

mod probes;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use kymo_perf::caps;
use kymo_perf::catalog::{Availability, Catalog, CatalogEntry, CatalogSection, catalog};
use kymo_perf::machine::Machine;
use kymo_perf::suggest::nearest;
use kymo_perf::sys::Real;
use serde_json::json;

use kymo_cli::terminal;

/// The shape of `--json`; raised when a field changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;
/// Names longer than this do not push the descriptions of all others to the right.
const NAME_COLUMNS: usize = 48;

/// List the events that can be recorded here, or the functions and markers of a program
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only events whose name matches: a glob (`sched:*`), a part of the name, or a section (hardware, software, cache,
    /// pmu, tracepoint, breakpoint, raw)
    filter: Option<String>,
    /// List what `kymo probe` can be put on in this program or library: functions and USDT markers; FILTER is a glob of their names then
    #[arg(long, value_name = "BINARY")]
    probes: Option<OsString>,
    /// With --probes: show what each function takes and returns, where debug information tells
    #[arg(short = 'v', long, requires = "probes")]
    args: bool,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Lists events on stdout; what could not be listed is said on stderr.
pub(crate) fn run(args: ListArgs) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.probes {
        return probes::run(file, args.filter.as_deref(), args.json, args.args);
    }
    let machine = Machine::here();
    let caps = caps::probe();
    let found = catalog(&machine, &caps, &Real, args.filter.as_deref());
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{}", kymo_profile::text::json_pretty(&as_json(&found))?)?;
    } else {
        write_text(&mut out, &found)?;
    }
    out.flush()?;
    if !args.json {
        found.notes.iter().for_each(|note| eprintln!("kymo: {note}"));
    }
    if !found.entries.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(filter), true) = (&args.filter, found.notes.is_empty()) {
        let all = catalog(&machine, &caps, &Real, None);
        let hint = nearest(filter, all.entries.iter().map(|entry| entry.name.as_str()))
            .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        eprintln!("kymo: no event matches `{filter}`{hint}");
    }
    Ok(ExitCode::FAILURE)
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
