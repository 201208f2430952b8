//! What kymo writes among the records that perf has no record for (docs/formats/marks.md).
//!
//! A mark is a record of type `HEADER_EVENT_TYPE`, which perf stopped writing in 2011 and steps over ever since,
//! whatever is in it. An unknown type would make perf give up on the file.

use crate::abi::PERF_RECORD_HEADER_EVENT_TYPE;
use crate::build;
use crate::record::RawRecord;
use crate::words::{u32_at, u64_at};

/// What a mark's body begins with.
const MAGIC: &[u8; 8] = b"kymomark";

const PAUSE: u32 = 1;

/// A fact about the recording, at a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The recorder held its target so that it would not lose records.
    Pause {
        /// When it was stopped, ns of the recording's clock.
        start_ns: u64,
        /// When it went on, ns.
        end_ns: u64,
    },
}

impl Mark {
    /// The mark in a record; `None` for all other records, and for marks of a later kymo.
    pub fn parse(record: &RawRecord<'_>) -> Option<Mark> {
        let body = record.body;
        if record.header.kind != PERF_RECORD_HEADER_EVENT_TYPE || body.get(..8)? != MAGIC {
            return None;
        }
        match u32_at(body, 8)? {
            PAUSE => Some(Mark::Pause { start_ns: u64_at(body, 16)?, end_ns: u64_at(body, 24)? }),
            _ => None,
        }
    }

    /// The whole record of this mark.
    pub fn record(&self) -> Vec<u8> {
        let mut body = MAGIC.to_vec();
        match self {
            Mark::Pause { start_ns, end_ns } => {
                body.extend_from_slice(&u64::from(PAUSE).to_le_bytes());
                body.extend_from_slice(&start_ns.to_le_bytes());
                body.extend_from_slice(&end_ns.to_le_bytes());
            }
        }
        build::record(PERF_RECORD_HEADER_EVENT_TYPE, 0, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Records;

    /// Checks that a mark is read back, and that cut, foreign and unknown ones are none.
    #[test]
    fn round_trip_and_damage() {
        let mark = Mark::Pause { start_ns: 5, end_ns: 1 << 40 };
        let bytes = mark.record();
        let parse = |bytes: &[u8]| match Records::new(bytes, 0).next() {
            Some(Ok(record)) => Mark::parse(&record),
            other => panic!("not a record: {other:?}"),
        };
        assert_eq!(parse(&bytes), Some(mark));
        for at in [0, 8, 16] {
            let mut other = bytes.clone();
            other[at] ^= 0x40;
            assert_eq!(parse(&other), None, "byte {at}");
        }
        for len in (8..bytes.len()).step_by(8) {
            let mut cut = bytes[..len].to_vec();
            cut[6..8].copy_from_slice(&(len as u16).to_le_bytes());
            assert_eq!(parse(&cut), None, "{len} bytes");
        }
    }
}
