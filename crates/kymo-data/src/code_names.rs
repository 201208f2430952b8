//! Names of generated code inside a recording (docs/reference/formats/marks.md, kind 3).
//!
//! A just-in-time compiler's names are in files that go away with its process, or in the process
//! itself. The recorder copies them into the recording as text in the form of perf maps, with the
//! span of time in which each piece of text appeared.

use crate::mark;
use crate::record::RawRecord;
use crate::words::{u32_at, u64_at};

/// A piece of text has at most so many bytes, so that unpacking costs little.
const TEXT_BYTES: usize = 128 << 10;
/// Packed bytes that fit into a record beside its other fields.
const PACKED_BYTES: usize = 60 << 10;
/// Level of the compression: text of names shrinks to a tenth at the fastest ones already.
const LEVEL: i32 = 3;
/// Bytes of a record's body before the packed text.
const FIELDS: usize = 40;

/// Lines of a perf map (`start size name`, hexadecimal numbers) that appeared in a span of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeNames {
    /// The process whose code it is, as numbered in the recording.
    pub pid: i32,
    /// When the lines before these had been read, in ns of the recording's clock; 0: not known.
    pub from_ns: u64,
    /// When these lines were read.
    pub until_ns: u64,
    /// The lines, in the order in which the compiler wrote them.
    pub text: Vec<u8>,
}

impl CodeNames {
    /// The names in a record; `None` for all other records and for damaged ones. Unpacks at most
    /// 128 KiB.
    pub fn parse(record: &RawRecord<'_>) -> Option<CodeNames> {
        let body = mark::body_of_kind(record, mark::NAMES)?;
        let packed_bytes = usize::try_from(u32_at(body, 36)?).ok()?;
        let packed = body.get(FIELDS..)?.get(..packed_bytes)?;
        let text_bytes = usize::try_from(u32_at(body, 32)?).ok().filter(|&bytes| bytes <= TEXT_BYTES)?;
        Some(CodeNames {
            pid: u32_at(body, 12)?.cast_signed(),
            from_ns: u64_at(body, 16)?,
            until_ns: u64_at(body, 24)?,
            text: zstd::bulk::decompress(packed, text_bytes).ok()?,
        })
    }

    /// The process of the record, without unpacking its text.
    pub fn pid_of(record: &RawRecord<'_>) -> Option<i32> {
        u32_at(mark::body_of_kind(record, mark::NAMES)?, 12).map(u32::cast_signed)
    }

    /// The records that hold these names: as many as the text needs.
    ///
    /// # Errors
    /// When zstd fails (out of memory).
    pub fn records(&self) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.append(&self.text, TEXT_BYTES, &mut out)?;
        Ok(out)
    }

    fn append(&self, mut text: &[u8], most: usize, out: &mut Vec<u8>) -> std::io::Result<()> {
        while !text.is_empty() {
            let piece = text.get(..most).unwrap_or(text);
            // A line that is longer than a piece is cut: no compiler writes one.
            let end = match memchr::memrchr(b'\n', piece) {
                Some(end) if piece.len() < text.len() => end + 1,
                _ => piece.len(),
            };
            let (piece, rest) = text.split_at(end);
            let packed = zstd::bulk::compress(piece, LEVEL)?;
            if packed.len() > PACKED_BYTES {
                // Half of the limit always fits: zstd adds no more than a few bytes to what it
                // cannot compress.
                self.append(piece, PACKED_BYTES / 2, out)?;
            } else {
                out.extend(self.record(piece, &packed));
            }
            text = rest;
        }
        Ok(())
    }

    fn record(&self, text: &[u8], packed: &[u8]) -> Vec<u8> {
        let mut fields = self.pid.to_le_bytes().to_vec();
        fields.extend(self.from_ns.to_le_bytes());
        fields.extend(self.until_ns.to_le_bytes());
        fields.extend((text.len() as u32).to_le_bytes());
        fields.extend((packed.len() as u32).to_le_bytes());
        fields.extend(packed);
        mark::record_of_kind(mark::NAMES, &fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Records;

    fn parse_all(bytes: &[u8]) -> Vec<CodeNames> {
        Records::new(bytes, 0).flatten().filter_map(|record| CodeNames::parse(&record)).collect()
    }

    /// Checks that text of any size comes back in pieces that end at lines, with its process and
    /// times, also text that cannot be compressed.
    #[test]
    fn round_trip() {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 11
        };
        let random: Vec<u8> = (0..20_000)
            .flat_map(|_| format!("{:x} {:x} {:x}{:x}\n", noise(), noise(), noise(), noise()).into_bytes())
            .collect();
        let plain: Vec<u8> = (0..30_000).flat_map(|n| format!("{n:x} 10 name{n}\n").into_bytes()).collect();
        for text in [b"1000 10 main\n".to_vec(), plain, random] {
            let names = CodeNames { pid: 77, from_ns: 5, until_ns: 1 << 40, text };
            let all = parse_all(&names.records().expect("packed"));
            assert!(all.iter().all(|piece| (piece.pid, piece.from_ns, piece.until_ns) == (77, 5, 1 << 40)));
            assert!(all.iter().all(|piece| piece.text.ends_with(b"\n")));
            let joined: Vec<u8> = all.iter().flat_map(|piece| piece.text.clone()).collect();
            assert!(joined == names.text, "{} pieces", all.len());
        }
    }

    /// Checks that damaged records are none, whatever bit is wrong, and that none is unpacked
    /// beyond its limit.
    #[test]
    fn damage() {
        let names = CodeNames { pid: 1, from_ns: 0, until_ns: 9, text: b"1000 10 main\n".repeat(50) };
        let whole = names.records().expect("packed");
        for at in 8..whole.len() {
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                assert!(parse_all(&damaged).iter().all(|piece| piece.text.len() <= TEXT_BYTES));
            }
        }
        let bomb = zstd::bulk::compress(&vec![b'a'; 64 << 20], LEVEL).expect("packed");
        let record = names.record(&[b'a'; TEXT_BYTES], &bomb);
        assert_eq!(parse_all(&record), []);
    }
}
