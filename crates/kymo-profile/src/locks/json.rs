//! The locks as JSON.
use super::{HoldPlace, Holds, LockKind, LockPlace, LockRow, Locks};
use serde::Serialize;
use std::io::{self, Write};

/// Grows when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    schema_version: u32,
    total_ns: u64,
    waits: u64,
    locks: Vec<Lock>,
}

#[derive(Serialize)]
struct Lock {
    kind: LockKind,
    contention: bool,
    name: Option<String>,
    module: Option<String>,
    address: Option<String>,
    pid: i32,
    waits: u64,
    total_ns: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: u64,
    exact: bool,
    timeouts: u64,
    threads: usize,
    most_waiting: u64,
    waiting: u64,
    waiters: Vec<Place>,
    holders: Vec<Place>,
    held: Option<Held>,
}

#[derive(Serialize)]
struct Held {
    holds: u64,
    shared: u64,
    total_ns: u64,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: u64,
    places: Vec<HeldPlace>,
}

#[derive(Serialize)]
struct HeldPlace {
    functions: Vec<String>,
    module: Option<String>,
    holds: u64,
    total_ns: u64,
    max_ns: u64,
}

#[derive(Serialize)]
struct Place {
    functions: Vec<String>,
    module: Option<String>,
    time_ns: u64,
    waits: u64,
    threads: usize,
    thread: String,
}

/// Writes all locks and other reasons to wait; docs/reference/formats/locks-json.md describes it.
///
/// # Errors
/// Those of `out`.
pub fn write_locks_json(out: &mut dyn Write, locks: &Locks, most: usize) -> io::Result<()> {
    let contended = || locks.rows.iter().filter(|row| row.kind.is_contention());
    let place = |place: &LockPlace| Place {
        functions: locks.names(&place.place),
        module: locks.module(&place.place).map(str::to_owned),
        time_ns: place.time_ns,
        waits: place.waits,
        threads: place.threads,
        thread: place.thread.clone(),
    };
    let held_place = |place: &HoldPlace| HeldPlace {
        functions: locks.names(&place.place),
        module: locks.module(&place.place).map(str::to_owned),
        holds: place.holds,
        total_ns: place.total_ns,
        max_ns: place.max_ns,
    };
    let held = |of: &Holds| Held {
        holds: of.holds.count,
        shared: of.shared,
        total_ns: of.holds.total_ns,
        p50_ns: of.holds.quantile_ns(0.5),
        p99_ns: of.holds.quantile_ns(0.99),
        max_ns: of.holds.max_ns,
        places: of.places.iter().take(most).map(held_place).collect(),
    };
    let lock = |row: &LockRow| Lock {
        kind: row.kind,
        contention: row.kind.is_contention(),
        name: row.variable.as_ref().map(|(variable, _)| variable.to_string()),
        module: row.variable.as_ref().map(|(_, file)| file.clone()),
        address: row.address.map(|address| format!("{address:#x}")),
        pid: row.pid,
        waits: row.waits.count,
        total_ns: row.waits.total_ns,
        p50_ns: row.waits.quantile_ns(0.5),
        p99_ns: row.waits.quantile_ns(0.99),
        max_ns: row.waits.max_ns,
        exact: row.exact,
        timeouts: row.timeouts,
        threads: row.threads,
        most_waiting: row.most_waiting,
        waiting: row.waiting,
        waiters: row.waiters.iter().take(most).map(place).collect(),
        holders: row.holders.iter().take(most).map(place).collect(),
        held: row.holds.as_ref().map(held),
    };
    let report = Report {
        schema: "kymo-locks",
        schema_version: SCHEMA_VERSION,
        total_ns: contended().fold(0, |sum, row| sum.saturating_add(row.waits.total_ns)),
        waits: contended().fold(0, |sum, row| sum.saturating_add(row.waits.count)),
        locks: locks.rows.iter().map(lock).collect(),
    };
    out.write_all(crate::text::json_pretty(&report)?.as_bytes())?;
    out.write_all(b"\n")
}
