//! What is shown: the table, the histogram, and the same as JSON.

use std::io::{self, Write};

use kymo_core::latency::{self, Latencies};
use kymo_profile::text::shown;
use kymo_symbols::sites::Site;
use serde_json::{Value, json};

use kymo_probe::engine::Reading;

/// The shape of `--json`; raised when a field changes its meaning or goes.
pub(super) const SCHEMA_VERSION: u32 = 1;
/// Widest bar of a histogram.
const BAR: usize = 40;

/// One probe's part of a table.
pub(super) struct Row<'a> {
    pub(super) site: &'a Site,
    /// None: the site is not probed, and nothing is known of its hits.
    pub(super) engine: Option<&'static str>,
    /// In the time that is shown.
    pub(super) reading: Reading,
    /// Whether its calls are timed.
    pub(super) timed: bool,
    /// Named, the most frequent first, each with its hits in the time that is shown.
    pub(super) callers: Vec<(String, u64)>,
}

/// What to show of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) timed: bool,
    pub(super) histograms: bool,
    /// Probes without hits, too.
    pub(super) idle: bool,
    pub(super) bold: (&'static str, &'static str),
}

/// Probe and module, as one word.
pub(super) fn full_name(site: &Site) -> String {
    format!("{}:{}", site.module.name(), site.name)
}

/// A time in the unit that gives it three digits before the point at most.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => format!("{:.2} us", ns / 1e3),
        ns if ns < 999_500_000.0 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

fn optional(ns: Option<f64>) -> String {
    ns.map_or_else(|| "-".into(), time)
}

