//! The part of a stub that has `slow_path.rs` look at a hit, and puts the event that it made into
//! this CPU's ring.
//!
//! ```text
//!   rsp -= frame; all registers and the flags into it
//!   verdict = handle(frame, which)
//!   an event:  ring = table[CPU];  room?  the event with CPU and time;  head += its bytes        (a restartable sequence, as in record.rs)
//!   everything as it was;  verdict 0: on to where hits go that are not to be looked at
//! ```
use super::context::{CodegenContext, Emitted};
use super::count::Counter;
use super::predicate::REGISTERS;
use super::record::{self, Recorder};
use crate::patch::layout::{
    BUFFER_AT, FLAGS_AT, HEAD_AT, LEAST_EVENT, LOST_AT, MISSED, PAGE_BYTES, TAIL_AT, VERDICT_AT,
};
use crate::patch::record::Record;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, qword_ptr, r8, rax, rcx, rdi, rdx, rsi, rsp,
};

const RED_ZONE: i32 = 128;
/// What is not the handler's to keep, or is used here.
const USED: [AsmRegister64; 6] = [rax, rcx, rdx, rsi, rdi, r8];

/// What of a stub is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlowPath {
    /// What the handler knows the probe by.
    pub(crate) number: u64,
    /// Bytes for an event.
    pub(crate) room: u32,
    pub(crate) at_entry: bool,
    pub(crate) at_return: bool,
}

/// What a stub has for it: a counter of what was not looked at, or what writes events.
pub(crate) enum SlowPathParts<'a> {
    Count(&'a mut Counter, u32),
    Record(&'a mut Recorder, Record, u32),
}

/// Writes the handling of an entry, or of a return with rsp at the address that it returns to. On
/// to `out`, with everything as it was, if there is nothing more to do.
pub(crate) fn write(
    a: &mut CodeAssembler,
    (slow_path, returned): (SlowPath, bool),
    context: &CodegenContext,
    means: SlowPathParts<'_>,
    out: CodeLabel,
) -> Emitted {
    let (mut done, mut shut, mut looked) = (a.create_label(), a.create_label(), a.create_label());
    let (missed, recorder) = match means {
        SlowPathParts::Count(counter, slot) => ((counter, slot), None),
        SlowPathParts::Record(Recorder { hits, lost, write }, record, slot) => {
            ((hits, slot), Some(((lost, slot), write, record)))
        }
    };
    let frame = BUFFER_AT + slow_path.room as i32 + RED_ZONE;
    debug_assert!(frame % 16 == 0);
    a.lea(rsp, rsp - frame)?;
    for (at, register) in REGISTERS.into_iter().enumerate().filter(|(_, register)| *register != rsp) {
        a.mov(qword_ptr(rsp + 8 * at as i32), register)?;
    }
    // At a return the address that it returns to is off the stack already.
    a.lea(rax, rsp + (frame + if returned { 8 } else { 0 }))?;
    a.mov(qword_ptr(rsp + 8 * 4), rax)?;
    a.lahf()?;
    a.seto(al)?;
    a.mov(qword_ptr(rsp + FLAGS_AT), rax)?;
    a.mov(rax, rsp)?;
    a.mov(rcx, slow_path.number << 1 | u64::from(returned))?;
    a.call(context.calls.handle)?;
    a.mov(qword_ptr(rsp + VERDICT_AT), rcx)?;
    a.cmp(rcx, MISSED as i32)?;
    a.jne(looked)?;
    missed.0.raise(a, context, missed.1)?;
    a.mov(qword_ptr(rsp + VERDICT_AT), 0)?;
    a.jmp(done)?;
    a.set_label(&mut looked)?;
    a.zero_bytes()?;
    if let Some((lost, write, record)) = recorder {
        a.cmp(rcx, LEAST_EVENT as i32)?;
        a.jb(done)?;
        event(a, context, &record, lost, write, done)?;
    }
    a.set_label(&mut done)?;
    a.mov(rcx, qword_ptr(rsp + VERDICT_AT))?;
    a.test(rcx, rcx)?;
    a.jz(shut)?;
    let mut on = a.create_label();
    close(a, frame)?;
    a.jmp(on)?;
    a.set_label(&mut shut)?;
    close(a, frame)?;
    a.jmp(out)?;
    a.set_label(&mut on)?;
    a.zero_bytes()
}

fn close(a: &mut CodeAssembler, frame: i32) -> Emitted {
    a.mov(rax, qword_ptr(rsp + FLAGS_AT))?;
    a.add(al, 127)?;
    a.sahf()?;
    for (at, register) in REGISTERS.into_iter().enumerate().filter(|(_, register)| USED.contains(register)) {
        a.mov(register, qword_ptr(rsp + 8 * at as i32))?;
    }
    a.lea(rsp, rsp + frame)
}

/// Copies the event into the ring.
fn event(
    a: &mut CodeAssembler,
    context: &CodegenContext,
    record: &Record,
    lost: (&mut Counter, u32),
    write: &mut Counter,
    done: CodeLabel,
) -> Emitted {
    let (mut room, mut next) = (a.create_label(), a.create_label());
    write.begin_at(a, context, record.table)?;
    a.mov(rsi, rcx)?;
    a.test(rsi, rsi)?;
    a.jz(done)?;
    a.mov(r8, qword_ptr(rsp + VERDICT_AT))?;
    a.mov(rcx, qword_ptr(rsi + HEAD_AT))?;
    a.mov(rdx, rcx)?;
    a.sub(rdx, qword_ptr(rsi + TAIL_AT))?;
    a.add(rdx, r8)?;
    a.cmp(rdx, record.data_bytes as i32)?;
    a.jb(room)?;
    lost.0.raise(a, context, lost.1)?;
    a.lock().add(qword_ptr(rsi + LOST_AT), 1)?;
    a.jmp(done)?;

    a.set_label(&mut room)?;
    a.mov(rdi, rcx)?;
    a.and(rdi, record.data_bytes as i32 - 1)?;
    a.lea(rdi, rsi + rdi + PAGE_BYTES as i32)?;
    a.mov(qword_ptr(rsp + (BUFFER_AT + 40)), rax)?;
    record::now(a, record.clock)?;
    a.mov(qword_ptr(rsp + (BUFFER_AT + 32)), rax)?;
    a.mov(rdx, r8)?;
    a.set_label(&mut next)?;
    a.mov(rax, qword_ptr(rsp + rdx + (BUFFER_AT - 8)))?;
    a.mov(qword_ptr(rdi + rdx - 8), rax)?;
    a.sub(rdx, 8)?;
    a.jnz(next)?;
    a.add(rcx, r8)?;
    a.mov(qword_ptr(rsi + HEAD_AT), rcx)?;
    write.finish(a)
}
