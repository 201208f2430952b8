//! One HTML page that needs nothing but itself: timeline, flame graph and table of a profile.
//!
//! The source of the page is the folder `ui/` of this crate. This file puts the pieces together and
//! packs the numbers. The page computes shares, ranges and views by itself from what is packed here;
//! it never asks the network for anything.
//!
//! # The packed form
//! One JSON object in a `<script type="application/json">`. Long lists of numbers are *columns*: unsigned LEB128
//! numbers, base64. Periods that are the same multiple of the sample count everywhere are not stored (`period` null).
//! `ui/data.js` is the reader and says what each column means.
use super::model::{
    ExportEvent, ExportProfile, FunctionKind, Interval, Link, Loss, NO_CPU, NO_PARENT, SCHEMA_VERSION,
    Timeline,
};
use crate::query::heat_column_ns;
use hashbrown::HashMap;
use serde::Serialize;
use std::io::{self, Write};

/// Above this many timeline entries the page gets coarser buckets: opening it has to stay instant.
const MAX_ENTRIES: usize = 300_000;
/// But never fewer buckets than a selection needs to be useful.
const MIN_BUCKETS: u32 = 64;

const PAGE: &str = include_str!("../../ui/page.html");
const STYLE: &str = include_str!("../../ui/page.css");
/// In the order in which they need each other.
const SCRIPTS: [&str; 15] = [
    include_str!("../../ui/state.js"),
    include_str!("../../ui/data.js"),
    include_str!("../../ui/header.js"),
    include_str!("../../ui/canvas.js"),
    include_str!("../../ui/tree.js"),
    include_str!("../../ui/flame.js"),
    include_str!("../../ui/lanes.js"),
    include_str!("../../ui/timeline.js"),
    include_str!("../../ui/rows.js"),
    include_str!("../../ui/chart.js"),
    include_str!("../../ui/calltree.js"),
    include_str!("../../ui/heatmap.js"),
    include_str!("../../ui/code.js"),
    include_str!("../../ui/table.js"),
    include_str!("../../ui/main.js"),
];
/// Before these, of a page that has a server.
const SERVED: &str = include_str!("../../ui/served.js");

/// Writes the page: a complete document that opens from a file, offline, in any current browser.
///
/// # Errors
/// Those of `out`.
pub fn html(profile: &ExportProfile, out: &mut dyn Write) -> io::Result<()> {
    write(profile.heading(), None, |out| embedded(&Page::new(profile, MAX_ENTRIES), out), None::<&()>, out)
}

/// The same with the code of functions, by event and by the function's number.
pub(crate) fn html_with_codes(
    profile: &ExportProfile,
    codes: &impl Serialize,
    out: &mut dyn Write,
) -> io::Result<()> {
    write(profile.heading(), None, |out| embedded(&Page::new(profile, MAX_ENTRIES), out), Some(codes), out)
}

/// The page of a comparison. The first two events are the new and the old side, with the same
/// nodes.
pub(crate) fn compared_html(
    profile: &ExportProfile,
    functions: &[ComparedFunction],
    out: &mut dyn Write,
) -> io::Result<()> {
    let page = || Page { compared: Some(functions), ..Page::new(profile, MAX_ENTRIES) };
    write(profile.heading(), None, |out| embedded(&page(), out), None::<&()>, out)
}

/// The data of a page that is a file.
fn embedded(page: &Page<'_>, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(script_safe(&crate::text::json(page)?).as_bytes())
}

/// Samples over time in the packed form that the page reads.
pub(crate) fn entries_json(timeline: &Timeline, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(crate::text::json(&Entries::new(timeline, true))?.as_bytes())
}

/// Writes the page as a server gives it out: scripts and styles have the word by which the browser
/// knows them as the server's. It asks the server for the profile, and for exact sums of what is
/// selected.
///
/// # Errors
/// Those of `out`.
pub fn write_served_page(title: &str, nonce: &str, out: &mut dyn Write) -> io::Result<()> {
    write(title, Some(nonce), |_| Ok(()), None::<&()>, out)
}

/// Writes the profile that a served page asks for.
pub(crate) fn page_json(profile: &ExportProfile, served: ServedPage, out: &mut dyn Write) -> io::Result<()> {
    let page = Page { served: Some(served), ..Page::new(profile, MAX_ENTRIES) };
    out.write_all(crate::text::json(&page)?.as_bytes())
}

