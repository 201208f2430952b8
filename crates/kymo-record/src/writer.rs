//! The one thread that writes: counts, compresses, appends, marks rounds, and brings the header up to date.
use crate::channel::{Next, Receiver};
use crate::disk::count_samples;
use crate::drain::{DrainShared, Message};
use crate::flight::Coverage;
use crate::pid_filter::PidFilter;
use crate::pool::BufferPool;
use crate::record_stats::{RecordStats, whole_records_bytes};
use crate::ring_scan::{DrainRequest, FullScan};
use crate::round::Rounds;
use crate::series::{Content, Series};
use crate::sink::Sink;
use kymo_data::{Compressor, build};
use rustix::process::setpriority_process;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// So much is written at most between two updates of the header, however busy the writer is.
const PUBLISH_BYTES: u64 = 4 << 20;

/// How long it rests when it has written all that was there.
const NAP: Duration = Duration::from_millis(2);

/// Nearly the most that an ordinary thread can be preferred.
const WRITER_NICE: i32 = -19;

/// What the writer needs.
pub(crate) struct WriterThread<'a> {
    pub(crate) sink: Sink,
    pub(crate) stats: RecordStats,
    pub(crate) compressor: Option<Compressor>,
    pub(crate) pid_filter: PidFilter,
    pub(crate) rings: usize,
    pub(crate) shared: &'a DrainShared,
    /// One for each drain.
    pub(crate) requests: Vec<&'a DrainRequest>,
    /// Whether it runs before the target, where permitted.
    pub(crate) preferred: bool,
    /// The recording ends at this size.
    pub(crate) max_bytes: Option<u64>,
    /// The files that it is made of, if it is more than one.
    pub(crate) series: Option<Series>,
    /// Becomes readable when writing has failed, or the recording is as large as it may be.
    pub(crate) failed_fd: &'a OwnedFd,
}

/// What the writer did.
pub(crate) struct WriterState {
    pub(crate) sink: Sink,
    pub(crate) stats: RecordStats,
    pub(crate) compressor: Option<Compressor>,
    /// Why writing ended early.
    pub(crate) error: Option<io::Error>,
    /// Records that the kernel dropped while drains were at work, or waited for a buffer.
    pub(crate) ring_full: u64,
    pub(crate) queue_full: u64,
    /// Samples that snapshots miss because they came while a ring was read.
    pub(crate) while_read: u64,
    /// Records of drained rings that were lost, and that no snapshot tells of.
    pub(crate) tasks_lost: u64,
    /// Bytes that came after the error.
    pub(crate) unwritten_bytes: u64,
    /// Samples among them.
    pub(crate) unwritten_samples: u64,
    /// Bytes that were no records.
    pub(crate) corrupt_bytes: u64,
    /// The recording is as large as it may be.
    pub(crate) full: bool,
    /// The files that it is made of, if it is more than one.
    pub(crate) series: Option<Series>,
    /// What is in files that are done.
    pub(crate) earlier: Content,
    /// How far back the last file reaches, of a flight recorder.
    pub(crate) coverage: Option<Coverage>,
    max_bytes: Option<u64>,
}

/// What the writer has to do next.
pub(crate) enum WriterTask {
    Message(Message),
    /// Another file is wanted.
    Switch,
    /// Nothing is there: what was written can be made known.
    Rest,
    End,
}

/// The next task. `rests`: rather a rest than to wait for one.
pub(crate) fn next(
    messages: &mut Receiver<Message>,
    series: Option<&mut Series>,
    rests: bool,
    pool: &BufferPool,
) -> WriterTask {
    let mut napped = pool.is_short();
    loop {
        let deadline = series.as_ref().and_then(|series| series.deadline());
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) || series.as_ref().is_some_and(|series| series.asked.take()) {
            return WriterTask::Switch;
        }
        match messages.take() {
            Next::Item(message) => return WriterTask::Message(message),
            Next::Closed => return WriterTask::End,
            Next::Empty if rests => return WriterTask::Rest,
            Next::Empty => {}
        }
        if napped {
            if let Next::Item(message) = messages.wait(left) {
                return WriterTask::Message(message);
            }
        } else {
            // What comes meanwhile wakes nobody, and is written together.
            std::thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
            napped = true;
        }
    }
}

