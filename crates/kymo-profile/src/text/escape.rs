//! Names of the recorded machine, shown: the one place that decides how.
//!
//! Whoever names a thread, a file or a function chooses its bytes. A terminal obeys some of them, a browser turns the
//! direction of writing at others, some take no room at all: they are written out, not sent. For people, tables, folded
//! stacks and pictures: [`shown`]. For programs: [`json`], whose strings stay exact.
//!
//! Invariants:
//! - **T1** Two texts that differ are shown differently: a backslash that could be read as an escape is doubled.
//! - **T2** Nothing that comes out makes a terminal act, turns the direction of writing, or is invisible.
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write;
use std::io;

/// Text with everything written out that a terminal would act on or nobody could see: `\n`, `\t`, `\x1b`, `\u{202e}`.
/// Other text is as it was, a backslash too, unless one of those could be meant.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

/// Stands for the `;` in names of folded stacks, and looks like it: U+FF1B, the wide semicolon.
pub const SEMICOLON_IN_STACK: char = '\u{ff1b}';

/// The same for a frame of a folded stack, where a `;` separates frames: one in the name, as in
/// `[u64; 512]`, becomes [`SEMICOLON_IN_STACK`].
pub fn shown_in_stack(text: &str) -> Cow<'_, str> {
    match escaped(text, &[SEMICOLON_IN_STACK]) {
        shown if shown.contains(';') => {
            Cow::Owned(shown.replace(';', SEMICOLON_IN_STACK.encode_utf8(&mut [0; 4])))
        }
        shown => shown,
    }
}

fn escaped<'t>(text: &'t str, also: &[char]) -> Cow<'t, str> {
    let is_escaped = |c: char| acts(c) || also.contains(&c);
    let is_plain = |c: char| c != '\\' && !is_escaped(c);
    // Nearly all text is of these bytes, which are found without a look at each character.
    let is_common = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'\\';
    let is_all_common = text.bytes().fold(true, |all, byte| all & is_common(byte));
    if is_all_common && (also.is_empty() || !text.contains(also)) || text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        match c {
            '\\' if rest.starts_with(is_escaped) || could_be_escape(rest) => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_escaped(c) && u32::from(c) < 0x100 => {
                // SANITY: writing to a String cannot fail.
                write!(out, "\\x{:02x}", u32::from(c)).expect("writing to a string");
            }
            c if is_escaped(c) => {
                // SANITY: as above.
                write!(out, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string");
            }
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Whether a backslash before this text looks like one of the escapes made here. `\x2d`, as in the names of systemd's
/// units, does not: a `-` is never written out.
fn could_be_escape(rest: &str) -> bool {
    let hex = |digits: &str| u8::from_str_radix(digits, 16).ok();
    match rest.chars().next() {
        Some('n' | 't' | 'r' | '\\') => true,
        Some('x') => rest.get(1..3).and_then(hex).is_some_and(|byte| acts(char::from(byte))),
        Some('u') => rest[1..].starts_with('{'),
        _ => false,
    }
}

/// Whether a character does something, or cannot be seen. Sources: Unicode's categories Cc, Cf, Zl and Zp, the fillers
/// that have no picture, and what XML cannot hold.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}'
            | '\u{8e2}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// A value as JSON: its strings say exactly what they held, with `\u` escapes for what acts or cannot be seen.
///
/// # Errors
/// A value that is no JSON, such as a map whose keys are no strings.
pub fn json<T: Serialize + ?Sized>(value: &T) -> io::Result<String> {
    Ok(json_escaped(serde_json::to_string(value)?))
}

/// The same over several lines.
///
/// # Errors
/// As [`json`].
pub fn json_pretty<T: Serialize + ?Sized>(value: &T) -> io::Result<String> {
    Ok(json_escaped(serde_json::to_string_pretty(value)?))
}

/// Such characters are in strings only, where an escape means the same.
fn json_escaped(text: String) -> String {
    let is_escaped = |c: char| c != '\n' && acts(c);
    if !text.contains(is_escaped) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut units = [0; 2];
    for c in text.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut units) {
                // SANITY: writing to a String cannot fail.
                write!(out, "\\u{unit:04x}").expect("writing to a string");
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Columns that a table pads to. The formatting of numbers and texts takes no more than 65,535.
pub const WIDEST_COLUMN: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that what a terminal acts on is written out, and that ordinary names stay as they are.
    #[test]
    fn control_characters_are_written_out() {
        assert_eq!(shown("a\x1b[31m\nb\t\r\x7f\u{9b}"), "a\\x1b[31m\\nb\\t\\r\\x7f\\x9b");
        assert_eq!(shown("evil\u{202e}gnp.exe"), "evil\\u{202e}gnp.exe");
        assert_eq!(shown("a\u{200b}b\u{feff}\u{e0041}"), "a\\u{200b}b\\u{feff}\\u{e0041}");
        assert_eq!(shown_in_stack("[u64; 512]\u{ff1b}"), "[u64\u{ff1b} 512]\\u{ff1b}");
        for plain in ["main", "Vec<u8>::push", "größe 漢字", "dev-sda\\x2d1", "C:\\dir", "\u{fffd}"] {
            assert_eq!(shown(plain), plain);
        }
    }

    /// Checks that a name with a written escape is not shown as the one with the character itself.
    #[test]
    fn names_that_spell_an_escape_stay_apart() {
        let names = [
            "\x1b",
            "\\x1b",
            "\\\x1b",
            "\\\\x1b",
            "\n",
            "\\n",
            "\\\\n",
            "\u{202e}",
            "\\u{202e}",
            ";",
            "\\x3b",
        ];
        let all: std::collections::HashSet<_> = names.iter().map(|name| shown_in_stack(name)).collect();
        assert_eq!(all.len(), names.len(), "{all:?}");
    }

    /// What a reader of [`shown`] takes it for.
    fn read_back(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            if c != '\\' || !could_be_escape(rest) {
                out.push(c);
                continue;
            }
            let (value, used) = match rest.as_bytes()[0] {
                b'n' => ('\n', 1),
                b't' => ('\t', 1),
                b'r' => ('\r', 1),
                b'x' => (char::from(u8::from_str_radix(&rest[1..3], 16).unwrap()), 3),
                b'u' => {
                    let end = rest.find('}').unwrap();
                    (char::from_u32(u32::from_str_radix(&rest[2..end], 16).unwrap()).unwrap(), end + 1)
                }
                _ => ('\\', 1),
            };
            out.push(value);
            rest = &rest[used..];
        }
        out
    }

    proptest! {
        /// Checks that every text can be read back from what is shown of it, and that JSON says what it said.
        #[test]
        fn nothing_is_merged(text in "[\\\\nxu1b3{}2e;\u{ff1b}\u{1b}\u{202e}\u{9b}\n\u{e0001}a-]{0,12}") {
            let stack = shown_in_stack(&text);
            prop_assert!(!stack.chars().any(|c| acts(c) || c == ';'));
            let stack = stack.replace(SEMICOLON_IN_STACK, ";");
            prop_assert_eq!(read_back(&stack), text.clone());
            let json = json(&text).unwrap();
            prop_assert!(!json.chars().any(acts), "{}", json);
            prop_assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        }
    }
}
