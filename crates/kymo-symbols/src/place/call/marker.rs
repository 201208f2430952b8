//! Arguments of markers (USDT): where the assembler says that they are.
//!
//! ```text
//!  "-4@%edi 8@-16(%rbp) 8@$7"   -->   arg1: the low 4 bytes of rdi, signed | arg2: 8 bytes at rbp - 16 | arg3: refused, it is always 7
//! ```
//! Each is `SIZE@OPERAND`: a size in bytes, below 0 of numbers with a sign, and an operand as the assembler writes it for x86-64. They hold at the marker itself,
//! which is where a probe on it stands. Source: <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>.

use super::super::syntax;
use super::super::value::ValueKind;
use super::fetch::Fetch;
use super::register::Register;

/// More than `<sys/sdt.h>` can say.
const MOST: usize = 12;

/// The arguments of a marker, each with its name (`arg1`, ...), or the reason why it cannot be read.
pub fn marker_arguments(text: &str) -> Vec<Result<Fetch, String>> {
    let each = text.split_ascii_whitespace().take(MOST).enumerate();
    each.map(|(number, word)| {
        let name = format!("arg{}", number + 1);
        argument(&name, word).map_err(|why| format!("`{name}` is `{word}`: {why}"))
    })
    .collect()
}

fn argument(name: &str, word: &str) -> Result<Fetch, String> {
    let (size, operand) = word.split_once('@').unwrap_or(("8", word));
    if size.ends_with('f') {
        return Err("a floating-point number, and only general registers and memory are read".to_owned());
    }
    let size: i8 = size.parse().map_err(|_| "its size is no number".to_owned())?;
    let len_bytes = size.unsigned_abs();
    if !matches!(len_bytes, 1 | 2 | 4 | 8) {
        return Err("no number has this size".to_owned());
    }
    let (register, steps, bits) = place(operand)?;
    let kind = if size < 0 { ValueKind::Signed } else { ValueKind::Unsigned };
    // The second byte of a register is read with the first.
    let len_bytes = if bits.is_some() { len_bytes.max(2) } else { len_bytes };
    let sign = if size < 0 { "signed" } else { "unsigned" };
    let type_name = format!("{sign}, {} bytes", size.unsigned_abs());
    Ok(Fetch { name: name.to_owned(), register, steps, len_bytes, bits, kind, text: None, type_name })
}

type At = (Register, Vec<i32>, Option<(u8, u8)>);

/// A register, or memory at a distance from what a register holds.
fn place(operand: &str) -> Result<At, String> {
    if let Some(number) = operand.strip_prefix('$') {
        return Err(format!("it is always {number}"));
    }
    if let Some(name) = operand.strip_prefix('%') {
        if name.contains(':') {
            return Err("memory of a segment is not read".to_owned());
        }
        let (register, bits) = part_of_register(name).ok_or("the register is none of the general ones")?;
        return Ok((register, Vec::new(), bits));
    }
    let Some((distance, base)) = operand.strip_suffix(')').and_then(|inner| inner.split_once('(')) else {
        return Err("its address is fixed, which is not read; watch it by its name".to_owned());
    };
    if base.contains(',') {
        return Err("an address of two registers is not read".to_owned());
    }
    let name = base.strip_prefix('%').ok_or("its address is in no register")?;
    if matches!(name, "rip" | "eip") {
        return Err("its address is fixed, which is not read; watch it by its name".to_owned());
    }
    let register = Register::named(name).ok_or("the register is none of the general ones")?;
    let distance = if distance.is_empty() { Some(0) } else { number(distance) };
    Ok((register, vec![distance.ok_or("the distance from the register is no number")?], None))
}

/// A number as the assembler writes it.
fn number(text: &str) -> Option<i32> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = i64::try_from(syntax::number(digits)?).ok()?;
    i32::try_from(number * sign).ok()
}

