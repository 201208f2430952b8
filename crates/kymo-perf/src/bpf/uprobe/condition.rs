//! When a hit counts: tests of registers, and of memory that they point to.

use super::super::insn::Compare as Jump;
pub use kymo_core::probe::wire::Compare;

/// Places of the integer arguments and of other registers in the registers that the kernel saves at a trap.
#[cfg(target_arch = "x86_64")]
pub(super) mod saved {
    pub(in crate::bpf) const ARGUMENTS: [i16; 6] = [112, 104, 96, 88, 72, 64];
    pub(in crate::bpf) const RESULT: i16 = 80;
    pub(in crate::bpf) const STACK: i16 = 152;
    pub(in crate::bpf) const INSTRUCTION: i16 = 128;
    pub(in crate::bpf) const FLAGS: i16 = 144;
    /// Register 14: what Go's compiler keeps the goroutine's address in.
    pub(in crate::bpf) const GOROUTINE: i16 = 8;
    /// At a return the stack pointer is so far above where it was at the entry.
    pub(in crate::bpf) const RETURN_POPS: i32 = 8;
    /// The names that machine code has for the registers, with their places.
    pub(in crate::bpf) const NAMES: [(&str, i16); 16] = [
        ("rdi", 112),
        ("rsi", 104),
        ("rdx", 96),
        ("rcx", 88),
        ("r8", 72),
        ("r9", 64),
        ("rax", 80),
        ("rbx", 40),
        ("rbp", 32),
        ("rsp", 152),
        ("r10", 56),
        ("r11", 48),
        ("r12", 24),
        ("r13", 16),
        ("r14", 8),
        ("r15", 0),
    ];
}

/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(super) mod saved {
    pub(in crate::bpf) const ARGUMENTS: [i16; 6] = [0, 8, 16, 24, 32, 40];
    pub(in crate::bpf) const RESULT: i16 = 0;
    pub(in crate::bpf) const STACK: i16 = 248;
    pub(in crate::bpf) const INSTRUCTION: i16 = 256;
    pub(in crate::bpf) const FLAGS: i16 = 264;
    pub(in crate::bpf) const GOROUTINE: i16 = 224;
    pub(in crate::bpf) const RETURN_POPS: i32 = 0;
    pub(in crate::bpf) const NAMES: [(&str, i16); 1] = [("sp", 248)];
}

/// A register at a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(pub(super) i16);

impl Register {
    /// The integer or pointer argument of this number, from 0 on; `None` for those on the stack.
    #[must_use]
    pub fn argument(number: usize) -> Option<Register> {
        saved::ARGUMENTS.get(number).copied().map(Register)
    }

    /// What a function returns, at its return.
    #[must_use]
    pub fn result() -> Register {
        Register(saved::RESULT)
    }

    /// Its number as the processor has it; `None` on machines other than x86-64.
    #[must_use]
    pub fn number(self) -> Option<u8> {
        const ORDER: [&str; 16] = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15",
        ];
        let (name, _) = saved::NAMES.iter().find(|(_, at)| *at == self.0)?;
        ORDER.iter().position(|known| known == name).map(|number| number as u8)
    }

    /// A register by its name in machine code (`rdi`).
    #[must_use]
    pub fn named(name: &str) -> Option<Register> {
        saved::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, at)| Register(at))
    }
}

/// A number at a hit: a register, or memory that it points to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Where to begin.
    pub register: Register,
    /// Each step adds this many bytes and takes what is at that address instead.
    pub steps: Vec<i32>,
    /// Length of the number: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether it has a sign.
    pub signed: bool,
    /// The bits of it that are meant, counted from the lowest: the first, and how many; `None`: all.
    pub bits: Option<(u8, u8)>,
}

/// A comparison with a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Test {
    /// What.
    pub operand: Operand,
    /// How.
    pub compare: Compare,
    /// With what, as the bits of a number with or without sign.
    pub value: u64,
    /// The operand is the address of characters, and they are compared with these, for equality only; then the number counts for nothing.
    pub characters: Option<Characters>,
}

/// Characters in memory that a hit must have, or must not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Characters {
    /// Added to the address.
    pub offset: i32,
    /// At most [`MOST_CHARACTERS`].
    pub bytes: Vec<u8>,
    /// A zero ends them; else as many are looked at as there are here.
    pub ended: bool,
}

/// Characters that can be compared.
pub const MOST_CHARACTERS: usize = 64;

impl Test {
    pub(super) fn jump(&self) -> Jump {
        match (self.compare, self.operand.signed) {
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
}

/// Holds if in any of the lists all tests hold; without lists always.
pub type Condition = Vec<Vec<Test>>;
