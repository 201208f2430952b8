//! [`PythonStacks`]: what the walker told in the kernel, until the sample that it belongs to comes.
use super::chain::{ChainFrame, replace};
use super::{CodeLayout, Interpreter, Interpreters, PositionKind, code};
use kymo_data::{Attr, EventSet, InterpretedFunction, SampleId, abi, build};
use kymo_perf::bpf::{PythonCode, PythonFrame, PythonRecord};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;
use std::sync::Arc;

/// Addresses that each function has: one for each instruction of two bytes.
const FUNCTION_SIZE: u32 = 1 << 16;
/// Numbers of functions that are met while a recording runs, and of those at its end: more get no
/// names.
const FUNCTIONS: Range<u64> = 0..3 << 20;
const FUNCTIONS_AT_END: Range<u64> = 3 << 20..1 << 22;
/// So many stacks of a ring wait for their samples: as many as interrupts can interrupt each other.
const MOST_WAITING: usize = 4;
/// The name of what the functions seem to be mapped from.
const MODULE: &[u8] = b"[python]";

/// The frames of a thread, innermost first.
#[derive(Debug)]
pub(super) struct WalkedFrames {
    pub(super) tid: i32,
    pub(super) interpreter: u32,
    pub(super) frames: Vec<PythonFrame>,
}

/// Frames that wait, and the functions that were met.
pub(crate) struct PythonStacks {
    interpreters: Arc<Interpreters>,
    /// The first event: its samples' ids stand behind records.
    attr: Attr,
    id: Option<u64>,
    /// By ring.
    waiting: FxHashMap<usize, Vec<WalkedFrames>>,
    known: FxHashMap<u32, Interpreter>,
    /// The address of each code object's function: by interpreter, address, and names.
    functions: FxHashMap<(u32, u64, u32), u64>,
    /// Numbers of functions that are free.
    numbers: Range<u64>,
    /// Processes whose functions are mapped.
    mapped: FxHashSet<i32>,
    /// Records to be written before the samples.
    records: Vec<u8>,
    frames: Vec<ChainFrame>,
    chain: Vec<u64>,
}

impl PythonStacks {
    /// `specs`: the events as the kernel writes their samples.
    pub(crate) fn new(interpreters: Arc<Interpreters>, events: &EventSet) -> PythonStacks {
        let first = events.list.first();
        PythonStacks {
            interpreters,
            attr: first.map(|event| event.attr.clone()).unwrap_or_default(),
            id: first.and_then(|event| event.ids.first().copied()),
            waiting: FxHashMap::default(),
            known: FxHashMap::default(),
            functions: FxHashMap::default(),
            numbers: FUNCTIONS,
            mapped: FxHashSet::default(),
            records: Vec::new(),
            frames: Vec::new(),
            chain: Vec::new(),
        }
    }

    /// For what is read when the recording ends: functions get other addresses than those before.
    pub(crate) fn at_end(interpreters: Arc<Interpreters>, events: &EventSet) -> PythonStacks {
        PythonStacks { numbers: FUNCTIONS_AT_END, ..PythonStacks::new(interpreters, events) }
    }

    /// Takes in what the walker told before a sample of this ring.
    pub(crate) fn told(&mut self, ring: usize, tid: i32, raw: &[u8]) {
        match PythonRecord::parse(raw) {
            Some(PythonRecord::Frames { interpreter, frames }) => {
                let waiting = self.waiting.entry(ring).or_default();
                if waiting.len() >= MOST_WAITING {
                    waiting.remove(0);
                }
                let frames = PythonRecord::frames(frames).collect();
                waiting.push(WalkedFrames { tid, interpreter, frames });
            }
            Some(PythonRecord::Code { interpreter, code }) => self.tell(interpreter, &code),
            None => {}
        }
    }

    /// The interpreters that were found.
    pub(super) fn interpreters(&self) -> &Interpreters {
        &self.interpreters
    }

    /// Tells the function of a code object.
    pub(super) fn tell(&mut self, id: u32, code: &PythonCode<'_>) {
        if !self.knows(id) {
            return;
        }
        let Some(address) = self.address((id, code.address, code.names)) else { return };
        let Some(interpreter) = self.known.get(&id) else { return };
        if let Some(function) = code::function(interpreter, code, address, FUNCTION_SIZE) {
            self.records.extend(function.record());
        }
    }

