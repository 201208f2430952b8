//! Stubs that need nothing of this crate in the program: no C library, no thread-local memory, no
//! function to call but what is written beside them. A tracer writes them into programs that
//! cannot load the agent, and the agent uses them to time calls where they end
//! (`install/call_sites.rs`).
//!
//! ```text
//!  at a function's begin            at an exit               routines, once for all stubs
//!   [unless a forked child]          moved: add rsp, 8         enter: (identity, depth, now) into
//!   lock inc hits                           pop rbx                   a free slot of the table
//!   [call enter]                     call leave                leave: finds the slot, frees it,
//!   moved: push rbp ..               moved: ret                       a bucket of the site += 1
//!   jmp behind them
//! ```
//! Where only some hits are counted, the comparisons of `predicate.rs` stand around the `inc`.
//!
//! In Go the check of the stack comes first, because a function begins anew after its stack has
//! grown, and nothing may be below the stack pointer before it.
//!
//! # How a call is known
//! | convention | identity | depth |
//! |---|---|---|
//! | C | the stack pointer where the frame begins, and the site | 1 |
//! | Go | the goroutine (r14), and the site | from the frame's begin to the stack's upper end |
//!
//! The table is an array of buckets of [`BUCKET_SLOTS`] slots. A slot is taken by `lock cmpxchg` of
//! its identity, by the only thread that can have that identity then. Where a bucket is full, the
//! call is counted as missed. A call that never returned leaves its slot to the next one at the
//! same place.
//!
//! # Invariants
//! - **F1** No register changes. In C no flag does, and nothing in the red zone. In Go flags are
//!   dead where a stub changes them: at a function's begin, behind the check, at its exits.
//! - **F2** In Go no return address into a stub is on a goroutine's stack when the runtime may walk
//!   it: it cannot stop a goroutine in code that it does not know.
//! - **F3** In Go no instruction is moved that can fault ([`FreestandingError::Faults`]): the
//!   runtime
//!   looks up in which function a fault was.
use super::context::Emitted;
use super::{moved, predicate};
use crate::patch::site::{Site, is_call};
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, al, cl, dword_ptr, eax, ecx, esi, qword_ptr, r8, r8d, r14, rax, rcx, rdi, rdx,
    rsi, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code, ConditionCode, FlowControl, IcedError, Instruction, InstructionInfoFactory,
    MemoryOperand, Mnemonic, Register,
};
use kymo_core::latency::{CALLS, UNTIMED};
use kymo_core::probe::value::Condition;
use std::fmt;

/// Slots of a bucket, all of which are looked at.
const BUCKET_SLOTS: i32 = 8;
/// A slot: identity, depth, time, nothing.
const SLOT_BYTES: i32 = 32;
const DEPTH_AT: i32 = 8;
const TIME_AT: i32 = 16;
const BUCKET_BITS: i32 = 14;
/// The bytes of the table of calls that are under way.
pub const CALL_TABLE_BYTES: u64 = (1 << BUCKET_BITS) * (BUCKET_SLOTS * SLOT_BYTES) as u64;
/// More sites than this have no number in an identity.
pub const MOST_TIMED_SITES: u32 = 1 << 16;
/// Spreads identities over the buckets: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// What may lie below the stack pointer of C code.
const RED_ZONE: i32 = 128;
/// What a stub keeps before it calls a routine, and the return address.
const STUB_KEEPS: i32 = 3 * 8 + 8;
/// What a routine keeps.
const ROUTINE_KEEPS: i32 = 4 * 8;
/// In Go's `g`: the upper end of its stack.
const GO_STACK_END: i32 = 8;

/// Whose rules the code at a site keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Convention {
    /// The processor's ABI: a red zone, and a stack that does not move.
    C,
    /// Go's.
    Go,
}

