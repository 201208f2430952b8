//! An assembler for BPF: named instructions and labels in, the kernel's 8-byte encoding out.
//!
//! Only the instructions that the programs of this folder need. Registers: `R0` results, `R1`..`R5`
//! arguments (lost in calls), `R6`..`R9` kept across calls, `FP` the end of the 512-byte stack.
use super::sys::Instruction;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg(u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R5: Reg = Reg(5);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const FP: Reg = Reg(10);

/// A function of the kernel that programs may call, by the number of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BpfHelper {
    /// (map, key) -> address of the value, or 0.
    MapLookup = 1,
    /// (map, key, value, flags) -> 0 or a negative errno.
    MapUpdate = 2,
    /// (map, key) -> 0 or a negative errno.
    MapDelete = 3,
    /// () -> ns of CLOCK_MONOTONIC.
    Now = 5,
    /// () -> the number of the CPU.
    CpuNumber = 8,
    /// (context, event array, index, from, bytes) -> 0 or a negative errno: a sample of that event,
    /// with these raw bytes.
    EventOutput = 25,
    /// (context, programs, index) -> only if there is no such program: else that one goes on.
    GoOn = 12,
    /// () -> the address of the running task in the kernel.
    CurrentTask = 35,
    /// () -> the same, as an address whose type the kernel knows (Linux 5.11).
    CurrentTaskTyped = 158,
    /// (typed task) -> the address of its registers in user space (Linux 5.15).
    TaskRegisters = 175,
    /// (typed task, to, bytes, flags) -> bytes of its call stack in the kernel, innermost first, or
    /// a negative errno.
    TaskStack = 141,
    /// (times, function, its context, 0) -> how often the function was called, until it returned 1
    /// (Linux 5.17).
    Loop = 181,
    /// () -> process id << 32 | thread id, in the first pid namespace.
    CurrentPidTgid = 14,
    /// (to, bytes) -> 0: the running thread's name, ended by zeros.
    CurrentComm = 16,
    /// (level) -> the id of the running task's cgroup, or of the one above it at that level of the
    /// unified hierarchy; 0: it is above the level.
    AncestorCgroupId = 123,
    /// (to, bytes, from) -> 0 or a negative errno; `to` is zeroed on failure.
    ReadKernel = 113,
    /// The same of the running process's memory.
    ReadUser = 112,
    /// (to, bytes, from) -> bytes with the ending zero, or a negative errno: a text of the running
    /// process, cut to what fits.
    ReadUserText = 114,
    /// (file, from, bytes) -> 0 or a negative errno: what a reader of an iterator's file gets.
    FileWrite = 127,
    /// (ring, bytes, 0) -> address of so many bytes in it, or 0: it is full.
    RingReserve = 131,
    /// (address, flags): what was reserved is there to be read.
    RingSubmit = 132,
    /// (to, bytes, from) -> 0 or a negative errno: of the running process's memory, which is
    /// brought in if it is not there. Only in programs that may wait.
    CopyUser = 148,
    /// (signal) -> 0 or a negative errno: to the running process, once interrupts are possible
    /// again.
    SendSignal = 109,
    /// (context) -> the number that was given when the program was attached (Linux 5.15).
    AttachCookie = 174,
}

/// A place in the program that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program being written.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    /// Where each label stands, once placed.
    labels: Vec<Option<usize>>,
    /// Jumps whose distance is not known yet: (instruction, label).
    jumps: Vec<(usize, Label)>,
    /// Instructions that load the address of a function: (instruction, label).
    functions: Vec<(usize, Label)>,
    /// The program may wait for memory to be brought in.
    pub(super) waits: bool,
}