/// `edi`, `dil`, `r8d`, `ah`: the whole register, and the bits that are meant where these are not the lowest.
fn part_of_register(name: &str) -> Option<(Register, Option<(u8, u8)>)> {
    if let Some(register) = Register::named(name) {
        return Some((register, None));
    }
    if let Some(high) = name.strip_suffix('h').filter(|rest| matches!(*rest, "a" | "b" | "c" | "d")) {
        return Some((Register::named(&format!("r{high}x"))?, Some((8, 8))));
    }
    let whole = match name.strip_prefix('r') {
        // r8d, r8w, r8b
        Some(rest) => format!("r{}", rest.strip_suffix(['d', 'w', 'b', 'l'])?),
        None => match name {
            "al" | "bl" | "cl" | "dl" => format!("r{}x", &name[..1]),
            "sil" | "dil" | "bpl" | "spl" => format!("r{}", &name[..2]),
            "ax" | "bx" | "cx" | "dx" | "si" | "di" | "bp" | "sp" => format!("r{name}"),
            _ => format!("r{}", name.strip_prefix('e')?),
        },
    };
    Some((Register::named(&whole)?, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks registers of every width, memory, signs, and sizes that are left out.
    #[test]
    fn what_is_read() {
        let text =
            "-4@%edi 8@%rax 2@%r9w 1@%dil -1@%ah 8@-16(%rbp) 4@(%rdx) -8@0x20(%r12) %rsi 4@%ebx 1@%r15b";
        let found: Vec<_> = marker_arguments(text).into_iter().map(Result::unwrap).collect();
        let shape = |fetch: &Fetch| {
            let name = fetch.register.general().unwrap();
            (name, fetch.steps.clone(), fetch.len_bytes, fetch.is_signed(), fetch.bits)
        };
        let shapes: Vec<_> = found.iter().map(shape).collect();
        let expected = [
            ("rdi", vec![], 4, true, None),
            ("rax", vec![], 8, false, None),
            ("r9", vec![], 2, false, None),
            ("rdi", vec![], 1, false, None),
            ("rax", vec![], 2, true, Some((8, 8))),
            ("rbp", vec![-16], 8, false, None),
            ("rdx", vec![0], 4, false, None),
            ("r12", vec![32], 8, true, None),
            ("rsi", vec![], 8, false, None),
            ("rbx", vec![], 4, false, None),
            ("r15", vec![], 1, false, None),
        ];
        assert_eq!(shapes, expected);
        assert_eq!((found[0].name.as_str(), found[10].name.as_str()), ("arg1", "arg11"));
        assert_eq!(found[0].show(0xffff_fffb), "-5");
    }

    /// Checks that what is no place of a number is refused with its reason, and that the numbers of the others stay.
    #[test]
    fn what_is_not_read() {
        let text = "-4@$7 8f@%xmm0 8@%xmm1 4@counter(%rip) 8@(%rax,%rbx,8) 8@counter 3@%rax 8@%fs:16 x@%rax 8@1e3(%rax) 8@%rdi";
        let found = marker_arguments(text);
        let words = [
            "always 7",
            "floating-point",
            "none of the general",
            "fixed",
            "two registers",
            "fixed",
            "size",
            "segment",
            "no number",
            "distance",
        ];
        assert_eq!(found.len(), words.len() + 1);
        for (found, word) in found.iter().zip(words) {
            let why = found.as_ref().unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        assert_eq!(found[10].as_ref().unwrap().name, "arg11");
    }

    proptest! {
        /// Checks that no text makes it panic, and that what is read is within what probes can do.
        #[test]
        fn any_text(text in "([-+]?[0-9]{0,3}f?@)?[-$%(]?[-0-9a-z%(),: ]{0,40}") {
            for fetch in marker_arguments(&text).into_iter().flatten() {
                prop_assert!(matches!(fetch.len_bytes, 1 | 2 | 4 | 8) && fetch.steps.len() < 2);
                prop_assert!(fetch.register.general().is_some());
            }
        }
    }
}
