//! The one thread that writes: counts, compresses, appends, marks rounds, and brings the header up to date.
use crate::disk::count_samples;
use crate::drain::{Message, Shared};
use crate::round::Rounds;
use crate::sink::Sink;
use crate::strangers::Strangers;
use crate::walk::Walk;
use crossbeam_channel::Receiver;
use kymo_data::{Compressor, build};
use rustix::process::setpriority_process;
use std::io;
use std::os::fd::OwnedFd;

/// So much is written at most between two updates of the header, however busy the writer is.
const PUBLISH_BYTES: u64 = 4 << 20;

/// Nearly the most that an ordinary thread can be preferred.
const WRITER_NICE: i32 = -19;

/// What the writer needs.
pub(crate) struct WriterThread<'a> {
    pub(crate) sink: Sink,
    pub(crate) walk: Walk,
    pub(crate) compressor: Option<Compressor>,
    pub(crate) strangers: Strangers,
    pub(crate) rings: usize,
    pub(crate) shared: &'a Shared,
    /// Becomes readable when writing has failed.
    pub(crate) failed_fd: &'a OwnedFd,
}

/// What the writer did.
pub(crate) struct Written {
    pub(crate) sink: Sink,
    pub(crate) walk: Walk,
    pub(crate) compressor: Option<Compressor>,
    /// Why writing ended early.
    pub(crate) error: Option<io::Error>,
    /// Records that the kernel dropped while drains were at work, or waited for a buffer.
    pub(crate) ring_full: u64,
    pub(crate) queue_full: u64,
    /// Bytes that came after the error.
    pub(crate) unwritten_bytes: u64,
    /// Samples among them.
    pub(crate) unwritten_samples: u64,
    /// Bytes that were no records.
    pub(crate) corrupt_bytes: u64,
}

impl WriterThread<'_> {
    /// Writes until all drains have ended.
    pub(crate) fn run(self, messages: &Receiver<Message>) -> Written {
        // The observed program must not crowd out the one thread that takes its records away; without privilege it may.
        if let Err(error) = setpriority_process(None, WRITER_NICE) {
            tracing::debug!(%error, "the writer runs at ordinary priority");
        }
        let mut rounds = Rounds::new(self.rings);
        let mut state = Written {
            sink: self.sink,
            walk: self.walk,
            compressor: self.compressor,
            error: None,
            ring_full: 0,
            queue_full: 0,
            unwritten_bytes: 0,
            unwritten_samples: 0,
            corrupt_bytes: 0,
        };
        let (mut packed, mut unpublished, mut since_marker) = (Vec::new(), 0, 0);
        // A reader takes what is made up as it comes, but holds the rest back until markers; so before the first of them everything
        // that is made up must be there.
        let mut complete = false;
        while let Ok(message) = messages.recv() {
            let (written, drained) = match message {
                Message::Synthesized(records) => {
                    complete = true;
                    (state.append(&records, 0, &mut packed), None)
                }
                Message::Empty { ring, round, .. } => (Ok(0), Some((ring, round))),
                Message::Full { ring, mut buffer, len, round, emptied, starved, .. } => {
                    let len = self.strangers.remove(&mut buffer[..len]);
                    let written = state.write(&buffer[..len], starved, &mut packed);
                    self.shared.pool.give(buffer);
                    (written, emptied.then_some((ring, round)))
                }
            };
            match written {
                Ok(bytes) => {
                    unpublished += bytes;
                    since_marker += bytes;
                }
                Err(error) => state.fail(error, self.failed_fd),
            }
            if state.error.is_some() {
                continue;
            }
            let due = drained.is_some_and(|(ring, round)| rounds.drained(ring, round));
            let mut result = Ok(());
            if due && complete && since_marker > 0 {
                result = state.sink.append(&build::finished_round(), 0);
                rounds.next(&self.shared.round);
                since_marker = 0;
                unpublished += 8;
            }
            if result.is_ok() && unpublished > 0 && (messages.is_empty() || unpublished >= PUBLISH_BYTES) {
                result = state.sink.publish(messages.is_empty());
                unpublished = 0;
            }
            if let Err(error) = result {
                state.fail(error, self.failed_fd);
            }
        }
        state
    }
}

impl Written {
    fn write(&mut self, records: &[u8], starved: bool, packed: &mut Vec<u8>) -> io::Result<u64> {
        if self.error.is_some() {
            self.unwritten_bytes += records.len() as u64;
            self.unwritten_samples += count_samples(records);
            return Ok(0);
        }
        let (lost_before, samples_before) = (self.walk.lost, self.walk.samples);
        let whole = self.walk.records(records);
        self.corrupt_bytes += (records.len() - whole) as u64;
        let lost = self.walk.lost - lost_before;
        if starved {
            self.queue_full += lost;
        } else {
            self.ring_full += lost;
        }
        self.append(&records[..whole], self.walk.samples - samples_before, packed)
    }

    /// Compresses and appends whole records; returns how many bytes that made.
    fn append(&mut self, records: &[u8], samples: u64, packed: &mut Vec<u8>) -> io::Result<u64> {
        if self.error.is_some() || records.is_empty() {
            return Ok(0);
        }
        let bytes = match &mut self.compressor {
            Some(compressor) => {
                packed.clear();
                compressor.compress(records, packed)?;
                &packed[..]
            }
            None => records,
        };
        self.sink.append(bytes, samples)?;
        Ok(bytes.len() as u64)
    }

    fn fail(&mut self, error: io::Error, failed_fd: &OwnedFd) {
        if self.error.is_none() {
            self.error = Some(error);
            let _ = rustix::io::write(failed_fd, &1u64.to_ne_bytes());
        }
    }
}