/// In the source register of `0x18`: the immediate is the descriptor of a map.
const PSEUDO_MAP_FD: u8 = 1;
/// The same: the immediate is how far a function lies behind.
const PSEUDO_FUNCTION: u8 = 4;
/// In the immediate of an atomic instruction.
const ATOMIC_ADD: i32 = 0;
/// The same (Linux 5.12).
const ATOMIC_OR: i32 = 0x40;
/// The source holds what was there before (Linux 5.12).
const ATOMIC_EXCHANGE: i32 = 0xe1;
/// R0 is compared, and holds what was there before (Linux 5.12).
const ATOMIC_COMPARE_EXCHANGE: i32 = 0xf1;

/// How two 64-bit numbers compare, by the operation code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal = 0x1d,
    NotEqual = 0x5d,
    Greater = 0x2d,
    GreaterEqual = 0x3d,
    Less = 0xad,
    LessEqual = 0xbd,
    SignedGreater = 0x6d,
    SignedGreaterEqual = 0x7d,
    SignedLess = 0xcd,
    SignedLessEqual = 0xdd,
}

impl Assembler {
    pub(super) fn new() -> Assembler {
        Assembler::default()
    }

    /// `code`: class | size or operation | source.
    fn push(&mut self, code: u8, dst: Reg, src: Reg, offset: i16, imm: i32) {
        self.code.push(Instruction { code, registers: dst.0 | src.0 << 4, offset, imm });
    }

    /// The number of the instruction that comes next.
    pub(super) fn here(&self) -> usize {
        self.code.len()
    }

    /// dst = src
    pub(super) fn mov(&mut self, dst: Reg, src: Reg) {
        self.push(0xbf, dst, src, 0, 0);
    }

    /// dst = imm
    pub(super) fn mov_imm(&mut self, dst: Reg, imm: i32) {
        self.push(0xb7, dst, R0, 0, imm);
    }

    /// dst += imm
    pub(super) fn add_imm(&mut self, dst: Reg, imm: i32) {
        self.push(0x07, dst, R0, 0, imm);
    }

    /// dst &= imm
    pub(super) fn and_imm(&mut self, dst: Reg, imm: i32) {
        self.push(0x57, dst, R0, 0, imm);
    }

    /// dst &= src
    pub(super) fn and(&mut self, dst: Reg, src: Reg) {
        self.push(0x5f, dst, src, 0, 0);
    }

    /// dst <<= src
    pub(super) fn shift_left(&mut self, dst: Reg, src: Reg) {
        self.push(0x6f, dst, src, 0, 0);
    }

    /// dst += src
    pub(super) fn add(&mut self, dst: Reg, src: Reg) {
        self.push(0x0f, dst, src, 0, 0);
    }

    /// dst -= src
    pub(super) fn sub(&mut self, dst: Reg, src: Reg) {
        self.push(0x1f, dst, src, 0, 0);
    }

    /// dst %= imm
    pub(super) fn remainder_imm(&mut self, dst: Reg, imm: i32) {
        self.push(0x97, dst, R0, 0, imm);
    }

    /// dst >>= src, zeros from above
    pub(super) fn shift_right(&mut self, dst: Reg, src: Reg) {
        self.push(0x7f, dst, src, 0, 0);
    }

    /// dst >>= bits, the sign from above
    pub(super) fn shift_right_signed_imm(&mut self, dst: Reg, bits: i32) {
        self.push(0xc7, dst, R0, 0, bits);
    }

    /// dst = the lower 32 bits of dst
    pub(super) fn truncate32(&mut self, dst: Reg) {
        self.push(0xbc, dst, dst, 0, 0);
    }

    /// dst <<= bits
    pub(super) fn shift_left_imm(&mut self, dst: Reg, bits: i32) {
        self.push(0x67, dst, R0, 0, bits);
    }

    /// dst >>= bits, zeros from above
    pub(super) fn shift_right_imm(&mut self, dst: Reg, bits: i32) {
        self.push(0x77, dst, R0, 0, bits);
    }

    /// dst = FP + offset: an address on the stack
    pub(super) fn stack_address(&mut self, dst: Reg, offset: i16) {
        self.mov(dst, FP);
        self.add_imm(dst, offset.into());
    }

