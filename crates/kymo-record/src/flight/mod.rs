//! The flight recorder: rings that keep the newest records, and snapshots of them.
//!
//! ```text
//!   samples ----> rings that keep the newest ........ not drained ............... snapshot ------------+
//!                                                                                                        v
//!   forks, names, mappings ----> ordinary rings ----> drains ----> [`lookback`] ------------------->  [`merge`] ----> a file of its own
//!                                                       what is older than the samples is folded
//! ```
//!
//! Between snapshots nothing is copied but the few records of tasks and mappings. A snapshot is
//! asked for (a signal, a command), due by time, or the one at the end; each is a recording by
//! itself, and the rings go on with what they hold, so two snapshots in quick succession have
//! samples in common.
//!
//! # Invariants
//! - **F1** A snapshot has all that the rings held when it was taken, but for records of other
//!   processes. Taking it from rings of CPUs loses nothing.
//! - **F2** Its records stand in order of time, as far as each ring's do.
//! - **F3** What is known of tasks at its beginning is as of its oldest record, and every later
//!   fork, name and mapping up to its newest record stands at its own time. (Unless a CPU's drain
//!   cannot run for [`CATCH_UP_TIMEOUT`]: then what it has is missing.)
//! - **F4** What a snapshot misses of the time that it covers, it tells ([`missed`]); what was lost
//!   at other times is no loss of it. The account of a run is the sum over its snapshots.
//! - **F5** Besides the rings and a snapshot's copy of them, no more than [`lookback::LOG_BYTES`]
//!   of records are kept.
mod clock;
mod lookback;
mod merge;
mod missed;
mod snapshot;
#[cfg(test)]
mod tests;

pub(crate) use snapshot::SnapshotReader;

use crate::channel::{Next, Receiver};
use crate::opening::has_build_ids;
use crate::pid_filter::PidFilter;
use crate::record_stats::RecordStats;
use crate::ring_scan::DrainRequest;
use crate::shared::{DrainShared, Message};
use crate::writer::{self, WriterState, WriterTask};
use clock::SampleClock;
use kymo_data::{EventSpec, SampleId, abi, build};
use lookback::Lookback;
use merge::Merge;
use missed::MissedSamples;
use rustix::process::setpriority_process;
use snapshot::RingSnapshot;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long a snapshot waits for drains that were asked to look at their rings.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(2);
/// After this they are asked again.
const NUDGE: Duration = Duration::from_millis(100);
/// So much stands between two markers in a snapshot: a reader holds back two times that.
const CHUNK_BYTES: usize = 1 << 20;
/// The thread does little, but when it does, somebody waits.
const FLIGHT_NICE: i32 = -19;

/// The thread that takes snapshots, in the place of the writer.
pub(crate) struct FlightThread<'a> {
    reader: SnapshotReader<'a>,
    lookback: Lookback,
    clock: SampleClock,
    pid_filter: PidFilter,
    shared: &'a DrainShared,
    /// The request of each drained ring's drain.
    requests: Vec<&'a DrainRequest>,
    /// The tick before the last look that left a ring empty, by drained ring.
    emptied: Vec<u64>,
    sample_type: u64,
    build_ids: bool,
    /// Whether one more is taken at the end.
    at_end: bool,
    /// What was there before is known.
    complete: bool,
    /// Counts what is drained.
    drained: RecordStats,
    missed: MissedSamples,
    specs: Vec<EventSpec>,
    state: WriterState,
    /// Becomes readable when writing has failed.
    failed_fd: &'a OwnedFd,
}

/// Whether the event tells of tasks and mappings.
fn tracks(spec: &&EventSpec) -> bool {
    spec.attr.flags & abi::ATTR_FLAG_TASK != 0
}

/// The record that tells how many samples of an event are missing.
fn told_lost(spec: Option<&EventSpec>, id: &SampleId, count: u64) -> Vec<u8> {
    let Some(spec) = spec else { return Vec::new() };
    let id = SampleId { id: id.id.or(spec.ids.first().copied()), cpu: id.cpu.or(Some(0)), ..*id };
    build::lost_samples(&spec.attr, &id, count)
}

/// What the thread shares with the session.
pub(crate) struct FlightContext<'a> {
    pub(crate) reader: SnapshotReader<'a>,
    pub(crate) pid_filter: PidFilter,
    pub(crate) shared: &'a DrainShared,
    /// The request of each drained ring's drain.
    pub(crate) requests: Vec<&'a DrainRequest>,
    pub(crate) failed_fd: &'a OwnedFd,
}

