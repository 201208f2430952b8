//! The ring that keeps the newest in the most obvious way: a list of all records, of which as many
//! count as fit. The oracle of the tests.
use super::super::{HEADER_BYTES, KIND_LOST};
use super::Paused;
use std::collections::VecDeque;

/// All records that were ever written, the newest first.
#[derive(Debug, Default)]
pub struct Model {
    records: VecDeque<Vec<u8>>,
    paused: bool,
    pending: u64,
}

impl Model {
    /// An empty one.
    pub fn new() -> Model {
        Model::default()
    }

    /// As [`super::Writer::pause`].
    pub fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// As [`super::Writer::push`].
    ///
    /// # Errors
    /// [`Paused`].
    pub fn push(&mut self, record: &[u8], id: u64, trailer: &[u8]) -> Result<(), Paused> {
        if self.paused {
            self.pending += 1;
            return Err(Paused);
        }
        self.records.push_front(record.to_vec());
        if self.pending > 0 {
            let mut lost = Vec::new();
            let size = (HEADER_BYTES + 16 + trailer.len()) as u16;
            lost.extend(KIND_LOST.to_le_bytes());
            lost.extend(0u16.to_le_bytes());
            lost.extend(size.to_le_bytes());
            lost.extend(id.to_le_bytes());
            lost.extend(self.pending.to_le_bytes());
            lost.extend(trailer);
            self.records.push_front(lost);
            self.pending = 0;
        }
        Ok(())
    }

    /// Bytes of all records that were written.
    pub fn written_bytes(&self) -> usize {
        self.records.iter().map(Vec::len).sum()
    }

    /// The newest records that fit into `limit_bytes`, the newest first.
    pub fn newest(&self, limit_bytes: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for record in &self.records {
            if out.len() + record.len() > limit_bytes {
                break;
            }
            out.extend(record);
        }
        out
    }
}
