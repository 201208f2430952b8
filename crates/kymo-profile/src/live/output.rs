//! The newest samples as a table, and as a line of JSON.
use super::LiveData;
use crate::query::{self, QueryAnswer};
use crate::text::{json, shown};
use serde::Serialize;
use std::io::{self, Write};

/// Version of the lines of JSON. It grows when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// Writes a table for each event. `of`: what is observed, in words.
///
/// # Errors
/// Those of `out`.
pub fn write_text(out: &mut dyn Write, live: &LiveData, of: &str, answers: &[QueryAnswer]) -> io::Result<()> {
    let elapsed = live.elapsed_ns as f64 / 1e9;
    writeln!(out, "# +{elapsed:.1} s: {} of {}", live.window_words(), shown(of))?;
    for answer in answers {
        query::write_text(out, answer)?;
    }
    writeln!(out)
}

/// Writes a line; docs/reference/formats/top-json.md describes it. `unix_ns`: the time of day.
///
/// # Errors
/// Those of `out`.
pub fn write_json_line(
    out: &mut dyn Write,
    live: &LiveData,
    unix_ns: u64,
    answers: &[QueryAnswer],
) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        schema: &'static str,
        schema_version: u32,
        unix_ns: u64,
        elapsed_ns: u64,
        window_ns: u64,
        lost: u64,
        throttled: u64,
        events: &'a [QueryAnswer],
    }
    let line = Line {
        schema: "kymo-top",
        schema_version: SCHEMA_VERSION,
        unix_ns,
        elapsed_ns: live.elapsed_ns,
        window_ns: live.window_ns.1.saturating_sub(live.window_ns.0),
        lost: live.lost,
        throttled: live.throttled,
        events: answers,
    };
    out.write_all(json(&line)?.as_bytes())?;
    out.write_all(b"\n")
}
