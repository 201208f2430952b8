//! Instructions of 64-bit ARM, with the boundaries and nearly the words of objdump.
use std::fmt::Write as _;

use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::InstDecoder;

use super::{Flow, FunctionCode, Instruction};

/// Operands begin in this column, as for x86.
const OPERANDS_COLUMN: usize = 7;
/// Mnemonics whose numbers count bits: objdump writes them in decimal.
const COUNTING: [&str; 19] = [
    "lsl", "lsr", "asr", "ror", "ubfiz", "ubfx", "sbfiz", "sbfx", "bfi", "bfxil", "bfc", "extr", "tbz",
    "tbnz", "udf", "fcvtzs", "fcvtzu", "scvtf", "ucvtf",
];
/// Registers of the system that the decoder has as numbers.
const SYSTEM_REGISTERS: [(&str, &str); 4] = [
    ("s3_3_c4_c4_0", "fpcr"),
    ("s3_3_c4_c4_1", "fpsr"),
    ("s3_3_c0_c0_1", "ctr_el0"),
    ("s3_3_c0_c0_7", "dczid_el0"),
];
/// Mnemonics of vectors whose numbers are values.
const VALUES: [&str; 4] = ["movi", "mvni", "orr", "bic"];

/// The instructions of a function, of four bytes each. `name`: what an address is called.
pub(super) fn disassemble(code: &FunctionCode, name: &dyn Fn(u64) -> Option<String>) -> Vec<Instruction> {
    let decoder = InstDecoder::default();
    let (words, rest) = code.bytes.as_chunks::<4>();
    let mut found = Vec::with_capacity(words.len() + 1);
    let mut address = code.address;
    for bytes in words {
        let word = u32::from_le_bytes(*bytes);
        let target = target_of(word, address);
        let decoded = decoder.decode(&mut U8Reader::new(bytes)).ok().map(|decoded| decoded.to_string());
        let mut text = match decoded {
            Some(decoded) => as_objdump(&decoded, word, target),
            // What the decoder does not know, as scalable vectors, or no instruction.
            None => columns(".inst", &format!("0x{word:08x}")),
        };
        if let Some(name) = target.and_then(name) {
            let _ = write!(text, " <{name}>");
        }
        let flow = flow_of(word);
        let target = target.filter(|_| flow != Flow::Next);
        found.push(Instruction { address, length: 4, text, flow, target });
        address = address.wrapping_add(4);
    }
    if !rest.is_empty() {
        let text = rest.iter().rev().fold(String::from("0x"), |text, byte| text + &format!("{byte:02x}"));
        let length = rest.len() as u8;
        found.push(Instruction {
            address,
            length,
            text: columns(".inst", &text),
            flow: Flow::Next,
            target: None,
        });
    }
    found
}

/// The low `bits` of a number with their sign, times four.
fn distance(number: u32, bits: u32) -> u64 {
    let shift = 32 - bits;
    (i64::from(((number << shift) as i32) >> shift) * 4) as u64
}

/// The address that an instruction has in it, relative to its own: of a jump, of a call, of data.
fn target_of(word: u32, address: u64) -> Option<u64> {
    let page = (word >> 5 & 0x7_ffff) << 2 | (word >> 29 & 3);
    let by = match word {
        _ if word & 0x7c00_0000 == 0x1400_0000 => distance(word, 26),
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 => {
            distance(word >> 5, 19)
        }
        _ if word & 0x7e00_0000 == 0x3600_0000 => distance(word >> 5, 14),
        // Loads of a literal; the last of them prefetches.
        _ if word & 0x3b00_0000 == 0x1800_0000 => distance(word >> 5, 19),
        _ if word & 0x9f00_0000 == 0x1000_0000 => ((distance(page, 21) as i64) / 4) as u64,
        _ if word & 0x9f00_0000 == 0x9000_0000 => {
            return Some((address & !0xfff).wrapping_add(distance(page, 21) << 10));
        }
        _ => return None,
    };
    Some(address.wrapping_add(by))
}

fn flow_of(word: u32) -> Flow {
    match word {
        _ if word & 0xfc00_0000 == 0x1400_0000 => Flow::Jump,
        _ if word & 0xfc00_0000 == 0x9400_0000 => Flow::Call,
        // SVC: a call of the kernel.
        _ if word & 0xffe0_001f == 0xd400_0001 => Flow::Call,
        _ if word & 0xff00_0000 == 0x5400_0000 || word & 0x7c00_0000 == 0x3400_0000 => Flow::Branch,
        // Through a register; some check a signature of the address.
        _ if word & 0xfe00_0000 == 0xd600_0000 => match word >> 21 & 0x7 {
            0 => Flow::Jump,
            1 => Flow::Call,
            _ => Flow::Return,
        },
        _ => Flow::Next,
    }
}

fn columns(mnemonic: &str, operands: &str) -> String {
    let width = OPERANDS_COLUMN - 1;
    if operands.is_empty() { mnemonic.to_owned() } else { format!("{mnemonic:<width$} {operands}") }
}

