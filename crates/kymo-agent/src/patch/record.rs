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
//! Flags are kept on the stack, all registers as well: a record costs tens of nanoseconds anyway.
use super::count::Counter;
use super::rings::{Clock, HEAD_AT, PAGE_BYTES, TAIL_AT};
use super::shadow::OWNER_AT;
use super::stub::Ground;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, dword_ptr, eax, edx, qword_ptr, r8, r8d, r9, rax, rcx, rdi,
    rdx, rsi, rsp,
};

/// The red zone and the kept registers, a multiple of 16.
const FRAME: i32 = 192;
const KEPT: [AsmRegister64; 6] = [rax, rcx, rdx, rsi, rdi, r8];
const FLAGS_AT: i32 = 48;

/// What writes hits into rings: from [`Rings::record`](super::Rings::record).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    event: u64,
    table: u64,
    data_bytes: u32,
    clock: Clock,
    arguments: bool,
    condition: Option<Condition>,
    every: u32,
}

/// What an argument has to be for a hit to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// Which argument that is passed in a register, from 0 to 5.
    pub argument: u8,
    /// How it has to compare.
    pub relation: Relation,
    /// With what.
    pub value: u64,
}

/// How two numbers of 64 bits compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The argument is the value.
    Equal,
    /// It is not.
    NotEqual,
    /// It is less, both without a sign.
    Less,
    /// It is greater, both without a sign.
    Greater,
    /// It is less, both with a sign.
    LessSigned,
    /// It is greater, both with a sign.
    GreaterSigned,
}

/// The counters that a recording stub raises besides its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordSlots {
    pub(super) lost: u32,
    /// Hits that met the condition.
    pub(super) met: u32,
}

impl Record {
    pub(super) fn new(event: u64, table: u64, data_bytes: u32, clock: Clock) -> Record {
        Record { event, table, data_bytes, clock, arguments: false, condition: None, every: 1 }
    }

    /// With the six registers that integer arguments are passed in.
    pub fn with_arguments(self) -> Record {
        Record { arguments: true, ..self }
    }

    /// Only hits that meet a condition; all hits are counted.
    pub fn only_if(self, condition: Condition) -> Record {
        Record { condition: Some(condition), ..self }
    }

    /// Only one of `every` hits on each CPU, of those that meet the condition. 0 is taken for 1.
    pub fn every(self, every: u32) -> Record {
        Record { every: every.max(1), ..self }
    }

    fn bytes(&self) -> u32 {
        if self.arguments { 104 } else { 48 }
    }

    fn header(&self) -> u64 {
        /// PERF_RECORD_SAMPLE, of code in user space.
        const KIND: u64 = 9;
        const USER: u64 = 2;
        KIND | USER << 32 | u64::from(self.bytes()) << 48
    }
}

/// Where an argument's register is kept; `None`: it is still itself.
fn argument(a: &mut CodeAssembler, number: u8, into: AsmRegister64) -> Result<(), IcedError> {
    // rdi, rsi, rdx, rcx, r8, r9
    match number {
        0 => a.mov(into, qword_ptr(rsp + 32)),
        1 => a.mov(into, qword_ptr(rsp + 24)),
        2 => a.mov(into, qword_ptr(rsp + 16)),
        3 => a.mov(into, qword_ptr(rsp + 8)),
        4 => a.mov(into, qword_ptr(rsp + 40)),
        _ => a.mov(into, r9),
    }
}

/// The sequences of a recording stub.
pub(super) struct Recorder {
    hits: Counter,
    met: Counter,
    lost: Counter,
    write: Counter,
}

impl Recorder {
    pub(super) fn declare(a: &mut CodeAssembler) -> Result<Recorder, IcedError> {
        Ok(Recorder {
            hits: Counter::declare(a)?,
            met: Counter::declare(a)?,
            lost: Counter::declare(a)?,
            write: Counter::declare(a)?,
        })
    }

    /// All sequences, in the order of their descriptors.
    pub(super) fn counters(self) -> Vec<Counter> {
        vec![self.hits, self.met, self.lost, self.write]
    }

