//! A piece of a recording: about 1 MiB of whole records, the unit in which work is handed to
//! threads.

use crate::cursor::RecordCursor;
use crate::record::{ParseError, RawRecord, RecordHeader};

/// How many bytes are read at once. A record has at most 65535, so there is always a whole one
/// within.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Whole records, one after the other.
#[derive(Debug, Default)]
pub struct Chunk {
    pub(crate) buffer: Vec<u8>,
    /// The records are `used` bytes from `from` on.
    pub(crate) from: usize,
    pub(crate) used: usize,
    pub(crate) position: u64,
    pub(crate) stream: usize,
}

impl Chunk {
    /// The bytes of the records.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.from..self.from + self.used).unwrap_or(&[])
    }

    /// Position of the first record, as in [`RawRecord::position`].
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Which stream of the recording it is: 0 for the main file, N for the Nth part of a directory.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// The records in order. After an error (only possible when the file changed while it was read)
    /// it ends.
    #[inline]
    pub fn records(&self) -> Records<'_> {
        Records::new(self.bytes(), self.position)
    }

    /// Makes room for `bytes`. The room is kept between chunks.
    pub(crate) fn make_room(&mut self, bytes: usize) -> &mut [u8] {
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        self.buffer.get_mut(..bytes).unwrap_or_default()
    }
}

/// The records of a [`Chunk`] or of any bytes that start with a record.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    cursor: RecordCursor<'a>,
    /// Of the first byte.
    position: u64,
}

impl<'a> Records<'a> {
    /// Records that lie in `bytes`, the first one at `position`.
    pub fn new(bytes: &'a [u8], position: u64) -> Records<'a> {
        Records { cursor: RecordCursor::new(bytes), position }
    }

    /// What ended the walk before the end, told once.
    #[cold]
    fn error(&mut self) -> Option<ParseError> {
        let rest = self.cursor.rest();
        let position = self.position + self.cursor.offset() as u64;
        self.cursor = RecordCursor::new(&[]);
        let (kind, expected) = match RecordHeader::parse(rest) {
            _ if rest.is_empty() => return None,
            None => (0, "a record header"),
            Some(header) => (header.kind, "a record size from 8 to what is left"),
        };
        Some(ParseError { position, kind, offset: 0, expected })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RawRecord<'a>, ParseError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.cursor.next() {
            let position = self.position + record.offset as u64;
            return Some(Ok(RawRecord { header: record.header, body: record.body(), position }));
        }
        self.error().map(Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that records follow each other, and that a size below the header's ends the walk with
    /// an error.
    #[test]
    fn walks_and_stops() {
        let mut bytes = Vec::new();
        for (kind, size) in [(68u32, 8u16), (3, 16)] {
            bytes.extend_from_slice(&RecordHeader { kind, misc: 0, size }.to_bytes());
            bytes.resize(bytes.len() + usize::from(size) - 8, 7);
        }
        let good: Vec<_> =
            Records::new(&bytes, 100).map(|r| r.map(|r| (r.header.kind, r.position))).collect();
        assert_eq!(good, [Ok((68, 100)), Ok((3, 108))]);
        bytes.extend_from_slice(&RecordHeader { kind: 9, misc: 0, size: 7 }.to_bytes());
        let last = Records::new(&bytes, 100).last().expect("some");
        assert_eq!(last.unwrap_err().position, 124);
    }
}
