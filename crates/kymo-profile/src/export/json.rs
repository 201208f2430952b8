//! The machine-readable report; `docs/reference/formats/report-json.md` describes it field by field.
use super::model::{ExportEvent, ExportProfile, FunctionKind, NO_PARENT, SCHEMA_VERSION};
use super::totals::Totals;
use crate::text;
use serde::Serialize;
use std::io::{self, Write};

/// Writes the JSON report: one object, keys and lists in a fixed order, each item of a list on a line of its own.
///
/// # Errors
/// Those of `out`.
pub fn json(profile: &ExportProfile, out: &mut dyn Write) -> io::Result<()> {
    let mut top = Object::open(out, 0)?;
    top.value("schema", "kymo-report")?;
    top.value("schema_version", &SCHEMA_VERSION)?;
    top.value("recording", &Recording::new(profile))?;
    top.value("lost", &profile.lost())?;
    top.list("loss", &profile.loss)?;
    top.list("intervals", &profile.intervals)?;
    top.list("notes", &profile.notes)?;
    top.list("threads", &profile.threads)?;
    top.list("functions", &profile.functions)?;
    top.key("events")?;
    top.out.write_all(b"[")?;
    for (index, event) in profile.events.iter().enumerate() {
        top.out.write_all(if index == 0 { b"\n    " } else { b",\n    " })?;
        let mut object = Object::open(top.out, 4)?;
        object.value("name", &event.name)?;
        object.value("unit", event.unit())?;
        object.value("samples", &event.total_samples)?;
        object.value("period", &event.total_period)?;
        object.list("functions", rows(profile, event))?;
        object.list("stacks", stacks(event))?;
        object.close()?;
    }
    top.out.write_all(if profile.events.is_empty() { b"]" } else { b"\n  ]" })?;
    top.close()?;
    out.write_all(b"\n")
}

/// An object that is written key by key, so that a large report is never in memory as a whole.
struct Object<'w> {
    out: &'w mut dyn Write,
    indent: usize,
    empty: bool,
}

impl<'w> Object<'w> {
    fn open(out: &'w mut dyn Write, indent: usize) -> io::Result<Object<'w>> {
        out.write_all(b"{")?;
        Ok(Object { out, indent, empty: true })
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        let comma = if self.empty { "" } else { "," };
        self.empty = false;
        write!(self.out, "{comma}\n{:1$}\"{key}\": ", "", self.indent + 2)
    }

    fn value<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> io::Result<()> {
        self.key(key)?;
        self.out.write_all(text::json(value)?.as_bytes())
    }

    fn list<T: Serialize>(&mut self, key: &str, items: impl IntoIterator<Item = T>) -> io::Result<()> {
        self.key(key)?;
        let mut before = "[";
        for item in items {
            write!(self.out, "{before}\n{:1$}", "", self.indent + 4)?;
            self.out.write_all(text::json(&item)?.as_bytes())?;
            before = ",";
        }
        match before {
            "[" => self.out.write_all(b"[]"),
            _ => write!(self.out, "\n{:1$}]", "", self.indent + 2),
        }
    }

    fn close(self) -> io::Result<()> {
        write!(self.out, "\n{:1$}}}", "", self.indent)
    }
}

#[derive(Serialize)]
struct Recording<'a> {
    title: &'a str,
    source: &'a str,
    command_line: &'a [String],
    recorder: &'a str,
    host: &'a str,
    kernel: &'a str,
    arch: &'a str,
    cpu: &'a str,
    cpus_online: u32,
    start_unix_ns: Option<u64>,
    written_unix_ns: Option<u64>,
    start_ns: u64,
    duration_ns: u64,
}

/// A function's share of one event.
#[derive(Serialize)]
struct Row<'a> {
    function: usize,
    name: &'a str,
    module: &'a str,
    self_samples: u64,
    self_period: u64,
    total_samples: u64,
    total_period: u64,
}

/// A node of the call tree; `id` is its place in the list.
#[derive(Serialize)]
struct Stack {
    id: usize,
    parent: Option<u32>,
    function: u32,
    self_samples: u64,
    self_period: u64,
}

impl<'a> Recording<'a> {
    fn new(profile: &'a ExportProfile) -> Recording<'a> {
        Recording {
            title: profile.heading(),
            source: &profile.source,
            command_line: &profile.command_line,
            recorder: &profile.recorder,
            host: &profile.host,
            kernel: &profile.kernel,
            arch: &profile.arch,
            cpu: &profile.cpu,
            cpus_online: profile.cpus_online,
            start_unix_ns: profile.start_unix_ns,
            written_unix_ns: profile.written_unix_ns,
            start_ns: profile.start_ns,
            duration_ns: profile.duration_ns,
        }
    }
}

/// The functions that occur in `event`, hottest first; equal ones in the order of the function list.
fn rows<'a>(profile: &'a ExportProfile, event: &ExportEvent) -> Vec<Row<'a>> {
    let totals = Totals::new(event, profile.functions.len());
    let mut rows: Vec<Row<'a>> = (0..profile.functions.len())
        .filter(|&f| totals.total[f].samples > 0 && profile.functions[f].kind != FunctionKind::Comm)
        .map(|f| Row {
            function: f,
            name: &profile.functions[f].name,
            module: &profile.functions[f].module,
            self_samples: totals.own[f].samples,
            self_period: totals.own[f].period,
            total_samples: totals.total[f].samples,
            total_period: totals.total[f].period,
        })
        .collect();
    rows.sort_by_key(|row| {
        let heat = (row.self_period, row.self_samples, row.total_period, row.total_samples);
        (std::cmp::Reverse(heat), row.function)
    });
    rows
}

fn stacks(event: &ExportEvent) -> impl Iterator<Item = Stack> {
    event.stacks.nodes.iter().enumerate().map(|(id, node)| Stack {
        id,
        parent: (node.parent != NO_PARENT).then_some(node.parent),
        function: node.function,
        self_samples: node.self_samples,
        self_period: node.self_period,
    })
}
