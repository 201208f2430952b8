//! The writer thread: counts, compresses, appends, marks rounds, and publishes the size in the
//! header.
use crate::build_ids::FileBuildIds;
use crate::channel::{Next, Receiver};
use crate::coverage::Coverage;
use crate::disk::count_samples;
use crate::mapped_files::{FileWatch, RecordedFile};
use crate::pid_filter::PidFilter;
use crate::pool::BufferPool;
use crate::record_stats::RecordStats;
use crate::ring_scan::{DrainRequest, FullScan, ScanInterval};
use crate::round::Rounds;
use crate::series::{Content, Series};
use crate::shared::{DrainShared, Message};
use crate::sink::Sink;
use kymo_data::{Compressor, build, whole_records_bytes};
use rustix::process::setpriority_process;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So much is written at most between two updates of the header, however busy the writer is.
const PUBLISH_BYTES: u64 = 4 << 20;

/// How long it rests when it has written all that was there.
const NAP: Duration = Duration::from_millis(2);

/// Nearly the most that an ordinary thread can be preferred.
const WRITER_NICE: i32 = -19;

/// What the writer needs.
pub(crate) struct WriterThread<'a> {
    pub(crate) state: WriterState,
    pub(crate) pid_filter: PidFilter,
    pub(crate) rings: usize,
    pub(crate) shared: &'a DrainShared,
    /// One for each drain.
    pub(crate) requests: Vec<&'a DrainRequest>,
    /// Whether it runs before the target, where permitted.
    pub(crate) preferred: bool,
    /// Tells the build ids of mapped files.
    pub(crate) file_watch: Arc<FileWatch>,
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
    /// The recording ends at this size.
    pub(crate) max_bytes: Option<u64>,
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
    pub(crate) fn run(mut self, mut messages: Receiver<Message>) -> WriterState {
        // The observed program must not crowd out the one thread that takes its records away;
        // without privilege it may.
        if self.preferred
            && let Err(error) = setpriority_process(None, WRITER_NICE)
        {
            tracing::debug!(%error, "the writer runs at ordinary priority");
        }
        let _ = rustix::thread::set_name(c"writer");
        let mut progress = Progress { rounds: Rounds::new(self.rings), ..Progress::default() };
        loop {
            let series = self.state.series.as_mut().filter(|_| progress.full_scan.is_none());
            let task = next(&mut messages, series, progress.can_publish(), &self.shared.pool);
            let resting = matches!(task, WriterTask::Rest);
            let message = match task {
                WriterTask::Message(message) => Some(message),
                WriterTask::Switch => {
                    progress.full_scan = Some(self.begin_full_scan());
                    None
                }
                WriterTask::Rest => None,
                WriterTask::End => break,
            };
            self.shared.pool.replenish();
            let was_full = self.state.full;
            let (written, drained) = self.take_in(message, &mut progress);
            if self.state.full && !was_full {
                let _ = rustix::io::write(self.failed_fd, &1u64.to_ne_bytes());
            }
            match written {
                Ok(bytes) => {
                    progress.unpublished += bytes;
                    progress.since_marker += bytes;
                }
                Err(error) => self.state.fail(error, self.failed_fd),
            }
            if self.state.error.is_some() {
                progress.unpublished = 0;
                continue;
            }
            let result = (self.mark_round(drained, &mut progress))
                .and_then(|()| self.switch_if_due(&mut progress))
                .and_then(|()| self.publish(resting, &mut progress));
            if let Err(error) = result {
                self.state.fail(error, self.failed_fd);
            }
        }
        self.state
    }

    /// Writes what a message brings. How many bytes that made, and the ring that was emptied, if
    /// one was.
    fn take_in(
        &mut self,
        message: Option<Message>,
        progress: &mut Progress,
    ) -> (io::Result<u64>, Option<Emptied>) {
        let (state, packed) = (&mut self.state, &mut progress.packed);
        match message {
            None => (Ok(0), None),
            Some(Message::Synthesized(records)) => {
                progress.complete = true;
                if let Some(series) = &mut state.series {
                    series.sideband.records(&records);
                }
                if let Some(code) = &mut state.stats.code {
                    code.records(&records);
                }
                if let Some(mapped_files) = &mut state.stats.mapped_files {
                    mapped_files.records(&records);
                }
                (state.append(&records, 0, packed), None)
            }
            Some(Message::Note(records)) => {
                if let Some(series) = &mut state.series {
                    series.sideband.records(&records);
                }
                if let Some(code) = &mut state.stats.code {
                    code.records(&records);
                }
                (state.append(&records, 0, packed), None)
            }
            Some(Message::Empty { ring, round, scan }) => (Ok(0), Some(Emptied { ring, round, scan })),
            Some(Message::Full { ring, mut buffer, len, round, scan, emptied, starved }) => {
                let len = self.pid_filter.remove(&mut buffer[..len]);
                let written = state.write(&buffer[..len], starved, packed);
                self.shared.pool.give(buffer);
                (written, emptied.then_some(Emptied { ring, round, scan }))
            }
        }
    }

    /// Writes the round's marker if this ring was the last one to be emptied in it.
    fn mark_round(&mut self, drained: Option<Emptied>, progress: &mut Progress) -> io::Result<()> {
        let Some(Emptied { ring, round, scan }) = drained else { return Ok(()) };
        if let Some(full_scan) = &mut progress.full_scan {
            full_scan.emptied(ring, scan);
        }
        let due = progress.rounds.drained(ring, round);
        if !due || !progress.complete || progress.since_marker == 0 {
            return Ok(());
        }
        let written = self.state.sink.append(&build::finished_round(), 0);
        if let Some(series) = &mut self.state.series {
            series.sideband.round();
        }
        progress.rounds.next(&self.shared.round);
        progress.since_marker = 0;
        progress.unpublished += 8;
        written
    }

    /// Goes on in another file if it is time for one and every ring has been emptied for it.
    fn switch_if_due(&mut self, progress: &mut Progress) -> io::Result<()> {
        // A file without the list of what existed before would be of little use.
        let Some(mut series) = self.state.series.take_if(|_| progress.complete) else { return Ok(()) };
        if progress.full_scan.is_none() && series.is_due(self.state.sink.bytes()) {
            progress.full_scan = Some(self.begin_full_scan());
        }
        let mut result = Ok(());
        if progress.full_scan.as_ref().is_some_and(FullScan::is_done) {
            progress.full_scan = None;
            let files = series.sideband.files();
            result = self.state.switch(&mut series, files).and_then(|()| {
                let existing = series.sideband.told();
                self.state.append(&existing, 0, &mut progress.packed).map(|_| ())
            });
            series.asked.answer();
            (progress.unpublished, progress.since_marker) = (1, 0);
        }
        self.state.series = Some(series);
        result
    }

    fn publish(&mut self, resting: bool, progress: &mut Progress) -> io::Result<()> {
        if !progress.can_publish() || !resting && progress.unpublished < PUBLISH_BYTES {
            return Ok(());
        }
        let build_ids = self.file_watch.take_build_ids();
        if let Some(series) = &mut self.state.series {
            series.sideband.records(&build_ids);
        }
        progress.since_marker += self.state.append(&build_ids, 0, &mut progress.packed)?;
        progress.unpublished = 0;
        // Nobody can open a file in memory before it is complete.
        if self.state.series.as_ref().is_some_and(Series::is_in_memory) {
            return Ok(());
        }
        self.state.sink.publish(resting)
    }

    /// Makes every drain scan its rings once more.
    fn begin_full_scan(&self) -> FullScan {
        let full_scan = FullScan::begin(&self.shared.clock, self.rings);
        self.requests.iter().for_each(|request| request.ask());
        full_scan
    }
}

