//! [`PythonReader`]: reads the frames of Python's threads from outside, as the walker does in the
//! kernel, in a process that is not observed. Nothing stops; what changes meanwhile is left out.
use super::location::{FoundPython, find_python, find_python_in_core};
use super::stacks::{PythonStacks, WalkedFrames};
use crate::core_file::CoreFile;
use kymo_perf::bpf::{FrameKind, PythonCode, PythonFrame, PythonLayout};
use kymo_symbols::Budget;
use rustc_hash::{FxHashMap, FxHashSet};

/// Interpreters and thread states that are looked at, and frames of a thread.
const MOST_STATES: usize = 20_000;
const MOST_FRAMES: usize = 4096;
/// How much is read of a code object, of a text, and of a table of lines.
const CODE_BYTES: usize = 192;
const TEXT_BYTES: usize = 584;
const LINE_BYTES: usize = 12 << 10;
/// What the lowest bits of a frame's code say is how it is owned (3.14).
const CODE_MASK: u64 = !7;
/// Where an object of bytes has its length, and its bytes.
const BYTES_LENGTH_AT: u64 = 16;
const BYTES_AT: u64 = 32;

/// Reads memory of the process: how many bytes came.
pub(crate) type ReadMemory<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> usize;

/// CPython of the process that was looked at last.
pub(crate) struct PythonReader {
    budget: Budget,
    stacks: PythonStacks,
    /// When its functions are mapped, by the recording's clock.
    time_ns: u64,
    process: Option<PythonProcess>,
    /// Code objects that were told.
    told: FxHashSet<(i32, u64)>,
}

/// A process, and its interpreter if there is one.
struct PythonProcess {
    pid: i32,
    python: Option<FoundPython>,
    states: ThreadStates,
    remark: Option<String>,
}

/// By what a thread is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadIdentity {
    /// `pthread_self`, if the kernel tells.
    pub(crate) pointer: Option<u64>,
    /// Its number in its own process namespace.
    pub(crate) own_tid: i32,
}

/// Where the interpreters' states of threads are.
#[derive(Debug, Default)]
struct ThreadStates {
    by_pointer: FxHashMap<u64, u64>,
    by_tid: FxHashMap<i32, u64>,
}

fn word(read: ReadMemory<'_>, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(at, &mut bytes) == 8).then_some(u64::from_le_bytes(bytes))
}

impl PythonReader {
    /// `stacks`: where functions get their addresses; `time_ns`: when they are mapped, by the
    /// recording's clock.
    pub(crate) fn new(stacks: PythonStacks, time_ns: u64) -> PythonReader {
        PythonReader { budget: Budget::new(), stacks, time_ns, process: None, told: FxHashSet::default() }
    }

    /// The same for the process of a core file.
    pub(crate) fn for_core(stacks: PythonStacks, core: &CoreFile, read: ReadMemory<'_>) -> PythonReader {
        let mut reader = PythonReader::new(stacks, 0);
        let found = find_python_in_core(core, &reader.budget, reader.stacks.interpreters());
        reader.enter(core.pid, found, read);
        reader
    }

    /// Puts Python's frames into the chain of a thread, if it runs Python. `is_whole`: the chain
    /// reaches the thread's start.
    pub(crate) fn put(
        &mut self,
        (pid, tid): (i32, i32),
        identity: ThreadIdentity,
        native: &mut Vec<u64>,
        is_whole: bool,
        read: ReadMemory<'_>,
    ) {
        self.look(pid, read);
        let Some(PythonProcess { python: Some(python), states, .. }) = &self.process else { return };
        let (layout, id) = (python.layout.walk, python.id);
        let Some(state) = states.get(identity) else { return };
        let Some(innermost) = innermost_frame(&layout, state, read) else { return };
        // A thread that runs changes them: only what is the same twice is taken.
        let frames = walk(&layout, innermost, read);
        let codes = |frames: &[PythonFrame]| frames.iter().map(|frame| frame.code).collect::<Vec<u64>>();
        let again = walk(&layout, innermost, read);
        if codes(&again) != codes(&frames) || innermost_frame(&layout, state, read) != Some(innermost) {
            return;
        }
        for frame in &frames {
            if self.told.insert((pid, frame.code)) {
                tell(&mut self.stacks, &layout, id, frame.code, read);
            }
        }
        let walked = WalkedFrames { tid, interpreter: id, frames };
        self.stacks.put_walked((pid, tid, self.time_ns), walked, native, is_whole, MOST_FRAMES);
    }

    /// Records that name the functions, and what the user should know.
    pub(crate) fn take_records(&mut self) -> (Vec<u8>, Option<String>) {
        let remark = self.process.as_mut().and_then(|process| process.remark.take());
        (self.stacks.take_records(), remark)
    }

    /// Looks at a process, once.
    fn look(&mut self, pid: i32, read: ReadMemory<'_>) {
        if self.process.as_ref().is_some_and(|process| process.pid == pid) {
            return;
        }
        let found = find_python(pid, &self.budget, self.stacks.interpreters());
        self.enter(pid, found, read);
    }

    fn enter(&mut self, pid: i32, found: Result<Option<FoundPython>, String>, read: ReadMemory<'_>) {
        let (python, remark) = match found {
            Ok(python) => (python, None),
            Err(remark) => (None, Some(remark)),
        };
        let states = python.as_ref().map(|python| ThreadStates::read(python, read)).unwrap_or_default();
        self.process = Some(PythonProcess { pid, python, states, remark });
    }
}