impl WriterThread<'_> {
    /// Writes until all drains have ended.
    pub(crate) fn run(self, mut messages: Receiver<Message>) -> WriterState {
        // The observed program must not crowd out the one thread that takes its records away; without privilege it may.
        if self.preferred
            && let Err(error) = setpriority_process(None, WRITER_NICE)
        {
            tracing::debug!(%error, "the writer runs at ordinary priority");
        }
        let _ = rustix::thread::set_name(c"writer");
        let mut rounds = Rounds::new(self.rings);
        let mut state = WriterState::new(self.sink, self.stats, self.compressor, self.series);
        state.max_bytes = self.max_bytes;
        let (mut packed, mut unpublished, mut since_marker) = (Vec::new(), 0, 0);
        // A reader takes what is made up as it comes, but holds the rest back until markers; so before the first of them everything
        // that is made up must be there.
        let mut complete = false;
        // Another file begins when every ring has been emptied once more: what a quiet CPU has told of names and mappings would otherwise lie in its ring
        // while files with samples of others pass, none of which could name them.
        let mut full_scan: Option<FullScan> = None;
        loop {
            let series = state.series.as_mut().filter(|_| full_scan.is_none());
            let task = next(&mut messages, series, unpublished > 0, &self.shared.pool);
            let resting = matches!(task, WriterTask::Rest);
            let message = match task {
                WriterTask::Message(message) => Some(message),
                WriterTask::Switch => {
                    full_scan = Some(begin_full_scan(self.shared, &self.requests, self.rings));
                    None
                }
                WriterTask::Rest => None,
                WriterTask::End => break,
            };
            self.shared.pool.replenish();
            let was_full = state.full;
            let (written, drained) = match message {
                None => (Ok(0), None),
                Some(Message::Synthesized(records)) => {
                    complete = true;
                    if let Some(series) = &mut state.series {
                        series.sideband.records(&records);
                    }
                    (state.append(&records, 0, &mut packed), None)
                }
                Some(Message::Note(records)) => (state.append(&records, 0, &mut packed), None),
                Some(Message::Empty { ring, round, scan }) => (Ok(0), Some((ring, round, scan))),
                Some(Message::Full { ring, mut buffer, len, round, scan, emptied, starved }) => {
                    let len = self.pid_filter.remove(&mut buffer[..len]);
                    let written = state.write(&buffer[..len], starved, &mut packed);
                    self.shared.pool.give(buffer);
                    (written, emptied.then_some((ring, round, scan)))
                }
            };
            if state.full && !was_full {
                let _ = rustix::io::write(self.failed_fd, &1u64.to_ne_bytes());
            }
            match written {
                Ok(bytes) => {
                    unpublished += bytes;
                    since_marker += bytes;
                }
                Err(error) => state.fail(error, self.failed_fd),
            }
            if state.error.is_some() {
                unpublished = 0;
                continue;
            }
            let due = drained.is_some_and(|(ring, round, _)| rounds.drained(ring, round));
            if let (Some(full_scan), Some((ring, _, scan))) = (&mut full_scan, drained) {
                full_scan.emptied(ring, scan);
            }
            let mut result = Ok(());
            if due && complete && since_marker > 0 {
                result = state.sink.append(&build::finished_round(), 0);
                if let Some(series) = &mut state.series {
                    series.sideband.round();
                }
                rounds.next(&self.shared.round);
                since_marker = 0;
                unpublished += 8;
            }
            // A file without the list of what was there would be of little use.
            if result.is_ok()
                && complete
                && let Some(mut series) = state.series.take()
            {
                if full_scan.is_none() && series.is_due(state.sink.bytes()) {
                    full_scan = Some(begin_full_scan(self.shared, &self.requests, self.rings));
                }
                if full_scan.as_ref().is_some_and(FullScan::is_done) {
                    full_scan = None;
                    let files = series.sideband.files();
                    result = state
                        .switch(&mut series, files)
                        .and_then(|()| state.append(&series.sideband.told(), 0, &mut packed).map(|_| ()));
                    series.asked.answer();
                    (unpublished, since_marker) = (1, 0);
                }
                state.series = Some(series);
            }
            if result.is_ok() && unpublished > 0 && (resting || unpublished >= PUBLISH_BYTES) {
                result = state.sink.publish(resting);
                unpublished = 0;
            }
            if let Err(error) = result {
                state.fail(error, self.failed_fd);
            }
        }
        state
    }
}

