//! Registers, and values in them and near where they point.

use std::fmt;

/// A register of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Register {
    /// A general one, by its number in debug information (0 rax, 1 rdx, 2 rcx, 3 rbx, 4 rsi, 5 rdi,
    /// 6 rbp, 7 rsp, 8 r8, ...).
    General(u8),
    /// `xmm0` to `xmm15`.
    Vector(u8),
    /// The top of the floating-point stack.
    Float,
}

impl Register {
    pub(super) const STACK: Register = Register::General(7);
    pub(super) const FRAME: Register = Register::General(6);
    /// Those of integer arguments, in order.
    pub(super) const ARGUMENTS: [Register; 6] = [
        Register::General(5),
        Register::General(4),
        Register::General(1),
        Register::General(2),
        Register::General(8),
        Register::General(9),
    ];
    /// Those of integer results.
    pub(super) const RESULTS: [Register; 2] = [Register::General(0), Register::General(1)];

    /// The integer argument of this number, from 0 on; nothing for those on the stack.
    pub fn argument(number: usize) -> Option<Register> {
        Register::ARGUMENTS.get(number).copied()
    }

    /// What a function returns, where that is a number or a pointer.
    pub fn result() -> Register {
        Register::RESULTS[0]
    }

    /// A general register by the name of its 64 bits (`rdi`).
    pub fn named(name: &str) -> Option<Register> {
        (0..16).map(Register::General).find(|register| register.general() == Some(name))
    }

    pub(super) fn of_dwarf(number: u16) -> Option<Register> {
        match u8::try_from(number).ok()? {
            number @ 0..=15 => Some(Register::General(number)),
            number @ 17..=32 => Some(Register::Vector(number - 17)),
            33 => Some(Register::Float),
            _ => None,
        }
    }

    /// Whether calls leave it as it was, so that no argument comes in it.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Register::General(3 | 6 | 12..=15))
    }

    pub(super) fn len_bytes(self) -> u64 {
        if matches!(self, Register::General(_)) { 8 } else { 16 }
    }

    /// The name of a general register's 64 bits (`rdi`); nothing for others.
    pub fn general(self) -> Option<&'static str> {
        const NAMES: [&str; 16] = [
            "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15",
        ];
        match self {
            Register::General(number) => NAMES.get(usize::from(number)).copied(),
            Register::Vector(_) | Register::Float => None,
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.general()) {
            (_, Some(name)) => f.write_str(name),
            (Register::Vector(number), _) => write!(f, "xmm{number}"),
            _ => f.write_str("st0"),
        }
    }
}

/// Above the stack pointer at the entry lies the return address, then what is passed on the stack.
pub(super) const FIRST_ON_STACK: i64 = 8;

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In registers, piece by piece.
    Registers(Vec<Piece>),
    /// In memory, so many bytes from where a register points.
    Memory(Register, i64),
    /// In memory, and its address lies so many bytes from where a register points.
    Indirect(Register, i64),
    /// It has no bytes.
    Nothing,
}

/// A part of a value that is in one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where in the value it begins, in bytes.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// Nothing where the compiler has dropped the part.
    pub(super) register: Option<Register>,
}

impl Home {
    /// All of a value in one register.
    pub(super) fn whole(register: Register, len_bytes: u64) -> Home {
        Home::Registers(vec![Piece { offset: 0, len_bytes, register: Some(register) }])
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Home::Registers(pieces) => {
                let names =
                    pieces.iter().map(|piece| piece.register.map_or("-".to_owned(), |r| r.to_string()));
                f.write_str(&names.collect::<Vec<_>>().join(":"))
            }
            Home::Memory(register, 0) => write!(f, "[{register}]"),
            Home::Memory(register, offset) => write!(f, "[{register}{offset:+}]"),
            Home::Indirect(register, offset) => write!(f, "[[{register}{offset:+}]]"),
            Home::Nothing => f.write_str("nowhere, it has no bytes"),
        }
    }
}
