//! Where a thread waits: its system call, and from where in the program that was made.
use super::super::record::at;
use super::{BLOCKED_NS, PLACES, RUNNABLE_NS, entry};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, R0, R1, R2, R3, R4, R5, R6, R7, R9};
use crate::bpf::types::Member;

/// Where the registers of a thread in user space have the number of the call.
pub(in super::super) const CALL_REGISTER: i16 = if cfg!(target_arch = "x86_64") { 120 } else { 280 };
/// The same of the call's first two arguments.
const ARGUMENT_REGISTERS: [i16; 2] = if cfg!(target_arch = "x86_64") { [112, 104] } else { [272, 8] };

impl Assembler {
    /// The wait of the next thread, the tracepoint's third argument, which is over now, counts at
    /// its place in the entry at R7.
    pub(super) fn count_at_place(&mut self, wanted: &mut Vec<(usize, Member)>) {
        self.load64(R1, R6, 16);
        self.call(BpfHelper::TaskRegisters);
        self.load64(R3, R6, 16);
        self.load_place(wanted);
        self.add_imm(R2, 1);
        self.load64(R3, FP, BLOCKED_NS);
        self.load64(R5, FP, RUNNABLE_NS);
        self.add_to_place();
    }

    /// A wait of R3 ns, and R5 ns ready, in the call R2, plus one, at the place R4 counts in the
    /// entry at R7; nowhere if that has other places already. R0 and R1 are lost
    pub(super) fn add_to_place(&mut self) {
        let (first, same, counted) = (self.label(), self.label(), self.label());
        for number in 0..PLACES {
            let next = self.label();
            self.mov(R0, R7);
            self.add_imm(R0, i32::from(entry::PLACES + at::PLACE_BYTES * number as i16));
            self.load64(R1, R0, at::PLACE_WAITS);
            self.jump_if(R1, 0, first);
            self.load64(R1, R0, at::PLACE_NUMBER);
            self.jump_on(Compare::NotEqual, R1, R4, next);
            self.load64(R1, R0, at::PLACE_CALL);
            self.jump_if_same(R1, R2, same);
            self.place(next);
        }
        self.jump(counted);
        self.place(first);
        self.store64(R0, at::PLACE_CALL, R2);
        self.store64(R0, at::PLACE_NUMBER, R4);
        self.place(same);
        self.add_word(R0, at::PLACE_BLOCKED, R3);
        self.add_word(R0, at::PLACE_RUNNABLE, R5);
        self.count_word(R0, at::PLACE_WAITS);
        self.load64(R1, R0, at::PLACE_LONGEST);
        self.jump_on(Compare::GreaterEqual, R1, R3, counted);
        self.store64(R0, at::PLACE_LONGEST, R3);
        self.place(counted);
    }

    /// The record at R9 has the call of the thread in this argument of the tracepoint, which does
    /// not run yet, its arguments, and where it was made.
    pub(super) fn store_call(&mut self, argument: i16, wanted: &mut Vec<(usize, Member)>) {
        self.load64(R1, R6, 8 * argument);
        self.call(BpfHelper::TaskRegisters);
        for (from, to) in ARGUMENT_REGISTERS.into_iter().zip([at::ARGUMENT_0, at::ARGUMENT_1]) {
            self.load64(R1, R0, from);
            self.store64(R9, to, R1);
        }
        self.load64(R3, R6, 8 * argument);
        self.load_place(wanted);
        self.store64(R9, at::SYSCALL, R2);
        self.store64(R9, at::PLACE, R4);
    }

    /// R2 = the call that the task at R3 is in, by its registers at R0. R4 = the number of the
    /// place in which it is, 0 where that is not known. R1 is lost. The kernel knows the types of
    /// both, so that no helper has to copy them.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn load_place(&mut self, wanted: &mut Vec<(usize, Member)>) {
        let register = |number: i16| CALL_REGISTER + 8 * number;
        // Where the thread's own memory is; it is saved while another thread runs.
        self.load_member((R4, R3), 8, Member::FsBase, wanted);
        self.load64(R1, R0, register(4)); // the stack pointer
        self.sub(R4, R1);
        self.shift_left_imm(R4, 40);
        self.load64(R1, R0, register(1)); // the address of the call
        self.add(R4, R1);
        self.load64(R2, R0, register(0));
        self.mov(R1, R2);
        self.shift_left_imm(R1, 30);
        self.add(R4, R1);
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn load_place(&mut self, _wanted: &mut Vec<(usize, Member)>) {
        self.load32(R2, R0, CALL_REGISTER);
        self.shift_left_imm(R2, 32);
        self.shift_right_signed_imm(R2, 32);
        self.mov_imm(R4, 0);
    }
}
