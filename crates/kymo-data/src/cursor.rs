//! Walking over whole records that lie one after another in memory, by their headers only.
//!
//! A record is whole when its header's size is at least 8 and no more than the bytes that are left.
//! The first one that is not ends the walk; [`RecordCursor::rest`] has it and everything after it.

use crate::record::{RECORD_HEADER_BYTES, RecordHeader};

/// One whole record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WholeRecord<'a> {
    /// Type, flags and size.
    pub header: RecordHeader,
    /// Its bytes, header included.
    pub bytes: &'a [u8],
    /// Where it starts, in bytes from the start of the walk.
    pub offset: usize,
}

impl<'a> WholeRecord<'a> {
    /// Everything after the header.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(RECORD_HEADER_BYTES..).unwrap_or(&[])
    }
}

/// The record that starts at `offset`; `None` if there is no whole one.
///
/// For bytes that are changed during the walk; otherwise a [`RecordCursor`] is simpler.
#[inline]
pub fn record_at(bytes: &[u8], offset: usize) -> Option<WholeRecord<'_>> {
    let rest = bytes.get(offset..)?;
    let header = RecordHeader::parse(rest)?;
    let size = usize::from(header.size);
    let bytes = rest.get(..size).filter(|_| size >= RECORD_HEADER_BYTES)?;
    Some(WholeRecord { header, bytes, offset })
}

/// The whole records in some bytes, in order.
#[derive(Clone, Debug)]
pub struct RecordCursor<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> RecordCursor<'a> {
    /// Begins at the first byte.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> RecordCursor<'a> {
        RecordCursor { bytes, offset: 0 }
    }

    /// How many bytes the records have that were passed.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// What was not passed yet; at the end, what is no whole record.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.offset..).unwrap_or(&[])
    }
}

impl<'a> Iterator for RecordCursor<'a> {
    type Item = WholeRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<WholeRecord<'a>> {
        let record = record_at(self.bytes, self.offset)?;
        self.offset += record.bytes.len();
        Some(record)
    }
}

/// How many of the first `limit` bytes belong to records that are whole within the limit.
pub fn whole_records_bytes(bytes: &[u8], limit: usize) -> usize {
    let mut cursor = RecordCursor::new(bytes.get(..limit).unwrap_or(bytes));
    cursor.by_ref().for_each(drop);
    cursor.offset()
}

/// Moves the records that are to be kept to the front, in order. `keep` may change a record, but
/// not its size. Returns how many bytes are kept, and how many bytes of records there were.
pub fn retain_records(
    bytes: &mut [u8],
    mut keep: impl FnMut(RecordHeader, &mut [u8]) -> bool,
) -> (usize, usize) {
    // What is kept so far is before `kept`; the bytes from `run` on are kept too, but not moved yet.
    let (mut kept, mut run, mut at) = (0, 0, 0);
    while let Some(record) = record_at(bytes, at) {
        let (header, end) = (record.header, at + record.bytes.len());
        if !bytes.get_mut(at..end).is_some_and(|record| keep(header, record)) {
            bytes.copy_within(run..at, kept);
            kept += at - run;
            run = end;
        }
        at = end;
    }
    bytes.copy_within(run..at, kept);
    (kept + at - run, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: u32, size: u16) -> Vec<u8> {
        let mut bytes = RecordHeader { kind, misc: 0, size }.to_bytes().to_vec();
        bytes.resize(usize::from(size).max(8), kind as u8);
        bytes
    }

    /// Checks that the walk gives each record with its place, and ends before what is no whole one.
    #[test]
    fn ends_before_damage() {
        let whole = [record(68, 8), record(3, 24)].concat();
        for tail in [vec![], vec![1; 7], record(9, 7), record(9, 0), record(9, 16)[..12].to_vec()] {
            let bytes = [&whole[..], &tail].concat();
            let mut cursor = RecordCursor::new(&bytes);
            let found: Vec<_> =
                cursor.by_ref().map(|r| (r.header.kind, r.offset, r.bytes.len(), r.body().len())).collect();
            assert_eq!(found, [(68, 0, 8, 0), (3, 8, 24, 16)]);
            assert_eq!((cursor.offset(), cursor.rest()), (32, &tail[..]));
            assert_eq!(cursor.next(), None);
            assert_eq!(whole_records_bytes(&bytes, bytes.len()), 32);
        }
        for (limit, expected) in [(0, 0), (8, 8), (31, 8), (32, 32), (99, 32)] {
            assert_eq!(whole_records_bytes(&whole, limit), expected);
        }
    }

    /// Checks that a record may be changed where it lies.
    #[test]
    fn changes_in_place() {
        let mut bytes = [record(1, 16), record(2, 16), record(3, 16)].concat();
        let result = retain_records(&mut bytes, |header, record| {
            record[8] = 0xff;
            header.kind != 2
        });
        assert_eq!(result, (32, 48));
        assert_eq!((bytes[8], bytes[24], bytes[16]), (0xff, 0xff, 3));
    }

    proptest! {
        /// Checks that exactly the wanted records are at the front, in order, whatever damage
        /// follows them.
        #[test]
        fn retains(
            kinds in prop::collection::vec((0..9u32, 1..5u16), 0..20),
            wanted in any::<u16>(),
            tail in prop::collection::vec(any::<u8>(), 0..8),
        ) {
            let is_wanted = |kind: u32| wanted >> kind & 1 == 1;
            let records: Vec<Vec<u8>> = kinds.iter().map(|&(kind, words)| record(kind, words * 8)).collect();
            let whole: usize = records.iter().map(Vec::len).sum();
            let expected: Vec<u8> = (records.iter().zip(&kinds))
                .filter(|(_, (kind, _))| is_wanted(*kind))
                .flat_map(|(record, _)| record.clone())
                .collect();
            let mut bytes = [&records.concat()[..], &tail].concat();
            let (kept, passed) = retain_records(&mut bytes, |header, _| is_wanted(header.kind));
            prop_assert_eq!((&bytes[..kept], passed), (&expected[..], whole));
            prop_assert_eq!(&bytes[whole..], &tail[..]);
        }

        /// Checks that any bytes end the walk within them.
        #[test]
        fn any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let offset = whole_records_bytes(&bytes, bytes.len());
            let (kept, passed) = retain_records(&mut bytes, |_, _| true);
            prop_assert_eq!((kept, passed), (offset, offset));
        }
    }
}
