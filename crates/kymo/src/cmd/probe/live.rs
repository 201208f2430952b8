//! `--args`: each hit as a line, with what the function was called with and what it returned.
//!
//! ```text
//!     0.001234  server 1234/1240  parse(uri="/index", len=7)
//!     0.001290  server 1234/1240  parse = 0  (56.12 us)
//! ```

use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use kymo_profile::text::shown;
use kymo_symbols::place::ValueKind;
use kymo_symbols::place::call::Fetch;
use kymo_symbols::sites::Site;
use serde_json::{Map, Value, json};

use super::show;
use kymo_probe::arguments::Values;
use kymo_probe::engine::{CapturedValue, ProbeHit, ProbeRequest, Service};

/// The shape of a line of `--json`; raised when a field changes its meaning or goes.
const SCHEMA_VERSION: u32 = 1;

/// Prints hits as they are told.
#[derive(Debug)]
pub(super) struct Live<'a> {
    sites: &'a [Site],
    /// What is told of each site; nothing for sites that tell nothing.
    values: &'a [Option<Values>],
    json: bool,
    /// CLOCK_MONOTONIC, when the first hit could come.
    since_ns: u64,
}

impl<'a> Live<'a> {
    /// For these sites, from now on; `None` if none of them tells anything.
    pub(super) fn new(request: &'a ProbeRequest, json: bool) -> Option<Live<'a>> {
        let ProbeRequest { sites, values, .. } = request;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let since_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        values.iter().any(Option::is_some).then_some(Live { sites, values, json, since_ns })
    }

    /// What becomes readable when there is something to print.
    pub(super) fn ready(services: &[Service]) -> impl Iterator<Item = BorrowedFd<'_>> {
        services.iter().filter_map(|service| service.engine.ready_fd())
    }

    /// Prints what has come since the last time, in the order of time.
    pub(super) fn print(&self, services: &[Service], out: &mut dyn Write) -> io::Result<()> {
        let mut all = Vec::new();
        for service in services {
            service.engine.told(&mut |told| {
                if let Some(&site) = service.sites.get(told.site) {
                    all.push(ProbeHit { site, ..told });
                }
            });
        }
        all.sort_by_key(|told| told.time_ns);
        for told in &all {
            let (Some(site), Some(Some(values))) = (self.sites.get(told.site), self.values.get(told.site))
            else {
                continue;
            };
            let fetches = if told.returned { &values.back } else { &values.entry };
            if self.json {
                writeln!(out, "{}", kymo_profile::text::json(&document(site, told, fetches))?)?;
            } else {
                self.line(out, site, told, fetches)?;
            }
        }
        Ok(())
    }

    fn line(&self, out: &mut dyn Write, site: &Site, told: &ProbeHit, fetches: &[Fetch]) -> io::Result<()> {
        let since = told.time_ns.saturating_sub(self.since_ns);
        let (seconds, micros) = (since / 1_000_000_000, since / 1000 % 1_000_000);
        let (comm, pid, tid) = (shown(&told.comm), told.pid, told.tid);
        write!(out, "{seconds:>5}.{micros:06}  {comm} {pid}/{tid}  {}", shown(&site.name))?;
        let texts: Vec<(&str, String)> = fetches
            .iter()
            .zip(&told.values)
            .map(|(fetch, got)| (fetch.name.as_str(), text(fetch, got)))
            .collect();
        match (&texts[..], told.returned) {
            ([(_, one)], true) => write!(out, " = {one}")?,
            ([], true) => write!(out, " returned")?,
            (all, returned) => {
                let parts: Vec<String> = all.iter().map(|(name, text)| format!("{name}={text}")).collect();
                write!(out, "{}({})", if returned { " = " } else { "" }, parts.join(", "))?;
            }
        }
        match told.latency_ns {
            Some(ns) => writeln!(out, "  ({})", show::time(ns as f64)),
            None => writeln!(out),
        }
    }
}

/// A value for people, on one line.
fn text(fetch: &Fetch, got: &CapturedValue) -> String {
    match got {
        CapturedValue::Number(value) => shown(&fetch.show(*value)).into_owned(),
        CapturedValue::Text { bytes, cut } => {
            let text: String = String::from_utf8_lossy(bytes).chars().flat_map(char::escape_debug).collect();
            format!("\"{text}\"{}", if *cut { "..." } else { "" })
        }
        CapturedValue::Unreadable(Some(0)) => "null".to_owned(),
        CapturedValue::Unreadable(Some(address)) => format!("<unreadable {address:#x}>"),
        CapturedValue::Unreadable(None) => "<unreadable>".to_owned(),
    }
}

/// The same as JSON: numbers as numbers, names, texts and addresses as texts, what cannot be read as null.
fn value(fetch: &Fetch, got: &CapturedValue) -> Value {
    match got {
        CapturedValue::Unreadable(_) => Value::Null,
        CapturedValue::Text { bytes, .. } => json!(String::from_utf8_lossy(bytes)),
        CapturedValue::Number(raw) => match &fetch.kind {
            ValueKind::Bool if *raw < 2 => json!(*raw == 1),
            ValueKind::Float | ValueKind::Enum { .. } | ValueKind::Pointer => json!(fetch.show(*raw)),
            _ if fetch.is_signed() => json!(*raw as i64),
            _ => json!(raw),
        },
    }
}

fn document(site: &Site, told: &ProbeHit, fetches: &[Fetch]) -> Value {
    let each = || fetches.iter().zip(&told.values);
    let values: Map<String, Value> =
        each().map(|(fetch, got)| (fetch.name.clone(), value(fetch, got))).collect();
    let is_cut = |got: &CapturedValue| matches!(got, CapturedValue::Text { cut: true, .. });
    let cut: Vec<&str> =
        each().filter(|(_, got)| is_cut(got)).map(|(fetch, _)| fetch.name.as_str()).collect();
    json!({
        "schema": "kymo-probe-hit",
        "schema_version": SCHEMA_VERSION,
        "event": if told.returned { "return" } else { "hit" },
        "time_ns": told.time_ns,
        "comm": told.comm,
        "pid": told.pid,
        "tid": told.tid,
        "probe": site.name,
        "module": site.module.path().to_string_lossy(),
        "latency_ns": told.latency_ns,
        "values": values,
        "cut": cut,
    })
}
