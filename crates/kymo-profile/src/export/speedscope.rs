//! A file for speedscope: a profile of samples for each thread and event.
//!
//! A sample is a stack with a weight: its period, in ns where the event is a clock. Samples of one
//! stack that follow each other are one. Times are left out: speedscope puts samples one after
//! another. `file-format-schema.json` of speedscope has the form.
use super::samples::{ExportSamples, Track};
use crate::text;
use std::io::{self, Write};

/// Writes a profile for each thread and event.
///
/// # Errors
/// Those of `out`.
pub fn speedscope(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let tracks = samples.tracks();
    let busiest = (0..tracks.len()).rev().max_by_key(|at| samples.row_count(&tracks[*at])).unwrap_or(0);
    write!(
        out,
        "{{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"exporter\":\"kymo {}\",\"name\":{},\"activeProfileIndex\":{busiest},",
        env!("CARGO_PKG_VERSION"),
        text::json(samples.profile.heading())?
    )?;
    out.write_all(b"\"shared\":{\"frames\":[")?;
    for (number, function) in samples.profile.functions.iter().enumerate() {
        let comma = if number == 0 { "" } else { "," };
        write!(out, "{comma}\n{{\"name\":{}", text::json(&function.name)?)?;
        if let Some(file) = samples.locations.file(number as u32) {
            write!(out, ",\"file\":{}", text::json(file)?)?;
        }
        out.write_all(b"}")?;
    }
    out.write_all(b"]},\"profiles\":[")?;
    let numbers: Vec<String> =
        (0..samples.profile.functions.len()).map(|number| number.to_string()).collect();
    for (at, track) in tracks.iter().enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
        write_profile(samples, track, &numbers, out)?;
    }
    out.write_all(b"]}\n")
}

/// Samples of one stack that follow each other, with the sum of their weights.
fn runs(samples: &ExportSamples<'_>, track: &Track) -> impl Iterator<Item = (u32, u64)> {
    // Without periods a sample weighs one.
    let has_periods = samples.event(track.event).total_period > 0;
    let weight = move |(period, count)| if has_periods { period } else { count };
    let mut rows =
        samples.rows_of(track).map(move |row| (row.node, weight((row.period, row.samples)))).peekable();
    std::iter::from_fn(move || {
        let (node, mut sum) = rows.next()?;
        while let Some((_, more)) = rows.next_if(|(next, _)| *next == node) {
            sum = sum.saturating_add(more);
        }
        Some((node, sum))
    })
}

fn write_profile(
    samples: &ExportSamples<'_>,
    track: &Track,
    numbers: &[String],
    out: &mut dyn Write,
) -> io::Result<()> {
    let unit = match samples.event(track.event).unit_of_values() {
        unit @ ("nanoseconds" | "microseconds" | "milliseconds" | "seconds" | "bytes") => unit,
        _ => "none",
    };
    let name = text::json(&samples.track_name(track))?;
    let total = runs(samples, track).fold(0, |sum: u64, (_, weight)| sum.saturating_add(weight));
    write!(
        out,
        "{{\"type\":\"sampled\",\"name\":{name},\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{total},\"samples\":["
    )?;
    let (mut path, mut line) = (Vec::new(), String::new());
    for (at, (node, _)) in runs(samples, track).enumerate() {
        samples.path(track.event, node, &mut path);
        line.clear();
        line.push_str(if at == 0 { "[" } else { ",[" });
        for (depth, function) in path.iter().enumerate() {
            if depth > 0 {
                line.push(',');
            }
            line.push_str(&numbers[*function as usize]);
        }
        line.push(']');
        out.write_all(line.as_bytes())?;
    }
    out.write_all(b"],\"weights\":[")?;
    for (at, (_, weight)) in runs(samples, track).enumerate() {
        write!(out, "{}{weight}", if at == 0 { "" } else { "," })?;
    }
    out.write_all(b"]}")
}
