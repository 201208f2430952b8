//! The words of a print format.

use super::PrintFormatError;

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A name, or a word of C.
    Name(&'a str),
    /// A number, its suffix taken off.
    Number(u64),
    /// A text in quotes, as it is spelled.
    Text(&'a str),
    /// An operator, a bracket or a comma.
    Sign(&'static str),
}

/// Signs, those of two characters first. `...` never occurs.
const SIGNS: [&str; 33] = [
    "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "(", ")", "[", "]", "{", "}", ",", "?", ":", "+",
    "-", "*", "/", "%", "<", ">", "=", "!", "~", "&", "|", "^", ";", ".",
];

/// All words of `text`, and where each starts.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token<'_>)>, PrintFormatError> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        let rest = &text[at..];
        let token = match byte {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'"' | b'\'' => {
                let inside = quoted(&rest[1..], byte)
                    .ok_or(PrintFormatError::Syntax { at, what: "a text that does not end" })?;
                at += inside.len() + 2;
                if byte == b'"' { Token::Text(inside) } else { Token::Name(inside) }
            }
            byte if byte.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                at += end;
                Token::Number(number(&rest[..end]))
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                at += end;
                Token::Name(&rest[..end])
            }
            _ => {
                let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
                let sign = sign.ok_or(PrintFormatError::Syntax { at, what: "an unexpected character" })?;
                at += sign.len();
                Token::Sign(sign)
            }
        };
        out.push((start, token));
    }
    Ok(out)
}

/// What stands before the closing quote; a quote behind a backslash does not close.
fn quoted(text: &str, quote: u8) -> Option<&str> {
    let mut escaped = false;
    let end = text.bytes().position(|byte| {
        let closes = byte == quote && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })?;
    text.get(..end)
}

/// A number of C, in base 8, 10 or 16, without its suffix; the largest one where it is too large,
/// as `strtoull` has it.
fn number(word: &str) -> u64 {
    let word = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let (digits, radix) = match word.strip_prefix("0x").or(word.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if word.len() > 1 && word.starts_with('0') => (&word[1..], 8),
        None => (word, 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    if end == 0 {
        return 0;
    }
    u64::from_str_radix(&digits[..end], radix).unwrap_or(u64::MAX)
}

/// A text with the escapes of C replaced.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks numbers of all bases, texts with quotes in them, and signs of two characters.
    #[test]
    fn words() {
        let all: Vec<Token<'_>> = tokens("0x1fUL 010 7 \"a\\\"b\" REC->x>>2")
            .unwrap()
            .into_iter()
            .map(|(_, token)| token)
            .collect();
        let (name, sign) = (Token::Name, Token::Sign);
        let expected = [
            Token::Number(31),
            Token::Number(8),
            Token::Number(7),
            Token::Text("a\\\"b"),
            name("REC"),
            sign("->"),
            name("x"),
            sign(">>"),
            Token::Number(2),
        ];
        assert_eq!(all, expected);
        assert!(tokens("\"open").is_err() && tokens("a @ b").is_err());
    }
}
