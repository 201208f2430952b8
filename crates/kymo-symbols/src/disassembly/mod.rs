//! The code of functions: its bytes from the file that was recorded, as instructions and as text,
//! and the source files that its debug information names.
//!
//! ```text
//!  module key, range --SymbolStore::code--> FunctionCode: bytes, linked address      (code, kcore)
//!                                              |
//!                                          '--disassemble--> instructions   (x86, aarch64, capstone)
//!  file, line of an inline frame --SourceFiles--> text of the line                   (sources)
//! ```
//!
//! # Guarantees
//! - **D1** Code is of the file that was recorded: one with another build id is refused.
//! - **D2** The instructions cover all bytes, in order, without gaps. Their boundaries are those of
//!   `objdump -d`; bytes that are no instruction are `(bad)` or `.inst`, as there.
//! - **D3** Any bytes are disassembled without a panic, in time and memory that grow with them
//!   only.
//! - **D4** A function has at most [`MOST_CODE_BYTES`], a source file at most
//!   [`MOST_SOURCE_BYTES`]; more is refused with a sentence.
//!
//! # Non-goals
//! Other machines than x86, ARM, RISC-V and 64-bit PowerPC: their code is refused with a sentence,
//! as is that of the last three in a build without the feature `capstone`, whose library in C takes
//! a minute to compile. Scalable vectors of aarch64 are `.inst` and a number. The words of what
//! capstone decodes are its own, not objdump's.
mod aarch64;
#[cfg(feature = "capstone")]
mod capstone;
mod code;
mod kcore;
mod machine;
mod sources;
#[cfg(test)]
mod tests;
mod x86;

pub use code::{CodeError, FunctionCode};
pub(crate) use sources::refusal_of_root;
pub use sources::{MOST_SOURCE_BYTES, SourceFile, SourceFiles, SourceOptions};

use machine::CodeMachine;

/// Longer functions are not disassembled.
pub const MOST_CODE_BYTES: u64 = 2 << 20;

/// How instructions are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syntax {
    /// As the GNU assembler does: `mov %rax,%rdx`.
    #[default]
    Att,
    /// As Intel does: `mov rdx,rax`.
    Intel,
}

/// The instructions of a function. `name`: what an address is called, for example `main+0x10`.
pub fn disassemble(
    code: &FunctionCode,
    syntax: Syntax,
    name: &dyn Fn(u64) -> Option<String>,
) -> Vec<Instruction> {
    match code.machine {
        CodeMachine::X86 { bits } => x86::disassemble(code, bits, syntax, name),
        CodeMachine::Aarch64 => aarch64::disassemble(code, name),
        #[cfg(feature = "capstone")]
        CodeMachine::Other(machine) => capstone::disassemble(code, machine, name),
    }
}

/// What an instruction does to the order of execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// The next instruction follows.
    #[default]
    Next,
    /// A jump that is always taken.
    Jump,
    /// A jump that may be taken.
    Branch,
    /// A call, of the kernel too.
    Call,
    /// A return.
    Return,
}

impl Flow {
    /// One word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Flow::Next => "next",
            Flow::Jump => "jump",
            Flow::Branch => "branch",
            Flow::Call => "call",
            Flow::Return => "return",
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Where it is, in the addresses of its code.
    pub address: u64,
    /// How many bytes it has.
    pub length: u8,
    /// The instruction with its operands; addresses with their symbols.
    pub text: String,
    /// What follows it.
    pub flow: Flow,
    /// Where a direct jump or call goes, in the addresses of its code.
    pub target: Option<u64>,
}