    /// dst = *(u8 *)(base + offset)
    pub(super) fn load8(&mut self, dst: Reg, base: Reg, offset: i16) {
        self.push(0x71, dst, base, offset, 0);
    }

    /// dst = *(u32 *)(base + offset)
    pub(super) fn load32(&mut self, dst: Reg, base: Reg, offset: i16) {
        self.push(0x61, dst, base, offset, 0);
    }

    /// dst = *(u64 *)(base + offset)
    pub(super) fn load64(&mut self, dst: Reg, base: Reg, offset: i16) {
        self.push(0x79, dst, base, offset, 0);
    }

    /// *(u32 *)(base + offset) = src
    pub(super) fn store32(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0x63, base, src, offset, 0);
    }

    /// *(u64 *)(base + offset) = src
    pub(super) fn store64(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0x7b, base, src, offset, 0);
    }

    /// *(u32 *)(base + offset) = imm
    pub(super) fn store32_imm(&mut self, base: Reg, offset: i16, imm: i32) {
        self.push(0x62, base, R0, offset, imm);
    }

    /// *(u64 *)(base + offset) = imm
    pub(super) fn store64_imm(&mut self, base: Reg, offset: i16, imm: i32) {
        self.push(0x7a, base, R0, offset, imm);
    }

    /// *(u64 *)(base + offset) += src, in one step for all CPUs
    pub(super) fn atomic_add64(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0xdb, base, src, offset, ATOMIC_ADD);
    }

    /// *(u64 *)(base + offset) |= src, in one step for all CPUs
    pub(super) fn atomic_or64(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0xdb, base, src, offset, ATOMIC_OR);
    }

    /// R0 = *(u64 *)(base + offset), which becomes src if it was R0, in one step for all CPUs
    pub(super) fn compare_exchange64(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0xdb, base, src, offset, ATOMIC_COMPARE_EXCHANGE);
    }

    /// src = *(u64 *)(base + offset), which becomes src, in one step for all CPUs
    pub(super) fn exchange64(&mut self, base: Reg, offset: i16, src: Reg) {
        self.push(0xdb, base, src, offset, ATOMIC_EXCHANGE);
    }

    /// dst = the map with this descriptor (two instructions' room)
    pub(super) fn load_map(&mut self, dst: Reg, map: i32) {
        self.push(0x18, dst, Reg(PSEUDO_MAP_FD), 0, map);
        self.push(0, R0, R0, 0, 0);
    }

    /// dst = a function of this program, for [`BpfHelper::Loop`] (two instructions' room)
    pub(super) fn load_function(&mut self, dst: Reg, function: Label) {
        self.functions.push((self.code.len(), function));
        self.push(0x18, dst, Reg(PSEUDO_FUNCTION), 0, 0);
        self.push(0, R0, R0, 0, 0);
    }

    /// dst = a number of 64 bits (two instructions' room)
    pub(super) fn mov_imm64(&mut self, dst: Reg, value: u64) {
        self.push(0x18, dst, R0, 0, value as u32 as i32);
        self.push(0, R0, R0, 0, (value >> 32) as u32 as i32);
    }

    /// R0 = helper(R1..R5); R1..R5 are lost
    pub(super) fn call(&mut self, helper: BpfHelper) {
        self.push(0x85, R0, R0, 0, helper as i32);
    }

    /// return R0
    pub(super) fn exit(&mut self) {
        self.push(0x95, R0, R0, 0, 0);
    }

    /// A label that will be placed later.
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label stands here.
    pub(super) fn place(&mut self, label: Label) {
        debug_assert!(self.labels[label.0].is_none(), "a label stands in one place");
        self.labels[label.0] = Some(self.code.len());
    }

    fn jump_to(&mut self, code: u8, dst: Reg, src: Reg, imm: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, dst, src, 0, imm);
    }

    /// goto label
    pub(super) fn jump(&mut self, label: Label) {
        self.jump_to(0x05, R0, R0, 0, label);
    }

    /// if a == b goto label
    pub(super) fn jump_if_same(&mut self, a: Reg, b: Reg, label: Label) {
        self.jump_on(Compare::Equal, a, b, label);
    }

    /// if reg == imm goto label
    pub(super) fn jump_if(&mut self, reg: Reg, imm: i32, label: Label) {
        self.jump_to(0x15, reg, R0, imm, label);
    }

    /// if reg != imm goto label
    pub(super) fn jump_unless(&mut self, reg: Reg, imm: i32, label: Label) {
        self.jump_to(0x55, reg, R0, imm, label);
    }

    /// if reg < imm, without signs, goto label
    pub(super) fn jump_if_below(&mut self, reg: Reg, imm: i32, label: Label) {
        self.jump_to(0xa5, reg, R0, imm, label);
    }

    /// if reg, with a sign, < 0 goto label
    pub(super) fn jump_if_negative(&mut self, reg: Reg, label: Label) {
        self.jump_to(0xc5, reg, R0, 0, label);
    }

    /// if a OP b goto label
    pub(super) fn jump_on(&mut self, how: Compare, a: Reg, b: Reg, label: Label) {
        self.jump_to(how as u8, a, b, 0, label);
    }

    /// The program with all jumps resolved.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels[label.0].expect("every label that is jumped to is placed");
            // A jump counts from the instruction behind it; programs here are far shorter than
            // 32,768 instructions.
            self.code[at].offset = i16::try_from(target as i64 - at as i64 - 1).expect("a short program");
        }
        for (at, function) in self.functions {
            let target = self.labels[function.0].expect("every function is placed");
            self.code[at].imm = i32::try_from(target as i64 - at as i64 - 1).expect("a short program");
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(code: &[Instruction]) -> Vec<[u8; 8]> {
        code.iter()
            .map(|i| {
                let mut out = [i.code, i.registers, 0, 0, 0, 0, 0, 0];
                out[2..4].copy_from_slice(&i.offset.to_le_bytes());
                out[4..8].copy_from_slice(&i.imm.to_le_bytes());
                out
            })
            .collect()
    }

    /// Checks the encoding of each instruction against bytes worked out from the kernel's
    /// description of the format.
    #[test]
    fn encodings() {
        type Case = (fn(&mut Assembler), &'static [[u8; 8]]);
        let cases: [Case; 30] = [
            (|a| a.mov(R6, R1), &[[0xbf, 0x16, 0, 0, 0, 0, 0, 0]]),
            (|a| a.mov_imm(R0, -1), &[[0xb7, 0x00, 0, 0, 0xff, 0xff, 0xff, 0xff]]),
            (
                |a| a.stack_address(R2, -4),
                &[[0xbf, 0xa2, 0, 0, 0, 0, 0, 0], [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff]],
            ),
            (|a| a.and_imm(R1, 0x10000), &[[0x57, 0x01, 0, 0, 0, 0, 1, 0]]),
            (|a| a.shift_right_imm(R0, 32), &[[0x77, 0x00, 0, 0, 32, 0, 0, 0]]),
            (|a| a.load8(R2, R1, 32), &[[0x71, 0x12, 32, 0, 0, 0, 0, 0]]),
            (|a| a.load32(R3, R6, 24), &[[0x61, 0x63, 24, 0, 0, 0, 0, 0]]),
            (|a| a.load64(R4, R0, 0), &[[0x79, 0x04, 0, 0, 0, 0, 0, 0]]),
            (|a| a.store32(FP, -4, R7), &[[0x63, 0x7a, 0xfc, 0xff, 0, 0, 0, 0]]),
            (|a| a.store64(FP, -16, R0), &[[0x7b, 0x0a, 0xf0, 0xff, 0, 0, 0, 0]]),
            (|a| a.store32_imm(FP, -8, 1), &[[0x62, 0x0a, 0xf8, 0xff, 1, 0, 0, 0]]),
            (|a| a.store64_imm(R0, 8, 2), &[[0x7a, 0x00, 8, 0, 2, 0, 0, 0]]),
            (|a| a.atomic_add64(R0, 0, R1), &[[0xdb, 0x10, 0, 0, 0, 0, 0, 0]]),
            (|a| a.atomic_or64(R0, 0, R9), &[[0xdb, 0x90, 0, 0, 0x40, 0, 0, 0]]),
            (|a| a.shift_left(R1, R9), &[[0x6f, 0x91, 0, 0, 0, 0, 0, 0]]),
            (|a| a.load_map(R1, 5), &[[0x18, 0x11, 0, 0, 5, 0, 0, 0], [0; 8]]),
            (|a| a.call(BpfHelper::ReadKernel), &[[0x85, 0, 0, 0, 113, 0, 0, 0]]),
            (|a| a.exit(), &[[0x95, 0, 0, 0, 0, 0, 0, 0]]),
            (|a| a.add(R0, R1), &[[0x0f, 0x10, 0, 0, 0, 0, 0, 0]]),
            (|a| a.shift_left_imm(R2, 3), &[[0x67, 0x02, 0, 0, 3, 0, 0, 0]]),
            (|a| a.mov_imm64(R3, 0x1_0000_0002), &[[0x18, 0x03, 0, 0, 2, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]]),
            (|a| a.and(R1, R7), &[[0x5f, 0x71, 0, 0, 0, 0, 0, 0]]),
            (|a| a.truncate32(R4), &[[0xbc, 0x44, 0, 0, 0, 0, 0, 0]]),
            // What probes add.
            (|a| a.sub(R8, R9), &[[0x1f, 0x98, 0, 0, 0, 0, 0, 0]]),
            (|a| a.remainder_imm(R1, 3), &[[0x97, 0x01, 0, 0, 3, 0, 0, 0]]),
            (|a| a.shift_right(R1, R2), &[[0x7f, 0x21, 0, 0, 0, 0, 0, 0]]),
            (|a| a.shift_right_signed_imm(R1, 32), &[[0xc7, 0x01, 0, 0, 32, 0, 0, 0]]),
            (|a| a.compare_exchange64(R9, 24, R8), &[[0xdb, 0x89, 24, 0, 0xf1, 0, 0, 0]]),
            (|a| jump(a, |a, to| a.jump_if_below(R8, 4, to)), &[[0xa5, 0x08, 0, 0, 4, 0, 0, 0]]),
            (
                |a| jump(a, |a, to| a.jump_on(Compare::SignedLess, R1, R2, to)),
                &[[0xcd, 0x21, 0, 0, 0, 0, 0, 0]],
            ),
        ];
        for (instruction, expected) in cases {
            let mut a = Assembler::new();
            instruction(&mut a);
            assert_eq!(bytes(&a.finish()), expected);
        }
    }

    /// A jump to the next instruction.
    fn jump(a: &mut Assembler, jump: fn(&mut Assembler, Label)) {
        let next = a.label();
        jump(a, next);
        a.place(next);
    }

    /// Checks that jumps forwards and backwards count from the instruction behind them, over the
    /// two places of a map.
    #[test]
    fn jumps() {
        let mut a = Assembler::new();
        let (end, start) = (a.label(), a.label());
        a.place(start);
        a.jump_if(R0, 7, end);
        a.load_map(R1, 3);
        a.jump_if_same(R6, R7, end);
        a.jump_unless(R0, 0, start);
        a.jump(end);
        a.place(end);
        a.exit();
        let code = a.finish();
        let jumps: Vec<(u8, i16)> =
            code.iter().filter(|i| i.code & 7 == 5 && i.code < 0x80).map(|i| (i.code, i.offset)).collect();
        assert_eq!(jumps, [(0x15, 5), (0x1d, 2), (0x55, -5), (0x05, 0)]);
    }
}
