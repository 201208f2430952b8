//! The report of wall time as JSON.
use super::SiteId;
use super::{Calls, End, PathPart, State, TextOptions, Wall};
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
    calls: Option<CallsOf>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Thread {
    pid: i32,
    tid: i32,
    name: String,
    collects_garbage: bool,
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
struct CallsOf {
    function: String,
    count: usize,
    unfinished: u64,
    threads: usize,
    total_ns: u64,
    p50_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    states: BTreeMap<&'static str, u64>,
    path_count: usize,
    critical_parts: Vec<Part>,
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

/// The states with time.
fn states(times: &dyn Fn(State) -> u64) -> BTreeMap<&'static str, u64> {
    let all = State::ALL.into_iter().map(|state| (state.name(), times(state)));
    all.filter(|(_, time)| *time > 0).collect()
}

fn site_names(wall: &Wall, site: SiteId) -> Vec<String> {
    wall.site(site).iter().map(|id| wall.plain_name(*id)).collect()
}

fn parts_of(wall: &Wall, parts: Vec<PathPart>) -> Vec<Part> {
    let part = |PathPart { tid, threads, state, site, time_ns }: PathPart| Part {
        tid,
        threads,
        thread: wall.thread_name(tid),
        state: state.name(),
        functions: site.map(|site| site_names(wall, site)).unwrap_or_default(),
        time_ns,
    };
    parts.into_iter().map(part).collect()
}

fn calls_of(wall: &Wall, calls: &Calls) -> CallsOf {
    let [p50_ns, p99_ns, max_ns] = calls.percentiles([50, 99, 100]);
    let times = wall.time_of_calls(calls);
    let (parts, path_count) = wall.path_of_calls(calls);
    CallsOf {
        function: calls.function.clone(),
        count: calls.calls.len(),
        unfinished: calls.unfinished,
        threads: calls.threads(),
        total_ns: calls.total_ns(),
        p50_ns,
        p99_ns,
        max_ns,
        states: states(&|state| times.in_state(state)),
        path_count,
        critical_parts: parts_of(wall, parts),
    }
}

/// Writes threads, places and the critical path; docs/reference/formats/wall-json.md describes it.
///
/// # Errors
/// Those of `out`.
pub fn write_wall_json(out: &mut dyn Write, wall: &Wall, options: &TextOptions) -> io::Result<()> {
    let threads = wall.threads();
    let names = |site: SiteId| site_names(wall, site);
    let module = |id: FunctionId| {
        wall.functions.get(id).module.map(|id| wall.timeline.modules.get(id).short_name.to_string())
    };
    let path = wall.path_of_interest(&threads, options.path_of).map(|(tid, total_ns, steps)| Path {
        tid,
        name: wall.thread_name(tid),
        total_ns,
        parts: parts_of(wall, wall.critical_parts(steps)),
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
                collects_garbage: wall.is_collector(thread.thread.1),
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
        calls: wall.calls.as_ref().map(|calls| calls_of(wall, calls)),
        notes: wall.notes().to_vec(),
    };
    out.write_all(crate::text::json_pretty(&report)?.as_bytes())?;
    out.write_all(b"\n")
}
