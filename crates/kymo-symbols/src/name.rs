//! Names of any bytes and any length, as text.
//!
//! Invariant: two names that differ stay different: bytes that are no UTF-8 are written out, and what is cut off leaves
//! its length and its hash. (Of names beyond 64 KiB only as much is looked at.)

use std::borrow::Cow;
use std::fmt::Write;
use std::hash::Hasher;

/// Names up to this length are left whole. The longest ones of real programs (C++ with expression templates) are 10 KiB.
pub(super) const LONGEST_NAME: usize = 16 << 10;
/// What is looked at of a name.
const MOST_LOOKED_AT: usize = 64 << 10;
/// What stays of one that is longer than [`LONGEST_NAME`].
const KEPT: usize = 4 << 10;

/// The text that starts here and ends with a zero byte, or after `most` bytes.
pub(crate) fn text_at(strings: &[u8], offset: usize, most: usize) -> &[u8] {
    let rest = strings.get(offset..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(most)];
    &rest[..memchr::memchr(0, rest).unwrap_or(rest.len())]
}

/// The name that starts here, as far as it is looked at: a hostile table can name one endless
/// string a million times.
pub(crate) fn name_at(strings: &[u8], offset: usize) -> &[u8] {
    text_at(strings, offset, MOST_LOOKED_AT)
}

/// Whether an arena of zero-ended names has one that [`shortened`] would cut.
pub(super) fn has_long(arena: &[u8]) -> bool {
    arena.split(|&byte| byte == 0).any(|name| name.len() > LONGEST_NAME)
}

/// Whether [`shortened`] would give it as it is.
pub(super) fn is_plain(name: &[u8]) -> bool {
    name.len() <= LONGEST_NAME && std::str::from_utf8(name).is_ok()
}

/// The name as text: bytes that are no UTF-8 as `\\xff`, and of a long one the beginning, its length and its hash.
pub(crate) fn shortened(name: &[u8]) -> Cow<'_, str> {
    let looked_at = &name[..name.len().min(MOST_LOOKED_AT)];
    if is_plain(name)
        && let Ok(text) = std::str::from_utf8(name)
    {
        return Cow::Borrowed(text);
    }
    let head = if name.len() > LONGEST_NAME { &name[..KEPT] } else { name };
    let mut text = String::with_capacity(head.len() + 64);
    for chunk in head.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // SANITY: writing to a String cannot fail.
            write!(text, "\\x{byte:02x}").expect("writing to a string");
        }
    }
    if name.len() > LONGEST_NAME {
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write(looked_at);
        hasher.write_usize(name.len());
        let hash = hasher.finish();
        let more = if name.len() < MOST_LOOKED_AT { "" } else { " or more" };
        // SANITY: as above.
        write!(text, "...[{} bytes{more}, {hash:016x}]", name.len()).expect("writing to a string");
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that ordinary names stay, and that odd and long ones are bounded and differ where their bytes do.
    #[test]
    fn names_that_differ_stay_different() {
        for plain in ["main", "größe", "a<b>::c(d)"] {
            assert!(matches!(shortened(plain.as_bytes()), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(shortened(b"f\xff\xfe"), "f\\xff\\xfe");
        assert_ne!(shortened(b"f\xff"), shortened(b"f\xfe"));
        let mut long = vec![b'a'; 60_000];
        let first = shortened(&long).into_owned();
        long[59_000] = b'b';
        let second = shortened(&long).into_owned();
        assert_ne!(first, second);
        assert!(
            first.len() < KEPT + 64 && first.starts_with("aaaa") && first.contains("60000 bytes"),
            "{first}"
        );
    }
}
