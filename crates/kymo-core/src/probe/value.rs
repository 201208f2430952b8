//! Numbers at a hit, and conditions of them: one form for BPF programs, the agent's code and the
//! words between them.
//!
//! Not every consumer can do everything: an agent takes what
//! [`ProbeAction::is_supported`](super::wire::ProbeAction::is_supported) says.

/// A number at a hit: a register, or memory that it points to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The register where to begin, as the processor numbers it: see [`register`].
    pub register: u8,
    /// Each step adds this many bytes and takes what is at that address instead.
    pub steps: Vec<i32>,
    /// Length of the number: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether it has a sign.
    pub signed: bool,
    /// The bits of it that are meant, counted from the lowest: the first, and how many; `None`:
    /// all.
    pub bits: Option<(u8, u8)>,
}

impl Operand {
    /// A whole register.
    pub fn register(register: u8) -> Operand {
        Operand { register, steps: Vec::new(), bytes: 8, signed: false, bits: None }
    }
}

/// How two numbers compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the operators' own names")]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

impl Compare {
    pub(super) const ALL: [Compare; 6] = [
        Compare::Equal,
        Compare::NotEqual,
        Compare::Less,
        Compare::LessEqual,
        Compare::Greater,
        Compare::GreaterEqual,
    ];
}

/// A comparison with a number, or with characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Test {
    /// What.
    pub operand: Operand,
    /// How.
    pub compare: Compare,
    /// With what, as the bits of a number of 64 bits with or without sign.
    pub value: u64,
    /// The operand is the address of characters, and they are compared with these, for equality
    /// only; then the number counts for nothing.
    pub characters: Option<Characters>,
}

impl Test {
    /// A comparison with a number.
    pub fn number(operand: Operand, compare: Compare, value: u64) -> Test {
        Test { operand, compare, value, characters: None }
    }
}

/// Characters in memory that a hit must have, or must not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Characters {
    /// Added to the address.
    pub offset: i32,
    /// The characters.
    pub bytes: Vec<u8>,
    /// A zero ends them; else as many are looked at as there are here.
    pub ended: bool,
}

/// Holds if in any of the lists all tests hold; without lists always. A test of memory that cannot
/// be read does not hold.
pub type Condition = Vec<Vec<Test>>;

/// Whether one of the tests looks at memory, not at registers alone.
pub fn reads_memory(condition: &Condition) -> bool {
    condition.iter().flatten().any(|test| !test.operand.steps.is_empty())
}

/// Registers as the processor numbers them, by their names and by what calls use them for (System V
/// ABI; AAPCS64).
pub mod register {
    #[cfg(target_arch = "x86_64")]
    const NAMES: &[&str] = &[
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const NAMES: &[&str] = &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29",
        "x30", "sp",
    ];
    #[cfg(target_arch = "x86_64")]
    const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
    #[cfg(not(target_arch = "x86_64"))]
    const ARGUMENTS: [u8; 6] = [0, 1, 2, 3, 4, 5];

    /// What a function returns, at its return.
    pub const RESULT: u8 = 0;

    /// The integer or pointer argument of this number, from 0 on; `None` for those on the stack.
    pub fn argument(number: usize) -> Option<u8> {
        ARGUMENTS.get(number).copied()
    }

    /// A register by its name in machine code (`rdi`).
    pub fn named(name: &str) -> Option<u8> {
        NAMES.iter().position(|known| *known == name).map(|number| number as u8)
    }
}
