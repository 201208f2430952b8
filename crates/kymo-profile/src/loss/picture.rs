//! The losses as a picture: a lane per ring, time from left to right.
//!
//! ```text
//!  Lost 63.27 % of the records                              lost time
//!  CPU 0  ▁▂▂▁░░░▂▃▃░░░░░▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁    9.09 %
//!  CPU 1  ▁▃▃▃░▃░▃░░▃░▃░▃░▃░▃▃░░░▃▃░▃░░░░░▃░▃░▁▁▁▁▁▁▁▁▁▁▁▁   47.58 %
//!         0 ms        100 ms       200 ms       300 ms
//! ```
//!
//! Height is bytes per time, grey is lost time: the darker, the more of the column's time. All text from the recording
//! is escaped. The same account gives the same bytes, and nothing is loaded from anywhere.
use super::text::percent;
use super::{LossTimeline, Ring, Stretch};
use crate::export::recorder;
use crate::text::shown;
use kymo_data::Recording;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};

/// More rings than this share lanes with their neighbours.
const MOST_LANES: usize = 64;
/// Columns of a lane.
const MOST_COLUMNS: usize = 480;
/// Shades of grey.
const SHADES: usize = 8;
/// More stretches of one kind than this are not drawn one by one.
const MOST_STRETCHES: usize = 4096;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 112.0;
const PLOT: f64 = 930.0;
const TOP: f64 = 122.0;
/// The tallest bar's share of its lane: above it the grey stays to be seen.
const TALLEST: f64 = 0.8;

/// Words around the picture.
#[derive(Debug, Clone, Default)]
pub struct Caption {
    /// What was recorded, a command line.
    pub command: String,
    /// Where and with what, in one line.
    pub facts: String,
}

impl Caption {
    /// What the recording tells about itself; `source` is its name as the user gave it.
    pub fn of(recording: &Recording, source: &str) -> Caption {
        let features = &recording.features;
        let recorder = recorder(features.version.as_deref());
        let kernel = features.os_release.as_ref().map(|release| format!("Linux {release}"));
        let cpus = features.nr_cpus.map(|n| format!("{} CPUs", n.online));
        let facts = [Some(source.to_string()), Some(recorder), kernel, features.cpu_desc.clone(), cpus];
        let facts: Vec<String> = facts.into_iter().flatten().filter(|f| !f.is_empty()).collect();
        Caption { command: features.cmdline.join(" "), facts: facts.join(" · ") }
    }
}

/// Draws the account as an SVG.
///
/// # Errors
/// Those of `out`.
pub fn svg(loss: &LossTimeline, caption: &Caption, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(Picture::new(loss).draw(loss, caption).as_bytes())
}

/// Writes a page with the picture that tells, under the pointer, what happened when.
///
/// # Errors
/// Those of `out`.
pub fn html(loss: &LossTimeline, caption: &Caption, out: &mut dyn Write) -> io::Result<()> {
    let picture = Picture::new(loss);
    let drawn = picture.draw(loss, caption);
    let data = crate::text::json(&picture)?;
    // Inside a script only the end tag and comments mean something; in JSON `<` is always within a string.
    let data = data.replace('<', "\\u003c");
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{}</title>\n<style>\n{PAGE_STYLE}</style>\n</head>\n<body>\n{drawn}<div id=\"tip\" hidden></div>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>\n{PAGE_SCRIPT}</script>\n</body>\n</html>\n",
        escaped(&headline(loss)),
    )
}

/// One lane: a ring, neighbours that share one, or all.
#[derive(Serialize)]
struct Lane {
    name: String,
    y: f64,
    height: f64,
    /// Share of time lost, as text.
    lost_time: String,
    lost_records: u64,
    samples: Vec<u64>,
    bytes: Vec<u64>,
    /// Percent of each column's time that was lost.
    lost: Vec<f64>,
    #[serde(skip)]
    throttled: Vec<bool>,
}

impl Lane {
    /// An empty lane of a ring, or of rings, that lost this share of the time.
    fn new(name: String, y: f64, height: f64, lost_time: f64, columns: usize) -> Lane {
        let (samples, bytes) = (vec![0; columns], vec![0; columns]);
        let (lost, throttled) = (vec![0.0; columns], vec![false; columns]);
        Lane {
            name,
            y,
            height,
            lost_time: percent(lost_time),
            lost_records: 0,
            samples,
            bytes,
            lost,
            throttled,
        }
    }
}

