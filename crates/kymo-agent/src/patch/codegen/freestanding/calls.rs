//! The table of calls that are under way, and the routines that stubs call: where a call begins,
//! and where it ends.
use super::{Convention, FreestandingError, SPREAD, finish, keep};
use crate::patch::codegen::context::Emitted;
use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, cl, dword_ptr, eax, ecx, esi, qword_ptr, r8, r8d, r14, rax, rcx, rdi, rdx, rsi,
    rsp,
};
use iced_x86::{BlockEncoderOptions, IcedError};
use kymo_core::latency::{CALLS, UNTIMED};

/// Slots of a bucket, all of which are looked at.
const BUCKET_SLOTS: i32 = 8;
/// A slot: identity, depth, time, nothing.
const SLOT_BYTES: i32 = 32;
const DEPTH_AT: i32 = 8;
const TIME_AT: i32 = 16;
const BUCKET_BITS: i32 = 14;
/// The bytes of the table of calls that are under way.
pub const CALL_TABLE_BYTES: u64 = (1 << BUCKET_BITS) * (BUCKET_SLOTS * SLOT_BYTES) as u64;
/// In Go's `g`: the upper end of its stack.
const GO_STACK_END: i32 = 8;

/// Where the routines of [`routines`] are, for each convention.
#[derive(Clone, Copy, Debug)]
pub struct RoutineAddresses {
    /// To be called where a call has begun: counts a hit, if routines do, and begins the call.
    pub enter: u64,
    /// Counts the hit alone, and leaves in rax the how-manieth it is.
    pub hit: u64,
    /// Begins the call alone.
    pub begin: u64,
    /// To be called where one ends.
    pub leave: u64,
    /// To be called where one begins or ends that is not to be timed.
    pub forget: u64,
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

    /// The same, and leaves in rax the how-manieth hit of this CPU it is; 0 where none is counted.
    fn hit_number(self, a: &mut CodeAssembler) -> Emitted {
        let CallCounts::PerCpu { table, rseq } = self else { return a.xor(eax, eax) };
        let mut none = a.create_label();
        page(a, (table, rseq), none)?;
        a.mov(r8d, 1_u32)?;
        a.lock().xadd(qword_ptr(rax + CALLS * 8), r8)?;
        a.lea(rax, r8 + 1)?;
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

/// The routines of a convention, to lie at `start`: their bytes, and where each begins.
///
/// # Errors
/// Where they cannot be assembled.
pub fn routines(
    convention: Convention,
    table: &CallTable,
    start: u64,
) -> Result<(Vec<u8>, RoutineAddresses), FreestandingError> {
    let all = || -> Result<(Vec<u8>, RoutineAddresses), IcedError> {
        let mut a = CodeAssembler::new(64)?;
        let (mut leaves, mut forgets) = (a.create_label(), a.create_label());
        let (mut hits, mut begins) = (a.create_label(), a.create_label());
        begin(&mut a, convention, table, true)?;
        a.set_label(&mut hits)?;
        keep(&mut a)?;
        table.counts.hit_number(&mut a)?;
        finish(&mut a)?;
        a.set_label(&mut begins)?;
        begin(&mut a, convention, table, false)?;
        a.set_label(&mut leaves)?;
        leave(&mut a, convention, table)?;
        a.set_label(&mut forgets)?;
        forget(&mut a, convention, table)?;
        let done = a.assemble_options(start, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let at = |label| done.label_ip(label);
        let (hit, begin, leave, forget) = (at(&hits)?, at(&begins)?, at(&leaves)?, at(&forgets)?);
        Ok((done.inner.code_buffer.clone(), RoutineAddresses { enter: start, hit, begin, leave, forget }))
    };
    all().map_err(|_| FreestandingError::OutOfReach(table.table))
}

/// Leaves the call's identity in rdi, its depth in rsi, its bucket in rdx. The site's number is in
/// rcx. Uses rax.
fn identify(a: &mut CodeAssembler, convention: Convention, table: &CallTable) -> Emitted {
    keep(a)?;
    a.lea(rdi, rsp + convention.frame_at())?;
    match convention {
        Convention::C => a.mov(esi, 1)?,
        Convention::Go => {
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

/// Begins a call, and counts the hit before, if that is asked for and routines do.
fn begin(a: &mut CodeAssembler, convention: Convention, table: &CallTable, counts: bool) -> Emitted {
    let (mut found, mut again, mut out) = (a.create_label(), a.create_label(), a.create_label());
    identify(a, convention, table)?;
    if counts {
        table.counts.hit(a)?;
    }
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

/// Frees the slot of the call, if it has one.
fn forget(a: &mut CodeAssembler, convention: Convention, table: &CallTable) -> Emitted {
    let (mut found, mut out) = (a.create_label(), a.create_label());
    identify(a, convention, table)?;
    find(a, found)?;
    a.jmp(out)?;
    a.set_label(&mut found)?;
    a.mov(qword_ptr(rdx), 0)?;
    a.set_label(&mut out)?;
    finish(a)
}

/// Leaves the time stamp counter in rax. Uses rdx.
fn now(a: &mut CodeAssembler) -> Emitted {
    a.rdtsc()?;
    a.shl(rdx, 32)?;
    a.or(rax, rdx)
}
