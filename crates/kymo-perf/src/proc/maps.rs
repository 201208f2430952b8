//! The lines of /proc/PID/maps.

use std::slice::Split;

/// One mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapsEntry<'a> {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// PROT_READ 1, PROT_WRITE 2, PROT_EXEC 4.
    pub prot: u32,
    /// MAP_SHARED 1 or MAP_PRIVATE 2.
    pub flags: u32,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file's device, major number.
    pub major: u32,
    /// The file's device, minor number.
    pub minor: u32,
    /// The file's inode.
    pub inode: u64,
    /// The file, a name in brackets, or empty for anonymous memory. A newline in it appears as
    /// `\012`.
    pub path: &'a [u8],
}

/// Iterates over the mappings in the text of a maps file; lines that make no sense are left out.
#[derive(Clone, Debug)]
pub struct Mappings<'a> {
    lines: Split<'a, u8, fn(&u8) -> bool>,
}

impl<'a> Mappings<'a> {
    /// The mappings in this text.
    pub fn new(text: &'a [u8]) -> Mappings<'a> {
        Mappings { lines: text.split(|byte| *byte == b'\n') }
    }
}

impl<'a> Iterator for Mappings<'a> {
    type Item = MapsEntry<'a>;

    fn next(&mut self) -> Option<MapsEntry<'a>> {
        self.lines.find_map(parse)
    }
}

/// The digits at the start of `text` in the given base, up to `stop`, and what follows it.
fn number(text: &[u8], base: u64, stop: u8) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (i, &byte) in text.iter().enumerate() {
        if byte == stop && i > 0 {
            return Some((value, &text[i + 1..]));
        }
        let digit = (byte as char).to_digit(base as u32)?;
        value = value.checked_mul(base)?.checked_add(digit.into())?;
    }
    None
}

fn parse(line: &[u8]) -> Option<MapsEntry<'_>> {
    let (start, rest) = number(line, 16, b'-')?;
    let (end, rest) = number(rest, 16, b' ')?;
    let (perms, rest) = rest.split_at_checked(5)?;
    let (offset, rest) = number(rest, 16, b' ')?;
    let (major, rest) = number(rest, 16, b':')?;
    let (minor, rest) = number(rest, 16, b' ')?;
    // An anonymous mapping may end with its inode.
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    let inode = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let path = &rest[digits..];
    let path = &path[path.iter().take_while(|&&b| b == b' ').count()..];
    let prot =
        u32::from(perms[0] == b'r') + 2 * u32::from(perms[1] == b'w') + 4 * u32::from(perms[2] == b'x');
    let flags = if perms[3] == b's' { 1 } else { 2 };
    let (major, minor) = (u32::try_from(major).ok()?, u32::try_from(minor).ok()?);
    (start < end).then_some(MapsEntry { start, end, prot, flags, offset, major, minor, inode, path })
}

#[cfg(test)]
mod tests {
    use super::{Mappings, MapsEntry};
    use proptest::prelude::*;

    /// Checks a file with spaces, a name in brackets, anonymous memory and a line that makes no
    /// sense.
    #[test]
    fn lines() {
        let text = b"7f00-7f10 r-xp 00001000 fe:01 1234                       /tmp/a b (deleted)\n\
            nonsense\n\
            8000-9000 rw-s 00000000 00:00 0 \n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";
        let found: Vec<MapsEntry> = Mappings::new(text).collect();
        assert_eq!(found.len(), 3);
        let first = MapsEntry {
            start: 0x7f00,
            end: 0x7f10,
            prot: 5,
            flags: 2,
            offset: 0x1000,
            major: 0xfe,
            minor: 1,
            inode: 1234,
            path: b"/tmp/a b (deleted)",
        };
        assert_eq!(found[0], first);
        assert_eq!((found[1].prot, found[1].flags, found[1].path), (3, 1, &b""[..]));
        assert_eq!((found[2].start, found[2].path), (0xffff_ffff_ff60_0000, &b"[vsyscall]"[..]));
    }

    /// Checks that this process's own program is among its mappings.
    #[test]
    fn own_program() {
        let text = crate::proc::maps(std::process::id() as i32);
        let exe = std::env::current_exe().unwrap();
        let exe = exe.as_os_str().as_encoded_bytes();
        assert!(Mappings::new(&text).any(|m| m.path == exe && m.prot & 4 != 0));
    }

    proptest! {
        /// Checks that no text makes the parser panic, also when it looks like a maps file.
        #[test]
        fn any_text(text in "([0-9a-f]{0,20}-[0-9a-f]{0,20} [rwxps-]{0,5} [0-9a-f ]{0,30}:[0-9 ]{0,9}[^\n]{0,5}\n?){0,4}") {
            let _ = Mappings::new(text.as_bytes()).count();
        }
    }
}
