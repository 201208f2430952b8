//! The stack of one thread as it was read, with what belongs to it.
use crate::python::PythonReader;
use crate::waiting_stacks::{StackReader, WaitingStack};
use kymo_perf::proc;

/// What was read of a thread in time.
#[derive(Debug, Default)]
pub(super) struct ThreadStack {
    pub(super) stack: WaitingStack,
    /// What it did when that was read; `None`: as it was when it was first looked at.
    pub(super) state: Option<char>,
    /// The futex's word, and the two behind it.
    pub(super) words: [Option<u32>; 3],
    /// Why there is no stack.
    pub(super) reason: &'static str,
    /// Records that name functions of it.
    pub(super) names: Vec<u8>,
}

impl ThreadStack {
    /// Puts the frames of Python into it, if there are any. What the user should know.
    pub(super) fn put_python(
        &mut self,
        python: &mut PythonReader,
        reader: &mut StackReader,
        (pid, tid): (i32, i32),
    ) -> Option<String> {
        let thread_pointer = reader.thread_pointer(tid)?;
        let read = &mut |at: u64, bytes: &mut [u8]| reader.read(pid, at, bytes).unwrap_or(0);
        let WaitingStack { frames, is_whole, call, .. } = &mut self.stack;
        let native = frames.clone();
        python.put((pid, tid), thread_pointer, frames, *is_whole, read);
        // What was read of one that has run meanwhile may be of another moment.
        if call.is_some() && proc::waiting_call(pid, tid) != *call {
            *frames = native;
        }
        let (names, remark) = python.take_records();
        self.names = names;
        remark
    }
}

/// The stack of a thread that is not on a CPU.
pub(super) fn waiting_stack(reader: &mut StackReader, pid: i32, tid: i32) -> ThreadStack {
    let stack = reader.stack_of(pid, tid);
    let mut words = [None; 3];
    if let Some(call) = stack.call {
        let mut bytes = [0; 12];
        let read = reader.read(pid, call.arguments[0], &mut bytes).unwrap_or(0);
        for (word, bytes) in words.iter_mut().zip(bytes[..read].as_chunks::<4>().0) {
            *word = Some(u32::from_ne_bytes(*bytes));
        }
    }
    let state = proc::state(pid, tid);
    ThreadStack { stack, state, words, ..ThreadStack::default() }
}
