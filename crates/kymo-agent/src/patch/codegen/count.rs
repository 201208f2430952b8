//! Raising a counter of this CPU, in a restartable sequence.
//!
//! ```text
//!   again:    this thread's sequence = descriptor (start, length, abort)
//!   start:    word = table[CPU] + 8 * slot;  value = *word + 1          no table[CPU]: done (slots.rs)
//!             *word = value                    the last instruction: done, or not
//!   abort:    jmp again                        where the kernel sends a thread that lost its CPU in between
//! ```
use super::context::{CodegenContext, Emitted};
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, CodeAssemblerResult, CodeLabel, dword_ptr, eax, ptr, qword_ptr, rax,
    rcx, rdx,
};

/// What the kernel expects before the abort address of a sequence; the C library registers it.
const SIGNATURE: [u8; 4] = [0x53, 0x30, 0x05, 0x53];
/// `struct rseq_cs`, which begins at a multiple of its size.
pub(crate) const DESCRIPTOR_BYTES: usize = 32;
/// Of `struct rseq`: always a number of a CPU, 0 where the thread has no sequences.
const CPU_ID_START: i32 = 0;
/// The same, but negative where it has none.
const CPU_ID: i32 = 4;
const SEQUENCE: i32 = 8;

/// One such sequence in a stub.
pub(crate) struct Counter {
    descriptor: CodeLabel,
    again: CodeLabel,
    start: CodeLabel,
    after: CodeLabel,
    abort: CodeLabel,
    used: bool,
}

impl Counter {
    /// Makes room for its descriptor: before anything else of the stub.
    pub(crate) fn declare(a: &mut CodeAssembler) -> Result<Counter, IcedError> {
        let mut descriptor = a.create_label();
        a.set_label(&mut descriptor)?;
        a.db(&[0; DESCRIPTOR_BYTES])?;
        let mut label = || a.create_label();
        Ok(Counter {
            descriptor,
            again: label(),
            start: label(),
            after: label(),
            abort: label(),
            used: false,
        })
    }

    /// Raises a slot. Uses rax and rcx.
    pub(crate) fn raise(&mut self, a: &mut CodeAssembler, context: &CodegenContext, slot: u32) -> Emitted {
        self.begin(a, context)?;
        self.end(a, qword_ptr(rcx + i64::from(slot) * 8))
    }

    /// Raises the slot that is as far from `slot` as rdx says. Uses rax and rcx.
    pub(crate) fn raise_one_of(
        &mut self,
        a: &mut CodeAssembler,
        context: &CodegenContext,
        slot: u32,
    ) -> Emitted {
        self.begin(a, context)?;
        self.end(a, qword_ptr(rcx + rdx * 8 + i64::from(slot) * 8))
    }

    /// Leaves the begin of this CPU's counters in rcx, the CPU in rax; where nothing is to be
    /// counted, goes to the end.
    fn begin(&mut self, a: &mut CodeAssembler, context: &CodegenContext) -> Emitted {
        self.begin_at(a, context, context.table)?;
        a.jrcxz(self.after)
    }

    /// Begins a sequence; leaves this CPU's word of `table` in rcx, the CPU in rax.
    pub(crate) fn begin_at(
        &mut self,
        a: &mut CodeAssembler,
        context: &CodegenContext,
        table: u64,
    ) -> Emitted {
        self.open(a, context.rseq)?;
        a.mov(eax, dword_ptr(i64::from(context.rseq + CPU_ID_START)).fs())?;
        a.mov(rcx, table)?;
        a.mov(rcx, qword_ptr(rcx + rax * 8))
    }

    /// Begins a sequence of a thread whose `struct rseq` is so far from the thread pointer. Uses
    /// rax.
    fn open(&mut self, a: &mut CodeAssembler, rseq: i32) -> Emitted {
        self.used = true;
        a.set_label(&mut self.again)?;
        a.lea(rax, ptr(self.descriptor))?;
        a.mov(qword_ptr(i64::from(rseq + SEQUENCE)).fs(), rax)?;
        a.set_label(&mut self.start)?;
        a.zero_bytes()
    }

    /// Begins a sequence, and leaves the CPU in eax; a number that no CPU has where the thread has
    /// no sequences.
    pub(crate) fn begin_on_cpu(&mut self, a: &mut CodeAssembler, rseq: i32) -> Emitted {
        self.open(a, rseq)?;
        a.mov(eax, dword_ptr(i64::from(rseq + CPU_ID)).fs())
    }

    /// Behind a sequence's end: the kernel has no reason to look at its descriptor any more, which
    /// may go away.
    pub(crate) fn forget(a: &mut CodeAssembler, rseq: i32) -> Emitted {
        a.mov(qword_ptr(i64::from(rseq + SEQUENCE)).fs(), 0)
    }

    fn end(&mut self, a: &mut CodeAssembler, word: AsmMemoryOperand) -> Emitted {
        a.mov(rax, word)?;
        a.lea(rax, rax + 1)?;
        a.mov(word, rax)?;
        self.finish(a)
    }

    /// Ends a sequence: the instruction before was its last.
    pub(crate) fn finish(&mut self, a: &mut CodeAssembler) -> Emitted {
        a.set_label(&mut self.after)?;
        a.zero_bytes()
    }

    pub(crate) fn abort(&mut self, a: &mut CodeAssembler) -> Emitted {
        if !self.used {
            return Ok(());
        }
        a.db(&SIGNATURE)?;
        a.set_label(&mut self.abort)?;
        a.jmp(self.again)
    }

    /// The descriptor's bytes.
    pub(crate) fn descriptor(&self, done: &CodeAssemblerResult) -> Result<[u8; DESCRIPTOR_BYTES], IcedError> {
        if !self.used {
            return Ok([0; DESCRIPTOR_BYTES]);
        }
        let (start, after) = (done.label_ip(&self.start)?, done.label_ip(&self.after)?);
        // Version and flags are 0.
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[8..16].copy_from_slice(&start.to_le_bytes());
        bytes[16..24].copy_from_slice(&(after - start).to_le_bytes());
        bytes[24..32].copy_from_slice(&done.label_ip(&self.abort)?.to_le_bytes());
        Ok(bytes)
    }
}
