//! Instructions of RISC-V, 32-bit ARM and 64-bit PowerPC (little-endian), by capstone.
use std::fmt::Write as _;

use capstone::arch::{arm, ppc, riscv};
use capstone::prelude::*;
use capstone::{CsResult, Insn};

use super::machine::CapstoneMachine;
use super::{Flow, FunctionCode, Instruction};

/// Operands begin in this column, as for x86.
const OPERANDS_COLUMN: usize = 7;
/// So many instructions are decoded at once: the library has a quarter of a kilobyte for each.
const AT_ONCE: usize = 1024;

/// The instructions of a function. Bytes that capstone does not know are `.inst`, as is all of it
/// where the library cannot be used. `name`: what an address is called.
pub(super) fn disassemble(
    code: &FunctionCode,
    machine: CapstoneMachine,
    name: &dyn Fn(u64) -> Option<String>,
) -> Vec<Instruction> {
    let mut found = Vec::with_capacity(code.bytes.len() / 4 + 1);
    let mut at = 0;
    if let Ok(decoder) = decoder(machine) {
        while at < code.bytes.len() {
            let begin = code.address.wrapping_add(at as u64);
            let Ok(list) = decoder.disasm_count(&code.bytes[at..], begin, AT_ONCE) else { break };
            if list.is_empty() {
                break;
            }
            for one in list.iter() {
                at += one.bytes().len();
                found.push(instruction(one, machine, name));
            }
        }
    }
    for bytes in code.bytes[at..].chunks(machine.least_bytes()) {
        let number = bytes.iter().rev().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"));
        let address = code.address.wrapping_add(at as u64);
        at += bytes.len();
        let (length, text) = (bytes.len() as u8, columns(".inst", &number));
        found.push(Instruction { address, length, text, flow: Flow::Next, target: None });
    }
    found
}

fn decoder(machine: CapstoneMachine) -> CsResult<Capstone> {
    let mut decoder = match machine {
        CapstoneMachine::Riscv { bits } => {
            let mode = if bits == 64 { riscv::ArchMode::RiscV64 } else { riscv::ArchMode::RiscV32 };
            let extra = std::iter::once(riscv::ArchExtraMode::RiscVC);
            Capstone::new().riscv().mode(mode).extra_mode(extra).build()
        }
        CapstoneMachine::Arm { is_thumb } => {
            let mode = if is_thumb { arm::ArchMode::Thumb } else { arm::ArchMode::Arm };
            Capstone::new().arm().mode(mode).build()
        }
        CapstoneMachine::PowerPc64 => {
            Capstone::new().ppc().mode(ppc::ArchMode::Mode64).endian(capstone::Endian::Little).build()
        }
    }?;
    decoder.set_skipdata(true)?;
    Ok(decoder)
}

fn instruction(
    one: &Insn<'_>,
    machine: CapstoneMachine,
    name: &dyn Fn(u64) -> Option<String>,
) -> Instruction {
    let (address, length) = (one.address(), one.bytes().len() as u8);
    let mnemonic = one.mnemonic().unwrap_or(".inst");
    let operands = one.op_str().unwrap_or("");
    if mnemonic == ".byte" {
        let number =
            one.bytes().iter().rev().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"));
        return Instruction {
            address,
            length,
            text: columns(".inst", &number),
            flow: Flow::Next,
            target: None,
        };
    }
    // Compressed instructions mean what those of full length do.
    let (mnemonic, operands) = match (mnemonic.strip_prefix("c.").unwrap_or(mnemonic), operands) {
        ("jr", "ra") => ("ret", ""),
        other => other,
    };
    let flow = match machine {
        CapstoneMachine::Riscv { .. } => flow_of_riscv(mnemonic, operands),
        CapstoneMachine::Arm { .. } => flow_of_arm(mnemonic, operands),
        CapstoneMachine::PowerPc64 => flow_of_power(mnemonic),
    };
    let (before, last) = operands.rsplit_once(", ").map_or(("", operands), |(before, last)| (before, last));
    let target = (flow != Flow::Next && flow != Flow::Return).then(|| number(last)).flatten();
    let Some(target) = target else {
        return Instruction { address, length, text: columns(mnemonic, operands), flow, target: None };
    };
    // RISC-V's are relative to the instruction, the others' are addresses.
    let target = match machine {
        CapstoneMachine::Riscv { .. } => address.wrapping_add(target as u64),
        _ => target as u64,
    };
    let comma = if before.is_empty() { "" } else { ", " };
    let mut text = columns(mnemonic, &format!("{before}{comma}{target:x}"));
    if let Some(name) = name(target) {
        let _ = write!(text, " <{name}>");
    }
    Instruction { address, length, text, flow, target: Some(target) }
}

fn columns(mnemonic: &str, operands: &str) -> String {
    let width = OPERANDS_COLUMN - 1;
    if operands.is_empty() { mnemonic.to_owned() } else { format!("{mnemonic:<width$} {operands}") }
}

/// A number as capstone writes it: `#0x10`, `-0x8`, `4`.
fn number(text: &str) -> Option<i64> {
    let text = text.strip_prefix('#').unwrap_or(text);
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let value = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()? as i64,
        None => digits.parse().ok()?,
    };
    Some(value.wrapping_mul(sign))
}

fn flow_of_riscv(mnemonic: &str, operands: &str) -> Flow {
    match mnemonic {
        "ret" => Flow::Return,
        "j" | "jr" => Flow::Jump,
        "jal" | "jalr" | "ecall" => match operands.split(", ").next() {
            Some("zero") => Flow::Jump,
            _ => Flow::Call,
        },
        _ if mnemonic.starts_with('b') => Flow::Branch,
        _ => Flow::Next,
    }
}

fn flow_of_arm(mnemonic: &str, operands: &str) -> Flow {
    let plain = mnemonic.strip_suffix(".w").unwrap_or(mnemonic);
    let loads_pc = plain.starts_with("pop") || plain.starts_with("ldm");
    match plain {
        "bl" | "blx" | "svc" => Flow::Call,
        "bx" if operands == "lr" => Flow::Return,
        _ if loads_pc && operands.ends_with("pc}") => Flow::Return,
        "b" | "bx" => Flow::Jump,
        "cbz" | "cbnz" => Flow::Branch,
        _ if CONDITIONS.iter().any(|condition| plain.strip_prefix('b') == Some(condition)) => Flow::Branch,
        _ => Flow::Next,
    }
}

/// What an ARM instruction may depend on.
const CONDITIONS: [&str; 14] =
    ["eq", "ne", "hs", "lo", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le"];

fn flow_of_power(mnemonic: &str) -> Flow {
    match mnemonic.trim_end_matches(['+', '-']) {
        "blr" => Flow::Return,
        "b" | "ba" | "bctr" => Flow::Jump,
        "bl" | "bla" | "bctrl" | "blrl" | "sc" | "scv" => Flow::Call,
        "bpermd" => Flow::Next,
        other if other.starts_with('b') && !other.starts_with("bc") => Flow::Branch,
        other if other.starts_with("bc") && !other.starts_with("bcd") => Flow::Branch,
        _ => Flow::Next,
    }
}