fn write(
    title: &str,
    nonce: Option<&str>,
    data: impl Fn(&mut dyn Write) -> io::Result<()>,
    codes: Option<&impl Serialize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let attribute = nonce.map_or_else(String::new, |nonce| format!(" nonce=\"{nonce}\""));
    let mut rest = PAGE;
    // Cut at the marks in turn; what is inserted is never searched for marks.
    for mark in
        ["<!--POLICY-->", "<!--TITLE-->", "<!--STYLE-->", "<!--DATA-->", "<!--CODES-->", "<!--SCRIPTS-->"]
    {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.write_all(before.as_bytes())?;
        rest = after;
        match mark {
            "<!--POLICY-->" => out.write_all(policy(nonce).as_bytes())?,
            "<!--TITLE-->" => out.write_all(text(&crate::text::shown(title)).as_bytes())?,
            "<!--STYLE-->" => write!(out, "<style{attribute}>\n{STYLE}\n</style>")?,
            "<!--DATA-->" => data(out)?,
            "<!--CODES-->" => {
                if let Some(codes) = codes {
                    let codes = script_safe(&crate::text::json(codes)?);
                    write!(out, "<script type=\"application/json\" id=\"codes\">{codes}</script>")?;
                }
            }
            _ => {
                for script in nonce.map(|_| SERVED).into_iter().chain(SCRIPTS) {
                    writeln!(out, "<script{attribute}>")?;
                    out.write_all(script.as_bytes())?;
                    out.write_all(b"</script>\n")?;
                }
            }
        }
    }
    out.write_all(rest.as_bytes())
}

/// What the browser permits the page: nothing from anywhere; of a served page questions to its
/// server, and scripts and styles that have this word only.
pub fn policy(nonce: Option<&str>) -> String {
    let own = nonce.map_or_else(|| "'unsafe-inline'".to_owned(), |nonce| format!("'nonce-{nonce}'"));
    let connect = if nonce.is_some() { "connect-src 'self'; " } else { "" };
    format!(
        "default-src 'none'; style-src {own}; script-src {own}; img-src data:; {connect}base-uri 'none'; form-action 'none'"
    )
}

/// Text as HTML shows it literally.
fn text(raw: &str) -> String {
    raw.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// JSON that cannot end or open an element, whatever its strings hold.
///
/// These characters occur in JSON only inside strings, where an escape means the same.
fn script_safe(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => safe.push_str(&format!("\\u{:04x}", c as u32)),
            c => safe.push(c),
        }
    }
    safe
}

/// Which reading of a recording a served page shows.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServedPage {
    /// Counts the readings.
    pub(crate) version: u64,
    /// Of one chunk of the recording in so many: the whole will follow.
    pub(crate) one_in: Option<usize>,
    /// No other reading will follow.
    pub(crate) is_last: bool,
}

/// What a comparison found of a function, in words.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ComparedFunction {
    /// Index into [`ExportProfile::functions`].
    pub(crate) function: u32,
    pub(crate) verdict: &'static str,
    /// How much more it costs, with the interval; none where one side has nothing.
    pub(crate) change: Option<String>,
    /// The false-discovery rate at which it counts as a difference.
    pub(crate) discovery_rate: Option<String>,
}

/// The root of the page's data.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    schema_version: u32,
    /// Of a page that can ask a server.
    served: Option<ServedPage>,
    /// Of a comparison.
    compared: Option<&'a [ComparedFunction]>,
    heading: &'a str,
    command_line: &'a [String],
    host: &'a str,
    kernel: &'a str,
    arch: &'a str,
    cpu: &'a str,
    cpus_online: u32,
    recorder: &'a str,
    source: &'a str,
    start_unix_ns: Option<u64>,
    written_unix_ns: Option<u64>,
    start_ns: u64,
    duration_ns: u64,
    /// How long a column of a heat map is.
    heat_column_ns: u64,
    lost: u64,
    loss: &'a [Loss],
    intervals: &'a [Interval],
    notes: &'a [String],
    modules: Vec<&'a str>,
    files: Vec<&'a str>,
    functions: Functions<'a>,
    threads: Threads<'a>,
    events: Vec<Event<'a>>,
}

/// The function list, by column; `kind` has one letter per function.
#[derive(Serialize)]
struct Functions<'a> {
    name: Vec<&'a str>,
    kind: String,
    module: String,
    /// Index into `files` plus one, 0 for none.
    file: String,
    line: String,
}

