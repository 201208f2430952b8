//! The machine-readable report; `docs/formats/report-json.md` describes it field by field.

use std::io::{self, Write};

use serde::Serialize;

use super::model::{
    ExportEvent, ExportProfile, Function, FunctionKind, Interval, Loss, NO_PARENT, SCHEMA_VERSION, Thread,
};
use super::totals::Totals;

/// Writes the JSON report: one object, two spaces of indentation, keys and lists in a fixed order, a newline at the end.
///
/// # Errors
/// Those of `out`.
pub fn json(profile: &ExportProfile, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, &Report::new(profile))?;
    out.write_all(b"\n")
}

/// The whole document.
#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    schema_version: u32,
    recording: Recording<'a>,
    lost: u64,
    loss: &'a [Loss],
    intervals: &'a [Interval],
    notes: &'a [String],
    threads: &'a [Thread],
    functions: &'a [Function],
    events: Vec<Event<'a>>,
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
    start_ns: u64,
    duration_ns: u64,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    unit: &'a str,
    samples: u64,
    period: u64,
    functions: Vec<Row<'a>>,
    stacks: Vec<Stack>,
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

impl<'a> Report<'a> {
    fn new(profile: &'a ExportProfile) -> Report<'a> {
        Report {
            schema: "kymo-report",
            schema_version: SCHEMA_VERSION,
            recording: Recording {
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
                start_ns: profile.start_ns,
                duration_ns: profile.duration_ns,
            },
            lost: profile.lost(),
            loss: &profile.loss,
            intervals: &profile.intervals,
            notes: &profile.notes,
            threads: &profile.threads,
            functions: &profile.functions,
            events: profile.events.iter().map(|event| Event::new(profile, event)).collect(),
        }
    }
}

impl<'a> Event<'a> {
    fn new(profile: &'a ExportProfile, event: &'a ExportEvent) -> Event<'a> {
        let totals = Totals::new(event, profile.functions.len());
        let mut functions: Vec<Row<'a>> = (0..profile.functions.len())
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
        // Hottest first; equal ones in the order of the function list.
        functions.sort_by_key(|row| {
            (
                std::cmp::Reverse((row.self_period, row.self_samples, row.total_period, row.total_samples)),
                row.function,
            )
        });
        let stacks = event
            .stacks
            .nodes
            .iter()
            .enumerate()
            .map(|(id, node)| Stack {
                id,
                parent: (node.parent != NO_PARENT).then_some(node.parent),
                function: node.function,
                self_samples: node.self_samples,
                self_period: node.self_period,
            })
            .collect();
        Event {
            name: &event.name,
            unit: event.unit(),
            samples: event.total_samples,
            period: event.total_period,
            functions,
            stacks,
        }
    }
}
