//! Timestamps of records of all types.
use kymo_data::{Attr, EventSpec, RecordCursor, abi};
use std::collections::HashMap;

/// Where records have their time.
#[derive(Debug)]
pub(crate) struct SampleClock {
    /// In a sample, in bytes from its start: the same for all events.
    in_sample: Option<usize>,
    /// In other records, in bytes from the end, by the id of the event that wrote it, which is its
    /// last word.
    behind: HashMap<u64, usize>,
}

/// What stands behind a record's own fields, from the time to the end, where an event puts it
/// there.
const FROM_TIME: [u64; 5] = [
    abi::PERF_SAMPLE_TIME,
    abi::PERF_SAMPLE_ID,
    abi::PERF_SAMPLE_STREAM_ID,
    abi::PERF_SAMPLE_CPU,
    abi::PERF_SAMPLE_IDENTIFIER,
];

fn words(attr: &Attr, bits: &[u64]) -> usize {
    bits.iter().filter(|&&bit| attr.sample_type & bit != 0).count()
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

impl SampleClock {
    /// For records of these events. Each must say which it is (`PERF_SAMPLE_IDENTIFIER`) where
    /// there are several.
    pub(crate) fn new(specs: &[EventSpec]) -> SampleClock {
        let timed = |attr: &Attr| attr.sample_type & abi::PERF_SAMPLE_TIME != 0;
        let before = [abi::PERF_SAMPLE_IDENTIFIER, abi::PERF_SAMPLE_IP, abi::PERF_SAMPLE_TID];
        let in_sample = specs.first().filter(|spec| timed(&spec.attr));
        let trailing = specs.iter().filter(|spec| timed(&spec.attr) && spec.attr.sample_id_all());
        let trailing =
            trailing.flat_map(|spec| spec.ids.iter().map(|&id| (id, 8 * words(&spec.attr, &FROM_TIME))));
        SampleClock {
            in_sample: in_sample.map(|spec| 8 + 8 * words(&spec.attr, &before)),
            behind: trailing.collect(),
        }
    }

    /// The times of the records in these bytes that have one, in ns.
    pub(crate) fn times_ns(&self, records: &[u8]) -> impl Iterator<Item = u64> {
        RecordCursor::new(records).filter_map(|record| self.time_ns(record.bytes))
    }

    /// The time of a whole record, in ns; `None` if it has none.
    pub(crate) fn time_ns(&self, record: &[u8]) -> Option<u64> {
        let kind = u32::from_le_bytes(record.get(..4)?.try_into().ok()?);
        if kind == abi::PERF_RECORD_SAMPLE {
            return u64_at(record, self.in_sample?);
        }
        let id = u64_at(record, record.len().checked_sub(8)?)?;
        u64_at(record, record.len().checked_sub(*self.behind.get(&id)?)?)
    }
}