/// Writes an instruction as objdump does: `decoded` has the same meaning in other words.
fn as_objdump(decoded: &str, word: u32, target: Option<u64>) -> String {
    let (mnemonic, operands) = decoded.split_once(' ').unwrap_or((decoded, ""));
    if let Some((mnemonic, operands)) = other_words(mnemonic, operands, word) {
        return columns(&mnemonic, &operands);
    }
    let mnemonic = match mnemonic {
        "b.hs" => "b.cs",
        "b.lo" => "b.cc",
        mnemonic => mnemonic,
    };
    let mut operands = operands.to_owned();
    if let (Some(target), Some(at)) = (target, operands.find('$')) {
        operands.truncate(at);
        let _ = write!(operands, "{target:x}");
    }
    if let Some((rest, condition)) = operands.rsplit_once(", ")
        && let Some(condition) = [("hs", "cs"), ("lo", "cc")].iter().find(|names| names.0 == condition)
    {
        operands = format!("{rest}, {}", condition.1);
    }
    if let Some(at) = operands.find("[x").or_else(|| operands.find("[sp")) {
        // Bit 12 of a register's offset says that it counts in elements.
        if word >> 12 & 1 == 0 {
            operands = operands.replace(" #0]", "]");
        }
        operands = format!("{}{}", &operands[..at], in_decimal(&operands[at..]));
    } else if COUNTING.contains(&mnemonic) || counts_in_vectors(mnemonic, &operands) {
        operands = in_decimal(&operands);
    }
    columns(mnemonic, &operands)
}

/// Whether the numbers of an instruction of vectors are shifts, places or zeros.
fn counts_in_vectors(mnemonic: &str, operands: &str) -> bool {
    let is_vector = operands.starts_with(['v', 'd']);
    is_vector && !VALUES.contains(&mnemonic) && !mnemonic.starts_with('f')
}

/// Instructions that objdump calls by another name, or of which the decoder leaves out a part.
fn other_words(mnemonic: &str, operands: &str, word: u32) -> Option<(String, String)> {
    let other = |mnemonic: &str, operands: &str| Some((mnemonic.to_owned(), operands.to_owned()));
    // Add and subtract with a register that is extended.
    if word & 0x1fe0_0000 == 0x0b20_0000 {
        return extended(mnemonic, operands, word).map(|operands| (mnemonic.to_owned(), operands));
    }
    // An element in all places of a vector.
    if word & 0xbfe0_fc00 == 0x0e00_0400 {
        return other("dup", operands);
    }
    match (mnemonic, operands) {
        ("hint", "#0x20") => other("bti", ""),
        ("hint", "#0x22") => other("bti", "c"),
        ("hint", "#0x24") => other("bti", "j"),
        ("hint", "#0x26") => other("bti", "jc"),
        ("ushll", _) | ("ushll2", _) | ("sshll", _) | ("sshll2", _) => {
            let operands = operands.strip_suffix(", #0x0")?;
            let name = mnemonic.replace("ushll", "uxtl").replace("sshll", "sxtl");
            Some((name, operands.to_owned()))
        }
        ("mrs" | "msr", _) => {
            let (number, name) = SYSTEM_REGISTERS.iter().find(|names| operands.contains(names.0))?;
            Some((mnemonic.to_owned(), operands.replace(number, name)))
        }
        ("sys", _) => {
            let register = operands.rsplit(", ").next()?;
            let name = match word & 0xffff_ffe0 {
                0xd50b_7420 => "zva",
                0xd50b_7460 => "gva",
                0xd50b_7480 => "gzva",
                _ => return None,
            };
            Some(("dc".to_owned(), format!("{name}, {register}")))
        }
        ("fmov", _) => {
            let (register, number) = operands.split_once(", #")?;
            let number = format!("{:.18e}", number.parse::<f64>().ok()?);
            let (digits, power) = number.split_once('e')?;
            let power: i32 = power.parse().ok()?;
            let sign = if power < 0 { '-' } else { '+' };
            Some(("fmov".to_owned(), format!("{register}, #{digits}e{sign}{:02}", power.abs())))
        }
        _ => None,
    }
}

/// The operands of an addition with a register that is extended: its name and how.
fn extended(mnemonic: &str, operands: &str, word: u32) -> Option<String> {
    const HOW: [&str; 8] = ["uxtb", "uxth", "uxtw", "uxtx", "sxtb", "sxth", "sxtw", "sxtx"];
    let before = if matches!(mnemonic, "cmp" | "cmn") { 1 } else { 2 };
    let mut text: String = operands.split(", ").take(before).collect::<Vec<_>>().join(", ");
    let (number, option, shift) = (word >> 16 & 31, word >> 13 & 7, word >> 10 & 7);
    let is_64 = word >> 31 == 1;
    let letter = if option & 3 == 3 && is_64 { 'x' } else { 'w' };
    let register = if number == 31 { format!("{letter}zr") } else { format!("{letter}{number}") };
    let _ = write!(text, ", {register}");
    // With the stack pointer the plain width is a shift, which is left out if it is none.
    let has_stack = word & 31 == 31 && word >> 29 & 1 == 0 || word >> 5 & 31 == 31;
    let is_plain = option == 2 + (word >> 31) && has_stack;
    let how = if is_plain { "lsl" } else { HOW[option as usize] };
    match (is_plain, shift) {
        (true, 0) => {}
        (false, 0) => _ = write!(text, ", {how}"),
        (_, shift) => _ = write!(text, ", {how} #{shift}"),
    }
    Some(text)
}

/// The text with its hexadecimal numbers in decimal.
fn in_decimal(text: &str) -> String {
    let mut parts = text.split('#');
    let mut all = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let end = part.find([',', ']', ' ']).unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let (sign, digits) = number.strip_prefix('-').map_or(("", number), |digits| ("-", digits));
        match digits.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(value) => _ = write!(all, "#{sign}{value}{rest}"),
            None => _ = write!(all, "#{part}"),
        }
    }
    all
}
