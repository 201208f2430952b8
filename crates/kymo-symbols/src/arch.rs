//! What must be known of an instruction set: registers, calling convention, addresses.

use crate::elf::{EM_AARCH64, EM_X86_64};

/// An instruction set whose stacks are unwound.
///
/// ```text
///                 x86_64                          aarch64
///  a call         pushes the return address       puts it into x30 (LR)
///  leaf function  [sp] -> return address          x30, nothing on the stack
///  frame record   rbp -> {rbp, return address}    x29 -> {x29, x30}
///  its CFA        just above the record           unknown: the record may be at the frame's bottom
///  addresses      as they are                     may carry a signature in their upper bits (PAC)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64, and 32-bit tasks of it.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

/// How many registers are followed at most: those with DWARF's numbers 0 to 31.
pub(crate) const REGISTERS: usize = 32;
/// The most callee-saved registers that an instruction set has, except the stack pointer.
pub(crate) const MOST_SAVED: usize = 11;

/// DWARF's number of x86_64's rbp.
pub(crate) const RBP: usize = 6;
/// DWARF's number of x86_64's rsp.
pub(crate) const RSP: usize = 7;
/// DWARF's number of x86_64's return address column.
pub(crate) const RIP: usize = 16;
/// DWARF's number of aarch64's frame pointer, x29.
pub(crate) const X29: usize = 29;
/// DWARF's number of aarch64's link register, x30: the return address while a function runs.
pub(crate) const LR: usize = 30;
/// DWARF's number of aarch64's stack pointer.
pub(crate) const SP: usize = 31;

/// perf's register numbers (`PERF_REG_X86_*`) in the order of DWARF's numbers 0 to 15.
const X86_64_OF_PERF: [u8; 16] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
/// perf numbers aarch64's registers as DWARF does.
const AARCH64_OF_PERF: [u8; 32] = {
    let mut numbers = [0; 32];
    let mut number = 0;
    while number < 32 {
        numbers[number] = number as u8;
        number += 1;
    }
    numbers
};

impl Arch {
    /// The instruction set of this build, if its stacks are unwound.
    pub const NATIVE: Option<Arch> = if cfg!(target_arch = "x86_64") {
        Some(Arch::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Aarch64)
    } else {
        None
    };

    /// The instruction set of a machine, as `uname -m` and the header of a recording spell it.
    pub fn of_machine(machine: &str) -> Option<Arch> {
        match machine {
            "x86_64" | "i386" | "i486" | "i586" | "i686" => Some(Arch::X86_64),
            "aarch64" | "arm64" => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// The name that `uname -m` has.
    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// The instruction set that ELF files name by this number.
    pub(crate) fn of_elf(machine: u16) -> Option<Arch> {
        match machine {
            EM_X86_64 => Some(Arch::X86_64),
            EM_AARCH64 => Some(Arch::Aarch64),
            _ => None,
        }
    }

    /// perf's register numbers in the order of DWARF's.
    pub(crate) fn perf_numbers(self) -> &'static [u8] {
        match self {
            Arch::X86_64 => &X86_64_OF_PERF,
            Arch::Aarch64 => &AARCH64_OF_PERF,
        }
    }

    /// perf's number of the instruction pointer.
    pub(crate) fn perf_ip(self) -> u8 {
        match self {
            Arch::X86_64 => 8,
            Arch::Aarch64 => 32,
        }
    }

    /// DWARF's number of the stack pointer.
    #[inline]
    pub(crate) const fn sp(self) -> usize {
        match self {
            Arch::X86_64 => RSP,
            Arch::Aarch64 => SP,
        }
    }

    /// DWARF's number of the frame pointer.
    #[inline]
    pub(crate) const fn fp(self) -> usize {
        match self {
            Arch::X86_64 => RBP,
            Arch::Aarch64 => X29,
        }
    }

    /// The column of an unwind table that holds the rule for the return address.
    pub(crate) const fn return_column(self) -> usize {
        match self {
            Arch::X86_64 => RIP,
            Arch::Aarch64 => LR,
        }
    }

    /// How many registers are followed: those with DWARF's numbers below.
    pub(crate) const fn registers(self) -> usize {
        match self {
            Arch::X86_64 => RIP,
            Arch::Aarch64 => REGISTERS,
        }
    }

    /// Whether the rule for a register says nothing of use: wider registers are not followed, and
    /// the stack pointer of the caller is the CFA.
    pub(crate) fn is_passed_over(self, number: usize) -> bool {
        number == self.sp() || (number >= self.registers() && number != self.return_column())
    }

    /// The callee-saved registers of the calling convention, except the stack pointer.
    #[inline]
    pub(crate) const fn callee_saved(self) -> &'static [u8] {
        match self {
            // rbx, rbp, r12 to r15
            Arch::X86_64 => &[3, 6, 12, 13, 14, 15],
            // x19 to x28, x29
            Arch::Aarch64 => &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29],
        }
    }

    /// The bits of an address of code, where `highest` is an address near the end of what programs
    /// can use. aarch64 has several sizes of address spaces
    /// (`Documentation/arch/arm64/memory.rst`), and the bits above are a pointer's signature
    /// (`pointer-authentication.rst`).
    pub(crate) fn address_mask(self, highest: u64) -> u64 {
        const SIZES: [u32; 6] = [36, 39, 42, 47, 48, 52];
        match self {
            Arch::X86_64 => u64::MAX,
            Arch::Aarch64 => {
                let bits = SIZES.into_iter().find(|bits| highest >> bits == 0);
                bits.map_or(u64::MAX, |bits| (1 << bits) - 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that signatures are masked for each size of address space, and addresses kept.
    #[test]
    fn signatures_lie_above_the_address_space() {
        let mask = |highest| Arch::Aarch64.address_mask(highest);
        assert_eq!(0x0012_ffff_a10e_6828 & mask(0xffff_a11f_0000), 0xffff_a10e_6828);
        assert_eq!(0x2a_b37f_1234_5678 & mask(0x7f_ffff_0000), 0x7f_1234_5678);
        assert_eq!(mask(0xf_ffff_ffff_f000), (1 << 52) - 1);
        assert_eq!(mask(u64::MAX), u64::MAX);
        assert_eq!(Arch::X86_64.address_mask(0x7fff_0000_0000), u64::MAX);
    }

    /// Checks the names of machines as recordings have them.
    #[test]
    fn machines() {
        assert_eq!(Arch::of_machine("aarch64"), Some(Arch::Aarch64));
        assert_eq!(Arch::of_machine("x86_64"), Some(Arch::X86_64));
        for other in ["armv7l", "riscv64", "s390x", ""] {
            assert_eq!(Arch::of_machine(other), None, "{other}");
        }
    }
}