/// What is drawn, in columns.
#[derive(Serialize)]
struct Picture {
    left: f64,
    plot: f64,
    start_ns: u64,
    elapsed_ns: u64,
    /// Begin of the first column: at or before `start_ns`.
    first_ns: u64,
    column_ns: u64,
    lanes: Vec<Lane>,
    #[serde(skip)]
    bottom: f64,
    #[serde(skip)]
    tallest_bytes: u64,
}

impl Picture {
    fn new(loss: &LossTimeline) -> Picture {
        let bins = loss.rings.first().map_or(0, |r| r.cells.len());
        let group = bins.div_ceil(MOST_COLUMNS).max(1);
        let columns = bins.div_ceil(group);
        let (start_ns, elapsed_ns) = (loss.span.map_or(0, |s| s.0), loss.elapsed_ns());
        let mut picture = Picture {
            left: LEFT,
            plot: PLOT,
            start_ns,
            elapsed_ns,
            first_ns: loss.start_of(0),
            column_ns: loss.bin_ns.max(1).saturating_mul(group as u64),
            lanes: Vec::new(),
            bottom: TOP,
            tallest_bytes: 0,
        };
        let share = loss.rings.len().div_ceil(MOST_LANES).max(1);
        let count = loss.rings.len().div_ceil(share);
        let (height, gap) = match count {
            0..=4 => (56.0, 8.0),
            5..=8 => (40.0, 6.0),
            9..=16 => (28.0, 4.0),
            17..=32 => (18.0, 3.0),
            _ => (12.0, 2.0),
        };
        for rings in loss.rings.chunks(share) {
            let name = match rings {
                [first, .., last] => {
                    format!("{} - {}", first.ring, last.ring.to_string().trim_start_matches("CPU "))
                }
                _ => rings.iter().map(|r| r.ring.to_string()).collect(),
            };
            let mean = rings.iter().map(|r| loss.lost_time_share(r)).sum::<f64>() / rings.len() as f64;
            let mut lane = Lane::new(name, picture.bottom, height, mean, columns);
            lane.lost_records = rings.iter().fold(0, |sum, r| sum.saturating_add(r.lost()));
            for ring in rings {
                for (at, cell) in ring.cells.iter().enumerate() {
                    let column = at / group;
                    lane.samples[column] += cell.samples;
                    lane.bytes[column] += cell.bytes;
                    lane.lost[column] += cell.lost_ns as f64 / rings.len() as f64;
                    lane.throttled[column] |= cell.throttled_ns > 0;
                }
            }
            picture.finish(&mut lane.lost);
            picture.tallest_bytes =
                lane.bytes.iter().map(|b| b / rings.len() as u64).fold(picture.tallest_bytes, u64::max);
            picture.lanes.push(lane);
            picture.bottom += height + gap;
        }
        if loss.rings.len() > 1 {
            let share = loss.any_lost_time_share();
            let mut lane = Lane::new("any ring".to_string(), picture.bottom + 6.0, 34.0, share, columns);
            lane.lost_records = loss.lost();
            for part in &picture.lanes {
                for column in 0..columns {
                    lane.samples[column] += part.samples[column];
                    lane.bytes[column] += part.bytes[column];
                    lane.throttled[column] |= part.throttled[column];
                }
            }
            for (at, ns) in loss.any_cells.iter().enumerate() {
                lane.lost[at / group] += *ns as f64;
            }
            picture.finish(&mut lane.lost);
            picture.bottom += 6.0 + 34.0;
            picture.lanes.push(lane);
        }
        picture
    }

    /// Where a column begins and ends within the recording, ns.
    fn bounds(&self, column: usize) -> (u64, u64) {
        let begin = self.first_ns.saturating_add(self.column_ns.saturating_mul(column as u64));
        let end = begin.saturating_add(self.column_ns);
        let last = self.start_ns.saturating_add(self.elapsed_ns);
        (begin.clamp(self.start_ns, last), end.clamp(self.start_ns, last))
    }

    /// From ns lost to percent of each column, two digits, so that what is written does not depend on rounding.
    fn finish(&self, lost: &mut [f64]) {
        for (column, lost) in lost.iter_mut().enumerate() {
            let (begin, end) = self.bounds(column);
            let share = *lost / (end - begin).max(1) as f64;
            *lost = (share.clamp(0.0, 1.0) * 10_000.0).round() / 100.0;
        }
    }

