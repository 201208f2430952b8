//! The threads of a core file.
use super::record::{StackKind, ThreadRecord};
use crate::core_file::{CoreFile, CoreMapping, CoreThread};
use crate::mapped_files::RecordedFile;
use crate::process_modules::modules_of_processes;
use crate::synth::Tasks;
use kymo_data::abi::PERF_RECORD_MISC_USER;
use kymo_data::build::{self, MapSpec};
use kymo_data::{Attr, SampleId};
use kymo_symbols::unwind::{AddressSpace, Convention, MAX_FRAMES, MappedFile, Stop, UnwindModules, Unwinder};

/// How much of a stack is read, and of one that is longer.
const STACK_BYTES: [usize; 2] = [128 << 10, 8 << 20];

/// Each thread with its stack, innermost first.
pub(super) fn threads(core: &CoreFile) -> Vec<(ThreadRecord, Vec<u64>)> {
    let modules = modules_of_processes(|| false);
    let space = space_of(core, &modules);
    let mut unwinder = Unwinder::new(Convention::Perf);
    core.threads.iter().map(|thread| record_of(core, thread, &space, &mut unwinder)).collect()
}

fn space_of(core: &CoreFile, modules: &UnwindModules) -> AddressSpace {
    let mut space = AddressSpace::new();
    for mapping in core.mappings.iter().filter(|mapping| mapping.executable) {
        let CoreMapping { start, end, offset, path, build_id, .. } = mapping;
        let file = MappedFile { path, build_id, file_id: (0, 0, 0), seen: None };
        space.map(*start, *end, *offset, modules.module_of(&file));
    }
    space
}

fn record_of(
    core: &CoreFile,
    thread: &CoreThread,
    space: &AddressSpace,
    unwinder: &mut Unwinder,
) -> (ThreadRecord, Vec<u64>) {
    let mut frames = Vec::new();
    let mut kind = StackKind::Missing;
    for most in STACK_BYTES {
        let Some(regs) = thread.user_regs() else { break };
        let mut stack = vec![0; most];
        let read = core.read(thread.stack_pointer(), &mut stack);
        frames.clear();
        let stop = unwinder.unwind(space, &regs, &stack[..read], MAX_FRAMES, &mut frames);
        kind = match (frames.is_empty(), stop) {
            (true, _) => StackKind::Missing,
            (_, Stop::Root) => StackKind::Whole,
            _ => StackKind::Cut,
        };
        if stop != Stop::StackEnd || read < most {
            break;
        }
    }
    let (call, arguments) = thread.call();
    let mut words = [0; 3];
    let mut bytes = [0; 12];
    let read = if call >= 0 { core.read(arguments[0], &mut bytes) } else { 0 };
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
