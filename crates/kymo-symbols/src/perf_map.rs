//! `/tmp/perf-PID.map`: names that a just-in-time compiler writes for its code.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::budget;
use super::locate;
use super::options::{Note, SymbolOptions};
use super::table::{Binding, SymbolTable, TableBuilder};
use super::user::Loaded;

/// Larger maps are read up to here.
const LARGEST: u64 = 512 << 20;
/// What a table keeps of a line beside its text.
const TABLE_BYTES_PER_LINE: u64 = 120;

/// Loads the map of a process, from `/tmp` or, if the process still runs in a container, from its `/tmp`.
pub(super) fn load(options: &SymbolOptions, pid: i32) -> Loaded {
    // The number is another process's here.
    if let Some(why) = options.foreign_files() {
        return why.into();
    }
    let own = locate::below_root(options, Path::new(&format!("/tmp/perf-{pid}.map")));
    let path = if own.exists() { own.clone() } else { inside_container(pid).unwrap_or_else(|| own.clone()) };
    match read(options, &path) {
        Ok((mut text, is_all)) => {
            // A table takes ten times the shortest lines that there are.
            let room = options.budget.reserve(0).map_or(0, |charge| charge.room_left());
            let whole = cut_to(&mut text, room) && is_all;
            let notes = if whole { Vec::new() } else { vec![cut_note(&path, text.len())] };
            Loaded { table: parse(text), notes, ..Loaded::default() }
        }
        Err(why) => Note(why).into(),
    }
}

fn cut_note(path: &Path, bytes: usize) -> Note {
    Note(format!(
        "{}: only its first {bytes} bytes were read; the rest is holes, or more than it may take",
        path.display()
    ))
}

/// Cuts the text to whole lines whose table fits into `room` bytes; whether all of it does.
pub(super) fn cut_to(text: &mut Vec<u8>, room: u64) -> bool {
    let mut left = room;
    let mut end = 0;
    for line in memchr::memchr_iter(b'\n', text) {
        let cost = TABLE_BYTES_PER_LINE + (line + 1 - end) as u64;
        let Some(rest) = left.checked_sub(cost) else {
            text.truncate(end);
            return false;
        };
        left = rest;
        end = line + 1;
    }
    true
}

/// The map as the process sees it: below its root, by its innermost pid.
fn inside_container(pid: i32) -> Option<PathBuf> {
    // Its name need not be UTF-8.
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?;
    let inner: i32 = inner.parse().ok()?;
    Some(PathBuf::from(format!("/proc/{pid}/root/tmp/perf-{inner}.map")))
}

/// What a compiler wrote to a file for profilers, and whether it is all. Holes and what comes after
/// them are left out.
///
/// # Errors
/// A sentence: the file is not there, or is not to be believed.
pub fn read_code_file(options: &SymbolOptions, path: &Path) -> Result<(Vec<u8>, bool), String> {
    match options.foreign_files() {
        Some(why) => Err(why.0),
        None => read(options, &locate::below_root(options, path)),
    }
}

/// The text, and whether it is all.
fn read(options: &SymbolOptions, path: &Path) -> Result<(Vec<u8>, bool), String> {
    let shown = path.display();
    let (mut file, metadata) = budget::open_no_link(path).map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => format!("{shown} is not a regular file and was not read"),
        ErrorKind::NotFound => {
            format!("no names for generated code: {shown}: {error}; start the program so that it writes them")
        }
        _ => format!("failed to read {shown}: {error}"),
    })?;
    // Anyone may write to /tmp: only names that root or this user wrote are believed.
    let me = std::fs::metadata("/proc/self").map(|m| m.uid()).unwrap_or(u32::MAX);
    if !options.force && metadata.uid() != 0 && metadata.uid() != me {
        return Err(format!("{shown} belongs to another user and was not read; -f reads it all the same"));
    }
    options.budget.admit(&metadata);
    budget::read_stored(&mut file, LARGEST).map_err(|error| format!("failed to read {shown}: {error}"))
}