/// The innermost frame of a thread that runs Python.
fn innermost_frame(layout: &PythonLayout, state: u64, read: ReadMemory<'_>) -> Option<u64> {
    let mut frame = word(read, state.wrapping_add(layout.thread_frame.into()))?;
    if let Some(offset) = layout.inner_frame {
        frame = word(read, frame.wrapping_add(offset.into()))?;
    }
    Some(frame).filter(|&frame| frame != 0)
}

impl ThreadStates {
    /// The state of each thread of all interpreters.
    fn read(python: &FoundPython, read: ReadMemory<'_>) -> ThreadStates {
        let layout = &python.layout.walk;
        let (mut found, mut left) = (ThreadStates::default(), MOST_STATES);
        let at = |offset: u32| u64::from(offset);
        let mut interpreter = word(read, python.interpreters).unwrap_or(0);
        while interpreter != 0 && left > 0 {
            let mut state = word(read, interpreter.wrapping_add(at(layout.interpreter_threads))).unwrap_or(0);
            while state != 0 && left > 0 {
                left -= 1;
                let pointer = word(read, state.wrapping_add(at(layout.thread_id)));
                found.by_pointer.extend(pointer.map(|pointer| (pointer, state)));
                let tid = pointer.and_then(|pointer| own_tid(layout, state, pointer, read));
                found.by_tid.extend(tid.map(|tid| (tid, state)));
                state = word(read, state.wrapping_add(at(layout.thread_next))).unwrap_or(0);
            }
            left = left.saturating_sub(1);
            interpreter = word(read, interpreter.wrapping_add(at(layout.interpreter_next))).unwrap_or(0);
        }
        found
    }

    fn get(&self, identity: ThreadIdentity) -> Option<u64> {
        match identity.pointer {
            Some(pointer) => self.by_pointer.get(&pointer),
            None => self.by_tid.get(&identity.own_tid),
        }
        .copied()
    }
}

/// The number of the thread that has this state: from 3.11 on CPython keeps it behind `thread_id`
/// (`native_thread_id`); before, it is read from the C library's own struct.
fn own_tid(layout: &PythonLayout, state: u64, pointer: u64, read: ReadMemory<'_>) -> Option<i32> {
    /// `struct pthread.tid` of glibc on x86-64.
    const TID_AT: u64 = 0x2d0;
    let at = match layout.frames {
        FrameKind::Object if cfg!(target_arch = "x86_64") => pointer.wrapping_add(TID_AT),
        FrameKind::Object => return None,
        FrameKind::Marked | FrameKind::Separated => state.wrapping_add(u64::from(layout.thread_id) + 8),
    };
    let mut bytes = [0; 4];
    (read(at, &mut bytes) == bytes.len()).then_some(i32::from_le_bytes(bytes)).filter(|&tid| tid > 0)
}

/// The frames from this one on, innermost first.
fn walk(layout: &PythonLayout, mut frame: u64, read: ReadMemory<'_>) -> Vec<PythonFrame> {
    let mut frames = Vec::new();
    let mut bytes = vec![0; (layout.frame_bytes as usize).clamp(8, 512)];
    while frame != 0 && frames.len() < MOST_FRAMES && read(frame, &mut bytes) == bytes.len() {
        let field = |offset: u32| {
            let word = bytes.get(offset as usize..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*word))
        };
        let (Some(code), Some(position), Some(previous)) =
            (field(layout.frame_code), field(layout.frame_position), field(layout.frame_previous))
        else {
            break;
        };
        let code = code & CODE_MASK;
        let position = match layout.frames {
            FrameKind::Object => position,
            // An address within the code object.
            FrameKind::Marked | FrameKind::Separated => position.wrapping_sub(code),
        };
        let mark = bytes.get(layout.frame_mark as usize).copied().map_or(u32::MAX, u32::from);
        let entered = mark == layout.entry_mark;
        frames.push(PythonFrame { code, names: 0, position: position as u32 & !(1 << 31), entered });
        frame = previous;
    }
    frames
}

/// Tells the function of a code object.
fn tell(stacks: &mut PythonStacks, layout: &PythonLayout, id: u32, address: u64, read: ReadMemory<'_>) {
    let mut object = vec![0; CODE_BYTES];
    if read(address, &mut object) < object.len() {
        return;
    }
    let names = address.wrapping_add(u64::from(layout.code_names));
    let pointer = |at: u64, read: ReadMemory<'_>| word(read, names + 8 * at).filter(|&pointer| pointer != 0);
    // The file's name, the name, and from 3.11 on the qualified name, and the lines.
    let has_qualified = layout.frames != FrameKind::Object;
    let text = |pointer: Option<u64>, read: ReadMemory<'_>| {
        let mut bytes = vec![0; TEXT_BYTES];
        let length = pointer.map_or(0, |pointer| read(pointer, &mut bytes));
        bytes.truncate(length);
        bytes
    };
    let pointers = [pointer(0, read), pointer(1, read), if has_qualified { pointer(2, read) } else { None }];
    let texts = pointers.map(|pointer| text(pointer, read));
    let table = pointer(if has_qualified { 3 } else { 2 }, read);
    let length = table.and_then(|table| word(read, table + BYTES_LENGTH_AT)).unwrap_or(0);
    let mut lines = vec![0; (length as usize).min(LINE_BYTES)];
    let got = table.map_or(0, |table| read(table + BYTES_AT, &mut lines));
    let code = PythonCode {
        address,
        names: 0,
        object: &object,
        texts: [&texts[0], &texts[1], &texts[2]],
        lines: (&lines[..got.min(lines.len())], got as u64 == length),
    };
    stacks.tell(id, &code);
}