    /// From the stub's begin to the moved instructions.
    pub(super) fn write(
        &mut self,
        a: &mut CodeAssembler,
        record: &Record,
        slots: (u32, RecordSlots),
        site: u64,
        ground: &Ground,
    ) -> Result<(), IcedError> {
        let mut done = a.create_label();
        a.lea(rsp, rsp - FRAME)?;
        for (at, register) in KEPT.into_iter().enumerate() {
            a.mov(qword_ptr(rsp + 8 * at as i32), register)?;
        }
        a.lahf()?;
        a.seto(al)?;
        a.mov(qword_ptr(rsp + FLAGS_AT), rax)?;
        let (hits, slots) = slots;
        self.hits.raise(a, ground, hits)?;
        if let Some(condition) = record.condition {
            argument(a, condition.argument, rax)?;
            a.mov(rcx, condition.value)?;
            a.cmp(rax, rcx)?;
            match condition.relation {
                Relation::Equal => a.jne(done)?,
                Relation::NotEqual => a.je(done)?,
                Relation::Less => a.jae(done)?,
                Relation::Greater => a.jbe(done)?,
                Relation::LessSigned => a.jge(done)?,
                Relation::GreaterSigned => a.jle(done)?,
            }
        }
        if record.every > 1 {
            // Leaves in rax which one it is.
            self.met.raise(a, ground, slots.met)?;
            if record.every.is_power_of_two() {
                a.test(eax, record.every - 1)?;
            } else {
                a.mov(rcx, u64::from(record.every))?;
                a.xor(edx, edx)?;
                a.div(rcx)?;
                a.test(rdx, rdx)?;
            }
            a.jnz(done)?;
        }
        self.event(a, record, slots, site, ground, done)?;
        a.set_label(&mut done)?;
        a.mov(rax, qword_ptr(rsp + FLAGS_AT))?;
        a.add(al, 127)?;
        a.sahf()?;
        for (at, register) in KEPT.into_iter().enumerate() {
            a.mov(register, qword_ptr(rsp + 8 * at as i32))?;
        }
        a.lea(rsp, rsp + FRAME)
    }

    fn event(
        &mut self,
        a: &mut CodeAssembler,
        record: &Record,
        slots: RecordSlots,
        site: u64,
        ground: &Ground,
        done: CodeLabel,
    ) -> Result<(), IcedError> {
        let (mut known, mut room) = (a.create_label(), a.create_label());
        a.mov(rcx, qword_ptr(i64::from(ground.top)).fs())?;
        a.and(rcx, -4096)?;
        a.mov(r8d, dword_ptr(rcx + OWNER_AT))?;
        a.test(r8, r8)?;
        a.jnz(known)?;
        a.call(ground.calls.adopt)?;
        a.mov(r8, rcx)?;
        a.set_label(&mut known)?;
        a.zero_bytes()?;

        self.write.begin_at(a, ground, record.table)?;
        a.mov(rsi, rcx)?;
        a.test(rsi, rsi)?;
        a.jz(done)?;
        a.mov(rcx, qword_ptr(rsi + HEAD_AT))?;
        a.mov(rdx, rcx)?;
        a.sub(rdx, qword_ptr(rsi + TAIL_AT))?;
        a.add(rdx, record.bytes() as i32)?;
        a.cmp(rdx, record.data_bytes as i32)?;
        a.jb(room)?;
        self.lost.raise(a, ground, slots.lost)?;
        a.jmp(done)?;

        a.set_label(&mut room)?;
        a.mov(rdi, rcx)?;
        a.and(rdi, record.data_bytes as i32 - 1)?;
        a.lea(rdi, rsi + rdi + PAGE_BYTES as i32)?;
        a.mov(qword_ptr(rdi + 40), rax)?;
        a.rdtsc()?;
        a.shl(rdx, 32)?;
        a.or(rax, rdx)?;
        a.mov(rdx, record.clock.tick)?;
        a.mul(rdx)?;
        a.shrd(rax, rdx, 32)?;
        a.mov(rdx, record.clock.zero_ns)?;
        a.add(rax, rdx)?;
        a.mov(qword_ptr(rdi + 32), rax)?;
        for (at, value) in [(0, record.header()), (8, record.event), (16, site)] {
            a.mov(rax, value)?;
            a.mov(qword_ptr(rdi + at), rax)?;
        }
        a.mov(dword_ptr(rdi + 24), std::process::id())?;
        a.mov(dword_ptr(rdi + 28), r8d)?;
        if record.arguments {
            /// PERF_SAMPLE_REGS_ABI_64
            const ABI: i32 = 2;
            a.mov(qword_ptr(rdi + 48), ABI)?;
            // In the order of the registers' bits: cx, dx, si, di, r8, r9.
            for (at, number) in [3, 2, 1, 0, 4, 5].into_iter().enumerate() {
                argument(a, number, rax)?;
                a.mov(qword_ptr(rdi + (56 + 8 * at as i32)), rax)?;
            }
        }
        a.add(rcx, record.bytes() as i32)?;
        a.mov(qword_ptr(rsi + HEAD_AT), rcx)?;
        self.write.finish(a)
    }
}