impl<'a> FlightThread<'a> {
    /// `at_end`: a last snapshot is taken when everything has ended. `build_ids`: the files of
    /// mappings are to be remembered.
    pub(crate) fn new(
        context: FlightContext<'a>,
        specs: &[EventSpec],
        state: WriterState,
        at_end: bool,
        build_ids: bool,
    ) -> FlightThread<'a> {
        let sample_type = specs.first().map_or(0, |spec| spec.attr.sample_type);
        let tracking_type = specs.iter().find(tracks).map_or(sample_type, |spec| spec.attr.sample_type);
        let mut drained = RecordStats::new(tracking_type, false);
        drained.has_build_ids = has_build_ids(specs);
        let mut state = state;
        drained.mapped_files = state.stats.mapped_files.take();
        FlightThread {
            reader: context.reader,
            lookback: Lookback::new(specs),
            clock: SampleClock::new(specs),
            pid_filter: context.pid_filter,
            shared: context.shared,
            emptied: vec![0; context.requests.len()],
            requests: context.requests,
            sample_type,
            build_ids,
            at_end,
            complete: false,
            drained,
            missed: MissedSamples::default(),
            specs: specs.to_vec(),
            state,
            failed_fd: context.failed_fd,
        }
    }

    /// What the rings hold, with the ids that the file knows.
    fn snapshots(&self) -> Vec<RingSnapshot> {
        let mut snapshots = self.reader.take();
        snapshots.iter_mut().for_each(|snapshot| self.shared.aliases.translate(&mut snapshot.records));
        snapshots
    }

    /// Takes snapshots until all drains have ended.
    pub(crate) fn run(mut self, mut messages: Receiver<Message>) -> WriterState {
        if let Err(error) = setpriority_process(None, FLIGHT_NICE) {
            tracing::debug!(%error, "the flight recorder runs at ordinary priority");
        }
        let _ = rustix::thread::set_name(c"snapshots");
        let mut wanted = false;
        loop {
            let series = self.state.series.as_mut().filter(|_| !wanted);
            match writer::next(&mut messages, series, false, &self.shared.pool) {
                WriterTask::Message(message) => self.take_in(message),
                WriterTask::Switch => wanted = true,
                WriterTask::Rest => {}
                WriterTask::End => break,
            }
            if self.lookback.is_long() {
                let snapshots = self.snapshots();
                self.missed.within(&snapshots, &self.clock);
                self.missed.taken(&snapshots, self.reader.lost(), &self.clock);
                let oldest_ns = Merge::oldest_ns(&snapshots, &self.clock);
                self.lookback.advance(oldest_ns, &self.clock, true);
            }
            // Without the list of what was there it would be of little use; and after an error
            // there is no place for it.
            if wanted && self.complete && self.state.error.is_none() {
                wanted = false;
                let snapshots = self.snapshots();
                self.catch_up(&mut messages);
                if let Err(error) = self.write(snapshots).and_then(|()| self.next_file()) {
                    self.state.fail(error, self.failed_fd);
                }
            }
        }
        if self.at_end && self.state.error.is_none() {
            let snapshots = self.snapshots();
            if let Err(error) = self.write(snapshots) {
                self.state.fail(error, self.failed_fd);
            }
        }
        self.state.stats.files.extend(self.lookback.files());
        self.state.tasks_lost = self.drained.lost.saturating_sub(self.state.ring_full);
        self.state
    }

    fn take_in(&mut self, message: Message) {
        self.shared.pool.replenish();
        match message {
            Message::Synthesized(records) => {
                self.complete = true;
                if let Some(mapped_files) = &mut self.drained.mapped_files {
                    mapped_files.records(&records);
                    // The first snapshot is read at once, with names of what was mapped.
                    mapped_files.wait();
                }
                self.lookback.before(&records);
            }
            // Of pauses for a recorder that is too slow: this one has nothing to be slow with.
            Message::Note(_) => {}
            Message::Empty { ring, scan, .. } => self.emptied[ring] = scan.before,
            Message::Full { ring, mut buffer, len, scan, emptied, .. } => {
                let len = self.pid_filter.remove(&mut buffer[..len]);
                let whole = self.drained.records(&buffer[..len]);
                self.state.corrupt_bytes += (len - whole) as u64;
                if self.drained.excess {
                    self.lookback.records(&self.drained.mended(&buffer[..whole]));
                } else {
                    self.lookback.records(&buffer[..whole]);
                }
                self.shared.pool.give(buffer);
                if emptied {
                    self.emptied[ring] = scan.before;
                }
            }
        }
    }

    /// Takes in all that drained rings hold now (F3).
    fn catch_up(&mut self, messages: &mut Receiver<Message>) {
        let now = self.shared.clock.tick();
        let until = Instant::now() + CATCH_UP_TIMEOUT;
        let mut ask = true;
        while self.emptied.iter().any(|&tick| tick < now) {
            if std::mem::replace(&mut ask, false) {
                let late = self.requests.iter().zip(&self.emptied).filter(|&(_, &tick)| tick < now);
                late.for_each(|(request, _)| request.ask());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("a snapshot may lack names: a ring could not be read in time");
                return;
            }
            match messages.wait(Some(left.min(NUDGE))) {
                Next::Item(message) => self.take_in(message),
                Next::Empty => ask = true,
                Next::Closed => return,
            }
        }
    }

    /// Appends a snapshot to the file.
    fn write(&mut self, mut snapshots: Vec<RingSnapshot>) -> io::Result<()> {
        for snapshot in &mut snapshots {
            let wanted = self.pid_filter.remove(&mut snapshot.records);
            snapshot.records.truncate(wanted);
        }
        let mut missing = self.missing(&snapshots);
        self.missed.taken(&snapshots, self.reader.lost(), &self.clock);
        self.lookback.advance(Merge::oldest_ns(&snapshots, &self.clock), &self.clock, false);
        let (merge, coverage) = Merge::new(&snapshots, self.lookback.log(), &self.clock);
        let (state, mut packed) = (&mut self.state, Vec::new());
        let mut failed = state.append(&self.lookback.told(), 0, &mut packed).err();
        let mut stats = RecordStats::new(self.sample_type, self.build_ids);
        stats.has_build_ids = self.drained.has_build_ids;
        merge.chunks(CHUNK_BYTES, |chunk| {
            let before = stats.samples;
            stats.records(chunk);
            let samples = stats.samples - before;
            if failed.is_some() {
                state.unwritten_samples += samples;
                state.unwritten_bytes += chunk.len() as u64;
                return;
            }
            // What of it does not land, the sink takes away from that.
            state.stats.samples += samples;
            let appended = state.append(chunk, samples, &mut packed);
            failed = appended.and_then(|_| state.sink.append(&build::finished_round(), 0)).err();
        });
        if stats.lost > 0 {
            state.ring_full += stats.lost;
            missing.extend(told_lost(self.specs.iter().find(tracks), &SampleId::default(), stats.lost));
        }
        failed = failed.or_else(|| state.append(&missing, 0, &mut packed).err());
        state.stats.times = stats.times;
        state.stats.files.extend(stats.files);
        // The same could be found again and again.
        state.stats.throttled = state.stats.throttled.max(stats.throttled);
        let corrupt_bytes: u64 = snapshots.iter().map(|snapshot| snapshot.corrupt_bytes).sum();
        state.corrupt_bytes = state.corrupt_bytes.max(corrupt_bytes);
        state.coverage = Some(coverage);
        failed.map_or(Ok(()), Err)
    }

    /// Records that tell which samples are missing in what these rings held.
    fn missing(&mut self, snapshots: &[RingSnapshot]) -> Vec<u8> {
        let mut records = Vec::new();
        for missed in self.missed.within(snapshots, &self.clock) {
            self.state.while_read += missed.count;
            let (pid, tid) = (Some(missed.task), Some(missed.task));
            let id = SampleId {
                id: Some(missed.id),
                cpu: u32::try_from(missed.cpu).ok(),
                pid,
                tid,
                ..SampleId::default()
            };
            records.extend(told_lost(self.specs.get(missed.event), &id, missed.count));
        }
        records
    }

    /// Completes the file and goes on in another.
    fn next_file(&mut self) -> io::Result<()> {
        let Some(mut series) = self.state.series.take() else { return Ok(()) };
        series.coverage = self.state.coverage.take();
        let result = self.state.switch(&mut series, self.lookback.files());
        series.asked.answer();
        self.state.series = Some(series);
        result
    }
}
