//! The stub's part that writes an event into this CPU's ring.
//!
//! ```text
//!   tid from the thread's shadow stack
//!   again:   this thread's sequence = descriptor
//!   start:   ring = table[CPU]; none in a forked child
//!            used = head - tail;  used + record >= size:  lost += 1, done
//!            the record, with the time that it is now
//!            head += record             the last instruction: done, or not
//! ```
//!
//! A record is a sample with raw data, as the kernel writes for its own events of programs
//! ([`Layout`] says where what is):
//!
//! ```text
//!   0 header | 8 event | 16 the place | 24 pid, tid | 32 time | 40 CPU | 48 one | 56 bytes u32 | 60 raw data
//! ```
//! Flags are kept on the stack, all registers as well: a record costs tens of nanoseconds anyway.
use super::context::{CodegenContext, Emitted};
use super::count::Counter;
use super::predicate::{self, FRAME};
use crate::patch::clock::Clock;
use crate::patch::layout::{HEAD_AT, LOST_AT, OWNER_AT, PAGE_BYTES, RAW_AT, TAIL_AT, record_header};
use crate::patch::record::Record;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, qword_ptr, r8, r8d, rax, rcx, rdi, rdx, rsi, rsp,
};
use kymo_core::probe::wire::{EventId, Fetch, Layout};

/// Bytes of a record without texts.
fn bytes(layout: &Layout) -> u32 {
    (RAW_AT as u32 + layout.fixed_bytes).next_multiple_of(8)
}

/// What is in a record besides its header, the time, and what its reader knows better.
#[derive(Clone, Copy)]
pub(super) struct EventFields<'a> {
    pub(super) id: EventId,
    pub(super) site: u64,
    /// Its values.
    pub(super) fetches: &'a [Fetch],
    /// Of the whole record.
    pub(super) bytes: u32,
}

impl EventFields<'_> {
    /// Writes them to the record at rdi, with the thread's number in r8. Uses rax.
    pub(super) fn write(&self, a: &mut CodeAssembler, returned: bool) -> Emitted {
        let layout = Layout::of(self.fetches, returned);
        for (at, value) in [(8, self.id.id), (RAW_AT + 8, self.site)] {
            a.mov(rax, value)?;
            a.mov(qword_ptr(rdi + at), rax)?;
        }
        if returned {
            a.mov(rax, qword_ptr(rsp + FRAME))?;
            a.mov(qword_ptr(rdi + (RAW_AT + 16)), rax)?;
        }
        a.mov(qword_ptr(rdi + 16), rax)?;
        a.mov(dword_ptr(rdi + 28), r8d)?;
        let end = RAW_AT as u32 + layout.fixed_bytes;
        if end < self.bytes {
            a.mov(dword_ptr(rdi + end as i32), 0)?;
        }
        a.mov(dword_ptr(rdi + 56), self.bytes - RAW_AT as u32)?;
        a.mov(dword_ptr(rdi + RAW_AT), u32::from(self.id.kind))?;
        a.mov(dword_ptr(rdi + (RAW_AT + 4)), r8d)?;
        for (fetch, at) in self.fetches.iter().zip(&layout.at) {
            predicate::operand(a, &fetch.operand, returned)?;
            a.mov(qword_ptr(rdi + (RAW_AT + *at as i32)), rax)?;
        }
        Ok(())
    }
}

pub(crate) struct Recorder {
    pub(crate) hits: Counter,
    pub(crate) lost: Counter,
    pub(crate) write: Counter,
}

#[derive(Clone, Copy)]
pub(crate) struct RecordContext<'a> {
    pub(crate) record: &'a Record,
    /// The counter of events that had no room.
    pub(crate) lost: u32,
    pub(crate) site: u64,
    pub(crate) context: &'a CodegenContext,
}

impl Recorder {
    pub(crate) fn declare(a: &mut CodeAssembler) -> Result<Recorder, IcedError> {
        Ok(Recorder { hits: Counter::declare(a)?, lost: Counter::declare(a)?, write: Counter::declare(a)? })
    }

    /// All sequences, in the order of their descriptors.
    pub(crate) fn counters(self) -> Vec<Counter> {
        vec![self.hits, self.lost, self.write]
    }

