//! The code of one probe: what its site jumps to.
//!
//! ```text
//!   descriptor (32 bytes)     of the restartable sequence below
//!   enter:    rsp -= 144      over the red zone of whoever runs here; two registers are kept in it
//!   again:    this thread's sequence = descriptor
//!             ... slot of this CPU += 1 ...
//!             rsp += 144      all registers and flags are as they were
//!   moved:    the displaced instructions
//!             jmp behind them in the function
//!   abort:    jmp again       where the kernel sends a thread that lost its CPU inside the sequence
//! ```
//!
//! Nothing here changes flags: sums are made by `lea`. A displaced `call` becomes a push of the address that it would have pushed and
//! a jump, so that what is called returns, and is unwound, as if nothing had happened.
use super::site::{Site, is_call};
use iced_x86::code_asm::{
    AsmMemoryOperand, CodeAssembler, CodeLabel, dword_ptr, eax, ptr, qword_ptr, rax, rcx, rsp,
};
use iced_x86::{
    BlockEncoderOptions, Code, FlowControl, IcedError, Instruction, MemoryOperand, OpKind, Register,
};

/// What the kernel expects before the abort address of a sequence; the C library registers it.
const SIGNATURE: [u8; 4] = [0x53, 0x30, 0x05, 0x53];
/// `struct rseq_cs`.
const DESCRIPTOR_BYTES: usize = 32;
/// The red zone, and room for the kept registers; a multiple of 16.
const FRAME: i32 = 144;

/// What a stub needs to know of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    /// The table of the CPUs' counters.
    pub(super) table: u64,
    /// From the thread pointer to the thread's `struct rseq`.
    pub(super) rseq: i32,
}

/// What a stub does beside what the function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe {
    /// The counter that a hit raises.
    pub(super) slot: u32,
}

/// A stub's bytes for one address, and the places in it.
#[derive(Debug)]
pub(super) struct Stub {
    pub(super) code: Vec<u8>,
    /// Where the site jumps.
    pub(super) enter: u64,
    /// Where each displaced instruction is now.
    pub(super) moved: Vec<u64>,
}