/// Where the routines of [`routines`] are, for each convention.
#[derive(Clone, Copy, Debug)]
pub struct RoutineAddresses {
    /// To be called where a call has begun.
    pub enter: u64,
    /// To be called where one ends.
    pub leave: u64,
}

/// What the routines use.
#[derive(Clone, Copy, Debug)]
pub struct CallTable {
    /// The table, of [`CALL_TABLE_BYTES`], at a multiple of a bucket's bytes; zero at first.
    pub table: u64,
    /// Where calls are counted by their times.
    pub counts: CallCounts,
    /// Nanoseconds of a tick of the time stamp counter, times 2^32.
    pub tick: u64,
}

/// Where the routines count.
#[derive(Clone, Copy, Debug)]
pub enum CallCounts {
    /// In memory that a tracer has mapped.
    Shared {
        /// The histograms, [`kymo_core::latency::SLOTS`] words for each site, by their numbers.
        histograms: u64,
        /// The first site's count of calls that had no slot, and the bytes from one site's to the
        /// next one's.
        missed: (u64, i32),
    },
    /// In the counters of the CPU, of which a site has the page of its number: its histogram, with
    /// its hits and the calls that had no slot in words that no latency falls into.
    PerCpu {
        /// The table of the CPUs' counters; one that is 0 counts nothing.
        table: u64,
        /// From the thread pointer to the thread's `struct rseq`.
        rseq: i32,
    },
}

/// What counts a site's hits.
#[derive(Clone, Copy, Debug)]
pub enum HitCounter {
    /// The stub, in this word.
    Word(u64),
    /// The routine to which the stub tells that a call has begun.
    Routine,
}

/// What a stub is to do.
#[derive(Clone, Copy, Debug)]
pub struct FreestandingSpec<'a> {
    /// Whose rules hold.
    pub convention: Convention,
    /// The counter of the hits of this site; none at exits.
    pub hits: Option<HitCounter>,
    /// Hits are counted behind the displaced instructions, instead of before.
    pub hits_behind: bool,
    /// Which hits are counted, by registers alone. All of them where calls are timed.
    pub condition: &'a Condition,
    /// A byte that is 0 in processes that are not to count.
    pub while_set: Option<u64>,
    /// The site's number and the routines, where calls are timed.
    pub timed: Option<(u32, RoutineAddresses)>,
    /// Where calls of the function end, ascending.
    pub exits: &'a [u64],
}

/// A stub's bytes, and places in it.
#[derive(Clone, Debug)]
pub struct FreestandingStub {
    /// To be written where it was made for.
    pub code: Vec<u8>,
    /// Where the site has to jump.
    pub enter: u64,
    /// Where each displaced instruction is now.
    pub moved: Vec<u64>,
    /// Where a thread goes on that stands at one of the site's interiors: pairs.
    pub moves: Vec<[u64; 2]>,
}

/// Why a site cannot have such a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreestandingError {
    /// Go's runtime would look up a fault of this instruction, and not find its function.
    Faults(u64),
    /// An instruction of this site, or a stub, does not reach what it needs.
    OutOfReach(u64),
}

impl fmt::Display for FreestandingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FreestandingError::Faults(at) => write!(
                f,
                "the instruction at {at:#x} may fault, and Go's runtime looks up where in a function that was"
            ),
            FreestandingError::OutOfReach(at) => {
                write!(f, "the code at {at:#x} does not reach what it needs from another place")
            }
        }
    }
}

impl std::error::Error for FreestandingError {}

/// The stub of a site, to lie at `at`.
///
/// # Errors
/// Where a displaced instruction may not be moved there.
pub fn freestanding_stub(
    site: &Site,
    spec: &FreestandingSpec<'_>,
    at: u64,
) -> Result<FreestandingStub, FreestandingError> {
    if spec.convention == Convention::Go {
        site.displaced.iter().try_for_each(may_move_in_go)?;
    }
    stub(site, spec, at).map_err(|_| FreestandingError::OutOfReach(site.address))
}

