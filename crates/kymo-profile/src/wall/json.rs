//! The report of wall time as JSON.
use super::SiteId;
use super::{End, PathPart, State, TextOptions, Wall};
use crate::functions::FunctionId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Grows when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    schema_version: u32,
    latency: bool,
    total_ns: u64,
    states: BTreeMap<&'static str, u64>,
    threads: Vec<Thread>,
    places: Vec<Place>,
    critical_path: Option<Path>,
}

#[derive(Serialize)]
struct Thread {
    pid: i32,
    tid: i32,
    name: String,
    total_ns: u64,
    idle_ns: u64,
    waits: u64,
    preemptions: u64,
    states: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct Place {
    state: &'static str,
    functions: Vec<String>,
    module: Option<String>,
    idle: bool,
    time_ns: u64,
    waits: u64,
    longest_ns: u64,
    threads: usize,
    ended_by: Option<EndedBy>,
}

#[derive(Serialize)]
struct EndedBy {
    thread: Option<String>,
    functions: Vec<String>,
    interrupt: Option<&'static str>,
}

#[derive(Serialize)]
struct Path {
    tid: i32,
    name: String,
    total_ns: u64,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    tid: i32,
    threads: usize,
    thread: String,
    state: &'static str,
    functions: Vec<String>,
    time_ns: u64,
}

/// Writes threads, places and the critical path; docs/reference/formats/wall-json.md describes it.
///
/// # Errors
/// Those of `out`.
pub fn write_wall_json(out: &mut dyn Write, wall: &Wall, options: &TextOptions) -> io::Result<()> {
    let threads = wall.threads();
    let states = |times: &dyn Fn(State) -> u64| -> BTreeMap<&'static str, u64> {
        State::ALL
            .into_iter()
            .map(|state| (state.name(), times(state)))
            .filter(|(_, time)| *time > 0)
            .collect()
    };
    let names = |site: SiteId| wall.site(site).iter().map(|id| wall.plain_name(*id)).collect::<Vec<_>>();
    let module = |id: FunctionId| {
        wall.functions.get(id).module.map(|id| wall.timeline.modules.get(id).short_name.to_string())
    };
    let path = wall.path_of_interest(&threads, options.path_of).map(|(tid, total_ns, steps)| Path {
        tid,
        name: wall.thread_name(tid),
        total_ns,
        parts: (wall.critical_parts(&steps).into_iter())
            .map(|PathPart { tid, threads, state, site, time_ns }| Part {
                tid,
                threads,
                thread: wall.thread_name(tid),
                state: state.name(),
                functions: site.map(names).unwrap_or_default(),
                time_ns,
            })
            .collect(),
    });
    let report = Report {
        schema: "kymo-wall",
        schema_version: SCHEMA_VERSION,
        latency: wall.is_by_latency(),
        total_ns: threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.total_ns())),
        states: states(&|state| {
            threads.iter().fold(0, |sum, thread| sum.saturating_add(thread.in_state(state)))
        }),
        threads: (threads.iter())
            .map(|thread| Thread {
                pid: thread.thread.0,
                tid: thread.thread.1,
                name: wall.thread_name(thread.thread.1),
                total_ns: thread.total_ns(),
                idle_ns: thread.idle_ns,
                waits: thread.waits,
                preemptions: thread.preemptions,
                states: states(&|state| thread.in_state(state)),
            })
            .collect(),
        places: (wall.places().into_iter())
            .map(|place| Place {
                state: place.state.name(),
                functions: names(place.site),
                module: wall.site(place.site).first().copied().and_then(module),
                idle: place.idle,
                time_ns: place.time_ns,
                waits: place.waits,
                longest_ns: place.longest_ns,
                threads: place.threads,
                ended_by: match place.ended_by {
                    End::Thread(tid, site) => Some(EndedBy {
                        thread: Some(wall.thread_name(tid)),
                        functions: site.map(names).unwrap_or_default(),
                        interrupt: None,
                    }),
                    End::Interrupt(cause) => {
                        Some(EndedBy { thread: None, functions: Vec::new(), interrupt: Some(cause) })
                    }
                    End::Unknown => None,
                },
            })
            .collect(),
        critical_path: path,
    };
    out.write_all(crate::text::json_pretty(&report)?.as_bytes())?;
    out.write_all(b"\n")
}
