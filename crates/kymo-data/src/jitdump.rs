//! jitdump: generated code with its bytes, line numbers and unwinding tables, as written by JIT
//! compilers.
//!
//! ```text
//!  "DTiJ" (little-endian 0x4A695444) | version | header size | machine | pad | pid | timestamp u64 | flags u64
//!  record: id u32 | total size u32 | timestamp u64 | fields
//! ```

use crate::words::{Cursor, u32_at, u64_at, until_nul};

/// The magic of a little-endian file, as a number.
const MAGIC: u32 = 0x4A69_5444;
const HEADER_BYTES: usize = 40;
const RECORD_HEADER_BYTES: usize = 16;

/// What a jitdump file starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitHeader {
    /// Version: 1.
    pub version: u32,
    /// ELF machine number.
    pub elf_machine: u32,
    /// The process.
    pub pid: i32,
    /// When the file was made, in ns (or TSC ticks with flag bit 0).
    pub timestamp: u64,
    /// Flags: bit 0 says that timestamps come from the architecture's counter.
    pub flags: u64,
}

/// Why a jitdump file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum JitError {
    /// It does not start like one.
    #[error("not a jitdump file: it does not start with its magic")]
    NotJitdump,
    /// From a big-endian machine.
    #[error("a jitdump file from a big-endian machine: only little-endian ones can be read")]
    BigEndian,
    /// It ends within its header, or its header size makes no sense.
    #[error("the jitdump header is cut off or says an impossible size ({size} bytes)")]
    Header { size: u32 },
    /// A record that does not fit.
    #[error("jitdump record of type {id} at byte {offset:#x} ({size} bytes) is damaged or cut off")]
    Record { offset: usize, id: u32, size: u32 },
}

/// One record of a jitdump file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JitRecord<'a> {
    /// Where it starts in the file.
    pub offset: usize,
    /// When, in the clock of the file.
    pub timestamp: u64,
    /// What it says.
    pub what: JitEvent<'a>,
}

/// What a jitdump record says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub enum JitEvent<'a> {
    /// A function was compiled.
    Load {
        pid: i32,
        tid: i32,
        code_addr: u64,
        /// Where `code` begins in the file, in bytes.
        code_at: u64,
        /// The function's number in this file.
        index: u64,
        name: &'a [u8],
        code: &'a [u8],
    },
    /// A function moved.
    Move { pid: i32, tid: i32, old_addr: u64, new_addr: u64, size: u64, index: u64 },
    /// Line numbers of the function that the next Load has.
    DebugInfo {
        code_addr: u64,
        /// The lines, ascending by address.
        lines: Vec<JitLine<'a>>,
    },
    /// Unwinding tables of the function that the next Load has.
    Unwinding {
        /// Size in bytes of the table's index at the end of `data`.
        eh_frame_hdr_bytes: u64,
        /// How many bytes are mapped.
        mapped_bytes: u64,
        /// `.eh_frame` and `.eh_frame_hdr`.
        data: &'a [u8],
    },
    /// The file is complete.
    Close,
    /// A type that is not known here.
    Other { id: u32 },
}

/// One line number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitLine<'a> {
    /// Address of the code.
    pub addr: u64,
    /// Line.
    pub line: u32,
    /// Discriminator.
    pub discriminator: u32,
    /// File name.
    pub file: &'a [u8],
}

/// Reads a jitdump file: its header, and its records as an iterator that ends after the first
/// damaged one.
///
/// # Errors
/// When it is no jitdump file.
pub fn parse(bytes: &[u8]) -> Result<(JitHeader, JitRecords<'_>), JitError> {
    match u32_at(bytes, 0) {
        Some(MAGIC) => {}
        Some(magic) if magic.swap_bytes() == MAGIC => return Err(JitError::BigEndian),
        _ => return Err(JitError::NotJitdump),
    }
    let size = u32_at(bytes, 8).unwrap_or(0);
    let header = bytes.get(..HEADER_BYTES).ok_or(JitError::Header { size })?;
    if (size as usize) < HEADER_BYTES || size as usize > bytes.len() {
        return Err(JitError::Header { size });
    }
    let word = |at| u32_at(header, at).unwrap_or(0);
    let long = |at| u64_at(header, at).unwrap_or(0);
    let parsed = JitHeader {
        version: word(4),
        elf_machine: word(12),
        pid: word(20).cast_signed(),
        timestamp: long(24),
        flags: long(32),
    };
    Ok((parsed, JitRecords { bytes, at: size as usize }))
}

/// The records of a jitdump file.
#[derive(Clone, Debug)]
pub struct JitRecords<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for JitRecords<'a> {
    type Item = Result<JitRecord<'a>, JitError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.at;
        let rest = self.bytes.get(offset..).filter(|rest| !rest.is_empty())?;
        self.at = self.bytes.len();
        let id = u32_at(rest, 0).unwrap_or(u32::MAX);
        let size = u32_at(rest, 4).unwrap_or(0);
        let damaged = JitError::Record { offset, id, size };
        let fields = rest.get(RECORD_HEADER_BYTES..size as usize);
        let what = fields.and_then(|fields| parse_event(id, fields, offset + RECORD_HEADER_BYTES));
        let (Some(what), Some(timestamp)) = (what, u64_at(rest, 8)) else { return Some(Err(damaged)) };
        self.at = offset + size as usize;
        Some(Ok(JitRecord { offset, timestamp, what }))
    }
}