fn stub(site: &Site, spec: &FreestandingSpec<'_>, at: u64) -> Result<FreestandingStub, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    if !spec.hits_behind {
        hit(&mut a, spec)?;
    }
    let (labels, ends) = moved::each(&mut a, site, at, &mut |a, instruction| match spec
        .exits
        .binary_search(&instruction.ip())
    {
        Ok(_) => exit(a, instruction, spec),
        Err(_) => Ok(()),
    })?;
    if !ends {
        if spec.hits_behind {
            hit(&mut a, spec)?;
        }
        a.jmp(site.resume())?;
    }
    let done = a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let moved = labels.iter().map(|label| done.label_ip(label)).collect::<Result<Vec<_>, _>>()?;
    let pairs = site.displaced.iter().zip(&moved).map(|(instruction, &to)| [instruction.ip(), to]);
    let moves = pairs.filter(|[from, _]| site.interiors().any(|interior| interior == *from)).collect();
    Ok(FreestandingStub { code: done.inner.code_buffer, enter: at, moved, moves })
}

/// Counts a hit, and notes when the call began.
fn hit(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
    let Some(hits) = spec.hits else { return Ok(()) };
    if !spec.condition.is_empty() {
        let mut other = a.create_label();
        predicate::open(a)?;
        predicate::only_if(a, spec.condition, false, other)?;
        let mut child = unless_child(a, spec)?;
        hits.count(a)?;
        land(a, &mut child)?;
        a.set_label(&mut other)?;
        return predicate::close(a);
    }
    match (spec.timed, spec.convention) {
        (Some((number, routines)), _) => {
            keep(a, spec)?;
            let mut child = unless_child(a, spec)?;
            hits.count(a)?;
            a.mov(ecx, number)?;
            a.call(routines.enter)?;
            land(a, &mut child)?;
            put_back(a, spec)
        }
        (None, Convention::Go) => {
            let mut child = unless_child(a, spec)?;
            hits.count(a)?;
            land(a, &mut child)
        }
        (None, Convention::C) => {
            a.lea(rsp, rsp - (RED_ZONE + 16))?;
            a.mov(qword_ptr(rsp), rax)?;
            a.lahf()?;
            a.seto(al)?;
            let mut child = unless_child(a, spec)?;
            hits.count(a)?;
            land(a, &mut child)?;
            a.add(al, 127)?;
            a.sahf()?;
            a.mov(rax, qword_ptr(rsp))?;
            a.lea(rsp, rsp + (RED_ZONE + 16))
        }
    }
}

/// Before an instruction with which calls end.
fn exit(a: &mut CodeAssembler, instruction: &Instruction, spec: &FreestandingSpec<'_>) -> Emitted {
    let Some((number, routines)) = spec.timed else { return Ok(()) };
    let mut stays = a.create_label();
    let conditional = instruction.flow_control() == FlowControl::ConditionalBranch;
    if conditional {
        unless(a, instruction.condition_code(), stays)?;
    }
    keep(a, spec)?;
    let mut child = unless_child(a, spec)?;
    a.mov(ecx, number)?;
    a.call(routines.leave)?;
    land(a, &mut child)?;
    put_back(a, spec)?;
    if conditional {
        a.set_label(&mut stays)?;
    }
    Ok(())
}

/// Goes to a label unless a condition holds.
fn unless(a: &mut CodeAssembler, condition: ConditionCode, to: CodeLabel) -> Emitted {
    match condition {
        ConditionCode::o => a.jno(to),
        ConditionCode::no => a.jo(to),
        ConditionCode::b => a.jae(to),
        ConditionCode::ae => a.jb(to),
        ConditionCode::e => a.jne(to),
        ConditionCode::ne => a.je(to),
        ConditionCode::be => a.ja(to),
        ConditionCode::a => a.jbe(to),
        ConditionCode::s => a.jns(to),
        ConditionCode::ns => a.js(to),
        ConditionCode::p => a.jnp(to),
        ConditionCode::np => a.jp(to),
        ConditionCode::l => a.jge(to),
        ConditionCode::ge => a.jl(to),
        ConditionCode::le => a.jg(to),
        ConditionCode::g => a.jle(to),
        // Those of rcx are no exits that anybody asks for.
        ConditionCode::None => Ok(()),
    }
}

