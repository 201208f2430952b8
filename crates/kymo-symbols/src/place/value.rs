//! How to print the bytes of a place, and how to read a number that is compared with them.

use std::sync::Arc;

/// What the bytes of a place mean. Bytes are little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueKind {
    /// No type is known, or the type is larger than a number: an unsigned number up to 8 bytes, bytes beyond.
    Bytes,
    /// An unsigned integer.
    Unsigned,
    /// A signed integer, in two's complement.
    Signed,
    /// A floating-point number of 4 or 8 bytes.
    Float,
    /// An address.
    Pointer,
    /// 0 is false, anything else true.
    Bool,
    /// A character of 1 to 4 bytes.
    Char,
    /// Named numbers. Others are shown as numbers.
    Enum {
        /// The names with their numbers, in order of declaration.
        names: Arc<[(String, i128)]>,
        /// Whether the numbers are signed.
        signed: bool,
    },
    /// A few bits of the bytes.
    Bits {
        /// How many bits of the bytes lie below the field.
        shift: u32,
        /// How many bits it has, 1 to 64.
        width: u32,
        /// Whether the highest of them is a sign.
        signed: bool,
    },
}

impl ValueKind {
    /// The value as the program's language would write it: `-3`, `0x7f00`, `true`, `'a'`, `Idle`, `0.5`.
    pub fn show(&self, bytes: &[u8]) -> String {
        let number = self.number(bytes);
        match (self, number) {
            (ValueKind::Float, _) if bytes.len() == 4 => {
                f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).to_string()
            }
            (ValueKind::Float, Some(number)) if bytes.len() == 8 => f64::from_bits(number as u64).to_string(),
            (ValueKind::Pointer, Some(number)) => format!("{number:#x}"),
            (ValueKind::Bool, Some(number)) if number < 2 => (number == 1).to_string(),
            (ValueKind::Char, Some(number)) => match u32::try_from(number).ok().and_then(char::from_u32) {
                Some(c) if bytes.len() > 1 || c.is_ascii() => format!("{number} {c:?}"),
                _ => number.to_string(),
            },
            (ValueKind::Enum { names, .. }, Some(number)) => match names.iter().find(|(_, n)| *n == number) {
                Some((name, _)) => name.clone(),
                None => number.to_string(),
            },
            (ValueKind::Bytes | ValueKind::Float, _) if bytes.len() > 8 => hex(bytes),
            (_, Some(number)) => number.to_string(),
            (_, None) => hex(bytes),
        }
    }

    /// The value as a number, for conditions; nothing for more than 8 bytes or none. A float gives
    /// its bits.
    pub fn number(&self, bytes: &[u8]) -> Option<i128> {
        if bytes.is_empty() || bytes.len() > 8 {
            return None;
        }
        let mut word = [0u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let unsigned = u64::from_le_bytes(word);
        let (value, width, signed) = match self {
            ValueKind::Signed => (unsigned, bytes.len() as u32 * 8, true),
            ValueKind::Enum { signed, .. } => (unsigned, bytes.len() as u32 * 8, *signed),
            ValueKind::Bits { shift, width, signed } => {
                let width = (*width).clamp(1, 64);
                let value = unsigned.checked_shr(*shift).unwrap_or(0);
                (value & (u64::MAX >> (64 - width)), width, *signed)
            }
            _ => (unsigned, 64, false),
        };
        if !signed {
            return Some(i128::from(value));
        }
        let unused = 64 - width.clamp(1, 64);
        Some(i128::from(((value << unused) as i64) >> unused))
    }

    /// The number that a word of a condition means: `-3`, `0x10`, `true`, `null`, `'a'`, an enumerator's name.
    pub fn parse(&self, word: &str) -> Option<i128> {
        let word = word.trim();
        if let ValueKind::Enum { names, .. } = self {
            let last = |text: &str| super::near::last_segment(text).to_owned();
            if let Some((_, number)) = names.iter().find(|(name, _)| name == word || last(name) == last(word))
            {
                return Some(*number);
            }
        }
        match word {
            "true" => return Some(1),
            "false" | "null" | "NULL" | "nullptr" | "None" => return Some(0),
            _ => {}
        }
        if let Some(quoted) = word.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
            let mut letters = quoted.chars();
            return letters.next().filter(|_| letters.next().is_none()).map(|c| i128::from(u32::from(c)));
        }
        let (negative, digits) = match word.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, word),
        };
        let number = i128::from(super::syntax::number(digits)?);
        Some(if negative { -number } else { number })
    }
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    let end = if bytes.len() > 64 { " ..." } else { "" };
    format!("{}{end}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks how values are written, at the edges of each kind.
    #[test]
    fn values_are_written_as_the_program_would() {
        let names: Arc<[(String, i128)]> = [("Idle".to_owned(), 0), ("Broken".to_owned(), -1)].into();
        for (kind, bytes, shown) in [
            (ValueKind::Bytes, &[1u8, 2][..], "513"),
            (ValueKind::Bytes, &[0xab; 9], "ab ab ab ab ab ab ab ab ab"),
            (ValueKind::Unsigned, &[0xff; 8], "18446744073709551615"),
            (ValueKind::Signed, &[0xff; 8], "-1"),
            (ValueKind::Signed, &[0x80], "-128"),
            (ValueKind::Float, &1.5f32.to_le_bytes(), "1.5"),
            (ValueKind::Float, &(-0.25f64).to_le_bytes(), "-0.25"),
            (ValueKind::Pointer, &[0, 0x10, 0, 0, 0, 0, 0, 0], "0x1000"),
            (ValueKind::Bool, &[1], "true"),
            (ValueKind::Bool, &[7], "7"),
            (ValueKind::Char, b"a", "97 'a'"),
            (ValueKind::Char, &[0xe9], "233"),
            (ValueKind::Char, &[0xe9, 0, 0, 0], "233 'é'"),
            (ValueKind::Enum { names: Arc::clone(&names), signed: true }, &[0xff], "Broken"),
            (ValueKind::Enum { names: Arc::clone(&names), signed: true }, &[5], "5"),
            (ValueKind::Bits { shift: 3, width: 2, signed: false }, &[0b1_1000], "3"),
            (ValueKind::Bits { shift: 3, width: 2, signed: true }, &[0b1_1000], "-1"),
            (ValueKind::Unsigned, &[], ""),
        ] {
            assert_eq!(kind.show(bytes), shown, "{kind:?} {bytes:?}");
        }
        assert_eq!(ValueKind::Enum { names, signed: true }.parse("State::Broken"), Some(-1));
        assert_eq!(ValueKind::Signed.parse("-0x10"), Some(-16));
        assert_eq!(ValueKind::Pointer.parse("null"), Some(0));
        assert_eq!(ValueKind::Char.parse("'a'"), Some(97));
        assert_eq!(ValueKind::Bool.parse("maybe"), None);
    }
}
