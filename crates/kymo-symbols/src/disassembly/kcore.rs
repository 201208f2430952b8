//! The running kernel's memory, as the ELF core file `/proc/kcore`.
//!
//! The kernel patches its own code while it runs, so what executes is there and in no file. Only
//! the range of one function is read.
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::elf::Fields;

/// Bytes of the file header.
const HEADER_BYTES: usize = 64;
/// Bytes of a segment's header.
const SEGMENT_BYTES: usize = 56;
/// Segments that are looked at; a machine has one for each range of its memory.
const MOST_SEGMENTS: usize = 4096;
const PT_LOAD: u32 = 1;

/// Reads a range of addresses.
pub(super) fn read(path: &Path, address: u64, size: usize) -> Result<Vec<u8>> {
    let wrong = |why: &str| Error::new(ErrorKind::InvalidData, why.to_owned());
    let file = File::open(path)?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Err(wrong("it is no 64-bit little-endian ELF file"));
    }
    let fields = Fields(&header);
    let (offset, entry_bytes, count) =
        (fields.u64(32), usize::from(fields.u16(54)), usize::from(fields.u16(56)));
    if entry_bytes != SEGMENT_BYTES || count > MOST_SEGMENTS {
        return Err(wrong("its segment headers are not those of a core file"));
    }
    let mut table = vec![0; entry_bytes * count];
    file.read_exact_at(&mut table, offset)?;
    let end = address.checked_add(size as u64).ok_or_else(|| wrong("the range wraps around"))?;
    let place = table.chunks_exact(SEGMENT_BYTES).map(Fields).find_map(|segment| {
        let (at, start, length) = (segment.u64(8), segment.u64(16), segment.u64(32));
        let holds = segment.u32(0) == PT_LOAD && start <= address && end <= start.checked_add(length)?;
        if holds { at.checked_add(address - start) } else { None }
    });
    let place = place.ok_or_else(|| wrong("no segment of it has the function"))?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, place)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core file with one segment at an address.
    fn core(address: u64, bytes: &[u8]) -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES + SEGMENT_BYTES];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        file[56..58].copy_from_slice(&1_u16.to_le_bytes());
        let words: [(usize, u64); 4] = [(0, 1), (8, 120), (16, address), (32, bytes.len() as u64)];
        for (at, word) in words {
            file[64 + at..64 + at + 8].copy_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(bytes);
        file
    }

    /// Checks that a range is read from the segment that has it whole, and that anything else is an
    /// error: ranges at its edges, cut and damaged files.
    #[test]
    fn ranges() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kcore");
        let text = 0xffff_ffff_8100_0000;
        let whole = core(text, b"0123456789");
        std::fs::write(&path, &whole).expect("written");
        assert_eq!(read(&path, text + 2, 3).expect("inside"), b"234");
        assert_eq!(read(&path, text, 10).expect("all"), b"0123456789");
        for (address, size) in [(text - 1, 2), (text + 9, 2), (text + 10, 1), (u64::MAX, 2)] {
            assert!(read(&path, address, size).is_err(), "{address:x} {size}");
        }
        for cut in 0..whole.len() - 1 {
            std::fs::write(&path, &whole[..cut]).expect("written");
            assert!(read(&path, text, 10).is_err(), "{cut}");
        }
    }
}
