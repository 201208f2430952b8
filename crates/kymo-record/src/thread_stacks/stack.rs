//! The stack of one thread as it was read, with what belongs to it.
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
