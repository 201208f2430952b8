//! Conditions of a hit: tests of registers, and of memory that they point to.

use super::super::insn::Compare as Jump;
use kymo_core::probe::value::{Compare, Test};

/// Places of the integer arguments and of other registers in the registers that the kernel saves at
/// a trap.
#[cfg(target_arch = "x86_64")]
pub(super) mod saved {
    pub(in crate::bpf) const STACK: i16 = 152;
    pub(in crate::bpf) const INSTRUCTION: i16 = 128;
    pub(in crate::bpf) const FLAGS: i16 = 144;
    /// Register 14: what Go's compiler keeps the goroutine's address in.
    pub(in crate::bpf) const GOROUTINE: i16 = 8;
    /// At a return the stack pointer is so far above where it was at the entry.
    pub(in crate::bpf) const RETURN_POPS: i32 = 8;
    /// The code segment, which tells 32-bit programs.
    pub(in crate::bpf) const SEGMENT: i16 = 136;
    /// Where each register is, by the processor's number.
    pub(in crate::bpf) const AT: [i16; 16] =
        [80, 88, 96, 40, 152, 32, 104, 112, 72, 64, 56, 48, 24, 16, 8, 0];
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) mod saved {
    pub(in crate::bpf) const STACK: i16 = 248;
    pub(in crate::bpf) const INSTRUCTION: i16 = 256;
    pub(in crate::bpf) const FLAGS: i16 = 264;
    pub(in crate::bpf) const GOROUTINE: i16 = 224;
    pub(in crate::bpf) const RETURN_POPS: i32 = 0;
    /// No return is looked for by it.
    pub(in crate::bpf) const SEGMENT: i16 = 0;
    /// Eight bytes each, from x0 to sp.
    pub(in crate::bpf) const AT: [i16; 32] = {
        let (mut at, mut number) = ([0; 32], 0);
        while number < 32 {
            at[number] = 8 * number as i16;
            number += 1;
        }
        at
    };
}

/// Where the kernel has saved a register, by the processor's number.
pub(super) fn saved_at(register: u8) -> i16 {
    saved::AT[usize::from(register) % saved::AT.len()]
}

/// Characters that can be compared.
pub const MOST_CHARACTERS: usize = 64;

/// The jump that is taken if a test holds.
pub(super) fn jump(test: &Test) -> Jump {
    match (test.compare, test.operand.signed) {
        (Compare::Equal, _) => Jump::Equal,
        (Compare::NotEqual, _) => Jump::NotEqual,
        (Compare::Less, false) => Jump::Less,
        (Compare::LessEqual, false) => Jump::LessEqual,
        (Compare::Greater, false) => Jump::Greater,
        (Compare::GreaterEqual, false) => Jump::GreaterEqual,
        (Compare::Less, true) => Jump::SignedLess,
        (Compare::LessEqual, true) => Jump::SignedLessEqual,
        (Compare::Greater, true) => Jump::SignedGreater,
        (Compare::GreaterEqual, true) => Jump::SignedGreaterEqual,
    }
}
