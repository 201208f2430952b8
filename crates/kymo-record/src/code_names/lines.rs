//! Which lines of a process's perf map are new.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Lines that are remembered of a process; real programs have some ten thousands.
const MOST_LINES: usize = 1 << 20;

/// The newest line of each address that was passed on.
#[derive(Debug, Default)]
pub(super) struct KnownLines {
    by_start: HashMap<u64, u64>,
    hasher: RandomState,
}

impl KnownLines {
    /// The whole lines of this text that say something new, in their order.
    pub(super) fn new_in(&mut self, text: &[u8]) -> Vec<u8> {
        let mut new = Vec::new();
        for line in text.split_inclusive(|&byte| byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            let hash = self.hasher.hash_one(line);
            let Some(start) = start_of(line) else { continue };
            if self.by_start.len() >= MOST_LINES && !self.by_start.contains_key(&start) {
                continue;
            }
            if self.by_start.insert(start, hash) != Some(hash) {
                new.extend_from_slice(line);
            }
        }
        new
    }

    /// Whether no line was passed on.
    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }
}

/// The address that a line begins with, hexadecimal with or without `0x`.
fn start_of(line: &[u8]) -> Option<u64> {
    let digits = line.strip_prefix(b"0x").unwrap_or(line);
    let end = digits.iter().position(|byte| !byte.is_ascii_hexdigit())?;
    u64::from_str_radix(std::str::from_utf8(&digits[..end]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that lines are told once, replaced code again, and cut lines not at all.
    #[test]
    fn each_line_once() {
        let mut known = KnownLines::default();
        assert_eq!(known.new_in(b"0x10 8 a\n20 8 b\n30 8 cu"), b"0x10 8 a\n20 8 b\n");
        assert_eq!(known.new_in(b"0x10 8 a\n20 8 b\n30 8 cut\n"), b"30 8 cut\n");
        assert_eq!(known.new_in(b"20 8 replaced\nno line\n\n"), b"20 8 replaced\n");
        assert_eq!(known.new_in(b"20 8 b\n20 8 b\n"), b"20 8 b\n");
        assert!(!known.is_empty() && KnownLines::default().is_empty());
    }
}
