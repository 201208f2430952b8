//! The ring that keeps the newest in the most obvious way: a list of all records, of which as many
//! count as fit. The oracle of the tests.
use super::super::model::lost;
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
            self.records.push_front(lost(id, self.pending, trailer));
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