/// Has every drain look at its rings once more.
fn begin_full_scan(shared: &DrainShared, requests: &[&DrainRequest], rings: usize) -> FullScan {
    let full_scan = FullScan::begin(&shared.clock, rings);
    requests.iter().for_each(|request| request.ask());
    full_scan
}

impl WriterState {
    /// Before anything was written.
    pub(crate) fn new(
        sink: Sink,
        stats: RecordStats,
        compressor: Option<Compressor>,
        series: Option<Series>,
    ) -> WriterState {
        WriterState {
            sink,
            stats,
            compressor,
            error: None,
            ring_full: 0,
            queue_full: 0,
            while_read: 0,
            tasks_lost: 0,
            unwritten_bytes: 0,
            unwritten_samples: 0,
            corrupt_bytes: 0,
            full: false,
            series,
            earlier: Content::default(),
            coverage: None,
            max_bytes: None,
        }
    }

    fn write(&mut self, records: &[u8], starved: bool, packed: &mut Vec<u8>) -> io::Result<u64> {
        if self.error.is_some() {
            self.unwritten_bytes += records.len() as u64;
            self.unwritten_samples += count_samples(records);
            return Ok(0);
        }
        if self.full {
            return Ok(0);
        }
        let mut records = records;
        if let Some(limit) = self.max_bytes
            && self.compressor.is_none()
        {
            let room = usize::try_from(limit.saturating_sub(self.sink.bytes())).unwrap_or(usize::MAX);
            if records.len() > room {
                self.full = true;
                records = &records[..whole_records_bytes(records, room)];
            }
        }
        let (lost_before, samples_before) = (self.stats.lost, self.stats.samples);
        let whole = self.stats.records(records);
        self.corrupt_bytes += (records.len() - whole) as u64;
        let mended;
        let mut whole = &records[..whole];
        if self.stats.excess {
            mended = self.stats.mended(whole);
            whole = &mended;
        }
        let lost = self.stats.lost - lost_before;
        if starved {
            self.queue_full += lost;
        } else {
            self.ring_full += lost;
        }
        if let Some(series) = &mut self.series {
            series.sideband.records(whole);
        }
        let written = self.append(whole, self.stats.samples - samples_before, packed)?;
        self.full |= self.max_bytes.is_some_and(|limit| self.sink.bytes() >= limit);
        Ok(written)
    }

    /// Completes the file, with the build IDs of these files and of those that were seen, and goes on in another.
    pub(crate) fn switch(&mut self, series: &mut Series, mut files: HashSet<Vec<u8>>) -> io::Result<()> {
        let info = self.compressor.as_ref().map(Compressor::info);
        files.extend(self.stats.files.iter().cloned());
        let done = std::mem::replace(&mut self.sink, Sink::Closed);
        // Whoever sees the file under its final name finds it complete.
        let finished = done.finish(&series.features(&files, self.stats.times.take(), info));
        self.stats.samples = self.stats.samples.saturating_sub(finished.lost_samples);
        let content = self.content(finished.bytes);
        self.earlier.bytes += content.bytes;
        self.earlier.samples += content.samples;
        self.unwritten_samples += finished.lost_samples;
        self.unwritten_bytes += finished.lost_bytes;
        match (series.next(content), finished.error) {
            (Ok(sink), None) => self.sink = sink,
            (Ok(sink), Some(error)) => {
                self.sink = sink;
                return Err(error);
            }
            (Err(error), earlier) => return Err(earlier.unwrap_or(error)),
        }
        if let Some(compressor) = &mut self.compressor {
            // Each file begins a stream of its own.
            *compressor = compressor.again()?;
        }
        Ok(())
    }

    /// What a file of this size holds that has all that was counted since the one before.
    pub(crate) fn content(&self, bytes: u64) -> Content {
        Content { bytes, samples: self.stats.samples.saturating_sub(self.earlier.samples) }
    }

    /// Compresses and appends whole records; returns how many bytes that made.
    pub(crate) fn append(&mut self, records: &[u8], samples: u64, packed: &mut Vec<u8>) -> io::Result<u64> {
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

    pub(crate) fn fail(&mut self, error: io::Error, failed_fd: &OwnedFd) {
        if self.error.is_none() {
            self.error = Some(error);
            let _ = rustix::io::write(failed_fd, &1u64.to_ne_bytes());
        }
    }
}
