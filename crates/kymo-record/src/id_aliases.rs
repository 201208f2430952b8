//! Gives records of events that were opened anew the ids that the file knows.
//!
//! A CPU that came back has new events ([`kymo_perf::evlist::Evlist::reopen`]), whose ids no reader
//! would find in the header. The drains translate them in their copies of the records.
use kymo_data::{RecordHeader, abi};
use kymo_perf::evlist::IdAlias;
use std::sync::OnceLock;

const HEADER_BYTES: usize = 8;
const ID_BYTES: usize = 8;

/// Pairs of ids, to which more are added at any time. Reading takes no lock.
#[derive(Debug, Default)]
pub(crate) struct IdAliases {
    /// Whether records carry ids at their ends (`PERF_SAMPLE_IDENTIFIER`).
    identified: bool,
    first: OnceLock<Box<AliasNode>>,
}

/// What one CPU brought when it came back, and what came later.
#[derive(Debug)]
struct AliasNode {
    pairs: Vec<IdAlias>,
    next: OnceLock<Box<AliasNode>>,
}

impl IdAliases {
    /// For events with these bits.
    pub(crate) fn new(sample_type: u64) -> IdAliases {
        let identified = sample_type & abi::PERF_SAMPLE_IDENTIFIER != 0;
        IdAliases { identified, first: OnceLock::new() }
    }

    /// Adds pairs. For one thread only; others read meanwhile.
    pub(crate) fn add(&self, pairs: &[IdAlias]) {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            place = &node.next;
        }
        let node = AliasNode { pairs: pairs.to_vec(), next: OnceLock::new() };
        // Empty, because nobody else adds.
        let _ = place.set(Box::new(node));
    }

    fn find(&self, id: u64) -> Option<u64> {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            if let Some(alias) = node.pairs.iter().find(|alias| alias.new == id) {
                return Some(alias.first);
            }
            place = &node.next;
        }
        None
    }

    /// Translates the ids in whole records of the kernel.
    pub(crate) fn translate(&self, records: &mut [u8]) {
        if !self.identified || self.first.get().is_none() {
            return;
        }
        let mut at = 0;
        while let Some(header) = records.get(at..).and_then(RecordHeader::parse) {
            let size = usize::from(header.size);
            let Some(record) = records.get_mut(at..at + size).filter(|_| size >= HEADER_BYTES) else { break };
            at += size;
            if header.kind == abi::PERF_RECORD_SAMPLE {
                self.replace(record, HEADER_BYTES);
                continue;
            }
            if header.kind == abi::PERF_RECORD_LOST {
                self.replace(record, HEADER_BYTES);
            }
            self.replace(record, size.saturating_sub(ID_BYTES).max(HEADER_BYTES));
        }
    }

    /// Replaces the id at this place, if there is one that has another name.
    fn replace(&self, record: &mut [u8], at: usize) {
        let Some(place) = record.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<ID_BYTES>) else { return };
        if let Some(first) = self.find(u64::from_ne_bytes(*place)) {
            *place = first.to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, words: &[u64]) -> Vec<u8> {
        let size = (HEADER_BYTES + 8 * words.len()) as u16;
        let mut bytes = RecordHeader { kind, misc: 0, size }.to_bytes().to_vec();
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    /// Checks that ids of samples, of what was lost, and at the ends of other records are
    /// translated, through several returns of a CPU, and that other words are not.
    #[test]
    fn a_cpu_that_came_back_twice() {
        let aliases = IdAliases::new(abi::PERF_SAMPLE_IDENTIFIER);
        let records = |id| {
            [
                record(abi::PERF_RECORD_SAMPLE, &[id, 77, 88]),
                record(abi::PERF_RECORD_LOST, &[id, 5, id]),
                record(abi::PERF_RECORD_COMM, &[77, 88, id]),
                record(abi::PERF_RECORD_SAMPLE, &[3, 77]),
            ]
            .concat()
        };
        let translated = |aliases: &IdAliases, id| {
            let mut bytes = records(id);
            aliases.translate(&mut bytes);
            bytes
        };
        assert_eq!(translated(&aliases, 88), records(88));
        aliases.add(&[IdAlias { new: 9, first: 1 }]);
        aliases.add(&[IdAlias { new: 10, first: 1 }, IdAlias { new: 11, first: 2 }]);
        for (new, first) in [(9, 1), (10, 1), (11, 2), (12, 12)] {
            assert_eq!(translated(&aliases, new), records(first));
        }
        let mut damaged = records(9);
        damaged[6] = 3;
        let before = damaged.clone();
        aliases.translate(&mut damaged);
        assert_eq!(damaged, before);
    }

    /// Checks that records without ids stay as they are.
    #[test]
    fn without_ids() {
        let aliases = IdAliases::new(0);
        aliases.add(&[IdAlias { new: 9, first: 1 }]);
        let mut bytes = record(abi::PERF_RECORD_SAMPLE, &[9, 9]);
        aliases.translate(&mut bytes);
        assert_eq!(bytes, record(abi::PERF_RECORD_SAMPLE, &[9, 9]));
    }
}