/// Keeps what routines change: the caller's rax, rcx and flags. The frame begins
/// [`STUB_KEEPS`] above the stack pointer that a routine finds, and in C the red zone.
fn keep(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
    if spec.convention == Convention::C {
        a.lea(rsp, rsp - RED_ZONE)?;
    }
    a.push(rax)?;
    a.push(rcx)?;
    a.lahf()?;
    a.seto(al)?;
    a.push(rax)
}

fn put_back(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Emitted {
    a.pop(rax)?;
    a.add(al, 127)?;
    a.sahf()?;
    a.pop(rcx)?;
    a.pop(rax)?;
    if spec.convention == Convention::C {
        a.lea(rsp, rsp + RED_ZONE)?;
    }
    Ok(())
}

/// Goes to the label that is given, in processes that are not to count. Changes flags.
fn unless_child(a: &mut CodeAssembler, spec: &FreestandingSpec<'_>) -> Result<Option<CodeLabel>, IcedError> {
    let Some(flag) = spec.while_set else { return Ok(None) };
    let child = a.create_label();
    a.add_instruction(Instruction::with2(Code::Cmp_rm8_imm8, relative(flag), 0_i32)?)?;
    a.je(child)?;
    Ok(Some(child))
}

fn land(a: &mut CodeAssembler, label: &mut Option<CodeLabel>) -> Emitted {
    match label {
        Some(label) => {
            a.set_label(label)?;
            a.zero_bytes()
        }
        None => Ok(()),
    }
}

/// Memory at an address that code near it is to reach.
fn relative(address: u64) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::RIP, address as i64)
}

impl HitCounter {
    /// Raises the word, if it is the stub that does.
    fn count(self, a: &mut CodeAssembler) -> Emitted {
        let HitCounter::Word(word) = self else { return Ok(()) };
        let mut increment = Instruction::with1(Code::Inc_rm64, relative(word))?;
        increment.set_has_lock_prefix(true);
        a.add_instruction(increment)
    }
}

impl CallCounts {
    /// Counts a hit of the site whose number is in rcx, if the routine does. Uses rax and r8.
    fn hit(self, a: &mut CodeAssembler) -> Emitted {
        let CallCounts::PerCpu { table, rseq } = self else { return Ok(()) };
        let mut none = a.create_label();
        page(a, (table, rseq), none)?;
        a.lock().inc(qword_ptr(rax + CALLS * 8))?;
        a.set_label(&mut none)?;
        a.zero_bytes()
    }

    /// Counts a call that has no slot, of the site whose number is in rcx, and goes to `out`. Uses
    /// rax, rcx and r8.
    fn untimed(self, a: &mut CodeAssembler, out: CodeLabel) -> Emitted {
        match self {
            CallCounts::Shared { missed: (first, stride), .. } => {
                a.imul_3(rcx, rcx, stride)?;
                a.mov(rax, first)?;
                a.lock().inc(qword_ptr(rax + rcx))?;
            }
            CallCounts::PerCpu { table, rseq } => {
                page(a, (table, rseq), out)?;
                a.lock().inc(qword_ptr(rax + UNTIMED * 8))?;
            }
        }
        a.jmp(out)
    }