    /// Horizontal place of a time.
    fn x(&self, time_ns: u64) -> f64 {
        let since = time_ns.saturating_sub(self.start_ns).min(self.elapsed_ns);
        LEFT + PLOT * since as f64 / self.elapsed_ns.max(1) as f64
    }

    fn draw(&self, loss: &LossTimeline, caption: &Caption) -> String {
        let has_times = loss.span.is_some() && self.elapsed_ns > 0;
        let height = self.bottom + 66.0;
        let mut s = String::new();
        let _ = write!(
            s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-labelledby=\"t\">\n\
             <title id=\"t\">{}</title>\n<style>\n{STYLE}</style>\n\
             <defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"2.2\" height=\"7\"/></pattern></defs>\n\
             <rect class=\"bg\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escaped(&headline(loss)),
        );
        let _ =
            writeln!(s, "<text class=\"ink title\" x=\"20\" y=\"36\">{}</text>", escaped(&headline(loss)));
        let _ = writeln!(s, "<text class=\"ink\" x=\"20\" y=\"60\">{}</text>", escaped(&second_line(loss)));
        let _ = writeln!(
            s,
            "<text class=\"dim\" x=\"20\" y=\"80\">{}</text>",
            escaped(&cut(&caption.facts, 170))
        );
        let _ = writeln!(
            s,
            "<text class=\"dim mono\" x=\"20\" y=\"99\">{}</text>",
            escaped(&cut(&caption.command, 160))
        );
        if has_times && !self.lanes.is_empty() {
            let _ = writeln!(
                s,
                "<text class=\"dim small end\" x=\"1106\" y=\"115\">lost time</text>\n<text class=\"dim small end\" x=\"1182\" y=\"115\">lost records</text>"
            );
            self.axis(&mut s);
            for (at, lane) in self.lanes.iter().enumerate() {
                let all = at == self.lanes.len() - 1 && loss.rings.len() > 1;
                self.lane(&mut s, lane, all);
            }
            self.cpu_gaps(&mut s, &loss.cpu_gaps);
            self.pauses(&mut s, &loss.pauses);
        } else {
            let _ = writeln!(
                s,
                "<text class=\"ink\" x=\"20\" y=\"{TOP}\">There is nothing to draw: no two records of this recording have a time.</text>"
            );
        }
        self.legend(&mut s, loss, height - 18.0);
        s.push_str("</svg>\n");
        s
    }

    fn axis(&self, s: &mut String) {
        let step = round_step(self.elapsed_ns);
        let (bottom, top) = (self.bottom, TOP - 4.0);
        let mut at = 0;
        while at <= self.elapsed_ns {
            let x = self.x(self.start_ns.saturating_add(at));
            let _ = writeln!(
                s,
                "<path class=\"grid\" d=\"M{x:.1} {top}V{:.1}\"/><text class=\"dim small mid\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 4.0,
                bottom + 18.0,
                tick(at, step)
            );
            let Some(next) = at.checked_add(step) else { break };
            at = next;
        }
    }