/// `at`: where the fields begin in the file.
fn parse_event(id: u32, fields: &[u8], at: usize) -> Option<JitEvent<'_>> {
    /// Numbers before the name of a function.
    const LOAD_FIELDS: usize = 40;
    let mut c = Cursor::new(fields);
    Some(match id {
        0 => {
            let (pid, tid) = (c.u32()?.cast_signed(), c.u32()?.cast_signed());
            let (_vma, code_addr, size, index) = (c.u64()?, c.u64()?, c.u64()?, c.u64()?);
            let name = until_nul(c.rest());
            c.take(name.len() + 1)?;
            let code = c.take(usize::try_from(size).ok()?)?;
            let code_at = (at + LOAD_FIELDS + name.len() + 1) as u64;
            JitEvent::Load { pid, tid, code_addr, code_at, index, name, code }
        }
        1 => {
            let (pid, tid) = (c.u32()?.cast_signed(), c.u32()?.cast_signed());
            let _vma = c.u64()?;
            let (old_addr, new_addr) = (c.u64()?, c.u64()?);
            JitEvent::Move { pid, tid, old_addr, new_addr, size: c.u64()?, index: c.u64()? }
        }
        2 => {
            let (code_addr, count) = (c.u64()?, c.u64()?);
            let mut lines: Vec<JitLine<'_>> = Vec::new();
            for _ in 0..count {
                let (addr, line, discriminator) = (c.u64()?, c.u32()?, c.u32()?);
                let name = until_nul(c.rest());
                c.take(name.len() + 1)?;
                // The name "\xff" stands for the one of the line before.
                let file = if name == b"\xff" { lines.last().map_or(name, |last| last.file) } else { name };
                lines.push(JitLine { addr, line, discriminator, file });
            }
            JitEvent::DebugInfo { code_addr, lines }
        }
        3 => JitEvent::Close,
        4 => {
            let (size, eh_frame_hdr_bytes, mapped_bytes) = (c.u64()?, c.u64()?, c.u64()?);
            let data = c.take(usize::try_from(size).ok()?)?;
            JitEvent::Unwinding { eh_frame_hdr_bytes, mapped_bytes, data }
        }
        id => JitEvent::Other { id },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(records: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [MAGIC, 1, 40, 62, 0, 123] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&5u64.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        for (id, fields) in records {
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&(fields.len() as u32 + 16).to_le_bytes());
            out.extend_from_slice(&9u64.to_le_bytes());
            out.extend_from_slice(fields);
        }
        out
    }

    fn load() -> Vec<u8> {
        let mut out = [7u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
        for word in [0u64, 0x1000, 3, 1] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(b"func\0\x90\x90\xc3");
        out
    }

    fn lines() -> Vec<u8> {
        let mut out = [0x1000u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
        for (addr, line, name) in [(0x1000u64, 1u32, &b"a.js\0"[..]), (0x1001, 2, b"\xff\0")] {
            out.extend_from_slice(&addr.to_le_bytes());
            out.extend_from_slice(&line.to_le_bytes());
            out.extend_from_slice(&0u32.to_le_bytes());
            out.extend_from_slice(name);
        }
        out
    }

    /// Checks that records come back, that the short form of a file name is resolved, and unknown
    /// types pass.
    #[test]
    fn reads_records() {
        let bytes = file(&[(2, lines()), (0, load()), (99, vec![1; 8]), (3, Vec::new())]);
        let (header, records) = parse(&bytes).expect("parses");
        assert_eq!((header.pid, header.elf_machine, header.timestamp), (123, 62, 5));
        let all: Vec<_> = records.map(|record| record.expect("whole").what).collect();
        assert!(matches!(&all[0], JitEvent::DebugInfo { lines, .. } if lines[1].file == b"a.js"));
        let JitEvent::Load { name: b"func", code: b"\x90\x90\xc3", tid: 8, code_at, .. } = all[1] else {
            panic!("{:?}", all[1]);
        };
        assert_eq!(bytes[code_at as usize..][..3], *b"\x90\x90\xc3");
        assert_eq!(all[2..], [JitEvent::Other { id: 99 }, JitEvent::Close]);
    }

    /// Checks that every cut ends in an error or in fewer records, and false sizes and counts in an
    /// error.
    #[test]
    fn cuts_and_lies() {
        let bytes = file(&[(2, lines()), (0, load())]);
        for cut in 0..bytes.len() {
            if let Ok((_, records)) = parse(&bytes[..cut]) {
                assert!(records.count() <= 2);
            }
        }
        let mut lie = lines();
        lie[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        let bytes = file(&[(2, lie)]);
        let error = parse(&bytes).expect("header").1.next().expect("one").unwrap_err();
        assert!(error.to_string().contains("type 2 at byte 0x28"), "{error}");
        assert_eq!(parse(b"DTi").unwrap_err(), JitError::NotJitdump);
        assert_eq!(parse(b"JiTD").unwrap_err(), JitError::BigEndian);
    }
}