    /// Counts a call of the site whose number is in rcx in the bucket whose number is in rdx, or
    /// goes to `out`. Uses rax, rcx and r8.
    fn timed(self, a: &mut CodeAssembler, out: CodeLabel) -> Emitted {
        match self {
            CallCounts::Shared { histograms, .. } => {
                a.mov(rax, histograms)?;
                a.shl(rcx, PAGE_SHIFT)?;
                a.add(rax, rcx)?;
            }
            CallCounts::PerCpu { table, rseq } => page(a, (table, rseq), out)?,
        }
        a.lock().inc(qword_ptr(rax + rdx * 8))
    }
}

/// The bytes of a histogram, as a shift.
const PAGE_SHIFT: i32 = 12;
const _: () = assert!(kymo_core::latency::SLOTS * 8 == 1 << PAGE_SHIFT);

/// Leaves in rax the page that this CPU has for the site whose number is in rcx, or goes to `none`.
/// Uses r8.
fn page(a: &mut CodeAssembler, (table, rseq): (u64, i32), none: CodeLabel) -> Emitted {
    a.mov(eax, dword_ptr(i64::from(rseq)).fs())?;
    a.mov(r8, table)?;
    a.mov(rax, qword_ptr(r8 + rax * 8))?;
    a.test(rax, rax)?;
    a.je(none)?;
    a.mov(r8, rcx)?;
    a.shl(r8, PAGE_SHIFT)?;
    a.add(rax, r8)
}

/// The routines of a convention, to lie at `at`: their bytes, and where each begins.
///
/// # Errors
/// Where they cannot be assembled.
pub fn routines(
    convention: Convention,
    table: &CallTable,
    at: u64,
) -> Result<(Vec<u8>, RoutineAddresses), FreestandingError> {
    let both = || -> Result<(Vec<u8>, RoutineAddresses), IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let mut leaves = a.create_label();
        enter(&mut a, convention, table)?;
        a.set_label(&mut leaves)?;
        leave(&mut a, convention, table)?;
        let done = a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let leave = done.label_ip(&leaves)?;
        Ok((done.inner.code_buffer, RoutineAddresses { enter: at, leave }))
    };
    both().map_err(|_| FreestandingError::OutOfReach(table.table))
}

/// Leaves the call's identity in rdi, its depth in rsi, its bucket in rdx. The site's number is in
/// rcx. Uses rax.
fn identify(a: &mut CodeAssembler, convention: Convention, table: &CallTable) -> Emitted {
    a.push(rdx)?;
    a.push(rsi)?;
    a.push(rdi)?;
    a.push(r8)?;
    match convention {
        Convention::C => {
            a.lea(rdi, rsp + (ROUTINE_KEEPS + STUB_KEEPS + RED_ZONE))?;
            a.mov(esi, 1)?;
        }
        Convention::Go => {
            a.lea(rdi, rsp + (ROUTINE_KEEPS + STUB_KEEPS))?;
            a.mov(rsi, qword_ptr(r14 + GO_STACK_END))?;
            a.sub(rsi, rdi)?;
            a.mov(rdi, r14)?;
        }
    }
    a.shl(rdi, 16)?;
    a.or(rdi, rcx)?;
    a.mov(rax, SPREAD)?;
    a.lea(rdx, rdi + rsi * 8)?;
    a.imul_2(rdx, rax)?;
    a.shr(rdx, 64 - BUCKET_BITS)?;
    a.shl(rdx, (BUCKET_SLOTS * SLOT_BYTES).trailing_zeros() as i32)?;
    a.mov(rax, table.table)?;
    a.add(rdx, rax)
}

/// Goes to `found` with rdx at the call's slot, or on, with rdx behind the bucket.
fn find(a: &mut CodeAssembler, found: CodeLabel) -> Emitted {
    let (mut again, mut other) = (a.create_label(), a.create_label());
    a.mov(r8d, BUCKET_SLOTS as u32)?;
    a.set_label(&mut again)?;
    a.cmp(qword_ptr(rdx), rdi)?;
    a.jne(other)?;
    a.cmp(qword_ptr(rdx + DEPTH_AT), rsi)?;
    a.je(found)?;
    a.set_label(&mut other)?;
    a.add(rdx, SLOT_BYTES)?;
    a.dec(r8d)?;
    a.jne(again)
}