/// A ring that was emptied: the round that ran, and when that was.
struct Emptied {
    ring: usize,
    round: u64,
    scan: ScanInterval,
}

/// How far the writer is in the current round and file.
#[derive(Default)]
struct Progress {
    rounds: Rounds,
    /// For compressed bytes.
    packed: Vec<u8>,
    /// Bytes that the header's size does not include yet, and bytes since the last marker.
    unpublished: u64,
    since_marker: u64,
    /// All synthesized records are written. A reader takes those as they come, but holds the rest
    /// back until a marker, so none may come before that.
    complete: bool,
    /// Another file begins when every ring has been emptied once more: names and mappings of a
    /// quiet CPU would otherwise lie in its ring while files with samples of others pass, none of
    /// which could name them.
    full_scan: Option<FullScan>,
}

impl Progress {
    /// Whether readers could do with what came since the last publication. Without the list of what
    /// existed before they could name none of the samples: a recorder that is killed before that
    /// leaves an empty recording rather than one that seems to tell something.
    fn can_publish(&self) -> bool {
        self.unpublished > 0 && self.complete
    }
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

    /// Completes the file, with the build IDs of these files and of those that were seen, and goes
    /// on in another.
    pub(crate) fn switch(&mut self, series: &mut Series, mut files: HashSet<RecordedFile>) -> io::Result<()> {
        let info = self.compressor.as_ref().map(Compressor::info);
        files.extend(self.stats.files.iter().cloned());
        let build_ids = FileBuildIds::of(&files, series.build_ids);
        let marks = build_ids.records();
        if !marks.is_empty() {
            self.append(&marks, 0, &mut Vec::new())?;
        }
        let done = std::mem::replace(&mut self.sink, Sink::Closed);
        // Whoever sees the file under its final name finds it complete.
        let finished = done.finish(&series.features(build_ids, self.stats.times.take(), info));
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