/// Generates the code for a probe at `site`, to lie at `at` (a multiple of 32).
///
/// # Errors
/// Where the displaced instructions do not reach their data from there.
pub(super) fn generate(site: &Site, recipe: &Recipe, ground: &Ground, at: u64) -> Result<Stub, IcedError> {
    let mut builder = Builder { a: CodeAssembler::new(64)?, ground: *ground };
    let a = &mut builder.a;
    let mut descriptor = a.create_label();
    a.set_label(&mut descriptor)?;
    a.db(&[0; DESCRIPTOR_BYTES])?;
    let mut enter = a.create_label();
    a.set_label(&mut enter)?;
    a.lea(rsp, rsp - FRAME)?;
    a.mov(qword_ptr(rsp), rax)?;
    a.mov(qword_ptr(rsp + 8), rcx)?;
    let sequence = builder.count(recipe.slot, descriptor)?;
    let a = &mut builder.a;
    a.mov(rax, qword_ptr(rsp))?;
    a.mov(rcx, qword_ptr(rsp + 8))?;
    a.lea(rsp, rsp + FRAME)?;
    let moved = builder.displaced(site, at + DESCRIPTOR_BYTES as u64)?;
    let abort = builder.abort(&sequence)?;

    let done = builder.a.assemble_options(at, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let (start, after) = (done.label_ip(&sequence.start)?, done.label_ip(&sequence.after)?);
    let mut words = [0; DESCRIPTOR_BYTES];
    // Version and flags are 0.
    words[8..16].copy_from_slice(&start.to_le_bytes());
    words[16..24].copy_from_slice(&(after - start).to_le_bytes());
    words[24..32].copy_from_slice(&done.label_ip(&abort)?.to_le_bytes());
    debug_assert_eq!(done.label_ip(&enter)?, at + DESCRIPTOR_BYTES as u64);
    let enter = at + DESCRIPTOR_BYTES as u64;
    let moved = moved.iter().map(|label| done.label_ip(label)).collect::<Result<_, _>>()?;
    let mut code = done.inner.code_buffer;
    code[..DESCRIPTOR_BYTES].copy_from_slice(&words);
    Ok(Stub { code, enter, moved })
}

/// The labels of a restartable sequence.
struct Sequence {
    again: CodeLabel,
    start: CodeLabel,
    after: CodeLabel,
}

struct Builder {
    a: CodeAssembler,
    ground: Ground,
}

impl Builder {
    /// A word of the thread's `struct rseq`.
    fn rseq(&self, offset: i32) -> AsmMemoryOperand {
        qword_ptr(i64::from(self.ground.rseq + offset)).fs()
    }

    /// Raises a slot of this CPU. Uses rax and rcx.
    fn count(&mut self, slot: u32, descriptor: CodeLabel) -> Result<Sequence, IcedError> {
        /// Of `struct rseq`: always a number of a CPU, 0 where the thread has no sequences.
        const CPU_ID_START: i32 = 0;
        const SEQUENCE: i32 = 8;
        let (armed, cpu) = (self.rseq(SEQUENCE), self.ground.rseq + CPU_ID_START);
        let a = &mut self.a;
        let (mut again, mut start, mut after) = (a.create_label(), a.create_label(), a.create_label());
        a.set_label(&mut again)?;
        a.lea(rax, ptr(descriptor))?;
        a.mov(armed, rax)?;
        a.set_label(&mut start)?;
        a.mov(eax, dword_ptr(i64::from(cpu)).fs())?;
        a.mov(rcx, self.ground.table)?;
        a.mov(rcx, qword_ptr(rcx + rax * 8))?;
        let word = qword_ptr(rcx + i64::from(slot) * 8);
        a.mov(rax, word)?;
        a.lea(rax, rax + 1)?;
        a.mov(word, rax)?;
        a.set_label(&mut after)?;
        Ok(Sequence { again, start, after })
    }

    /// Where the kernel sends a thread that lost its CPU inside the sequence.
    fn abort(&mut self, sequence: &Sequence) -> Result<CodeLabel, IcedError> {
        let a = &mut self.a;
        a.db(&SIGNATURE)?;
        let mut abort = a.create_label();
        a.set_label(&mut abort)?;
        a.jmp(sequence.again)?;
        Ok(abort)
    }

    /// The displaced instructions, and the way back. `enter` is the stub's own begin.
    fn displaced(&mut self, site: &Site, enter: u64) -> Result<Vec<CodeLabel>, IcedError> {
        let a = &mut self.a;
        let mut moved = Vec::new();
        let mut ends = false;
        for instruction in &site.displaced {
            let mut label = a.create_label();
            a.set_label(&mut label)?;
            // A place of its own: the instruction may become several.
            a.zero_bytes()?;
            moved.push(label);
            if is_call(instruction) {
                call(a, instruction)?;
                ends = true;
                continue;
            }
            let mut instruction = *instruction;
            if instruction.op0_kind() == OpKind::NearBranch64 && instruction.near_branch64() == site.address {
                // A loop to the site is a hit each time.
                instruction.set_near_branch64(enter);
            }
            a.add_instruction(instruction)?;
            ends = matches!(
                instruction.flow_control(),
                FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
            );
        }
        if !ends {
            a.jmp(site.resume())?;
        }
        Ok(moved)
    }
}

/// A call that pushes the address in the function, not one in the stub.
fn call(a: &mut CodeAssembler, instruction: &Instruction) -> Result<(), IcedError> {
    let mut back = a.create_label();
    a.push(qword_ptr(back))?;
    match instruction.op0_kind() {
        OpKind::NearBranch64 => a.jmp(instruction.near_branch64())?,
        OpKind::Register => {
            a.add_instruction(Instruction::with1(Code::Jmp_rm64, instruction.op0_register())?)?;
        }
        _ => {
            // The push has moved the stack pointer.
            let moved = if instruction.memory_base() == Register::RSP { 8 } else { 0 };
            let operand = MemoryOperand::new(
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_index_scale(),
                (instruction.memory_displacement64() as i64).wrapping_add(moved),
                // As short as it fits.
                if instruction.memory_base() == Register::None { 8 } else { 1 },
                false,
                instruction.segment_prefix(),
            );
            a.add_instruction(Instruction::with1(Code::Jmp_rm64, operand)?)?;
        }
    }
    a.set_label(&mut back)?;
    a.dq(&[instruction.next_ip()])
}