    fn lane(&self, s: &mut String, lane: &Lane, all: bool) {
        let (y, h) = (lane.y, lane.height);
        let middle = y + h / 2.0 + 4.0;
        let name = escaped(&lane.name);
        let _ = writeln!(
            s,
            "<g><title>{name}: lost {} records, {} of the time</title><rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{PLOT}\" height=\"{h}\"/>",
            lane.lost_records,
            escaped(&lane.lost_time)
        );
        // One path per shade: columns of the same shade that touch are one rectangle.
        let shade = |lost: f64| ((lost / 100.0 * SHADES as f64).ceil() as usize).min(SHADES);
        for wanted in 1..=SHADES {
            let mut path = String::new();
            let mut column = 0;
            while column < lane.lost.len() {
                let run = lane.lost[column..].iter().take_while(|&&l| shade(l) == wanted).count();
                if run > 0 {
                    let (x0, x1) = (self.x(self.bounds(column).0), self.x(self.bounds(column + run - 1).1));
                    let _ = write!(path, "M{x0:.2} {y}H{x1:.2}v{h}H{x0:.2}z");
                }
                column += run.max(1);
            }
            if !path.is_empty() {
                let opacity = 0.25 + 0.75 * (wanted - 1) as f64 / (SHADES - 1) as f64;
                let _ = writeln!(s, "<path class=\"lost\" opacity=\"{opacity:.2}\" d=\"{path}\"/>");
            }
        }
        let tallest = match all {
            true => lane.bytes.iter().copied().max().unwrap_or(0),
            false => self.tallest_bytes,
        };
        let mut path = String::new();
        for (column, &bytes) in lane.bytes.iter().enumerate().filter(|(_, b)| **b > 0) {
            let (x0, x1) = (self.x(self.bounds(column).0), self.x(self.bounds(column).1));
            // What is there is seen, however little it is.
            let bar = (bytes as f64 / tallest.max(1) as f64 * h * TALLEST).clamp(1.0, h);
            let _ = write!(path, "M{x0:.2} {:.1}H{x1:.2}v-{bar:.1}H{x0:.2}z", y + h);
        }
        let _ = writeln!(s, "<path class=\"{}\" d=\"{path}\"/>", if all { "all" } else { "data" });
        let mut path = String::new();
        for (column, _) in lane.throttled.iter().enumerate().filter(|(_, t)| **t) {
            let (x0, x1) = (self.x(self.bounds(column).0), self.x(self.bounds(column).1));
            let _ = write!(path, "M{x0:.2} {y}H{x1:.2}v3.5H{x0:.2}z");
        }
        if !path.is_empty() {
            let _ = writeln!(s, "<path class=\"throttled\" d=\"{path}\"/>");
        }
        let size = if h < 14.0 { " small" } else { "" };
        let _ = writeln!(
            s,
            "<text class=\"ink end{size}\" x=\"{}\" y=\"{middle:.1}\">{name}</text><text class=\"ink end{size}\" x=\"1106\" y=\"{middle:.1}\">{}</text><text class=\"ink end{size}\" x=\"1182\" y=\"{middle:.1}\">{}</text></g>",
            LEFT - 8.0,
            escaped(&lane.lost_time),
            lane.lost_records
        );
    }

    fn pauses(&self, s: &mut String, pauses: &[Stretch]) {
        // Pauses closer to each other than a third of a pixel are one.
        let close = self.elapsed_ns / (3 * PLOT as u64);
        let mut drawn: Vec<Stretch> = Vec::new();
        for &pause in pauses {
            match drawn.last_mut() {
                Some(last) if pause.start_ns.saturating_sub(last.end_ns) <= close => {
                    last.end_ns = pause.end_ns
                }
                _ => drawn.push(pause),
            }
        }
        for pause in drawn.iter().take(MOST_STRETCHES) {
            let x = self.x(pause.start_ns);
            let width = (self.x(pause.end_ns) - x).max(1.0);
            let _ = writeln!(
                s,
                "<rect class=\"pause\" x=\"{x:.2}\" y=\"{TOP}\" width=\"{width:.2}\" height=\"{:.1}\"/>",
                self.bottom - TOP
            );
        }
    }

    /// Draws when a CPU was not observed, in its lane.
    fn cpu_gaps(&self, s: &mut String, gaps: &[(Ring, Stretch)]) {
        for (ring, gap) in gaps.iter().take(MOST_STRETCHES) {
            let name = ring.to_string();
            let Some(lane) = self.lanes.iter().find(|lane| lane.name == name) else { continue };
            let x = self.x(gap.start_ns);
            let width = (self.x(gap.end_ns) - x).max(1.0);
            let _ = writeln!(
                s,
                "<rect class=\"gap\" x=\"{x:.2}\" y=\"{}\" width=\"{width:.2}\" height=\"{:.1}\"/>",
                lane.y, lane.height
            );
        }
    }

