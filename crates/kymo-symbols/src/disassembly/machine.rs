//! Whose instructions code has.
use crate::elf::{EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_RISCV, EM_X86_64};

/// The machine that code is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CodeMachine {
    /// 32 or 64 bits.
    X86 {
        bits: u32,
    },
    Aarch64,
    /// Of a build with the feature `capstone`.
    #[cfg(feature = "capstone")]
    Other(CapstoneMachine),
}

/// A machine whose instructions capstone knows.
#[cfg(feature = "capstone")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CapstoneMachine {
    /// 32 or 64 bits.
    Riscv {
        bits: u32,
    },
    Arm {
        is_thumb: bool,
    },
    /// Little-endian.
    PowerPc64,
}

#[cfg(feature = "capstone")]
impl CapstoneMachine {
    /// The shortest instruction, bytes.
    pub(super) fn least_bytes(self) -> usize {
        match self {
            CapstoneMachine::Riscv { .. } | CapstoneMachine::Arm { is_thumb: true } => 2,
            CapstoneMachine::Arm { is_thumb: false } | CapstoneMachine::PowerPc64 => 4,
        }
    }
}

impl CodeMachine {
    /// The machine that runs this program, if its instructions are known.
    pub(super) const NATIVE: Option<CodeMachine> = if cfg!(target_arch = "x86_64") {
        Some(CodeMachine::X86 { bits: 64 })
    } else if cfg!(target_arch = "aarch64") {
        Some(CodeMachine::Aarch64)
    } else {
        None
    };

    /// The name that `uname -m` has.
    pub(super) fn name(self) -> &'static str {
        match self {
            CodeMachine::X86 { bits: 32 } => "i686",
            CodeMachine::X86 { .. } => "x86_64",
            CodeMachine::Aarch64 => "aarch64",
            #[cfg(feature = "capstone")]
            CodeMachine::Other(CapstoneMachine::Riscv { bits: 32 }) => "riscv32",
            #[cfg(feature = "capstone")]
            CodeMachine::Other(CapstoneMachine::Riscv { .. }) => "riscv64",
            #[cfg(feature = "capstone")]
            CodeMachine::Other(CapstoneMachine::Arm { .. }) => "armv7l",
            #[cfg(feature = "capstone")]
            CodeMachine::Other(CapstoneMachine::PowerPc64) => "ppc64le",
        }
    }

    /// The machine that ELF files name by this number. `is_thumb`: whether ARM code is Thumb.
    ///
    /// # Errors
    /// Why its code is not disassembled.
    pub(super) fn of_elf(elf_machine: u16, is_64: bool, is_thumb: bool) -> Result<CodeMachine, String> {
        match elf_machine {
            EM_386 => Ok(CodeMachine::X86 { bits: 32 }),
            EM_X86_64 => Ok(CodeMachine::X86 { bits: 64 }),
            EM_AARCH64 => Ok(CodeMachine::Aarch64),
            EM_RISCV | EM_ARM | EM_PPC64 => other(elf_machine, is_64, is_thumb),
            machine => Err(format!(
                "it is for ELF machine {machine}; x86, ARM, RISC-V and 64-bit PowerPC are disassembled"
            )),
        }
    }
}

#[cfg(feature = "capstone")]
fn other(elf_machine: u16, is_64: bool, is_thumb: bool) -> Result<CodeMachine, String> {
    Ok(CodeMachine::Other(match elf_machine {
        EM_RISCV => CapstoneMachine::Riscv { bits: if is_64 { 64 } else { 32 } },
        EM_ARM => CapstoneMachine::Arm { is_thumb },
        _ => CapstoneMachine::PowerPc64,
    }))
}

#[cfg(not(feature = "capstone"))]
fn other(elf_machine: u16, _: bool, _: bool) -> Result<CodeMachine, String> {
    let name = match elf_machine {
        EM_RISCV => "RISC-V",
        EM_ARM => "32-bit ARM",
        _ => "64-bit PowerPC",
    };
    Err(format!("it is for {name}, and this kymo was built without capstone (`--features capstone`)"))
}
