//! `kymo list --probes`: the functions and markers of a program or library.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use kymo_perf::suggest::nearest;
use kymo_profile::text::shown;
use kymo_symbols::place::call::{CallError, Parameter};
use kymo_symbols::sites::{MissingSite, ProbeModule, ProbeSelector, Site, SiteKind, find};
use serde_json::json;

use super::SCHEMA_VERSION;
use kymo_cli::terminal;
use kymo_probe::{arguments, modules};

/// What a function takes and returns; nothing where that is not told.
struct Call {
    takes: Vec<Parameter>,
    /// Nothing for `void`.
    returns: Option<String>,
}

/// Lists the sites of a file whose names match, all without a glob; with `calls`, what functions take and return.
pub(super) fn run(
    file: &OsStr,
    filter: Option<&str>,
    as_json: bool,
    calls: bool,
) -> anyhow::Result<ExitCode> {
    let path = modules::program(file)?;
    let module = Arc::new(ProbeModule::open(&path, None)?);
    let sites = sites(&module, filter)?;
    let calls = if calls { self::calls(&sites) } else { Vec::new() };
    let call = |number: usize| calls.get(number).and_then(Option::as_ref);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if as_json {
        let each = sites.iter().enumerate();
        let probes: Vec<_> = each.map(|(number, site)| document(site, call(number))).collect();
        let document = json!({
            "schema": "kymo-list-probes",
            "schema_version": SCHEMA_VERSION,
            "module": module.path().to_string_lossy(),
            "is_64": module.is_64(),
            "probes": probes,
        });
        writeln!(out, "{}", kymo_profile::text::json_pretty(&document)?)?;
    } else {
        for (number, site) in sites.iter().enumerate() {
            write_text(&mut out, site, call(number))?;
        }
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
        Ok(find(&ProbeSelector::parse(text).map_err(kymo_cli::exit::usage)?, &own))
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

/// What the functions at sites take and return; what is known of none is said.
fn calls(sites: &[Site]) -> Vec<Option<Call>> {
    let mut said = Vec::new();
    arguments::each(sites, |_, site, routine| match routine {
        Ok(routine) => Some(Call { takes: routine.parameters(), returns: routine.return_type() }),
        Err(error) => {
            let of_all = matches!(error, CallError::NoDebugInfo { .. } | CallError::Machine);
            if of_all && site.kind == SiteKind::Function && !said.contains(&error) {
                terminal::say(&error.to_string());
                said.push(error);
            }
            None
        }
    })
}

fn document(site: &Site, call: Option<&Call>) -> serde_json::Value {
    let parameter = |parameter: &Parameter| {
        json!({
            "name": parameter.name,
            "type": parameter.type_name,
            "place": parameter.place.as_ref().ok(),
            "unknown": parameter.place.as_ref().err(),
        })
    };
    let parameters = call.map(|call| call.takes.iter().map(parameter).collect::<Vec<_>>());
    json!({
        "name": site.name,
        "symbol": site.symbol,
        "kind": site.kind.word(),
        "offset": site.offset,
        "address": site.svma,
        "length_bytes": (site.length_bytes > 0).then_some(site.length_bytes),
        "semaphore": site.semaphore,
        "arguments": match &site.kind { SiteKind::Marker { arguments } => Some(arguments), _ => None },
        "parameters": parameters,
        "returns": call.and_then(|call| call.returns.as_ref()),
    })
}

fn write_text(out: &mut dyn Write, site: &Site, call: Option<&Call>) -> io::Result<()> {
    let length = match site.length_bytes {
        0 => String::new(),
        bytes => format!("{bytes} bytes"),
    };
    let remark = match (&site.kind, call) {
        (SiteKind::Marker { arguments }, _) => {
            format!("  usdt, {} arguments", arguments.split_whitespace().count())
        }
        (_, Some(call)) => {
            let one = |parameter: &Parameter| match &parameter.name[..] {
                "" => parameter.type_name.clone(),
                name => format!("{name}: {}", parameter.type_name),
            };
            let takes: Vec<String> = call.takes.iter().map(one).collect();
            let returns = call.returns.as_ref().map_or(String::new(), |kind| format!(" -> {kind}"));
            shown(&format!("({}){returns}", takes.join(", "))).into_owned()
        }
        _ => String::new(),
    };
    writeln!(out, "{:#10x}  {length:>12}  {}{remark}", site.offset, shown(&site.name))?;
    for parameter in call.iter().flat_map(|call| &call.takes) {
        if let Err(why) = &parameter.place {
            writeln!(out, "{:26}{}: {}", "", shown(&parameter.name), shown(why))?;
        }
    }
    Ok(())
}