    fn legend(&self, s: &mut String, loss: &LossTimeline, y: f64) {
        let per_second = self.tallest_bytes as f64 / (self.column_ns.max(1) as f64 / 1e9);
        let mut items =
            vec![("data", format!("kept: height is bytes per time, the tallest {}/s", bytes(per_second)))];
        match loss.lost() {
            0 => items.push(("lost", "lost: nothing".to_string())),
            _ => items.push(("lost", "lost: the darker, the more of the time".to_string())),
        }
        if loss.throttles() > 0 {
            items.push(("throttled", "throttled by the kernel".to_string()));
        }
        if !loss.pauses.is_empty() {
            items.push(("pause", "paused by the recorder".to_string()));
        }
        if !loss.cpu_gaps.is_empty() {
            items.push(("gap", "CPU not observed".to_string()));
        }
        let mut x = LEFT;
        for (class, words) in items {
            let _ = writeln!(
                s,
                "<rect class=\"lane\" x=\"{x:.0}\" y=\"{:.1}\" width=\"14\" height=\"12\"/><rect class=\"{class}\" x=\"{x:.0}\" y=\"{:.1}\" width=\"14\" height=\"12\"/><text class=\"dim small\" x=\"{:.0}\" y=\"{y:.1}\">{}</text>",
                y - 10.0,
                y - 10.0,
                x + 20.0,
                escaped(&words)
            );
            x += 40.0 + 5.6 * words.chars().count() as f64;
        }
        let _ =
            writeln!(s, "<text class=\"dim small end\" x=\"1182\" y=\"{y:.1}\">kymo report --loss</text>");
    }
}

fn headline(loss: &LossTimeline) -> String {
    match loss.lost() {
        0 if !loss.cpu_gaps.is_empty() => format!(
            "Lost no record, but not every CPU was observed all the time: {} samples were kept",
            grouped(loss.samples())
        ),
        0 => format!("Lost nothing: all {} samples were kept", grouped(loss.samples())),
        lost => format!(
            "Lost {} of the records: {} of {}",
            percent(loss.lost_share()),
            grouped(lost),
            grouped(lost.saturating_add(loss.samples()))
        ),
    }
}

fn second_line(loss: &LossTimeline) -> String {
    if loss.span.is_none() {
        return String::new();
    }
    let about = if loss.estimated { "at most " } else { "" };
    let elapsed = format!("{:.3} s", loss.elapsed_ns() as f64 / 1e9);
    let mut line = if loss.lost() == 0 {
        format!("{elapsed}, {} rings", loss.rings.len())
    } else {
        format!(
            "Lost time: {about}{} of {elapsed} (mean of {} rings), {about}{} in any ring",
            percent(loss.mean_lost_time_share()),
            loss.rings.len(),
            percent(loss.any_lost_time_share())
        )
    };
    if loss.lost_late() > 0 {
        let _ = write!(line, " · {} lost after the last LOST record", grouped(loss.lost_late()));
    }
    if loss.throttles() > 0 {
        let _ = write!(line, " · throttled {} times", grouped(loss.throttles()));
    }
    if !loss.pauses.is_empty() {
        let _ = write!(line, " · paused {:.3} s", loss.paused_ns() as f64 / 1e9);
    }
    if !loss.cpu_gaps.is_empty() {
        let seconds = loss.cpu_gaps_ns() as f64 / 1e9;
        let _ = write!(line, " · CPUs not observed {} times, {seconds:.3} s", loss.cpu_gaps.len());
    }
    line
}