/// Writes the table of what came in this time; the lines written.
pub(super) fn table(out: &mut dyn Write, rows: &[Row<'_>], elapsed_ns: u64, view: View) -> io::Result<usize> {
    let seconds = (elapsed_ns as f64 / 1e9).max(1e-9);
    let (bold, plain) = view.bold;
    let timed_head = if view.timed {
        format!(" {:>10} {:>10} {:>10} {:>10}", "mean", "p50", "p99", "max")
    } else {
        String::new()
    };
    writeln!(out, "{bold}{:>12} {:>12}{timed_head}  {:<7} probe{plain}", "hits", "hits/s", "engine")?;
    let mut lines = 1;
    for row in rows.iter().filter(|row| view.idle || row.reading.hits > 0) {
        let Reading { hits, latencies, .. } = &row.reading;
        match row.engine {
            Some(_) => write!(out, "{hits:>12} {:>12.0}", *hits as f64 / seconds)?,
            None => write!(out, "{:>12} {:>12}", "-", "-")?,
        }
        if view.timed {
            let quantile = |share| latencies.quantile_ns(share).map(|ns| ns as f64);
            let longest = (latencies.count > 0).then_some(latencies.max_ns as f64);
            for value in [latencies.mean_ns(), quantile(0.5), quantile(0.99), longest] {
                write!(out, " {:>10}", if row.timed { optional(value) } else { String::new() })?;
            }
        }
        writeln!(out, "  {:<7} {}", row.engine.unwrap_or("none"), shown(&full_name(row.site)))?;
        lines += 1;
        for (name, hits) in &row.callers {
            writeln!(out, "{hits:>12}   <- {}", shown(name))?;
            lines += 1;
        }
    }
    if view.histograms {
        for row in rows.iter().filter(|row| row.reading.latencies.count > 0) {
            lines += histogram(out, row)?;
        }
    }
    Ok(lines)
}

/// Draws how often which latency was, a line for each power of two.
fn histogram(out: &mut dyn Write, row: &Row<'_>) -> io::Result<usize> {
    let octaves = octaves(&row.reading.latencies);
    let most = octaves.iter().map(|(.., count)| *count).max().unwrap_or(1).max(1);
    writeln!(out, "\n{} ({} calls)", shown(&full_name(row.site)), row.reading.latencies.count)?;
    for (first, last, count) in &octaves {
        let eighths = (*count as f64 / most as f64 * 8.0 * BAR as f64).ceil() as usize;
        let part = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
        let bar = format!("{}{part}", "█".repeat(eighths / 8));
        let (first, end) = (time(*first as f64), time(*last as f64 + 1.0));
        writeln!(out, "{first:>10} .. {end:<10} {count:>10} |{bar}")?;
    }
    Ok(octaves.len() + 2)
}

/// Counts by doublings, from the first that has any to the last: first ns, last ns, count.
fn octaves(latencies: &Latencies) -> Vec<(u64, u64, u64)> {
    let mut all: Vec<(u64, u64, u64)> = Vec::new();
    let doubling = |bucket: u32| (bucket / latency::PER_DOUBLING) as usize - 1;
    for bucket in latency::USED {
        let (first, last) = latency::range_ns(bucket);
        if doubling(bucket) == all.len() {
            all.push((first, last, 0));
        }
        let (_, to, sum) = &mut all[doubling(bucket)];
        let count = latencies.buckets.get(bucket as usize).copied().unwrap_or(0);
        (*to, *sum) = (last, sum.saturating_add(count));
    }
    let first = all.iter().position(|(.., count)| *count > 0).unwrap_or(0);
    let end = all.iter().rposition(|(.., count)| *count > 0).map_or(0, |at| at + 1);
    all.get(first..end).unwrap_or(&[]).to_vec()
}

/// The document of `--json`.
pub(super) fn document(rows: &[Row<'_>], elapsed_ns: u64, words: &[String]) -> Value {
    let probes: Vec<Value> = rows.iter().map(|row| probe(row, elapsed_ns)).collect();
    json!({
        "schema": "kymo-probe",
        "schema_version": SCHEMA_VERSION,
        "elapsed_ns": elapsed_ns,
        "probes": probes,
        "notes": words,
    })
}

fn probe(row: &Row<'_>, elapsed_ns: u64) -> Value {
    let Reading { hits, latencies, missed, .. } = &row.reading;
    let buckets = latencies.buckets.iter().enumerate().filter(|(_, count)| **count > 0).map(|(at, count)| {
        let (first, last) = latency::range_ns(at as u32);
        json!({ "from_ns": first, "to_ns": last, "count": count })
    });
    let callers = row.callers.iter().map(|(name, hits)| json!({ "name": name, "hits": hits }));
    let timed = (row.timed && row.engine.is_some()).then(|| {
        json!({
            "count": latencies.count,
            "missed": missed,
            "total_ns": latencies.total_ns,
            "mean_ns": latencies.mean_ns(),
            "p50_ns": latencies.quantile_ns(0.5),
            "p99_ns": latencies.quantile_ns(0.99),
            "max_ns": (latencies.count > 0).then_some(latencies.max_ns),
            "buckets": buckets.collect::<Vec<_>>(),
        })
    });
    json!({
        "name": row.site.name,
        // A path need not be text.
        "module": row.site.module.path().to_string_lossy(),
        "offset": row.site.offset,
        "kind": row.site.kind.word(),
        "engine": row.engine,
        // What a program counts itself it can also make up.
        "counted_by": row.engine.map(|engine| if engine == "inproc" { "program" } else { "kernel" }),
        "hits": row.engine.map(|_| hits),
        "hits_per_second": row.engine.map(|_| *hits as f64 / (elapsed_ns as f64 / 1e9).max(1e-9)),
        "latencies": timed,
        "callers": callers.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks units at their borders.
    #[test]
    fn times() {
        let shown: Vec<String> = [0.0, 999.4, 1000.0, 1_234_567.0, 12e9].iter().map(|&ns| time(ns)).collect();
        assert_eq!(shown, ["0 ns", "999 ns", "1.00 us", "1.23 ms", "12.00 s"]);
    }

    /// Checks that doublings add up their buckets, without empty ends but with empty middles.
    #[test]
    fn doublings() {
        let mut latencies = Latencies::default();
        [1, 8, 9, 23, 60].iter().for_each(|&ns| latencies.add(ns));
        let found = octaves(&latencies);
        assert_eq!(found, [(0, 7, 1), (8, 23, 3), (24, 55, 0), (56, 119, 1)]);
        assert!(octaves(&Latencies::default()).is_empty());
    }
}
