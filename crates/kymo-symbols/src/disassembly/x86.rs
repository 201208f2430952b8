//! Instructions of x86, with the boundaries and nearly the words of objdump.
use std::fmt::Write as _;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction as X86Instruction,
    IntelFormatter, MemorySizeOptions,
};

use super::{Flow, FunctionCode, Instruction, Syntax};

/// The waiting prefix of the old floating-point unit, an instruction by itself elsewhere.
const FWAIT: u8 = 0x9b;
/// Operands begin in this column, as in objdump.
const OPERANDS_COLUMN: usize = 7;
/// What objdump calls bytes that are no instruction.
const BAD: &str = "(bad)";

/// The instructions of a function. `name`: what an address is called, for example `main+0x10`.
pub(super) fn disassemble(
    code: &FunctionCode,
    bits: u32,
    syntax: Syntax,
    name: &dyn Fn(u64) -> Option<String>,
) -> Vec<Instruction> {
    let mut formatter = formatter(syntax);
    // An instruction of x86 has three to five bytes on average.
    let mut found: Vec<Instruction> = Vec::with_capacity(code.bytes.len() / 4);
    let mut decoder = Decoder::with_ip(bits, &code.bytes, code.address, DecoderOptions::NONE);
    let mut instruction = X86Instruction::default();
    while decoder.can_decode() {
        let at = decoder.position();
        decoder.decode_out(&mut instruction);
        let address = instruction.ip();
        if instruction.is_invalid() {
            let length = bad_length(&code.bytes[at..], bits);
            found.push(bad(address, length));
            // SANITY: the position lies within the bytes.
            if decoder.set_position(at + usize::from(length)).is_err() {
                break;
            }
            decoder.set_ip(address.wrapping_add(u64::from(length)));
            continue;
        }
        let text = text_of(&instruction, formatter.as_mut(), syntax, name);
        let target = target_of(&instruction);
        let length = instruction.len() as u8;
        // objdump takes the waiting prefix and the instruction that it is for as one.
        if let Some(before) = found.last_mut()
            && is_lone_wait(before, code)
            && is_x87(code.bytes[at])
        {
            before.length += length;
            before.text = format!("fwait {text}");
            continue;
        }
        found.push(Instruction { address, length, text, flow: flow_of(&instruction), target });
    }
    found
}

fn bad(address: u64, length: u8) -> Instruction {
    Instruction { address, length, text: BAD.into(), flow: Flow::Next, target: None }
}

/// How many bytes objdump passes over: prefixes, and the first byte of the opcode.
fn bad_length(bytes: &[u8], bits: u32) -> u8 {
    let is_prefix = |byte: u8| {
        matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
            || bits == 64 && byte & 0xf0 == 0x40
    };
    let prefixes = bytes.iter().take(14).take_while(|byte| is_prefix(**byte)).count();
    (prefixes + 1).min(bytes.len()).max(1) as u8
}

fn is_lone_wait(instruction: &Instruction, code: &FunctionCode) -> bool {
    let at = instruction.address.wrapping_sub(code.address) as usize;
    instruction.length == 1 && code.bytes.get(at) == Some(&FWAIT)
}

fn is_x87(byte: u8) -> bool {
    (0xd8..=0xdf).contains(&byte)
}

fn formatter(syntax: Syntax) -> Box<dyn Formatter> {
    let mut formatter: Box<dyn Formatter> = match syntax {
        Syntax::Att => Box::new(GasFormatter::new()),
        Syntax::Intel => Box::new(IntelFormatter::new()),
    };
    let options = formatter.options_mut();
    options.set_first_operand_char_index(OPERANDS_COLUMN as u32);
    options.set_uppercase_hex(false);
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_space_after_operand_separator(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_rip_relative_addresses(true);
    options.set_show_branch_size(false);
    options.set_signed_immediate_operands(false);
    options.set_memory_size_options(MemorySizeOptions::Always);
    options.set_uppercase_keywords(true);
    formatter
}

fn text_of(
    instruction: &X86Instruction,
    formatter: &mut dyn Formatter,
    syntax: Syntax,
    name: &dyn Fn(u64) -> Option<String>,
) -> String {
    let mut text = String::new();
    // SANITY: writing to a String cannot fail.
    if let Some(target) = target_of(instruction) {
        formatter.format_mnemonic(instruction, &mut text);
        let width = OPERANDS_COLUMN - 1;
        text = format!("{text:<width$} {target:x}");
        if let Some(name) = name(target) {
            let _ = write!(text, " <{name}>");
        }
        return text;
    }
    formatter.format(instruction, &mut text);
    if instruction.is_ip_rel_memory_operand() {
        let address = instruction.ip_rel_memory_address();
        let comment = if syntax == Syntax::Att { '#' } else { ';' };
        let _ = write!(text, "        {comment} {address:x}");
        if let Some(name) = name(address) {
            let _ = write!(text, " <{name}>");
        }
    }
    text
}

/// Where a direct jump or call goes.
fn target_of(instruction: &X86Instruction) -> Option<u64> {
    let is_near = instruction.op_count() > 0
        && matches!(
            instruction.op_kind(0),
            iced_x86::OpKind::NearBranch16 | iced_x86::OpKind::NearBranch32 | iced_x86::OpKind::NearBranch64
        );
    is_near.then(|| instruction.near_branch_target())
}

fn flow_of(instruction: &X86Instruction) -> Flow {
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => Flow::Jump,
        FlowControl::ConditionalBranch => Flow::Branch,
        FlowControl::Call | FlowControl::IndirectCall => Flow::Call,
        FlowControl::Return => Flow::Return,
        _ => Flow::Next,
    }
}
