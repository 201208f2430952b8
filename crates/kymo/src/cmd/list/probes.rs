//! `kymo list --probes`: the functions and markers of a program or library.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use kymo_perf::selector::nearest;
use kymo_profile::symbols::sites::{MissingSite, ProbeModule, ProbeSelector, Site, SiteKind, find};
use serde_json::json;

use super::SCHEMA_VERSION;
use crate::cmd::probe::modules;
use crate::terminal;

/// Lists the sites of a file whose names match, all without a glob.
pub(super) fn run(file: &OsStr, filter: Option<&str>, as_json: bool) -> anyhow::Result<ExitCode> {
    let path = modules::program(file)?;
    let module = Arc::new(ProbeModule::open(&path, None)?);
    let sites = sites(&module, filter)?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if as_json {
        let probes: Vec<_> = sites.iter().map(document).collect();
        let document = json!({
            "schema": "kymo-list-probes",
            "schema_version": SCHEMA_VERSION,
            "module": module.path(),
            "is_64": module.is_64(),
            "probes": probes,
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        write_text(&mut out, &sites)?;
    }
    out.flush()?;
    if !sites.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    let names =
        functions(&module).chain(module.markers().iter().map(|m| format!("{}:{}", m.provider, m.name)));
    match filter {
        Some(filter) => {
            let names: Vec<String> = names.collect();
            let near = nearest(filter.trim_matches('*'), names.iter().map(String::as_str));
            let hint = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            terminal::say(&format!("nothing in {} matches `{filter}`{hint}", module.path().display()));
        }
        None => terminal::say(&format!(
            "{} has no symbol table and no markers: install its debug symbols, or probe an offset ('FILE:0xOFFSET')",
            module.path().display()
        )),
    }
    Ok(ExitCode::FAILURE)
}

fn functions(module: &ProbeModule) -> impl Iterator<Item = String> {
    module.functions().iter().map(|function| function.name().into_owned())
}

/// Functions and markers that match; a selector (`file.c:12`, `usdt:a:b`) is taken as one.
fn sites(module: &Arc<ProbeModule>, filter: Option<&str>) -> anyhow::Result<Vec<Site>> {
    let own = [Arc::clone(module)];
    let ask = |text: &str| -> anyhow::Result<Result<Vec<Site>, MissingSite>> {
        Ok(find(&ProbeSelector::parse(text).map_err(crate::exit::usage_of)?, &own))
    };
    let filter = filter.unwrap_or("*");
    let marker = filter.strip_prefix("usdt:").unwrap_or(filter);
    let mut found = if filter.starts_with("usdt:") { Vec::new() } else { ask(filter)?.unwrap_or_default() };
    let pattern = if marker.contains(':') { format!("usdt:{marker}") } else { format!("usdt:*:{marker}") };
    if !marker.contains("::") && !marker.contains('+') {
        found.extend(ask(&pattern).ok().and_then(Result::ok).unwrap_or_default());
    }
    Ok(found)
}

fn document(site: &Site) -> serde_json::Value {
    json!({
        "name": site.name,
        "symbol": site.symbol,
        "kind": site.kind.word(),
        "offset": site.offset,
        "address": site.svma,
        "length_bytes": (site.length_bytes > 0).then_some(site.length_bytes),
        "semaphore": site.semaphore,
        "arguments": match &site.kind { SiteKind::Marker { arguments } => Some(arguments), _ => None },
    })
}

fn write_text(out: &mut dyn Write, sites: &[Site]) -> io::Result<()> {
    for site in sites {
        let length = match site.length_bytes {
            0 => String::new(),
            bytes => format!("{bytes} bytes"),
        };
        let remark = match &site.kind {
            SiteKind::Marker { arguments } => {
                format!("  usdt, {} arguments", arguments.split_whitespace().count())
            }
            _ => String::new(),
        };
        let name = kymo_profile::text::shown(&site.name);
        writeln!(out, "{:#10x}  {length:>12}  {name}{remark}", site.offset)?;
    }
    Ok(())
}
