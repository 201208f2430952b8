//! One pass over records on their way to the file: counts, times, and the mapped files.
use crate::code_names::CodeTap;
use crate::cpu_time::ClockSamples;
use crate::mapped_files::{FileTap, RecordedFile};
use kymo_data::{RecordCursor, RecordHeader, WholeRecord, abi, meant_bytes};
use std::collections::HashSet;

/// What a pass over the records found out.
#[derive(Debug, Default)]
pub(crate) struct RecordStats {
    /// Where a sample holds its time, in bytes from the record's start; `None` if samples have
    /// none.
    time_at: Option<usize>,
    /// Where a sample holds its address, and behind it its process; `None` if not both are there.
    ip_at: Option<usize>,
    /// Samples seen.
    pub(crate) samples: u64,
    /// Records that LOST records told of.
    pub(crate) lost: u64,
    /// THROTTLE records.
    pub(crate) throttled: u64,
    /// Time of the earliest and latest sample, in ns.
    pub(crate) times: Option<(u64, u64)>,
    /// Files that were mapped as code.
    pub(crate) files: HashSet<RecordedFile>,
    /// Bytes behind each record's own fields.
    trailer_bytes: usize,
    /// Whether the last records that were looked at had some whose headers are another event's
    /// (`kymo_data::meant_bytes`).
    pub(crate) excess: bool,
    /// Whether to collect files.
    collect_files: bool,
    /// Finds processes that generate code.
    pub(crate) code: Option<CodeTap>,
    /// The CPU time for which samples stand, where there is a clock among the events.
    pub(crate) clock: Option<ClockSamples>,
    /// Has mapped files opened.
    pub(crate) mapped_files: Option<FileTap>,
    /// Whether the events ask for build ids.
    pub(crate) has_build_ids: bool,
}

