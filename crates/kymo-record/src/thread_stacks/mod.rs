//! The stacks of all threads of processes at this moment, as a recording: one sample of each
//! thread, with what it waits for.
//!
//! ```text
//!  /proc: threads, states, calls, files --------------.
//!  blocked: registers from the kernel, stack (StackReader) --+--> thread-stack samples --> file
//!  running: one sample of an event of its own (running) -----|        + names and mappings
//!  Python: frames from the interpreter's own list -----------|
//!  Java: frames and monitors from the machine's own list ----|
//!  Go: goroutines without a thread, from the runtime's list -|
//!  or a core file: registers and memory as they were (dumped), Python and Go as above '
//! ```
//!
//! # Invariants
//! - **S1** No thread is stopped, and no system call of one is interrupted; but a Java machine that
//!   is asked for its threads stops them by itself.
//! - **S2** What could not be read is written as such, with the reason: a stack is whole, or it is
//!   said why not.
//! - **S3** It takes [`MOST_TIME`](reading::MOST_TIME) at most to read stacks, whatever the
//!   processes are.
mod dumped;
mod goroutines;
mod image;
mod java;
mod objects;
mod reading;
mod record;
mod running;
mod stack;

use record::{THREAD_STACK, ThreadRecord};

use crate::core_file::CoreFile;
use crate::error::{RecordError, system};

use crate::output::{Output, OutputError};
use crate::sink::Sink;
use crate::synth::{self, TaskSynthesis, Tasks};
use crate::user_rings::UserEvent;
use crate::waits::OwnSample;
use crate::{build_ids, formats, machine};
use dumped::DumpedStacks;
use goroutines::Goroutine;
use java::JavaThread;
use kymo_data::{Attr, EventSpec, abi};
use kymo_perf::proc;
use objects::Objects;
use reading::ReadStacks;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// The number of the description, which no tracepoint of the kernel has.
const KIND: u16 = 59_010;
const ID: u64 = 1;
/// What is read of a stack.
const STACK_BYTES: u32 = 128 << 10;

/// What is recorded.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// All threads of these processes.
    pub pids: Vec<i32>,
    /// Where to.
    pub output: Output,
    /// Java's machines are asked for their threads, which they stop for that as `jstack` has it.
    pub asks_jvms: bool,
    /// Who records, and by which command line: both go into the file's header.
    pub version: String,
    /// See `version`.
    pub cmdline: Vec<String>,
}

/// A recording of stacks.
#[derive(Debug)]
pub struct StackRecording {
    /// The complete file.
    pub file: File,
    /// How many threads are in it.
    pub threads: usize,
    /// What the user should know.
    pub remarks: Vec<String>,
}

/// Records the stacks of all threads of processes now, into memory or a file. Takes about a
/// millisecond for ten threads, and [`MOST_TIME`](reading::MOST_TIME) at most.
///
/// # Errors
/// The output cannot be made or written; none of the processes is there.
pub fn record_stacks(options: &StackOptions) -> Result<StackRecording, RecordError> {
    let mut threads = Vec::new();
    for &pid in &options.pids {
        threads.extend(proc::tasks(pid).unwrap_or_default().into_iter().map(|tid| (pid, tid)));
    }
    if threads.is_empty() {
        let pids: Vec<String> = options.pids.iter().map(i32::to_string).collect();
        let why = std::io::Error::other(format!("there is no process {}", pids.join(", ")));
        return Err(system("list threads")(why));
    }
    let spec = spec();
    let (samples, remarks) = samples(&threads, &spec, options.asks_jvms);
    let wanted = TaskSynthesis { mappings: true, data: true, namespaces: false, build_ids: true };
    let existing = synth::tasks(&spec.attr, &options.pids, wanted);
    let file = write(options, &spec, existing, &samples)?;
    Ok(StackRecording { file, threads: threads.len(), remarks })
}

/// The same of the threads of a core file of x86-64.
///
/// # Errors
/// The file cannot be read, or is none; the output cannot be made or written.
pub fn record_core(core: &Path, options: &StackOptions) -> Result<StackRecording, RecordError> {
    let core = CoreFile::open(core).map_err(system("read the core file"))?;
    let spec = spec();
    let mut samples = Vec::new();
    let DumpedStacks { threads, names, remarks } = dumped::read(&core, &spec);
    samples.extend(names);
    for (record, frames) in threads {
        let (pid, tid) = (record.pid, record.tid);
        let sample =
            OwnSample { kind: KIND, pid, tid, time_ns: 0, period: 1, frames, ..OwnSample::default() };
        samples.extend(sample.with(record.to_raw(), &spec));
    }
    let file = write(options, &spec, dumped::tasks(&core, &spec.attr), &samples)?;
    Ok(StackRecording { file, threads: core.threads.len(), remarks })
}