/// 1, 2 or 5 times a power of ten, so that 5 to 12 of them make the whole.
fn round_step(elapsed_ns: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if elapsed_ns / step <= 11 {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// A time on the axis in the unit of the step.
fn tick(at_ns: u64, step_ns: u64) -> String {
    let (unit, name) = match step_ns {
        0..=999 => (1, "ns"),
        1000..=999_999 => (1000, "µs"),
        1_000_000..=99_999_999 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    if step_ns.is_multiple_of(unit) {
        format!("{} {name}", at_ns / unit)
    } else {
        format!("{:.1} {name}", at_ns as f64 / unit as f64)
    }
}

fn bytes(value: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = value;
    let mut unit = 0;
    while value >= 999.5 && unit < units.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value < 9.95 && unit > 0 { 1 } else { 0 };
    format!("{value:.digits$} {}", units[unit])
}

/// A count with commas between thousands.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// At most so many characters of a text.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{} …", &text[..at]),
        None => text.to_string(),
    }
}

/// Text for XML: what acts on a terminal is written out, what means something to XML or must not be in it is replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in shown(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Colours that stay apart for the colour-blind, for light and dark surroundings.
const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
.title{font-size:21px;font-weight:650}.small{font-size:11px}.mono{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:11.5px}
.end{text-anchor:end}.mid{text-anchor:middle}
.bg{fill:#fff}.ink{fill:#1a1d23}.dim{fill:#5d6573}.lane{fill:#f1f3f6}.grid{stroke:#d5d9e0;fill:none}
.data{fill:#0072b2}.all{fill:#3b4250}.lost{fill:#9a9fa8}.throttled{fill:#d55e00}.hatch{fill:#1a1d23}.pause{fill:url(#hatch)}
.gap{fill:url(#hatch);stroke:#d55e00}
@media(prefers-color-scheme:dark){
.bg{fill:#14161b}.ink{fill:#e7e9ee}.dim{fill:#99a1b0}.lane{fill:#1f232b}.grid{stroke:#363c47}
.data{fill:#56b4e9}.all{fill:#c9d1de}.lost{fill:#757c89}.throttled{fill:#f0872f}.hatch{fill:#e7e9ee}}
";

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}body{margin:0;background:#fff}svg{max-width:100%;height:auto;display:block;margin:auto}
#tip{position:fixed;pointer-events:none;background:#1a1d23;color:#fff;font:12.5px/1.45 system-ui,sans-serif;padding:6px 10px;border-radius:6px;white-space:pre;z-index:1}
@media(prefers-color-scheme:dark){body{background:#14161b}#tip{background:#e7e9ee;color:#14161b}}
";

/// Tells what is under the pointer. Names go into the page as text, never as markup.
const PAGE_SCRIPT: &str = "\
'use strict';
const p = JSON.parse(document.getElementById('data').textContent);
const svg = document.querySelector('svg'), tip = document.getElementById('tip');
svg.querySelectorAll('g > title').forEach(t => t.remove());
const time = ns => ns >= 1e9 ? (ns / 1e9).toFixed(6) + ' s' : ns >= 1e6 ? (ns / 1e6).toFixed(3) + ' ms' : (ns / 1e3).toFixed(3) + ' µs';
svg.addEventListener('pointermove', e => {
  const at = new DOMPoint(e.clientX, e.clientY).matrixTransform(svg.getScreenCTM().inverse());
  const lane = p.lanes.find(l => at.y >= l.y && at.y <= l.y + l.height);
  const since = (at.x - p.left) / p.plot * p.elapsed_ns;
  tip.hidden = !lane || since < 0 || since > p.elapsed_ns;
  if (tip.hidden) return;
  const head = p.start_ns - p.first_ns;
  const i = Math.min(lane.bytes.length - 1, Math.floor((since + head) / p.column_ns));
  const from = Math.max(0, i * p.column_ns - head), to = Math.min(p.elapsed_ns, (i + 1) * p.column_ns - head);
  tip.textContent = lane.name + ', ' + time(from) + ' to ' + time(to) + '\\n' + lane.samples[i] + ' samples, ' + lane.bytes[i] +
    ' bytes\\nlost ' + lane.lost[i].toFixed(2) + ' % of this time\\nwhole lane: ' + lane.lost_time + ' of the time, ' + lane.lost_records + ' records';
  const w = tip.offsetWidth;
  tip.style.left = Math.max(4, Math.min(innerWidth - w - 4, e.clientX + 14)) + 'px';
  tip.style.top = Math.max(4, e.clientY - tip.offsetHeight - 10) + 'px';
});
svg.addEventListener('pointerleave', () => { tip.hidden = true; });
";

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that ticks are round numbers, enough of them and not too many, at every length of a recording.
    #[test]
    fn ticks_are_round_and_few() {
        let mut elapsed = 10u64;
        while elapsed < u64::MAX / 4 {
            let step = round_step(elapsed);
            assert!((4..=11).contains(&(elapsed / step)), "{elapsed}: steps of {step}");
            let mut lead = step;
            while lead.is_multiple_of(10) {
                lead /= 10;
            }
            assert!([1, 2, 5].contains(&lead), "{step}");
            elapsed = elapsed / 2 * 3;
        }
        assert_eq!(
            [(0, 200_000_000), (400_000_000, 200_000_000), (30_000, 10_000), (5_000_000_000, 1_000_000_000)]
                .map(|(at, step)| tick(at, step)),
            ["0.0 s", "0.4 s", "30 µs", "5 s"]
        );
        assert!(round_step(u64::MAX) > 0 && round_step(0) > 0);
    }

    /// Checks how numbers are written.
    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 999.0, 1500.0, 85_400_000.0].map(bytes), ["0 B", "999 B", "1.5 kB", "85 MB"]);
        assert_eq!(cut("äöü", 2), "äö …");
        assert_eq!(
            escaped("<a b=\"c\">&'\u{1}\u{ffff}"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\\x01\\u{ffff}"
        );
    }
}
