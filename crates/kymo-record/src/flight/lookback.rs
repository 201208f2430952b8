//! Tasks, names and mappings as of the oldest record that the rings still hold.
//!
//! The rings of samples forget; the records of tasks and mappings come through rings of their own,
//! which are emptied. What is older than the samples is folded into what is known ([`Sideband`]),
//! the rest waits as it came:
//!
//! ```text
//!   forks, names, mappings:   folded, then thrown away  | kept as they came
//!   samples in the rings:          (overwritten)        | oldest ........... newest
//! ```
use super::clock::SampleClock;
use crate::mapped_files::RecordedFile;
use crate::sideband::Sideband;
use kymo_data::{EventSpec, RecordCursor, WholeRecord, abi};
use std::collections::{HashSet, VecDeque};

/// So much is kept as it came, in bytes; then it is looked up how old the samples are by now.
pub(crate) const LOG_BYTES: usize = 8 << 20;

/// What is known as of the oldest sample, and what has happened since.
pub(crate) struct Lookback {
    state: Sideband,
    /// Records as they came, ring by ring.
    log: VecDeque<Vec<u8>>,
    log_bytes: usize,
}

impl Lookback {
    /// For the records of these events, of which one tracks.
    pub(crate) fn new(specs: &[EventSpec]) -> Lookback {
        let tracks = |spec: &&EventSpec| spec.attr.flags & abi::ATTR_FLAG_TASK != 0;
        let tracking = specs.iter().find(tracks).or(specs.first());
        let state = Sideband::new(tracking.map(|spec| spec.attr.clone()).unwrap_or_default());
        Lookback { state, log: VecDeque::new(), log_bytes: 0 }
    }

    /// Takes in what was there before everything else.
    pub(crate) fn before(&mut self, bytes: &[u8]) {
        self.state.records(bytes);
    }

    /// Takes in what has happened.
    pub(crate) fn records(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.log_bytes += bytes.len();
            self.log.push_back(bytes.to_vec());
        }
    }

    /// Whether it has become so much that [`Lookback::advance`] is due.
    pub(crate) fn is_long(&self) -> bool {
        self.log_bytes > LOG_BYTES
    }

    /// Folds what is older than the oldest sample; `None`: there is no sample that anything could
    /// be needed for. Of what is left then, at most half of [`LOG_BYTES`] is kept where `bounded`,
    /// and the rest folded before its time.
    pub(crate) fn advance(&mut self, oldest_ns: Option<u64>, clock: &SampleClock, bounded: bool) {
        for chunk in std::mem::take(&mut self.log) {
            let mut young = Vec::new();
            for WholeRecord { bytes: record, .. } in RecordCursor::new(&chunk) {
                let is_old = match (oldest_ns, clock.time_ns(record)) {
                    (Some(oldest), Some(time)) => time < oldest,
                    // One without a time is as of before; without samples everything is.
                    _ => true,
                };
                if is_old {
                    self.state.records(record);
                } else {
                    young.extend_from_slice(record);
                }
            }
            if !young.is_empty() {
                self.log.push_back(young);
            }
        }
        self.log_bytes = self.log.iter().map(Vec::len).sum();
        while bounded
            && self.log_bytes > LOG_BYTES / 2
            && let Some(chunk) = self.log.pop_front()
        {
            self.log_bytes -= chunk.len();
            self.state.records(&chunk);
        }
        self.state.round();
    }

    /// Records that tell what is known as of the oldest sample.
    pub(crate) fn told(&self) -> Vec<u8> {
        self.state.told()
    }

    /// What has happened since, each piece in order of time.
    pub(crate) fn log(&self) -> impl Iterator<Item = &[u8]> {
        self.log.iter().map(Vec::as_slice)
    }

    /// The files that are mapped as code, as far as told.
    pub(crate) fn files(&self) -> HashSet<RecordedFile> {
        self.state.files()
    }
}
