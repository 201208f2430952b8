//! The end: who touched each place, how often, from which threads, with the first and the last value.

use std::fmt::Write as _;

use kymo_perf::watch::Armed;
use kymo_profile::text::shown;
use serde_json::json;

use super::lines::{site_json, site_words};
use kymo_probe::watch::ledger::{Ledger, Row};
use kymo_probe::watch::names::Names;
use kymo_probe::watch::place::Part;

/// So many threads of a row are named.
const NAMED: usize = 3;

/// What is told about the run as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    /// Hits that reached us.
    pub(super) hits: u64,
    /// Hits that did not.
    pub(super) lost: u64,
    /// Hits of other processes at the same addresses.
    pub(super) strangers: u64,
    /// How long registers were armed, in ns.
    pub(super) elapsed_ns: u64,
    /// How often a CPU was not watched because it had gone offline.
    pub(super) cpu_gaps: u64,
}

/// How long a place was armed, as a share of the time. A place of several registers has the least of theirs.
pub(super) fn share(armed: &[Armed]) -> f64 {
    let share = |armed: &Armed| armed.armed_ns as f64 / armed.all_ns.max(1) as f64;
    armed.iter().map(share).fold(1.0, f64::min)
}

/// The table. `coverage`: by place, where registers took turns.
pub(super) fn text(ledger: &Ledger, names: &mut Names, coverage: Option<&[f64]>) -> String {
    let mut out = String::new();
    let rows = ledger.rows();
    for (index, place) in ledger.places().iter().enumerate() {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| row.place == index).collect();
        let hits: u64 = own.iter().map(|row| row.hits).sum();
        // SANITY: writing to a String cannot fail.
        write!(out, "\n{}: {hits} hit{}", shown(&place.to_string()), if hits == 1 { "" } else { "s" })
            .expect("writing to a string");
        if let Some(coverage) = coverage {
            write!(out, ", armed {:.1} % of the time", 100.0 * coverage[index]).expect("writing to a string");
        }
        out.push('\n');
        if own.is_empty() {
            continue;
        }
        writeln!(out, "{:>12} {:>8}  {:<40} {:<24} first .. last", "hits", "threads", "function", "by")
            .expect("writing to a string");
        for row in own {
            let site = names.access(row.pid, row.ip, place.is_code());
            let value = |(part, value): &(Part, Option<u64>)| {
                value.map_or_else(|| "?".to_owned(), |value| place.show(part, value))
            };
            let values = if place.is_code() {
                String::new()
            } else {
                format!("{} .. {}", value(&row.first), value(&row.last))
            };
            writeln!(
                out,
                "{:>12} {:>8}  {:<40} {:<24} {}",
                row.hits,
                row.threads.len(),
                shown(&site_words(&site)),
                shown(&threads(row)),
                shown(&values)
            )
            .expect("writing to a string");
        }
    }
    out
}

/// The threads with most hits.
fn threads(row: &Row) -> String {
    let mut threads: Vec<_> = row.threads.iter().collect();
    threads.sort_by_key(|(tid, (_, hits))| (std::cmp::Reverse(*hits), **tid));
    let named = threads.iter().take(NAMED).map(|(tid, (name, _))| match name.is_empty() {
        true => tid.to_string(),
        false => format!("{}/{tid}", String::from_utf8_lossy(name)),
    });
    let mut text = named.collect::<Vec<_>>().join(" ");
    if threads.len() > NAMED {
        text.push_str(" ...");
    }
    text
}

/// The last line of `--json`.
pub(super) fn summary(
    ledger: &Ledger,
    names: &mut Names,
    coverage: Option<&[f64]>,
    totals: &Totals,
) -> serde_json::Value {
    let rows = ledger.rows();
    let places: Vec<_> = ledger
        .places()
        .iter()
        .enumerate()
        .map(|(index, place)| {
            let rows: Vec<_> = rows.iter().filter(|row| row.place == index).map(|row| {
            let value = |(part, value): &(Part, Option<u64>)| value.map(|value| place.show(part, value));
            let mut threads: Vec<_> = row.threads.iter().collect();
            threads.sort_by_key(|(tid, _)| **tid);
            let thread = |(tid, (name, hits)): &(&i32, &(Vec<u8>, u64))| {
                json!({"tid": tid, "comm": String::from_utf8_lossy(name), "hits": hits})
            };
            json!({
                "site": site_json(&names.access(row.pid, row.ip, place.is_code())),
                "hits": row.hits,
                "threads": threads.iter().map(thread).collect::<Vec<_>>(),
                "first": value(&row.first),
                "last": value(&row.last),
            })
        }).collect();
            json!({
                "expression": place.expression,
                "address": format!("{:#x}", place.range.address),
                "bytes": place.range.bytes,
                "access": place.range.kind.to_string(),
                "coverage": coverage.map_or(1.0, |coverage| coverage[index]),
                "hits": rows.iter().filter_map(|row: &serde_json::Value| row["hits"].as_u64()).sum::<u64>(),
                "rows": rows,
            })
        })
        .collect();
    json!({
        "type": "summary",
        "places": places,
        "hits": totals.hits,
        "counted": ledger.counted,
        "lost": totals.lost,
        "cpu_gaps": totals.cpu_gaps,
        "read_after": ledger.read_after,
        "after_exec": ledger.after_exec,
        "strangers": totals.strangers,
        "elapsed_ns": totals.elapsed_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a place is covered as little as the least of its registers, and wholly where nothing is known.
    #[test]
    fn shares() {
        let armed = |armed_ns| Armed { armed_ns, all_ns: 100 };
        assert!((share(&[armed(50), armed(25)]) - 0.25).abs() < 1e-9);
        assert!((share(&[]) - 1.0).abs() < 1e-9);
    }
}
