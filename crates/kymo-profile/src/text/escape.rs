//! Names of the recorded machine on this machine's terminal.
//!
//! Whoever names a thread, a file or a function chooses its bytes, and a terminal obeys some of them: they are shown,
//! not sent.

use std::borrow::Cow;
use std::fmt::Write;

/// Text with everything that a terminal would act on written out: `\n`, `\t`, `\x1b`, and marks that turn the
/// direction of writing. Other text, a backslash too, is as it was.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => {
                // SANITY: writing to a String cannot fail.
                write!(out, "\\x{:02x}", u32::from(c)).expect("writing to a string");
            }
            c if acts(c) => {
                write!(out, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string");
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn acts(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what a terminal acts on is written out, and that ordinary names stay as they are.
    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(shown("a\x1b[31m\nb\t\r\x7f\u{9b}"), "a\\x1b[31m\\nb\\t\\r\\x7f\\x9b");
        assert_eq!(shown("evil\u{202e}gnp.exe"), "evil\\u{202e}gnp.exe");
        for plain in ["main", "Vec<u8>::push", "größe 漢字", "dev-sda\\x2d1", "\u{fffd}"] {
            assert!(matches!(shown(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
    }
}
