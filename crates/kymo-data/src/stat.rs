//! Counts in a recording: what `perf stat record` writes and `perf stat report` reads.
//!
//! ```text
//!  EVENT_UPDATE (unit, scale) | THREAD_MAP | CPU_MAP | STAT_CONFIG | STAT ... | STAT_ROUND | STAT ... | STAT_ROUND
//!                                                                    '-- one per event, CPU and thread: the counts so far
//! ```
//!
//! The layouts are those of perf's file format (`tools/lib/perf/include/perf/event.h`).
use crate::abi::{
    PERF_RECORD_CPU_MAP, PERF_RECORD_EVENT_UPDATE, PERF_RECORD_STAT, PERF_RECORD_STAT_CONFIG,
    PERF_RECORD_STAT_ROUND, PERF_RECORD_THREAD_MAP,
};
use crate::build::record;
use crate::record::RawRecord;
use crate::words::{u32_at, u64_at};

/// What a STAT_CONFIG entry says.
const AGGREGATION: u64 = 0;
const INTERVAL: u64 = 1;
const SCALED: u64 = 2;
/// Bytes of a thread's name in a THREAD_MAP record.
const COMM_BYTES: usize = 16;
/// Bytes of a THREAD_MAP entry: the thread and its name.
const THREAD_BYTES: usize = 8 + COMM_BYTES;

/// How counts are summed. The numbers of the other ways differ between releases of perf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StatAggregation {
    /// Each CPU for itself.
    Cpu,
    /// All together.
    #[default]
    All,
    /// Another way, by its number.
    Other(u64),
}

impl StatAggregation {
    fn number(self) -> u64 {
        match self {
            StatAggregation::Cpu => 0,
            StatAggregation::All => 1,
            StatAggregation::Other(number) => number,
        }
    }
}

/// How was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StatConfig {
    /// How counts are summed.
    pub aggregation: StatAggregation,
    /// Milliseconds between rounds; 0: there is one, at the end.
    pub interval_ms: u64,
}

/// The count of one event in one place so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatCount {
    /// The event's id.
    pub id: u64,
    /// The CPU; -1: all.
    pub cpu: i32,
    /// Index into the thread map.
    pub thread: u32,
    /// How often.
    pub value: u64,
    /// For how long it was wanted, ns.
    pub enabled_ns: u64,
    /// For how long it was on the hardware, ns.
    pub running_ns: u64,
}

/// A record of counts.
#[derive(Clone, Debug, PartialEq)]
pub enum StatRecord {
    /// How was counted.
    Config(StatConfig),
    /// The threads that counts name by index, with their names; -1: all.
    Threads(Vec<(i32, Vec<u8>)>),
    /// A count.
    Count(StatCount),
    /// The counts before belong to this time, ns since counting began.
    Round {
        /// When.
        time_ns: u64,
        /// Whether it is the end, not an interval.
        last: bool,
    },
    /// What the event's counts are multiplied by to be in its unit.
    Scale {
        /// The event's id.
        id: u64,
        /// The factor.
        scale: f64,
    },
    /// The unit that the event's counts are printed in.
    Unit {
        /// The event's id.
        id: u64,
        /// `msec`, for example.
        unit: Vec<u8>,
    },
}

impl StatRecord {
    /// The record, if it is about counts and whole.
    pub fn parse(record: &RawRecord<'_>) -> Option<StatRecord> {
        let body = record.body;
        let word = |at: usize| u64_at(body, at);
        match record.header.kind {
            PERF_RECORD_STAT => Some(StatRecord::Count(StatCount {
                id: word(0)?,
                cpu: u32_at(body, 8)?.cast_signed(),
                thread: u32_at(body, 12)?,
                value: word(16)?,
                enabled_ns: word(24)?,
                running_ns: word(32)?,
            })),
            PERF_RECORD_STAT_ROUND => Some(StatRecord::Round { last: word(0)? == 1, time_ns: word(8)? }),
            PERF_RECORD_STAT_CONFIG => Some(StatRecord::Config(config(body)?)),
            PERF_RECORD_THREAD_MAP => {
                let entries = body.get(8..)?.chunks_exact(THREAD_BYTES).take(usize::try_from(word(0)?).ok()?);
                Some(StatRecord::Threads(entries.filter_map(thread).collect()))
            }
            PERF_RECORD_EVENT_UPDATE => update(body),
            _ => None,
        }
    }
}

fn config(body: &[u8]) -> Option<StatConfig> {
    let count = usize::try_from(u64_at(body, 0)?).ok()?;
    let mut config = StatConfig::default();
    for entry in body.get(8..)?.chunks_exact(16).take(count) {
        let value = u64_at(entry, 8)?;
        match u64_at(entry, 0)? {
            AGGREGATION => {
                config.aggregation = match value {
                    0 => StatAggregation::Cpu,
                    1 => StatAggregation::All,
                    other => StatAggregation::Other(other),
                }
            }
            INTERVAL => config.interval_ms = value,
            _ => {}
        }
    }
    Some(config)
}