    /// From the stub's begin to what comes then; on to `out`, with everything as it was, for hits
    /// that are not to be looked at.
    pub(crate) fn at_entry(
        &mut self,
        a: &mut CodeAssembler,
        hits: u32,
        task: RecordContext<'_>,
        out: CodeLabel,
    ) -> Emitted {
        let (mut done, mut shut, mut on) = (a.create_label(), a.create_label(), a.create_label());
        let action = task.record.action;
        predicate::open(a)?;
        predicate::only_if(a, &action.entry_condition, false, shut)?;
        self.hits.raise(a, task.context, hits)?;
        predicate::only_each(a, action.every, shut)?;
        self.event(a, task, false, done)?;
        a.set_label(&mut done)?;
        predicate::close(a)?;
        if action.chooses() {
            a.jmp(on)?;
            a.set_label(&mut shut)?;
            predicate::close(a)?;
            a.jmp(out)?;
            a.set_label(&mut on)?;
            a.zero_bytes()?;
        }
        Ok(())
    }

    /// At the return, with rsp at the address that it returns to. `returns` counts them.
    pub(crate) fn at_return(
        &mut self,
        a: &mut CodeAssembler,
        returns: u32,
        task: RecordContext<'_>,
    ) -> Emitted {
        let mut done = a.create_label();
        predicate::open(a)?;
        predicate::only_if(a, &task.record.action.return_condition, true, done)?;
        self.hits.raise(a, task.context, returns)?;
        self.event(a, task, true, done)?;
        a.set_label(&mut done)?;
        predicate::close(a)
    }

    fn event(
        &mut self,
        a: &mut CodeAssembler,
        task: RecordContext<'_>,
        returned: bool,
        done: CodeLabel,
    ) -> Emitted {
        let RecordContext { record, lost, site, context } = task;
        let layout = record.action.layout(returned);
        let bytes = bytes(&layout);
        let mut room = a.create_label();
        tid(a, context)?;
        self.write.begin_at(a, context, record.table)?;
        a.mov(rsi, rcx)?;
        a.test(rsi, rsi)?;
        a.jz(done)?;
        a.mov(rcx, qword_ptr(rsi + HEAD_AT))?;
        a.mov(rdx, rcx)?;
        a.sub(rdx, qword_ptr(rsi + TAIL_AT))?;
        a.add(rdx, bytes as i32)?;
        a.cmp(rdx, record.data_bytes as i32)?;
        a.jb(room)?;
        self.lost.raise(a, context, lost)?;
        // For all probes together, where the reader finds it also when the program is gone.
        a.lock().add(qword_ptr(rsi + LOST_AT), 1)?;
        a.jmp(done)?;

        a.set_label(&mut room)?;
        a.mov(rdi, rcx)?;
        a.and(rdi, record.data_bytes as i32 - 1)?;
        a.lea(rdi, rsi + rdi + PAGE_BYTES as i32)?;
        a.mov(qword_ptr(rdi + 40), rax)?;
        now(a, record.clock)?;
        a.mov(qword_ptr(rdi + 32), rax)?;
        a.mov(rax, record_header(bytes))?;
        a.mov(qword_ptr(rdi), rax)?;
        a.mov(dword_ptr(rdi + 24), std::process::id())?;
        a.mov(qword_ptr(rdi + 48), 1)?;
        let fetches = if returned { &record.action.return_fetches } else { &record.action.fetches };
        EventFields { id: record.event(returned), site, fetches, bytes }.write(a, returned)?;
        a.add(rcx, bytes as i32)?;
        a.mov(qword_ptr(rsi + HEAD_AT), rcx)?;
        self.write.finish(a)
    }
}

/// Leaves the thread's number in r8. Uses rax and rcx.
fn tid(a: &mut CodeAssembler, context: &CodegenContext) -> Emitted {
    let mut known = a.create_label();
    a.mov(rcx, qword_ptr(i64::from(context.top)).fs())?;
    a.and(rcx, -4096)?;
    a.mov(r8d, dword_ptr(rcx + OWNER_AT))?;
    a.test(r8, r8)?;
    a.jnz(known)?;
    a.call(context.calls.adopt)?;
    a.mov(r8, rcx)?;
    a.set_label(&mut known)?;
    a.zero_bytes()
}

/// Leaves the time in rax. Uses rdx.
pub(crate) fn now(a: &mut CodeAssembler, clock: Clock) -> Emitted {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)?;
    if clock == Clock::TICKS {
        return Ok(());
    }
    a.mov(rdx, clock.tick)?;
    a.mul(rdx)?;
    a.shrd(rax, rdx, 32)?;
    a.mov(rdx, clock.zero_ns)?;
    a.add(rax, rdx)
}
