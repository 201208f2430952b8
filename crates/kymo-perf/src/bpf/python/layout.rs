//! Where an interpreter keeps its threads and frames, as the programs read it.

/// Offsets in bytes within the structs of one version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonLayout {
    /// Which kind of frames it has.
    pub frames: FrameKind,
    /// `PyInterpreterState.next`.
    pub interpreter_next: u32,
    /// The first thread state of an interpreter.
    pub interpreter_threads: u32,
    /// `PyThreadState.next`.
    pub thread_next: u32,
    /// `PyThreadState.thread_id`: what `pthread_self` says in that thread.
    pub thread_id: u32,
    /// The innermost frame of a thread state, or the struct that has it.
    pub thread_frame: u32,
    /// The innermost frame in that struct, if there is one.
    pub inner_frame: Option<u32>,
    /// The frame's code object.
    pub frame_code: u32,
    /// The frame that called it.
    pub frame_previous: u32,
    /// Where it is in its code: an index, or an address in the code object.
    pub frame_position: u32,
    /// The byte that marks the frames that native code has entered.
    pub frame_mark: u32,
    /// The value of such a mark.
    pub entry_mark: u32,
    /// How many bytes of a frame hold all that.
    pub frame_bytes: u32,
    /// `PyCodeObject.co_filename`, before the name and what follows it.
    pub code_names: u32,
}

/// The kinds of frames that CPython has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// 3.8 to 3.10: an object, run by a native frame of its own.
    Object,
    /// 3.11: a struct, with a mark if native code has entered it.
    Marked,
    /// From 3.12 on: a struct; below those that native code has entered lies one that is marked and
    /// runs no code.
    Separated,
}

/// How a layout lies in the map of processes, which the programs read.
pub(super) mod at {
    pub(in super::super) const INTERPRETERS: i16 = 0;
    pub(in super::super) const ID: i16 = 8;
    pub(in super::super) const KIND: i16 = 12;
    pub(in super::super) const INTERPRETER_NEXT: i16 = 16;
    pub(in super::super) const INTERPRETER_THREADS: i16 = 20;
    pub(in super::super) const THREAD_NEXT: i16 = 24;
    pub(in super::super) const THREAD_ID: i16 = 28;
    pub(in super::super) const THREAD_FRAME: i16 = 32;
    pub(in super::super) const INNER_FRAME: i16 = 36;
    pub(in super::super) const FRAME_CODE: i16 = 40;
    pub(in super::super) const FRAME_PREVIOUS: i16 = 44;
    pub(in super::super) const FRAME_POSITION: i16 = 48;
    pub(in super::super) const FRAME_MARK: i16 = 52;
    pub(in super::super) const ENTRY_MARK: i16 = 56;
    pub(in super::super) const FRAME_BYTES: i16 = 60;
    pub(in super::super) const CODE_NAMES: i16 = 64;
}

/// In place of `inner_frame` where there is none.
pub(super) const NONE: u32 = u32::MAX;
pub(super) const LAYOUT_BYTES: usize = 68;
pub(super) const OBJECT: i32 = 0;
pub(super) const SEPARATED: i32 = 2;

impl PythonLayout {
    /// The value in the map: `id` is what the frames of that process will be known by.
    pub(super) fn bytes(&self, interpreters: u64, id: u32) -> Vec<u8> {
        let kind = match self.frames {
            FrameKind::Object => OBJECT,
            FrameKind::Marked => 1,
            FrameKind::Separated => SEPARATED,
        };
        let words = [
            id,
            kind as u32,
            self.interpreter_next,
            self.interpreter_threads,
            self.thread_next,
            self.thread_id,
            self.thread_frame,
            self.inner_frame.unwrap_or(NONE),
            self.frame_code,
            self.frame_previous,
            self.frame_position,
            self.frame_mark,
            self.entry_mark,
            self.frame_bytes,
            self.code_names,
        ];
        let mut bytes = interpreters.to_ne_bytes().to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}