/// Parses the map: `start size name` per line, numbers in hexadecimal. As in perf, names of one or two
/// characters do not count, and where code was replaced at the same address the order of lines decides.
pub(super) fn parse(mut text: Vec<u8>) -> SymbolTable {
    let mut found = Vec::new();
    let mut start = 0;
    while start < text.len() {
        // perf drops the last character of a line, be it the line's end or not.
        let end = memchr::memchr(b'\n', &text[start..]).map_or(text.len() - 1, |n| start + n);
        if let Some((address, size, name)) = parse_line(&text[start..end]) {
            found.push((address, size, (start + name) as u32));
        }
        if let Some(byte) = text.get_mut(end) {
            *byte = 0;
        }
        start = end + 1;
    }
    let mut builder = TableBuilder::new(text, false);
    for (address, size, name) in found {
        builder.insert(address, size, name, Binding::Global, 0);
    }
    builder.finish()
}

/// Start, size and where the name begins. As perf reads it, what is no number counts as 0: damaged lines become
/// symbols at low addresses, where nothing runs, but they take part in the shape of the search tree.
pub(super) fn parse_line(line: &[u8]) -> Option<(u64, u64, usize)> {
    let (address, used) = hex(line);
    let size_at = used + 1;
    if size_at + 2 >= line.len() {
        return None;
    }
    let (size, used) = hex(&line[size_at..]);
    let name_at = size_at + used + 1;
    (name_at + 2 < line.len()).then_some((address, size, name_at))
}

/// A hexadecimal number as C's `strtoull` takes it, and how many bytes it took.
fn hex(text: &[u8]) -> (u64, usize) {
    let blank = |c: &&u8| matches!(c, b' ' | b'\t' | 0x0b..=0x0d);
    let mut at = text.iter().take_while(blank).count();
    let negative = text.get(at) == Some(&b'-');
    if negative || text.get(at) == Some(&b'+') {
        at += 1;
    }
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_hexdigit);
    if text.get(at) == Some(&b'0') && matches!(text.get(at + 1), Some(b'x' | b'X')) && is_digit(at + 2) {
        at += 2;
    }
    if !is_digit(at) {
        return (0, 0);
    }
    let mut value = 0u64;
    let mut overflow = false;
    while is_digit(at) {
        overflow |= value >> 60 != 0;
        value = value << 4 | u64::from((text[at] as char).to_digit(16).unwrap_or(0));
        at += 1;
    }
    let value = if overflow { u64::MAX } else { value };
    (if negative { value.wrapping_neg() } else { value }, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks the accepted forms, the ignored ones, and a lookup in each.
    #[test]
    fn reads_lines() {
        let table = parse(
            b"1000 20 first function\n0x2000 0x10 py::f:/a.py\nnonsense\n3000 10 ab\n4000 8 last\n".to_vec(),
        );
        assert_eq!(table.find(0x101f).map(|s| s.name), Some("first function"));
        assert_eq!(table.find(0x1020), None);
        assert_eq!(table.find(0x2000).map(|s| s.name), Some("py::f:/a.py"));
        assert_eq!(table.find(0x3000), None);
        assert_eq!(table.find(0x4007).map(|s| s.name), Some("last"));
    }

    /// Checks that replaced code is answered from perf's tree: the first entry stays at the root.
    #[test]
    fn replaced_code_keeps_the_entry_nearest_to_the_root() {
        let table = parse(b"1000 100 first\n1000 100 second\n".to_vec());
        assert_eq!(table.find(0x1050).map(|s| s.name), Some("first"));
    }

    proptest! {
        /// Checks that no text makes the parser or the lookups panic, and that a found symbol covers the address.
        #[test]
        fn survives_any_text(lines in proptest::collection::vec((0u64..64, 0u64..32), 0..40)) {
            let text: String = lines.iter().map(|(a, s)| format!("{a:x} {s:x} name\n")).collect();
            let table = parse(text.into_bytes());
            for address in 0..128 {
                if let Some(symbol) = table.find(address) {
                    let empty = symbol.start == symbol.end && symbol.start == address;
                    prop_assert!(empty || (symbol.start..symbol.end).contains(&address));
                }
            }
        }
    }
}
