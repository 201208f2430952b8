//! The threads of a core file.
use super::goroutines::{self, GoProgram, Goroutine};
use super::image::{DumpedProcess, ProcessImage};
use super::record::{StackKind, ThreadRecord};
use crate::core_file::{CoreFile, CoreMapping, CoreThread};
use crate::mapped_files::RecordedFile;
use crate::python::{PythonReader, PythonStacks, ThreadIdentity};
use crate::synth::Tasks;
use kymo_data::abi::PERF_RECORD_MISC_USER;
use kymo_data::build::{self, MapSpec};
use kymo_data::{Attr, Event, EventSet, EventSpec, SampleId};
use kymo_symbols::unwind::Stop;
use std::sync::Arc;

/// How much of a stack is read, and of one that is longer.
const STACK_BYTES: [usize; 2] = [128 << 10, 8 << 20];

/// What a core file tells of stacks.
pub(super) struct DumpedStacks {
    /// Each thread, or goroutine without one, with its stack, innermost first.
    pub(super) threads: Vec<(ThreadRecord, Vec<u64>)>,
    /// Records that name functions of Python among the frames.
    pub(super) names: Vec<u8>,
    /// What the user should know.
    pub(super) remarks: Vec<String>,
}

/// Reads all of it.
pub(super) fn read(core: &CoreFile, spec: &EventSpec) -> DumpedStacks {
    let mut process = DumpedProcess::new(core);
    let events = EventSet::new(vec![Event::new(spec.attr.clone(), spec.ids.clone(), 0)]);
    let stacks = PythonStacks::new(Arc::default(), &events);
    let mut python = PythonReader::for_core(stacks, core, &mut |at, bytes| process.read(at, bytes));
    let mut threads: Vec<_> =
        core.threads.iter().map(|thread| record_of(core, thread, &mut process, &mut python)).collect();
    let (names, remark) = python.take_records();
    let mut remarks: Vec<String> = remark.into_iter().collect();
    let found = GoProgram::find_in_core(core).and_then(|program| match program {
        Some(program) => goroutines::read(&program, &mut process),
        None => Ok(Default::default()),
    });
    match found {
        Ok((goroutines, left_out)) => {
            put_goroutines(core.pid, goroutines, &mut threads);
            if left_out > 0 {
                remarks.push(format!("{left_out} more goroutines were not read"));
            }
        }
        Err(why) => remarks.push(format!("goroutines are not seen, only threads: {why}")),
    }
    DumpedStacks { threads, names, remarks }
}

fn put_goroutines(pid: i32, goroutines: Vec<Goroutine>, threads: &mut Vec<(ThreadRecord, Vec<u64>)>) {
    for goroutine in goroutines {
        match goroutine.own_tid {
            Some(tid) => {
                let thread = threads.iter_mut().find(|(record, _)| record.own_tid == tid);
                thread.into_iter().for_each(|(record, _)| record.goroutine = goroutine.id);
            }
            None => threads.push((ThreadRecord::from_goroutine(pid, &goroutine), goroutine.frames)),
        }
    }
}

fn record_of(
    core: &CoreFile,
    thread: &CoreThread,
    process: &mut DumpedProcess<'_>,
    python: &mut PythonReader,
) -> (ThreadRecord, Vec<u64>) {
    let mut frames = Vec::new();
    let mut kind = StackKind::Missing;
    for most in STACK_BYTES {
        let Some(regs) = thread.user_regs() else { break };
        let mut stack = vec![0; most];
        let read = process.read(thread.stack_pointer(), &mut stack);
        let stop;
        (frames, stop) = process.walk(&regs, &stack[..read]);
        kind = match (frames.is_empty(), stop) {
            (true, _) => StackKind::Missing,
            (_, Stop::Root) => StackKind::Whole,
            _ => StackKind::Cut,
        };
        if stop != Stop::StackEnd || read < most {
            break;
        }
    }
    let identity = ThreadIdentity { pointer: thread.thread_pointer(), own_tid: thread.tid };
    let read = &mut |at: u64, bytes: &mut [u8]| process.read(at, bytes);
    python.put((core.pid, thread.tid), identity, &mut frames, kind == StackKind::Whole, read);
    let (call, arguments) = thread.call();
    let mut words = [0; 3];
    let mut bytes = [0; 12];
    let read = if call >= 0 { process.read(arguments[0], &mut bytes) } else { 0 };
    for (word, bytes) in words.iter_mut().zip(bytes[..read].as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let record = ThreadRecord::from_dump(core.pid, thread.tid, thread.signal, kind, (call, arguments), words);
    (record, frames)
}

/// Names and mappings, as records.
pub(super) fn tasks(core: &CoreFile, attr: &Attr) -> Tasks {
    let none = SampleId::default();
    let mut tasks = Tasks::default();
    for thread in &core.threads {
        tasks.records.extend(build::comm(attr, &none, core.pid, thread.tid, &core.name, false));
    }
    for mapping in &core.mappings {
        let CoreMapping { start, end, offset, path, executable, build_id } = mapping;
        let map = MapSpec {
            pid: core.pid,
            tid: core.pid,
            addr: *start,
            len: end.saturating_sub(*start),
            pgoff: *offset,
            build_id: Some(build_id.as_slice()).filter(|id| !id.is_empty()),
            prot: if *executable { 5 } else { 1 },
            flags: 2,
            misc: PERF_RECORD_MISC_USER,
            filename: path,
            ..MapSpec::default()
        };
        tasks.records.extend(build::mmap2(attr, &none, &map));
        if *executable && path.starts_with(b"/") {
            let file = RecordedFile { path: path.clone(), build_id: build_id.clone(), file_id: (0, 0, 0) };
            tasks.files.insert(file);
        }
    }
    tasks
}
