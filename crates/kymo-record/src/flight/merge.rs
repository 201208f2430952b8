//! Merges the snapshots of all rings and the side-band log into one stream in order of time.
use super::clock::SampleClock;
use super::snapshot::RingSnapshot;
use crate::coverage::{Coverage, RingCoverage};
use crate::disk::count_samples;
use kymo_data::{RecordCursor, WholeRecord};

/// One record: its time and its place.
#[derive(Clone, Copy, Debug)]
struct RecordAt {
    time_ns: u64,
    start: usize,
    source: u32,
    bytes: u32,
}

/// Records from several sources, to be read in order of time.
#[derive(Debug)]
pub(crate) struct Merge<'a> {
    /// By time, then by source; a source's own order is kept.
    order: Vec<RecordAt>,
    sources: Vec<&'a [u8]>,
}

impl<'a> Merge<'a> {
    /// Of what rings held, the newest first, and of pieces that are in order; and how far the rings
    /// reach back.
    pub(crate) fn new(
        snapshots: &'a [RingSnapshot],
        pieces: impl Iterator<Item = &'a [u8]>,
        clock: &SampleClock,
    ) -> (Merge<'a>, Coverage) {
        let mut merge = Merge { order: Vec::new(), sources: Vec::new() };
        let coverage = snapshots.iter().map(|snapshot| merge.snapshot(snapshot, clock)).collect();
        for piece in pieces {
            let begin = merge.order.len();
            merge.source(piece);
            merge.date(begin, clock);
        }
        merge.order.sort_by_key(|place| (place.time_ns, place.source));
        (merge, Coverage { rings: coverage })
    }

    /// The time of the oldest record in what rings held, in ns.
    pub(crate) fn oldest_ns(snapshots: &[RingSnapshot], clock: &SampleClock) -> Option<u64> {
        snapshots.iter().flat_map(|snapshot| clock.times_ns(&snapshot.records)).min()
    }

    fn snapshot(&mut self, snapshot: &'a RingSnapshot, clock: &SampleClock) -> RingCoverage {
        let begin = self.order.len();
        self.source(&snapshot.records);
        self.order[begin..].reverse();
        self.date(begin, clock);
        let dated = &self.order[begin..];
        // One that has no time, at the beginning, stands at 0.
        let oldest = dated.iter().map(|place| place.time_ns).find(|&time| time > 0);
        RingCoverage {
            cpu: snapshot.cpu,
            task: snapshot.task,
            span_ns: oldest.zip(dated.last().map(|place| place.time_ns)),
            samples: count_samples(&snapshot.records),
            overwritten: snapshot.wrapped,
        }
    }

    fn source(&mut self, bytes: &'a [u8]) {
        let source = self.sources.len() as u32;
        self.sources.push(bytes);
        for WholeRecord { bytes, offset: start, .. } in RecordCursor::new(bytes) {
            self.order.push(RecordAt { time_ns: 0, start, source, bytes: bytes.len() as u32 });
        }
    }

    /// Dates the records of the last source, which are in order: none is before the one before it.
    fn date(&mut self, begin: usize, clock: &SampleClock) {
        let mut latest = 0;
        for at in begin..self.order.len() {
            let place = self.order[at];
            latest = clock.time_ns(self.record(place)).unwrap_or(0).max(latest);
            self.order[at].time_ns = latest;
        }
    }

    fn record(&self, place: RecordAt) -> &'a [u8] {
        &self.sources[place.source as usize][place.start..place.start + place.bytes as usize]
    }

    /// Hands out the stream in chunks of whole records, each of about this size.
    pub(crate) fn chunks(&self, about_bytes: usize, mut each: impl FnMut(&[u8])) {
        let mut chunk = Vec::new();
        for &place in &self.order {
            chunk.extend_from_slice(self.record(place));
            if chunk.len() >= about_bytes {
                each(&chunk);
                chunk.clear();
            }
        }
        if !chunk.is_empty() {
            each(&chunk);
        }
    }
}