/// The bit of a header that says that a mapping has a build id.
const MARKED_BUILD_ID: u16 = abi::PERF_RECORD_MISC_MMAP_BUILD_ID;

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl RecordStats {
    /// For samples of this type.
    pub(crate) fn new(sample_type: u64, collect_files: bool) -> RecordStats {
        let before = [abi::PERF_SAMPLE_IDENTIFIER, abi::PERF_SAMPLE_IP, abi::PERF_SAMPLE_TID];
        let words = before.iter().filter(|&&bit| sample_type & bit != 0).count();
        let time_at = (sample_type & abi::PERF_SAMPLE_TIME != 0).then_some(8 + 8 * words);
        let both = abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID;
        let ip_at = 8 + if sample_type & abi::PERF_SAMPLE_IDENTIFIER != 0 { 8 } else { 0 };
        let ip_at = (sample_type & both == both).then_some(ip_at);
        let trailer = [
            abi::PERF_SAMPLE_TID,
            abi::PERF_SAMPLE_TIME,
            abi::PERF_SAMPLE_ID,
            abi::PERF_SAMPLE_STREAM_ID,
            abi::PERF_SAMPLE_CPU,
            abi::PERF_SAMPLE_IDENTIFIER,
        ];
        let trailer_bytes = 8 * trailer.iter().filter(|&bit| sample_type & bit != 0).count();
        RecordStats { time_at, ip_at, collect_files, trailer_bytes, ..RecordStats::default() }
    }

    /// Looks at whole records; returns how many bytes of them make sense (all, unless a size is
    /// impossible).
    pub(crate) fn records(&mut self, bytes: &[u8]) -> usize {
        self.excess = false;
        let mut cursor = RecordCursor::new(bytes);
        for WholeRecord { header, bytes: record, .. } in cursor.by_ref() {
            let kind = header.kind;
            match kind {
                abi::PERF_RECORD_SAMPLE => {
                    self.samples += 1;
                    if let Some(clock) = &mut self.clock {
                        clock.sample(record);
                    }
                    if let (Some(code), Some(at)) = (&mut self.code, self.ip_at)
                        && let (Some(ip), Some(task)) = (u64_at(record, at), u64_at(record, at + 8))
                    {
                        code.sample(task as u32 as i32, ip);
                    }
                    if let Some(time) = self.time_at.and_then(|at| u64_at(record, at)) {
                        let (first, last) = self.times.unwrap_or((time, time));
                        self.times = Some((first.min(time), last.max(time)));
                    }
                }
                abi::PERF_RECORD_LOST => self.lost += u64_at(record, 16).unwrap_or(0),
                abi::PERF_RECORD_THROTTLE => self.throttled += 1,
                abi::PERF_RECORD_KSYMBOL | abi::PERF_RECORD_BPF_EVENT => {
                    self.excess |= meant_bytes(kind, &record[8..], self.trailer_bytes) < record.len() - 8;
                }
                abi::PERF_RECORD_MMAP2 => {
                    self.excess |= !self.has_build_ids && header.misc & MARKED_BUILD_ID != 0;
                    if self.collect_files {
                        self.mapped(record);
                    }
                    if let Some(code) = &mut self.code {
                        code.mapping(record);
                    }
                    if let Some(mapped_files) = &mut self.mapped_files {
                        mapped_files.mapping(record);
                    }
                }
                _ => {}
            }
        }
        cursor.offset()
    }

    /// Whole records as they should be: without what the kernel left behind some of them, and in
    /// the headers of others.
    pub(crate) fn mended(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for record in RecordCursor::new(bytes) {
            let RecordHeader { kind, mut misc, .. } = record.header;
            let body = &record.body()[..meant_bytes(kind, record.body(), self.trailer_bytes)];
            if kind == abi::PERF_RECORD_MMAP2 && !self.has_build_ids {
                misc &= !MARKED_BUILD_ID;
            }
            let size = (8 + body.len()) as u16;
            out.extend_from_slice(&RecordHeader { kind, misc, size }.to_bytes());
            out.extend_from_slice(body);
        }
        out
    }

    /// Remembers the file of an MMAP2 record that maps code.
    fn mapped(&mut self, record: &[u8]) {
        if let Some((file, _)) = RecordedFile::of_record(record)
            && !self.files.contains(&file)
        {
            self.files.insert(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RecordStats;
    use kymo_data::abi;

    fn record(kind: u32, body: &[u64]) -> Vec<u8> {
        let size = (8 + 8 * body.len()) as u64;
        let mut out = (u64::from(kind) | size << 48).to_le_bytes().to_vec();
        out.extend(body.iter().flat_map(|word| word.to_le_bytes()));
        out
    }

    /// Checks counts and times, and that a damaged size ends the pass.
    #[test]
    fn counts() {
        let mut stats =
            RecordStats::new(abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME, true);
        let mut bytes = record(abi::PERF_RECORD_SAMPLE, &[1, 2, 50]);
        bytes.extend(record(abi::PERF_RECORD_SAMPLE, &[1, 2, 40]));
        bytes.extend(record(abi::PERF_RECORD_LOST, &[7, 3]));
        bytes.extend(record(abi::PERF_RECORD_THROTTLE, &[0, 0, 0]));
        let whole = bytes.len();
        bytes.extend([0; 16]);
        assert_eq!(stats.records(&bytes), whole);
        assert_eq!((stats.samples, stats.lost, stats.throttled, stats.times), (2, 3, 1, Some((40, 50))));
        assert_eq!(stats.records(&[1, 2, 3]), 0);
    }

    /// Checks that the mark stays in a recording whose events ask for build ids.
    #[test]
    fn marks_of_own_build_ids() {
        let mut stats = RecordStats::new(abi::PERF_SAMPLE_TID, false);
        stats.has_build_ids = true;
        let mut marked = record(abi::PERF_RECORD_MMAP2, &[1, 0x1000, 0x1000, 0, 20, 77, 0, 5, 0]);
        marked[5] |= (abi::PERF_RECORD_MISC_MMAP_BUILD_ID >> 8) as u8;
        stats.records(&marked);
        assert!(!stats.excess);
        assert_eq!(stats.mended(&marked), marked);
    }

    /// Checks that a mapping does not keep the mark that the kernel made for an event of another
    /// recorder, which asked for build ids: what is in the record is an inode.
    #[test]
    fn marks_of_build_ids_for_others() {
        let mut stats = RecordStats::new(abi::PERF_SAMPLE_TID, false);
        let right = record(abi::PERF_RECORD_MMAP2, &[1, 0x1000, 0x1000, 0, 254, 77, 0, 5, 0]);
        stats.records(&right);
        assert!(!stats.excess);
        let mut marked = right.clone();
        marked[5] |= (abi::PERF_RECORD_MISC_MMAP_BUILD_ID >> 8) as u8;
        assert_eq!(stats.records(&marked), marked.len());
        assert!(stats.excess);
        assert_eq!(stats.mended(&marked), right);
    }

    /// Checks that a record which the kernel made too long becomes what it should be, and that
    /// nothing else changes.
    #[test]
    fn excess() {
        let mut stats =
            RecordStats::new(abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME, false);
        let name = u64::from_le_bytes(*b"symbol\0\0");
        let right = record(abi::PERF_RECORD_KSYMBOL, &[0xffff_0000, 90, name, 77, 50]);
        let long = record(abi::PERF_RECORD_KSYMBOL, &[0xffff_0000, 90, name, 77, 50, 666, 666]);
        let sample = record(abi::PERF_RECORD_SAMPLE, &[1, 2, 50]);
        let whole = [&sample[..], &right, &sample].concat();
        stats.records(&whole);
        assert!(!stats.excess);
        assert_eq!(stats.mended(&whole), whole);
        let found = [&sample[..], &long, &sample].concat();
        assert_eq!(stats.records(&found), found.len());
        assert!(stats.excess);
        assert_eq!(stats.mended(&found), whole);
    }
}
