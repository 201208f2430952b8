//! The conversions of a format, and numbers and texts in their shape, as C's printf has them.

use super::lex::unescaped;

/// Nothing is made wider than this.
const MAX_WIDTH: usize = 4096;

/// A part of a format's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FormatPiece {
    Text(String),
    Conversion(Conversion),
}

/// A width or a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Number(usize),
    /// `*`: an argument tells.
    Argument,
}

/// What a conversion makes of its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConversionKind {
    Text,
    Character,
    /// `d` or `i`.
    Signed,
    Unsigned,
    /// `x`, or `X` if it is set.
    Hex(bool),
    Octal,
    Pointer,
    /// `%ps`, or `%pS` (with the offset) if it is set.
    Function(bool),
    /// `%pM`, or `%pm` (without colons) if it is set.
    Mac(bool),
    /// What follows `%p`: `I4`, `i6`, `I6c`, `ISpc` ...
    Address(String),
    Uuid,
    /// `%*pbl`.
    BitList,
}

/// `%-08lx` and the like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    pub(super) left: bool,
    pub(super) zeros: bool,
    pub(super) alternative: bool,
    /// What positive numbers begin with: `+`, a space, or nothing.
    pub(super) plus: &'static str,
    pub(super) width: Option<Extent>,
    pub(super) precision: Option<Extent>,
    /// How many bits of a number are printed.
    pub(super) bits: u32,
    pub(super) kind: ConversionKind,
}

impl FormatPiece {
    /// How many arguments it takes.
    pub(super) fn arguments(&self) -> usize {
        let FormatPiece::Conversion(conversion) = self else { return 0 };
        let star = |extent: Option<Extent>| usize::from(extent == Some(Extent::Argument));
        1 + star(conversion.width) + star(conversion.precision)
    }
}

/// Divides a format's text.
pub(super) fn pieces(text: &str) -> Vec<FormatPiece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        push_text(&mut pieces, &unescaped(before));
        if let Some(after) = after.strip_prefix('%') {
            push_text(&mut pieces, "%");
            rest = after;
            continue;
        }
        let (conversion, len) = conversion(after);
        match conversion {
            Some(conversion) => pieces.push(FormatPiece::Conversion(conversion)),
            // As libtraceevent shows what it does not know.
            None => {
                let unknown = after[len..].chars().next();
                push_text(&mut pieces, &unknown.map(|c| format!(">{c}<")).unwrap_or_default());
                rest = &after[len + unknown.map_or(0, char::len_utf8)..];
                continue;
            }
        }
        rest = &after[len..];
    }
    push_text(&mut pieces, &unescaped(rest));
    pieces
}

fn push_text(pieces: &mut Vec<FormatPiece>, text: &str) {
    match pieces.last_mut() {
        Some(FormatPiece::Text(last)) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => pieces.push(FormatPiece::Text(text.to_owned())),
    }
}

/// The conversion after a `%`, and how many bytes it has. Without one, the bytes before what is not
/// known.
fn conversion(text: &str) -> (Option<Conversion>, usize) {
    let mut found = Conversion {
        left: false,
        zeros: false,
        alternative: false,
        plus: "",
        width: None,
        precision: None,
        bits: 32,
        kind: ConversionKind::Text,
    };
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&flag) = bytes.get(at) {
        match flag {
            b'-' => found.left = true,
            b'0' => found.zeros = true,
            b'#' => found.alternative = true,
            b'+' => found.plus = "+",
            b' ' if found.plus.is_empty() => found.plus = " ",
            b' ' => {}
            _ => break,
        }
        at += 1;
    }
    found.width = extent(bytes, &mut at);
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        found.precision = extent(bytes, &mut at).or(Some(Extent::Number(0)));
    }
    while let Some(&length) = bytes.get(at) {
        match length {
            b'h' => found.bits = (found.bits / 2).max(8),
            b'l' | b'L' | b'z' | b'Z' | b'j' | b't' => found.bits = 64,
            _ => break,
        }
        at += 1;
    }
    let kind = match bytes.get(at) {
        Some(b's') => ConversionKind::Text,
        Some(b'c') => ConversionKind::Character,
        Some(b'd' | b'i') => ConversionKind::Signed,
        Some(b'u') => ConversionKind::Unsigned,
        Some(b'x') => ConversionKind::Hex(false),
        Some(b'X') => ConversionKind::Hex(true),
        Some(b'o') => ConversionKind::Octal,
        Some(b'p') => {
            let (kind, len) = pointer(&text[at + 1..]);
            at += len;
            kind
        }
        _ => return (None, at),
    };
    found.kind = kind;
    (Some(found), at + 1)
}