fn finish(a: &mut CodeAssembler) -> Emitted {
    a.pop(r8)?;
    a.pop(rdi)?;
    a.pop(rsi)?;
    a.pop(rdx)?;
    a.ret()
}

fn enter(a: &mut CodeAssembler, convention: Convention, table: &CallTable) -> Emitted {
    let (mut found, mut again, mut out) = (a.create_label(), a.create_label(), a.create_label());
    identify(a, convention, table)?;
    table.counts.hit(a)?;
    find(a, found)?;
    a.sub(rdx, BUCKET_SLOTS * SLOT_BYTES)?;
    a.mov(r8d, BUCKET_SLOTS as u32)?;
    a.set_label(&mut again)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(qword_ptr(rdx), rdi)?;
    a.je(found)?;
    a.add(rdx, SLOT_BYTES)?;
    a.dec(r8d)?;
    a.jne(again)?;
    table.counts.untimed(a, out)?;
    a.set_label(&mut found)?;
    a.mov(qword_ptr(rdx + DEPTH_AT), rsi)?;
    a.mov(r8, rdx)?;
    now(a)?;
    a.mov(qword_ptr(r8 + TIME_AT), rax)?;
    a.set_label(&mut out)?;
    finish(a)
}

fn leave(a: &mut CodeAssembler, convention: Convention, table: &CallTable) -> Emitted {
    let (mut found, mut out, mut later) = (a.create_label(), a.create_label(), a.create_label());
    identify(a, convention, table)?;
    find(a, found)?;
    a.jmp(out)?;
    a.set_label(&mut found)?;
    a.mov(rsi, qword_ptr(rdx + TIME_AT))?;
    a.mov(qword_ptr(rdx), 0)?;
    now(a)?;
    a.sub(rax, rsi)?;
    // Counters of two CPUs may differ by some ticks.
    a.jns(later)?;
    a.xor(eax, eax)?;
    a.set_label(&mut later)?;
    a.mov(rdx, table.tick)?;
    a.mul(rdx)?;
    a.shrd(rax, rdx, 32)?;
    // The site's number stays in r8 while its register shifts (`kymo_core::latency` has the rule).
    a.mov(r8, rcx)?;
    a.add(rax, 8)?;
    a.bsr(rcx, rax)?;
    a.sub(ecx, 3)?;
    a.shr(rax, cl)?;
    a.lea(rdx, rax + rcx * 8)?;
    a.mov(rcx, r8)?;
    table.counts.timed(a, out)?;
    a.set_label(&mut out)?;
    finish(a)
}

/// Leaves the time stamp counter in rax. Uses rdx.
fn now(a: &mut CodeAssembler) -> Emitted {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}

