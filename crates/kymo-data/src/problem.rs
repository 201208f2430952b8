//! What can be wrong with a recording: errors that end the reading, and damage that does not.

use crate::abi::record_name;
use std::io;

/// Damage or loss that was found while reading; everything else was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: a position as in [`RawRecord::position`](crate::RawRecord::position).
    pub position: u64,
    /// Type of the record there, if it is about a record.
    pub kind: Option<u32>,
    /// What is wrong and what that means for the reader, without the place.
    pub what: String,
    /// Something of the recording is missing: it is cut off or damaged. If not, it only has more
    /// than is known here, or less than its recorder had meant to write.
    pub is_damage: bool,
}

impl Problem {
    pub(crate) fn new(position: u64, kind: Option<u32>, what: impl Into<String>) -> Problem {
        Problem { position, kind, what: what.into(), is_damage: true }
    }

    /// One that is no damage.
    pub(crate) fn note(position: u64, kind: Option<u32>, what: impl Into<String>) -> Problem {
        Problem { is_damage: false, ..Problem::new(position, kind, what) }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at offset {:#x}", self.position)?;
        if let Some(kind) = self.kind {
            write!(f, ": {} ({kind})", record_name(kind))?;
        }
        write!(f, ": {}", self.what)
    }
}

/// Why a recording cannot be opened. The caller adds the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum OpenError {
    /// Nothing in it.
    #[error("the file is empty: the recorder wrote nothing into it; record again")]
    Empty,
    /// A directory that `perf record --threads` did not write; for callers, who open the files.
    #[error(
        "a directory without a file named `data`: only directories written by `perf record --threads` can be read"
    )]
    DirectoryWithoutData,
    /// Something else than a recording.
    #[error("not a perf.data file: it looks like {looks_like}")]
    NotPerfData { looks_like: String },
    /// Recorded on a big-endian machine.
    #[error("a perf.data file from a big-endian machine: only little-endian recordings can be read")]
    BigEndian,
    /// The format before 2010.
    #[error(
        "a perf.data file of version 1 (magic PERFFILE, before Linux 2.6.36): only version 2 can be read"
    )]
    Version1,
    /// It ends within its header.
    #[error("the perf.data header is cut off: the file has {len} bytes, the header needs {need}")]
    TruncatedHeader { len: u64, need: u64 },
    /// Neither the file form nor the pipe form.
    #[error("the perf.data header at byte 8 says it is {size} bytes long; a file has 104, a pipe has 16")]
    HeaderSize { size: u64 },
    /// An attr smaller than the first kernel's.
    #[error("the attr at byte {offset:#x} says it is {size} bytes long; the smallest ever is 64")]
    AttrSize { offset: u64, size: u64 },
    /// A section that is not in the file.
    #[error(
        "the {section} section, {size} bytes at byte {offset:#x}, reaches beyond the end of the file ({len} bytes)"
    )]
    SectionBeyondEnd { section: &'static str, offset: u64, size: u64, len: u64 },
    /// No event is described.
    #[error("the recording describes no event: {why}")]
    NoEvents { why: &'static str },
    /// The operating system could not read.
    #[error("reading at byte {offset:#x} failed")]
    Io { offset: u64, source: io::Error },
}

/// Why reading records ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system could not read.
    #[error("reading {stream} at byte {offset:#x} failed")]
    Io {
        /// Which file of the recording.
        stream: String,
        /// Where.
        offset: u64,
        /// What it said.
        source: io::Error,
    },
    /// It holds more than its reader spends memory on; in words for people.
    #[error("{0}")]
    TooMuch(String),
}

/// What the first bytes of something that is no recording look like, in words for an error message.
pub(crate) fn looks_like(start: &[u8]) -> String {
    let known: &[(&[u8], &str)] = &[
        (b"\x7fELF", "an ELF file (a program or a library)"),
        (b"\x1f\x8b", "a gzip file; unpack it first"),
        (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first"),
        (b"\xfd7zXZ", "an xz file; unpack it first"),
        (b"BZh", "a bzip2 file; unpack it first"),
        (b"PK\x03\x04", "a zip file"),
        (b"DTiJ", "a jitdump file"),
        (b"JiTD", "a big-endian jitdump file"),
        (b"#!", "a script"),
        (b"<!DOCTYPE", "an HTML page"),
        (b"<svg", "an SVG picture"),
        (b"{", "JSON text"),
    ];
    if let Some((_, what)) = known.iter().find(|(magic, _)| start.starts_with(magic)) {
        return (*what).to_owned();
    }
    let text: &str = match std::str::from_utf8(start) {
        Ok(text) => text,
        // Cut in the middle of a character: the part before it counts.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(start.get(..error.valid_up_to()).unwrap_or(&[])).unwrap_or("")
        }
        Err(_) => "",
    };
    if !text.is_empty() && text.chars().all(|c| !c.is_control() || c.is_ascii_whitespace()) {
        let line: String = text.trim_start().lines().next().unwrap_or("").chars().take(40).collect();
        return format!("text that starts with \"{}\"", line.trim_end());
    }
    if start.iter().all(|&byte| byte == 0) {
        return "nothing but zero bytes".to_owned();
    }
    let bytes: Vec<String> = start.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("binary data that starts with the bytes {}", bytes.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that common wrong files are named.
    #[test]
    fn names_what_it_is() {
        assert!(looks_like(b"\x7fELF\x02").contains("ELF"));
        assert_eq!(looks_like(b"hello world\nmore"), "text that starts with \"hello world\"");
        assert!(looks_like(b"gr\xc3\xbc\xc3").contains("gr\u{fc}"));
        assert!(looks_like(&[0; 16]).contains("zero"));
        assert!(looks_like(&[1, 2, 0xff]).contains("01 02 ff"));
    }
}
