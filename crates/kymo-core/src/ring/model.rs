//! The ring in the most obvious way: a queue of records with a byte count. The oracle of the tests.
use super::{Full, HEADER_BYTES, KIND_LOST};
use std::collections::VecDeque;

/// A LOST record.
pub(super) fn lost(id: u64, pending: u64, trailer: &[u8]) -> Vec<u8> {
    let size = (HEADER_BYTES + 16 + trailer.len()) as u64;
    let words = [u64::from(KIND_LOST) | size << 48, id, pending];
    [&words.map(u64::to_le_bytes).concat()[..], trailer].concat()
}

/// A queue of records that obeys the ring's rules of space and loss.
#[derive(Debug)]
pub struct Model {
    size_bytes: usize,
    records: VecDeque<Vec<u8>>,
    pending: u64,
    lost: u64,
}

impl Model {
    /// A model of a ring with this many bytes of data.
    pub fn new(size_bytes: usize) -> Model {
        Model { size_bytes, records: VecDeque::new(), pending: 0, lost: 0 }
    }

    /// Records dropped so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Bytes that wait to be read.
    pub fn used_bytes(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }

    /// As [`super::Writer::push`].
    ///
    /// # Errors
    /// [`Full`] if there is no room.
    pub fn push(&mut self, record: &[u8], id: u64, trailer: &[u8]) -> Result<(), Full> {
        let mut lost_record = Vec::new();
        if self.pending > 0 {
            lost_record = lost(id, self.pending, trailer);
        }
        if self.used_bytes() + record.len() + lost_record.len() > self.size_bytes - 1 {
            self.pending += 1;
            self.lost += 1;
            return Err(Full);
        }
        if self.pending > 0 {
            self.records.push_back(lost_record);
            self.pending = 0;
        }
        self.records.push_back(record.to_vec());
        Ok(())
    }

    /// Takes as many whole records as fit into `limit_bytes`, from the oldest on.
    pub fn take(&mut self, limit_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some(record) = self.records.front() {
            if out.len() + record.len() > limit_bytes {
                break;
            }
            out.extend(self.records.pop_front().unwrap_or_default());
        }
        out
    }
}