fn spec() -> EventSpec {
    let fields = [
        abi::PERF_SAMPLE_IDENTIFIER,
        abi::PERF_SAMPLE_IP,
        abi::PERF_SAMPLE_TID,
        abi::PERF_SAMPLE_TIME,
        abi::PERF_SAMPLE_CPU,
        abi::PERF_SAMPLE_PERIOD,
        abi::PERF_SAMPLE_CALLCHAIN,
        abi::PERF_SAMPLE_RAW,
    ];
    let attr = Attr {
        kind: abi::PERF_TYPE_TRACEPOINT,
        config: KIND.into(),
        sample_type: fields.into_iter().fold(0, |all, field| all | field),
        // Says that the addresses of callers lie in the calls.
        sample_stack_user: STACK_BYTES,
        flags: abi::ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    };
    EventSpec { attr, ids: vec![ID], name: THREAD_STACK.to_owned() }
}

/// The samples of all threads, and what the user should know.
fn samples(threads: &[(i32, i32)], spec: &EventSpec, asks_jvms: bool) -> (Vec<u8>, Vec<String>) {
    let mut facts: Vec<ThreadRecord> =
        threads.iter().map(|&(pid, tid)| ThreadRecord::look(pid, tid)).collect();
    let ReadStacks { stacks, goroutines, mut remarks } = ReadStacks::read(threads, &facts, spec);
    facts.iter_mut().for_each(ThreadRecord::look_again);
    let java = if asks_jvms { java_threads(threads, &mut remarks) } else { HashMap::new() };
    let mut objects = Objects::default();
    let mut bytes = Vec::new();
    let put = |record: &ThreadRecord, frames: Vec<u64>, bytes: &mut Vec<u8>| {
        let (pid, tid) = (record.pid, record.tid);
        let sample =
            OwnSample { kind: KIND, pid, tid, time_ns: 0, period: 1, frames, ..OwnSample::default() };
        bytes.extend(sample.with(record.to_raw(), spec));
    };
    for record in &mut facts {
        let found = stacks.get(&record.tid);
        bytes.extend(found.iter().flat_map(|found| &found.stack.names));
        record.take_in(found);
        java.get(&(record.pid, record.own_tid)).iter().for_each(|java| record.take_in_java(java));
        if let Some(call) = found.and_then(|found| found.stack.call) {
            record.object = objects.of(record.pid, call);
        }
        let is_on_it = |(pid, goroutine): &&(i32, Goroutine)| {
            *pid == record.pid && goroutine.own_tid == Some(record.own_tid)
        };
        record.goroutine = goroutines.iter().find(is_on_it).map_or(0, |(_, goroutine)| goroutine.id);
        put(record, found.map(|found| found.stack.frames.clone()).unwrap_or_default(), &mut bytes);
    }
    for (pid, goroutine) in goroutines.into_iter().filter(|(_, goroutine)| goroutine.own_tid.is_none()) {
        put(&ThreadRecord::from_goroutine(pid, &goroutine), goroutine.frames, &mut bytes);
    }
    (bytes, remarks)
}

/// The Java threads of all processes, by process and their own numbers.
fn java_threads(threads: &[(i32, i32)], remarks: &mut Vec<String>) -> HashMap<(i32, i32), JavaThread> {
    let mut found = HashMap::new();
    let mut last = 0;
    for &(pid, _) in threads {
        if std::mem::replace(&mut last, pid) == pid {
            continue;
        }
        match java::threads(pid) {
            Ok(threads) => found.extend(threads.into_iter().map(|(tid, thread)| ((pid, tid), thread))),
            Err(remark) => remarks.push(remark),
        }
    }
    found
}

/// Writes the recording.
fn write(
    options: &StackOptions,
    spec: &EventSpec,
    existing: Tasks,
    samples: &[u8],
) -> Result<File, RecordError> {
    let StackOptions { output, version, cmdline, .. } = options;
    let event = UserEvent {
        name: THREAD_STACK.to_owned(),
        system: "kymo".to_owned(),
        format: format!("name: thread_stack\nID: {KIND}\n{}", ThreadRecord::FORMAT),
        kind: KIND.into(),
        id: ID,
    };
    let tracing_data = formats::data(&[], &[event]).map_err(system("describe the event of stacks"))?;
    let mut features = kymo_data::Features {
        event_desc: vec![spec.desc()],
        build_ids: build_ids::kernel_build_id().into_iter().collect(),
        tracing_data: Some(tracing_data),
        ..machine::features(version, cmdline)
    };
    let events = [spec.clone()];
    let (mut sink, naming) = Sink::create(output, None, &events, &features)?;
    let file = sink.another_handle().map_err(system("keep the recording"))?;
    if let Some(mut naming) = naming {
        naming.publish()?;
    }
    let modules = proc::modules();
    let mut records = synth::kernel(&spec.attr, proc::kernel_text(), &modules);
    records.extend(existing.records);
    let failed = |why| OutputError { action: "write", path: output.path(), why };
    sink.append(&records, 0).map_err(failed)?;
    sink.append(samples, 1).map_err(failed)?;
    let build_ids = build_ids::FileBuildIds::of(&existing.files, true);
    sink.append(&build_ids.records(), 0).map_err(failed)?;
    features.build_ids = build_ids.table(&modules);
    match sink.finish(&features).error {
        Some(why) => Err(failed(why).into()),
        None => Ok(file),
    }
}