fn thread(entry: &[u8]) -> Option<(i32, Vec<u8>)> {
    let name = entry.get(8..)?;
    Some((u64_at(entry, 0)? as i32, until_zero(name)))
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()
}

fn update(body: &[u8]) -> Option<StatRecord> {
    let id = u64_at(body, 8)?;
    match u64_at(body, 0)? {
        0 => Some(StatRecord::Unit { id, unit: until_zero(body.get(16..)?) }),
        1 => Some(StatRecord::Scale { id, scale: f64::from_bits(u64_at(body, 16)?) }),
        _ => None,
    }
}

/// A STAT_CONFIG record.
pub fn stat_config(config: StatConfig) -> Vec<u8> {
    let entries = [(AGGREGATION, config.aggregation.number()), (INTERVAL, config.interval_ms), (SCALED, 1)];
    let words =
        std::iter::once(entries.len() as u64).chain(entries.iter().flat_map(|&(tag, value)| [tag, value]));
    record(PERF_RECORD_STAT_CONFIG, 0, &bytes(words))
}

/// A STAT record.
pub fn stat_count(count: &StatCount) -> Vec<u8> {
    let place = u64::from(count.cpu.cast_unsigned()) | u64::from(count.thread) << 32;
    let words = [count.id, place, count.value, count.enabled_ns, count.running_ns];
    record(PERF_RECORD_STAT, 0, &bytes(words.into_iter()))
}

/// A STAT_ROUND record.
pub fn stat_round(time_ns: u64, last: bool) -> Vec<u8> {
    record(PERF_RECORD_STAT_ROUND, 0, &bytes([u64::from(last), time_ns].into_iter()))
}

/// A THREAD_MAP record of threads and their names.
pub fn thread_map(threads: &[(i32, Vec<u8>)]) -> Vec<u8> {
    let mut body = (threads.len() as u64).to_le_bytes().to_vec();
    for (tid, name) in threads {
        body.extend_from_slice(&(i64::from(*tid)).to_le_bytes());
        let mut comm = [0; COMM_BYTES];
        // The last byte stays zero, as in the kernel.
        for (to, from) in comm.iter_mut().take(COMM_BYTES - 1).zip(name) {
            *to = *from;
        }
        body.extend_from_slice(&comm);
    }
    record(PERF_RECORD_THREAD_MAP, 0, &body)
}

/// A CPU_MAP record of these CPUs; -1: all.
pub fn cpu_map(cpus: &[i32]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend_from_slice(&(cpus.len() as u16).to_le_bytes());
    body.extend(cpus.iter().flat_map(|cpu| (*cpu as i16).to_le_bytes()));
    body.resize(body.len().next_multiple_of(8), 0);
    record(PERF_RECORD_CPU_MAP, 0, &body)
}

/// EVENT_UPDATE records of an event's unit and its factor.
pub fn event_unit(id: u64, unit: &str, scale: f64) -> Vec<u8> {
    let mut text = unit.as_bytes().to_vec();
    text.resize((text.len() + 1).next_multiple_of(8), 0);
    let head = |kind: u64| bytes([kind, id].into_iter());
    let mut records = record(PERF_RECORD_EVENT_UPDATE, 0, &[head(0), text].concat());
    records.extend(record(
        PERF_RECORD_EVENT_UPDATE,
        0,
        &[head(1), scale.to_bits().to_le_bytes().to_vec()].concat(),
    ));
    records
}

fn bytes(words: impl Iterator<Item = u64>) -> Vec<u8> {
    words.flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordHeader;

    fn parsed(bytes: &[u8]) -> Option<StatRecord> {
        let header = RecordHeader { kind: u32_at(bytes, 0)?, misc: 0, size: bytes.len() as u16 };
        StatRecord::parse(&RawRecord { header, body: bytes.get(8..)?, position: 0 })
    }

    /// Checks that what is built is read back, and that a record that is cut off is no record.
    #[test]
    fn built_records_parse_back() {
        let count = StatCount { id: 7, cpu: -1, thread: 2, value: 1 << 40, enabled_ns: 5, running_ns: 4 };
        let config = StatConfig { aggregation: StatAggregation::Cpu, interval_ms: 100 };
        let threads = vec![(-1, Vec::new()), (42, b"fifteen letters".to_vec())];
        let all = [
            (stat_count(&count), StatRecord::Count(count)),
            (stat_config(config), StatRecord::Config(config)),
            (stat_round(9, true), StatRecord::Round { time_ns: 9, last: true }),
            (thread_map(&threads), StatRecord::Threads(threads.clone())),
        ];
        for (built, record) in all {
            assert_eq!(parsed(&built), Some(record.clone()));
            for cut in 8..built.len() {
                let read = parsed(&built[..cut]);
                assert!(
                    read.is_none() || matches!(record, StatRecord::Config(_) | StatRecord::Threads(_)),
                    "{cut}"
                );
            }
        }
        let units = event_unit(3, "msec", 1e-6);
        assert_eq!(parsed(&units[..32]), Some(StatRecord::Unit { id: 3, unit: b"msec".to_vec() }));
        assert_eq!(parsed(&units[32..]), Some(StatRecord::Scale { id: 3, scale: 1e-6 }));
    }
}
