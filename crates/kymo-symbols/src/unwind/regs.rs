//! The user registers of one sample, in DWARF's numbering.

use crate::arch::{Arch, LR, REGISTERS, RIP};

/// The registers of user space at the moment of a sample, or of one frame while unwinding.
///
/// A register whose value is not known (it was not recorded, or its saved copy could not be read)
/// is absent, and a rule that needs it ends the walk instead of using a stale value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRegs {
    /// Instruction pointer, an AVMA.
    pub ip: u64,
    values: [u64; REGISTERS],
    known: u32,
    pub(super) arch: Arch,
    /// They are a 32-bit task's.
    pub(super) compat: bool,
}

/// `PERF_SAMPLE_REGS_ABI_32`.
const ABI_32: u64 = 1;

impl UserRegs {
    /// Registers of x86_64 of which only the three that every walk needs are known.
    pub fn new(ip: u64, sp: u64, bp: u64) -> UserRegs {
        let mut regs = UserRegs::unknown(Arch::X86_64, ip);
        regs.set_sp(sp);
        regs.set(Arch::X86_64.fp(), Some(bp));
        regs
    }

    pub(super) fn unknown(arch: Arch, ip: u64) -> UserRegs {
        UserRegs { ip, values: [0; REGISTERS], known: 0, arch, compat: false }
    }

    /// Registers as a sample carries them: `abi` is 1 for a 32-bit task and 2 for a 64-bit task,
    /// `mask` the event's `sample_regs_user`, `values` one word per bit of the mask, lowest bit
    /// first. `None` when the instruction or the stack pointer was not recorded.
    #[doc(alias = "PERF_SAMPLE_REGS_USER")]
    pub fn from_perf(
        arch: Arch,
        abi: u64,
        mask: u64,
        values: impl IntoIterator<Item = u64>,
    ) -> Option<UserRegs> {
        let (mut regs, ip) = UserRegs::recorded(arch, mask, values);
        regs.ip = ip?;
        regs.compat = abi == ABI_32;
        regs.get(arch.sp())?;
        Some(regs)
    }

    /// Registers of a sample of aarch64 that has no copy of the stack, at this instruction: of use
    /// if the link register is among them. The stack pointer is 0 unless it was recorded.
    pub fn of_leaf(ip: u64, mask: u64, values: impl IntoIterator<Item = u64>) -> Option<UserRegs> {
        let (mut regs, _) = UserRegs::recorded(Arch::Aarch64, mask, values);
        regs.get(LR)?;
        regs.ip = ip;
        regs.set_sp(regs.sp());
        Some(regs)
    }

    /// The registers of a sample, and the instruction pointer.
    fn recorded(arch: Arch, mask: u64, values: impl IntoIterator<Item = u64>) -> (UserRegs, Option<u64>) {
        let mut by_perf = [0_u64; 64];
        let mut seen = 0_u64;
        let mut rest = mask;
        for value in values {
            if rest == 0 {
                break;
            }
            let bit = rest.trailing_zeros();
            by_perf[bit as usize] = value;
            seen |= 1 << bit;
            rest &= rest - 1;
        }
        let word = |number: u8| (seen & (1 << number) != 0).then(|| by_perf[usize::from(number)]);
        let mut regs = UserRegs::unknown(arch, 0);
        for (dwarf, &perf) in arch.perf_numbers().iter().enumerate() {
            regs.set(dwarf, word(perf));
        }
        (regs, word(arch.perf_ip()))
    }

    /// The stack pointer; 0 when it is not known.
    #[inline]
    pub fn sp(&self) -> u64 {
        self.values[self.arch.sp()]
    }

    #[inline]
    pub(super) fn set_sp(&mut self, value: u64) {
        self.set(self.arch.sp(), Some(value));
    }

    /// The value of the register with this DWARF number, if it is known.
    #[inline]
    pub fn get(&self, dwarf: usize) -> Option<u64> {
        match dwarf {
            RIP if self.arch == Arch::X86_64 => Some(self.ip),
            _ if dwarf < REGISTERS && self.known & (1 << dwarf) != 0 => Some(self.values[dwarf]),
            _ => None,
        }
    }

    /// Sets or forgets the general register with this DWARF number; others are ignored.
    #[inline]
    pub fn set(&mut self, dwarf: usize, value: Option<u64>) {
        if dwarf >= REGISTERS {
            return;
        }
        self.values[dwarf] = value.unwrap_or(0);
        self.known = (self.known & !(1 << dwarf)) | (u32::from(value.is_some()) << dwarf);
    }

    /// Forgets everything but the instruction pointer.
    pub(super) fn forget_all(&mut self) {
        self.values = [0; REGISTERS];
        self.known = 0;
    }
}