    fn knows(&mut self, id: u32) -> bool {
        if !self.known.contains_key(&id)
            && let Some(interpreter) = self.interpreters.get(id)
        {
            self.known.insert(id, interpreter);
        }
        self.known.contains_key(&id)
    }

    /// The address of a function, a new one on first sight.
    fn address(&mut self, key: (u32, u64, u32)) -> Option<u64> {
        if let Some(&known) = self.functions.get(&key) {
            return Some(known);
        }
        let number = self.numbers.next()?;
        let address = InterpretedFunction::FIRST_ADDRESS + number * u64::from(FUNCTION_SIZE);
        self.functions.insert(key, address);
        Some(address)
    }

    /// Puts the frames of Python at this sample, if they were told, into its chain of native ones.
    /// `whole`: the chain reaches the thread's start. `true`: its innermost frame is another one now.
    pub(crate) fn put(
        &mut self,
        ring: usize,
        (pid, tid, time_ns): (i32, i32, u64),
        native: &mut Vec<u64>,
        whole: bool,
        most: usize,
    ) -> bool {
        let Some(stack) = self.waiting.get_mut(&ring).and_then(Vec::pop) else { return false };
        self.put_walked((pid, tid, time_ns), stack, native, whole, most)
    }

    /// The same for frames that were read from outside.
    pub(super) fn put_walked(
        &mut self,
        (pid, tid, time_ns): (i32, i32, u64),
        stack: WalkedFrames,
        native: &mut Vec<u64>,
        whole: bool,
        most: usize,
    ) -> bool {
        if stack.tid != tid || !self.knows(stack.interpreter) {
            return false;
        }
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        frames.extend(stack.frames.iter().map(|frame| self.chain_frame(stack.interpreter, frame)));
        let changed = self.known.get(&stack.interpreter).is_some_and(|interpreter| {
            let runs = |address| interpreter.evaluate.iter().any(|range| range.contains(&address));
            replace(native, whole, runs, &frames, &mut self.chain);
            native.first() != self.chain.first()
        });
        self.frames = frames;
        self.chain.truncate(most);
        std::mem::swap(native, &mut self.chain);
        self.map(pid, tid, time_ns);
        changed
    }

    fn chain_frame(&mut self, id: u32, frame: &PythonFrame) -> ChainFrame {
        let Some(Interpreter { layout, is_separated, is_entered_each, .. }) = self.known.get(&id) else {
            return ChainFrame { address: None, ends: true };
        };
        let unit = unit(layout, frame.position);
        let ends = frame.entered || *is_entered_each;
        if *is_separated && frame.entered {
            return ChainFrame { address: None, ends };
        }
        let address = self.address((id, frame.code, frame.names));
        ChainFrame { address: address.map(|address| address + u64::from(unit)), ends }
    }

    /// Lets other readers know that a process has a module of functions.
    fn map(&mut self, pid: i32, tid: i32, time_ns: u64) {
        if !self.mapped.insert(pid) {
            return;
        }
        let id = SampleId {
            pid: Some(pid),
            tid: Some(tid),
            time: Some(time_ns),
            id: self.id,
            cpu: Some(0),
            ..SampleId::default()
        };
        let first = InterpretedFunction::FIRST_ADDRESS;
        let map = build::MapSpec {
            pid,
            tid,
            addr: first,
            len: InterpretedFunction::END_ADDRESS - first,
            prot: 5,
            flags: 2,
            misc: abi::PERF_RECORD_MISC_USER,
            filename: MODULE,
            ..build::MapSpec::default()
        };
        self.records.extend(build::mmap2(&self.attr, &id, &map));
    }

    /// A process executes another program.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.mapped.remove(&pid);
    }

    /// Records to be written before what was reduced last.
    pub(crate) fn take_records(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.records)
    }
}

/// The instruction that a frame is at, as an offset to its function's address.
fn unit(layout: &CodeLayout, position: u32) -> u16 {
    // Before the first instruction: 31 bits of a negative number.
    let position = if position >= 1 << 30 { 0 } else { position };
    let units = match layout.position {
        PositionKind::Bytes => position / 2,
        PositionKind::Instructions => position,
        PositionKind::InObject(start) => position.saturating_sub(start) / 2,
    };
    u16::try_from(units).unwrap_or(u16::MAX - 1)
}
