//! Names of the registers in samples, by the kernel's numbers.

/// The registers of one architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    names: &'static [&'static str],
    /// Those that the kernel has in samples of 64-bit programs.
    mask: u64,
}

const X86_64: Registers = Registers {
    names: &[
        "AX", "BX", "CX", "DX", "SI", "DI", "BP", "SP", "IP", "FLAGS", "CS", "SS", "DS", "ES", "FS", "GS",
        "R8", "R9", "R10", "R11", "R12", "R13", "R14", "R15",
    ],
    // Segment registers of data are in samples of 32-bit kernels only.
    mask: 0xff_0fff,
};

const AARCH64: Registers = Registers {
    names: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "lr", "sp", "pc",
    ],
    mask: (1 << 33) - 1,
};

const ARM: Registers = Registers {
    names: &["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "fp", "ip", "sp", "lr", "pc"],
    mask: 0xffff,
};

const RISCV64: Registers = Registers {
    names: &[
        "pc", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6",
        "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
    ],
    mask: 0xffff_ffff,
};

impl Registers {
    /// The registers of an architecture as `uname -m` and the header of a recording spell it.
    pub fn of(arch: &str) -> Option<Registers> {
        match arch {
            "x86_64" => Some(X86_64),
            // A 32-bit kernel numbers them alike, and has those of data segments, too.
            "i386" | "i486" | "i586" | "i686" => Some(Registers { mask: 0xffff, ..X86_64 }),
            "aarch64" | "arm64" => Some(AARCH64),
            "riscv64" => Some(RISCV64),
            _ if arch.starts_with("armv") => Some(ARM),
            _ => None,
        }
    }

    /// The bits of all registers that samples can have.
    pub fn all(self) -> u64 {
        self.mask
    }

    /// The name of a register, if it has one.
    pub fn name(self, number: usize) -> Option<&'static str> {
        self.names.get(number).copied()
    }

    /// The names of the registers that samples can have.
    pub fn available(self) -> impl Iterator<Item = &'static str> {
        (0..).zip(self.names).filter(move |(bit, _)| self.mask >> bit & 1 == 1).map(|(_, name)| *name)
    }

    /// The bits of registers in a list such as `ax,IP`.
    ///
    /// # Errors
    /// The word that names none.
    pub fn parse(self, list: &str) -> Result<u64, &str> {
        list.split(',').try_fold(0, |bits, word| {
            let number = self.names.iter().position(|name| name.eq_ignore_ascii_case(word));
            let bit = number.map(|number| 1_u64 << number).filter(|bit| bit & self.mask != 0);
            bit.map(|bit| bits | bit).ok_or(word)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Registers;

    /// Checks lists in either case, words that name nothing, and registers that no sample has.
    #[test]
    fn lists() {
        let x86 = Registers::of("x86_64").unwrap();
        assert_eq!(x86.parse("ax,IP"), Ok(0x101));
        assert_eq!(x86.parse("r15"), Ok(1 << 23));
        assert_eq!(x86.parse("ax,nosuch,bx"), Err("nosuch"));
        assert_eq!(x86.parse("ds"), Err("ds"));
        assert_eq!(x86.parse(""), Err(""));
        assert_eq!(x86.available().count() as u32, x86.all().count_ones());
        assert_eq!((x86.name(8), x86.name(24)), (Some("IP"), None));
        let arm = Registers::of("aarch64").unwrap();
        assert_eq!(arm.parse("lr,pc"), Ok(1 << 30 | 1 << 32));
        assert_eq!(Registers::of("armv7l").unwrap().parse("pc"), Ok(1 << 15));
        assert_eq!(Registers::of("riscv64").unwrap().parse("pc,t6"), Ok(1 | 1 << 31));
        assert_eq!(Registers::of("m68k"), None);
    }
}