#[derive(Serialize)]
struct Threads<'a> {
    pid: Vec<i32>,
    tid: Vec<i32>,
    comm: Vec<&'a str>,
    samples: Vec<u64>,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    unit: &'a str,
    samples: u64,
    period: u64,
    /// Period of one sample where that is the same for all, else null.
    per_sample: Option<u64>,
    nodes: Nodes,
    timeline: Entries,
    links: Links<'a>,
}

/// Waits and what ended them.
#[derive(Serialize)]
struct Links<'a> {
    count: usize,
    thread: String,
    begin: String,
    /// From the beginning on.
    length: String,
    /// Thread plus one, 0 for none.
    waker: String,
    /// Indices of words.
    state: String,
    by: String,
    words: Vec<&'a str>,
}

#[derive(Serialize)]
struct Nodes {
    count: usize,
    /// Own index minus the parent's index; 0 for a root.
    parent: String,
    function: String,
    samples: String,
    period: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entries {
    bucket_ns: u64,
    count: usize,
    /// Difference to the entry before.
    bucket: String,
    thread: String,
    /// CPU plus one, 0 for unknown.
    cpu: String,
    node: String,
    samples: String,
    period: Option<String>,
}

impl<'a> Page<'a> {
    fn new(profile: &'a ExportProfile, most_entries: usize) -> Page<'a> {
        let mut modules = Interned::default();
        let mut files = Interned::default();
        let functions = &profile.functions;
        let packed = Functions {
            name: functions.iter().map(|f| f.name.as_str()).collect(),
            kind: functions
                .iter()
                .map(|f| match f.kind {
                    FunctionKind::User => 'u',
                    FunctionKind::Kernel => 'k',
                    FunctionKind::Inline => 'i',
                    FunctionKind::Unknown => '?',
                    FunctionKind::Comm => 'c',
                    FunctionKind::State => 's',
                })
                .collect(),
            module: column(functions.iter().map(|f| modules.index(&f.module))),
            file: column(functions.iter().map(|f| f.file.as_deref().map_or(0, |file| files.index(file) + 1))),
            line: column(functions.iter().map(|f| f.line.unwrap_or(0).into())),
        };
        Page {
            schema_version: SCHEMA_VERSION,
            served: None,
            compared: None,
            heading: profile.heading(),
            command_line: &profile.command_line,
            host: &profile.host,
            kernel: &profile.kernel,
            arch: &profile.arch,
            cpu: &profile.cpu,
            cpus_online: profile.cpus_online,
            recorder: &profile.recorder,
            source: &profile.source,
            start_unix_ns: profile.start_unix_ns,
            written_unix_ns: profile.written_unix_ns,
            start_ns: profile.start_ns,
            duration_ns: profile.duration_ns,
            heat_column_ns: heat_column_ns(profile.duration_ns),
            lost: profile.lost(),
            loss: &profile.loss,
            intervals: &profile.intervals,
            notes: &profile.notes,
            modules: modules.list,
            files: files.list,
            functions: packed,
            threads: Threads {
                pid: profile.threads.iter().map(|t| t.pid).collect(),
                tid: profile.threads.iter().map(|t| t.tid).collect(),
                comm: profile.threads.iter().map(|t| t.comm.as_str()).collect(),
                samples: profile.threads.iter().map(|t| t.samples).collect(),
            },
            events: profile.events.iter().map(|event| Event::new(profile, event, most_entries)).collect(),
        }
    }
}

impl<'a> Event<'a> {
    fn new(profile: &ExportProfile, event: &'a ExportEvent, most_entries: usize) -> Event<'a> {
        let nodes = &event.stacks.nodes;
        let mut timeline = event.timeline.clone();
        // The page indexes without asking: what E1 and the index rules do not allow stays out.
        timeline
            .entries
            .retain(|e| (e.node as usize) < nodes.len() && (e.thread as usize) < profile.threads.len());
        timeline.coarsen(most_entries, MIN_BUCKETS);
        let per_sample = per_sample(event, &timeline);
        Event {
            name: &event.name,
            unit: event.unit(),
            samples: event.total_samples,
            period: event.total_period,
            per_sample,
            nodes: Nodes {
                count: nodes.len(),
                parent: column(nodes.iter().enumerate().map(|(index, node)| {
                    let parent = node.parent as usize;
                    if node.parent == NO_PARENT || parent >= index { 0 } else { (index - parent) as u64 }
                })),
                function: column(
                    nodes.iter().map(|n| u64::from(n.function).min(profile.functions.len() as u64)),
                ),
                samples: column(nodes.iter().map(|n| n.self_samples)),
                period: per_sample.is_none().then(|| column(nodes.iter().map(|n| n.self_period))),
            },
            timeline: Entries::new(&timeline, per_sample.is_none()),
            links: Links::new(profile, event),
        }
    }
}

impl<'a> Links<'a> {
    fn new(profile: &ExportProfile, event: &'a ExportEvent) -> Links<'a> {
        let is_thread = |thread: u32| (thread as usize) < profile.threads.len();
        let links: Vec<&Link> = event.links.iter().filter(|link| is_thread(link.thread)).collect();
        let waker = |link: &&Link| link.waker.filter(|thread| is_thread(*thread));
        let mut words = Interned::default();
        Links {
            count: links.len(),
            thread: column(links.iter().map(|link| link.thread.into())),
            begin: column(links.iter().map(|link| link.begin_ns)),
            length: column(links.iter().map(|link| link.end_ns.saturating_sub(link.begin_ns))),
            waker: column(links.iter().map(|link| waker(link).map_or(0, |thread| u64::from(thread) + 1))),
            state: column(links.iter().map(|link| words.index(link.state))),
            by: column(links.iter().map(|link| words.index(&link.by))),
            words: words.list,
        }
    }
}

impl Entries {
    fn new(timeline: &Timeline, with_period: bool) -> Entries {
        let entries = &timeline.entries;
        let mut before = 0;
        Entries {
            bucket_ns: timeline.bucket_ns.max(1),
            count: entries.len(),
            bucket: column(entries.iter().map(|e| {
                let step = e.bucket - before;
                before = e.bucket;
                step.into()
            })),
            thread: column(entries.iter().map(|e| e.thread.into())),
            cpu: column(entries.iter().map(|e| if e.cpu == NO_CPU { 0 } else { u64::from(e.cpu) + 1 })),
            node: column(entries.iter().map(|e| e.node.into())),
            samples: column(entries.iter().map(|e| e.samples.into())),
            period: with_period.then(|| column(entries.iter().map(|e| e.period))),
        }
    }
}

/// The period that one sample stands for, if it is the same everywhere.
fn per_sample(event: &ExportEvent, timeline: &Timeline) -> Option<u64> {
    let unit = event.total_period.checked_div(event.total_samples)?;
    let fits = |samples: u64, period: u64| samples.checked_mul(unit) == Some(period);
    let all = event.stacks.nodes.iter().all(|n| fits(n.self_samples, n.self_period))
        && timeline.entries.iter().all(|e| fits(e.samples.into(), e.period));
    all.then_some(unit)
}

/// Distinct strings in the order of their first use.
#[derive(Default)]
struct Interned<'a> {
    list: Vec<&'a str>,
    places: HashMap<&'a str, u64>,
}

impl<'a> Interned<'a> {
    fn index(&mut self, text: &'a str) -> u64 {
        *self.places.entry(text).or_insert_with(|| {
            self.list.push(text);
            self.list.len() as u64 - 1
        })
    }
}

/// Numbers as a column: LEB128, then base64.
fn column(numbers: impl Iterator<Item = u64>) -> String {
    let mut bytes = Vec::new();
    for mut number in numbers {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    }
    base64(&bytes)
}

/// Base64 with padding, the alphabet that `atob` reads.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            if place <= chunk.len() {
                encoded.push(ALPHABET[(word >> (18 - 6 * place)) as usize & 63] as char);
            } else {
                encoded.push('=');
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the encoder gives the values that the standard lists.
    #[test]
    fn base64_of_the_standards_examples() {
        let encoded: Vec<String> =
            ["", "f", "fo", "foo", "foob", "fooba", "foobar"].iter().map(|s| base64(s.as_bytes())).collect();
        assert_eq!(encoded, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    }

    /// Checks that numbers at the 7-bit borders and the largest one take the bytes that LEB128 prescribes.
    #[test]
    fn column_at_the_borders() {
        assert_eq!(column([0, 127, 128].into_iter()), base64(&[0, 0x7f, 0x80, 1]));
        let largest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(column([u64::MAX].into_iter()), base64(&largest));
    }

    /// Checks that no string can close the script element, and that the JSON still says the same.
    #[test]
    fn embedded_json_has_no_markup() {
        let hostile = "</script><!--<script>&amp;\u{2028}";
        let json = script_safe(&serde_json::to_string(hostile).unwrap());
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
    }
}
