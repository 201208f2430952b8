//! Stacks as JSON.
use super::{Activity, LockHolder, StackExtent, StackFrame, StackGroup, ThreadNow, ThreadStacks};
use crate::wall::State;
use serde::Serialize;
use std::io::{self, Write};

/// Grows when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report {
    schema: &'static str,
    schema_version: u32,
    notes: Vec<String>,
    processes: Vec<JsonProcess>,
    deadlocks: Vec<Circle>,
    stacks: Vec<Stack>,
}

#[derive(Serialize)]
struct JsonProcess {
    pid: i32,
    name: String,
    threads: usize,
}

#[derive(Serialize)]
struct Circle {
    threads: Vec<i32>,
    sentence: String,
}

#[derive(Serialize)]
struct Stack {
    pid: i32,
    count: usize,
    activity: &'static str,
    waits_for: Option<State>,
    extent: StackExtent,
    reason: Option<String>,
    kernel: Vec<String>,
    frames: Vec<JsonFrame>,
    threads: Vec<Thread>,
}

#[derive(Serialize)]
struct JsonFrame {
    function: String,
    module: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    inlined: bool,
}

#[derive(Serialize)]
struct Thread {
    tid: Option<i32>,
    goroutine: Option<u64>,
    name: String,
    off_cpu_ns: Option<u64>,
    object: Option<String>,
    lock: Option<Lock>,
    joins: Option<i32>,
}

#[derive(Serialize)]
struct Lock {
    address: Option<String>,
    variable: Option<String>,
    holder: Option<i32>,
}

/// Writes all of it as one JSON document. `notes`: what was said while it was recorded.
///
/// # Errors
/// Those of `out`.
pub fn write_stacks_json(out: &mut dyn Write, stacks: &ThreadStacks, notes: &[String]) -> io::Result<()> {
    let count = |pid: i32| {
        let threads = stacks.groups.iter().flat_map(|group| &group.threads);
        threads.filter(|thread| thread.pid == pid && thread.activity != Activity::Goroutine).count()
    };
    let process =
        |(pid, name): &(i32, String)| JsonProcess { pid: *pid, name: name.clone(), threads: count(*pid) };
    let report = Report {
        schema: "kymo-stacks",
        schema_version: SCHEMA_VERSION,
        notes: notes.to_vec(),
        processes: stacks.processes.iter().map(process).collect(),
        deadlocks: stacks
            .deadlocks
            .iter()
            .map(|deadlock| Circle { threads: deadlock.threads.clone(), sentence: stacks.sentence(deadlock) })
            .collect(),
        stacks: stacks.groups.iter().map(stack).collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)
}

fn stack(group: &StackGroup) -> Stack {
    let (activity, waits_for) = match group.threads.first().map_or(Activity::Ended, |first| first.activity) {
        Activity::Running => ("running", None),
        Activity::Waiting(state) => ("waiting", Some(state)),
        Activity::Uninterruptible(state) => ("uninterruptible", Some(state)),
        Activity::Stopped => ("stopped", None),
        Activity::Zombie => ("zombie", None),
        Activity::Ended => ("ended", None),
        Activity::Goroutine => ("goroutine", None),
        Activity::Dumped => ("dumped", None),
    };
    let frame = |frame: &StackFrame| JsonFrame {
        function: frame.function.clone(),
        module: frame.module.clone(),
        file: frame.place.as_ref().map(|(file, _)| file.to_string()),
        line: frame.place.as_ref().map(|(_, line)| *line),
        inlined: frame.inlined,
    };
    Stack {
        pid: group.threads.first().map_or(0, |first| first.pid),
        count: group.threads.len(),
        activity,
        waits_for,
        extent: group.extent,
        reason: Some(group.reason.clone()).filter(|reason| !reason.is_empty()),
        kernel: group.kernel.clone(),
        frames: group.frames.iter().map(frame).collect(),
        threads: group.threads.iter().map(thread).collect(),
    }
}

fn thread(thread: &ThreadNow) -> Thread {
    let lock = thread.lock.as_ref().map(|lock| Lock {
        address: lock.address.map(|address| format!("{address:#x}")),
        variable: lock.variable.clone(),
        holder: match lock.holder {
            LockHolder::Thread(holder) => Some(holder),
            LockHolder::Unknown => None,
        },
    });
    Thread {
        tid: Some(thread.tid).filter(|_| thread.activity != Activity::Goroutine),
        goroutine: thread.goroutine,
        name: thread.name.clone(),
        off_cpu_ns: thread.off_cpu_ns,
        object: Some(thread.object.clone()).filter(|object| !object.is_empty()),
        lock,
        joins: thread.joins,
    }
}
