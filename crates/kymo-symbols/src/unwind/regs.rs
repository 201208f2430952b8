//! The user registers of one sample, in DWARF's numbering.

/// How many registers the unwinder follows: the sixteen general ones of x86_64.
pub(super) const REGISTERS: usize = 16;
/// DWARF number of rbx.
pub(super) const RBX: usize = 3;
/// DWARF number of rbp.
pub(super) const RBP: usize = 6;
/// DWARF number of rsp.
pub(super) const RSP: usize = 7;
/// DWARF number of r12; r13, r14 and r15 follow.
pub(super) const R12: usize = 12;
/// DWARF number of the return address column.
pub(super) const RETURN_ADDRESS: usize = 16;

/// perf's register numbers (`PERF_REG_X86_*`) in the order of DWARF's numbers 0 to 15.
const PERF_NUMBER: [u8; REGISTERS] = [0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23];
/// perf's number of the instruction pointer.
const PERF_IP: u8 = 8;

/// The registers of user space at the moment of a sample, or of one frame while unwinding.
///
/// A register whose value is not known (it was not recorded, or its saved copy could not be read)
/// is absent, and a rule that needs it ends the walk instead of using a stale value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRegs {
    /// Instruction pointer, an AVMA.
    pub ip: u64,
    values: [u64; REGISTERS],
    known: u16,
    /// They are a 32-bit task's.
    pub(super) compat: bool,
}

/// `PERF_SAMPLE_REGS_ABI_32`.
const ABI_32: u64 = 1;

impl UserRegs {
    /// Registers of which only the three that every walk needs are known.
    pub fn new(ip: u64, sp: u64, bp: u64) -> UserRegs {
        let mut regs = UserRegs { ip, ..UserRegs::default() };
        regs.set(RSP, Some(sp));
        regs.set(RBP, Some(bp));
        regs
    }

    /// Registers as a sample carries them: `abi` is 1 for a 32-bit task and 2 for a 64-bit task,
    /// `mask` the event's `sample_regs_user`, `values` one word per bit of the mask, lowest bit
    /// first. `None` when the instruction or the stack pointer was not recorded.
    #[doc(alias = "PERF_SAMPLE_REGS_USER")]
    pub fn from_perf_x86_64(abi: u64, mask: u64, values: impl IntoIterator<Item = u64>) -> Option<UserRegs> {
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
        let mut regs = UserRegs { ip: word(PERF_IP)?, compat: abi == ABI_32, ..UserRegs::default() };
        for (dwarf, &perf) in PERF_NUMBER.iter().enumerate() {
            regs.set(dwarf, word(perf));
        }
        regs.get(RSP)?;
        Some(regs)
    }

    /// The stack pointer; 0 when it is not known.
    pub fn sp(&self) -> u64 {
        self.values[RSP]
    }

    /// The value of the register with this DWARF number, if it is known.
    #[inline]
    pub fn get(&self, dwarf: usize) -> Option<u64> {
        match dwarf {
            RETURN_ADDRESS => Some(self.ip),
            _ if dwarf < REGISTERS && self.known & (1 << dwarf) != 0 => Some(self.values[dwarf]),
            _ => None,
        }
    }

    /// Sets or forgets the general register with this DWARF number (0 to 15); other numbers are
    /// ignored.
    #[inline]
    pub fn set(&mut self, dwarf: usize, value: Option<u64>) {
        if dwarf >= REGISTERS {
            return;
        }
        self.values[dwarf] = value.unwrap_or(0);
        self.known = (self.known & !(1 << dwarf)) | (u16::from(value.is_some()) << dwarf);
    }

    /// Forgets everything but the instruction pointer.
    pub(super) fn forget_all(&mut self) {
        self.values = [0; REGISTERS];
        self.known = 0;
    }
}