/// Whether an instruction of Go's code may be executed elsewhere (F3).
fn may_move_in_go(instruction: &Instruction) -> Result<(), FreestandingError> {
    let faults = FreestandingError::Faults(instruction.ip());
    let divides = matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    if divides || matches!(instruction.flow_control(), FlowControl::Exception | FlowControl::Interrupt) {
        return Err(faults);
    }
    let stack_or_goroutine = |base: Register, index: Register| {
        matches!(base, Register::RSP | Register::R14 | Register::RIP) && index == Register::None
    };
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let known = info.used_memory().iter().all(|memory| {
        let relative = instruction.is_ip_rel_memory_operand() && memory.base() == Register::None;
        memory.segment() == Register::FS || relative || stack_or_goroutine(memory.base(), memory.index())
    });
    // A call pushes, and takes its target from a register: where that is none, the fault is there.
    if known && !(is_call(instruction) && instruction.op0_kind() == iced_x86::OpKind::Memory) {
        Ok(())
    } else {
        Err(faults)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patch::{Function, Surroundings, plan, plan_begin, plan_exits};

    /// A Go function: the check of its stack, a frame, a return in the middle, a return at the end.
    const GO: [u8; 32] = [
        0x49, 0x3b, 0x66, 0x10, // cmp rsp, [r14+16]
        0x76, 0x0b, // jbe, to the nops in the middle
        0x55, // push rbp
        0x48, 0x89, 0xe5, // mov rbp, rsp
        0x48, 0x83, 0xec, 0x10, // sub rsp, 16
        0x48, 0x8b, 0x00, // mov rax, [rax]
        0x90, 0x90, 0x90, 0x90, // nops
        0x48, 0x83, 0xc4, 0x10, // add rsp, 16
        0x5d, // pop rbp
        0xc3, // ret
        0x90, 0x90, 0x90, 0x90, 0x90, // nops
    ];
    const AT: u64 = 0x40_0000;

    fn function() -> Function {
        Function { start: AT, bytes: 32, next: AT + 32 }
    }

    fn spec(convention: Convention, behind: bool) -> FreestandingSpec<'static> {
        FreestandingSpec {
            convention,
            hits: Some(HitCounter::Word(AT + 0x10_0000)),
            hits_behind: behind,
            condition: const { &Condition::new() },
            while_set: None,
            timed: None,
            exits: &[],
        }
    }

    /// Checks that the check of a stack moves as a whole, is executed before the hit is counted,
    /// and that a thread between its two instructions goes on in the copy.
    #[test]
    fn the_check_comes_first() {
        let memory = (AT, &GO[..]);
        let site = plan_begin(&memory, &function(), AT + 6, &Surroundings::default()).unwrap();
        let stub = freestanding_stub(&site, &spec(Convention::Go, true), AT + 0x1000).unwrap();
        assert_eq!(stub.code[..4], GO[..4]);
        assert_eq!(stub.moves, [[AT + 4, AT + 0x1004]]);
        // lock inc [rip + x], jmp back
        let increment = stub.code.windows(3).position(|part| part == [0xf0, 0x48, 0xff]).unwrap();
        assert!(increment >= 6 && stub.code[increment + 8] == 0xe9, "{:x?}", stub.code);
        assert!(plan_begin(&memory, &function(), AT + 7, &Surroundings::default()).is_ok());
        assert!(plan_begin(&memory, &function(), AT + 8, &Surroundings::default()).is_err());
    }

    /// Checks that an instruction of Go that may fault is not moved, one of C is.
    #[test]
    fn what_may_fault_stays_in_go() {
        let code = (AT, &GO[14..]);
        let function = Function { start: AT, bytes: 18, next: AT + 18 };
        let site = plan(&code, &function, &Surroundings::default()).unwrap();
        let of = |convention| freestanding_stub(&site, &spec(convention, false), AT + 0x1000);
        assert_eq!(of(Convention::Go).unwrap_err(), FreestandingError::Faults(AT));
        assert!(of(Convention::C).is_ok());
    }

    /// Checks that a return moves with as few instructions before it as a jump needs, and not where
    /// the program jumps between them.
    #[test]
    fn exits_with_what_is_before_them() {
        let memory = (AT, &GO[..]);
        let exit = AT + 26;
        let planned = |targets: &[u64]| {
            plan_exits(&memory, &function(), &[exit], &Surroundings { targets })
                .map(|mut sites| sites.remove(0))
        };
        let alone = planned(&[]).unwrap();
        // With the padding behind it.
        assert_eq!((alone.address, alone.end()), (AT + 26, AT + 31));
        assert!(planned(&[AT + 25]).is_ok());
        let site = planned(&[AT + 28]).unwrap();
        assert_eq!((site.address, site.end()), (AT + 21, AT + 27));
        assert!(planned(&[AT + 26, AT + 28]).is_err());
        assert!(plan_exits(&memory, &function(), &[AT + 1], &Surroundings::default()).is_err());
    }
}