fn extent(bytes: &[u8], at: &mut usize) -> Option<Extent> {
    if bytes.get(*at) == Some(&b'*') {
        *at += 1;
        return Some(Extent::Argument);
    }
    let mut number = None;
    while let Some(digit) = bytes.get(*at).filter(|byte| byte.is_ascii_digit()) {
        number = Some((number.unwrap_or(0) * 10 + usize::from(digit - b'0')).min(MAX_WIDTH));
        *at += 1;
    }
    number.map(Extent::Number)
}

/// What `%p` with these letters after it means, and how many of them belong to it.
fn pointer(after: &str) -> (ConversionKind, usize) {
    let starts = |words: &[&str]| words.iter().find(|word| after.starts_with(**word)).map(|word| word.len());
    if let Some(len) = starts(&["I4", "i4", "I6c", "I6", "i6", "ISpc", "ISpfsc", "ISfsc", "ISc", "ISp", "IS"])
    {
        return (ConversionKind::Address(after[..len].to_owned()), len);
    }
    if let Some(len) = starts(&["Ub", "UB", "Ul", "UL", "U"]) {
        return (ConversionKind::Uuid, len);
    }
    if after.starts_with("bl") {
        return (ConversionKind::BitList, 2);
    }
    match after.bytes().next() {
        Some(b'F' | b'S') => (ConversionKind::Function(true), 1),
        Some(b'f' | b's') => (ConversionKind::Function(false), 1),
        Some(b'M') => (ConversionKind::Mac(false), 1),
        Some(b'm') => (ConversionKind::Mac(true), 1),
        Some(byte) if byte.is_ascii_alphanumeric() => (ConversionKind::Pointer, 1),
        _ => (ConversionKind::Pointer, 0),
    }
}

impl Conversion {
    /// A number in this shape.
    pub(super) fn number(
        &self,
        value: u64,
        width: Option<usize>,
        precision: Option<usize>,
        out: &mut String,
    ) {
        let unused = 64 - self.bits;
        let unsigned = value << unused >> unused;
        let (sign, prefix, digits) = match self.kind {
            ConversionKind::Signed => {
                let signed = (value << unused).cast_signed() >> unused;
                (if signed < 0 { "-" } else { self.plus }, "", signed.unsigned_abs().to_string())
            }
            ConversionKind::Hex(upper) => {
                let digits = if upper { format!("{unsigned:X}") } else { format!("{unsigned:x}") };
                let shown = self.alternative && unsigned != 0;
                (
                    "",
                    if !shown {
                        ""
                    } else if upper {
                        "0X"
                    } else {
                        "0x"
                    },
                    digits,
                )
            }
            ConversionKind::Octal => {
                ("", if self.alternative && unsigned != 0 { "0" } else { "" }, format!("{unsigned:o}"))
            }
            ConversionKind::Pointer | ConversionKind::Function(_) if value == 0 => {
                ("", "", "(nil)".to_owned())
            }
            ConversionKind::Pointer | ConversionKind::Function(_) => ("", "0x", format!("{value:x}")),
            _ => ("", "", unsigned.to_string()),
        };
        let mut zeros = precision.unwrap_or(1).saturating_sub(digits.len()).min(MAX_WIDTH);
        let taken = sign.len() + prefix.len() + digits.len();
        let width = width.unwrap_or(0).min(MAX_WIDTH);
        if self.zeros && !self.left && precision.is_none() && digits != "(nil)" {
            zeros = zeros.max(width.saturating_sub(taken));
        }
        let body = format!("{sign}{prefix}{}{digits}", "0".repeat(zeros));
        pad(&body, width, self.left, out);
    }

    /// A text in this shape. Precision and width count bytes, as C does.
    pub(super) fn text(&self, text: &str, width: Option<usize>, precision: Option<usize>, out: &mut String) {
        let mut end = precision.unwrap_or(text.len()).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        pad(&text[..end], width.unwrap_or(0).min(MAX_WIDTH), self.left, out);
    }
}

fn pad(body: &str, width: usize, left: bool, out: &mut String) {
    let blanks = width.saturating_sub(body.len());
    if !left {
        out.extend(std::iter::repeat_n(' ', blanks));
    }
    out.push_str(body);
    if left {
        out.extend(std::iter::repeat_n(' ', blanks));
    }
}
