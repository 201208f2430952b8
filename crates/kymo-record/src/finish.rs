//! Completes a recording after its last record, and sums it up in a [`Summary`].
use crate::account::{Claimed, LossAccount, Unwound};
use crate::build_ids::FileBuildIds;
use crate::coverage::Coverage;
use crate::cpu_time::CpuTime;
use crate::disk::WriteError;
use crate::output::Output;
use crate::series::{Content, Last, RemovedFiles, Series};
use crate::shared::DrainShared;
use crate::throttle::Pauses;
use crate::writer::WriterState;
use kymo_data::{EventSpec, Features, SampleId, abi, build};
use kymo_perf::evlist::Evlist;
use kymo_perf::proc::KernelModule;
use kymo_perf::workload::Exit;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// What a recording came to.
#[derive(Debug)]
pub struct Summary {
    /// Size of the recording in bytes.
    pub bytes: u64,
    /// How often drains woke up and found records.
    pub wakeups: u64,
    /// Samples and losses.
    pub account: LossAccount,
    /// How far back the last file reaches, if it holds what the rings of a flight recorder held at
    /// the end.
    pub coverage: Option<Coverage>,
    /// What unwinding while recording came to, if there was any.
    pub unwound: Option<Unwound>,
    /// How often and how long the target stood still for the recorder.
    pub pauses: Pauses,
    /// How the command ended, if there was one and it did.
    pub exit: Option<Exit>,
    /// Why writing ended early: the recording holds what came before.
    pub write_error: Option<WriteError>,
    /// Tasks that were not followed because the kernel's table of followed ones was full: their
    /// samples are missing.
    pub unfollowed: u64,
    /// Its files that are there and can be read: none of a pipe.
    pub files: Vec<PathBuf>,
    /// Files of it that were removed again, because only so many are kept.
    pub removed: RemovedFiles,
    /// CPU time of what was observed, by the kernel's accounts and by the samples, where both are
    /// known.
    pub cpu_time: Option<CpuTime>,
    /// What else the user should know.
    pub remarks: Vec<String>,
}

/// What remains to be done when no more records come.
pub(crate) struct Finish<'a> {
    pub(crate) events: &'a Evlist,
    pub(crate) specs: &'a [EventSpec],
    pub(crate) features: Features,
    pub(crate) modules: &'a [KernelModule],
    pub(crate) build_ids: bool,
    /// Snapshots tell by themselves what is missing in them: what was lost at other times is
    /// missing in none.
    pub(crate) flight: bool,
    pub(crate) output: &'a Output,
}

/// The files of a complete recording.
fn files(series: Option<&Series>, output: &Output) -> Vec<PathBuf> {
    let mut files = series.map(Series::files).unwrap_or_default();
    if let Output::File(path) = output
        && series.is_none_or(|series| series.last == Last::Stays)
    {
        files.push(path.clone());
    }
    files
}

impl Finish<'_> {
    /// Tells what was lost, writes the features, and sums up.
    ///
    /// `user_rings`: how many of the events that programs write did not fit into their rings, by
    /// number of the event.
    pub(crate) fn run(
        mut self,
        mut written: WriterState,
        shared: &DrainShared,
        user_rings: &[(usize, u64)],
    ) -> Summary {
        let (lost, mut records) = if self.flight { (0, Vec::new()) } else { self.lost() };
        for &(event, lost) in user_rings.iter().filter(|(_, lost)| *lost > 0) {
            if let Some(spec) = self.specs.get(event) {
                let id = SampleId { id: spec.ids.first().copied(), cpu: Some(0), ..SampleId::default() };
                records.extend(build::lost_samples(&spec.attr, &id, lost));
            }
        }
        let user_lost = user_rings.iter().fold(0_u64, |all, (_, lost)| all.saturating_add(*lost));
        let is_dummy = |spec: &EventSpec| {
            spec.attr.kind == abi::PERF_TYPE_SOFTWARE && spec.attr.config == abi::PERF_COUNT_SW_DUMMY
        };
        let alone = self.specs.iter().take(self.events.events.len()).all(is_dummy);
        let build_ids = FileBuildIds::of(&written.stats.files, self.build_ids);
        records.extend(build_ids.records());
        let mut error = written.error.take();
        if error.is_none() && !written.sink.is_closed() {
            error = written.sink.append(&records, 0).err();
        }
        if self.build_ids {
            self.features.build_ids = build_ids.table(self.modules);
        }
        self.features.sample_time = written.stats.times;
        if let Some(compressor) = &written.compressor {
            self.features.compressed = Some(compressor.info());
        }
        let open = !written.sink.is_closed();
        let mut finished = written.sink.finish(&self.features);
        if let Some(series) = written.series.as_mut().filter(|_| open) {
            if series.last == Last::Goes {
                finished.bytes = 0;
            }
            if series.last == Last::Joins {
                series.coverage = written.coverage.take();
            }
            let samples =
                written.stats.samples.saturating_sub(finished.lost_samples + written.earlier.samples);
            if let Err(late) = series.end(Content { bytes: finished.bytes, samples }) {
                finished.error.get_or_insert(late);
            }
        }
        // What the disk said first knows the place; what reached the writer of it is only that it
        // failed.
        let write_error = finished.error.or(error).map(WriteError::from);
        let told = written.ring_full + written.queue_full;
        let account = LossAccount {
            samples: written.stats.samples.saturating_sub(finished.lost_samples),
            ring_full: written.ring_full,
            queue_full: written.queue_full,
            at_the_end: lost.saturating_sub(told),
            while_read: written.while_read,
            tasks: written.tasks_lost,
            corrupt_bytes: written.corrupt_bytes + shared.corrupt_bytes.load(Ordering::Relaxed),
            unwritten: written.unwritten_samples + finished.lost_samples,
            unwritten_bytes: written.unwritten_bytes + finished.lost_bytes,
            throttled: written.stats.throttled,
            cpu_gaps: 0,
            claimed: Claimed {
                lost: user_lost,
                corrupt_bytes: shared.claimed_corrupt_bytes.load(Ordering::Relaxed),
                alone,
            },
        };
        let wakeups = shared.wakeups.load(Ordering::Relaxed);
        Summary {
            bytes: written.earlier.bytes + finished.bytes,
            wakeups,
            account,
            coverage: written.coverage,
            unwound: None,
            pauses: Pauses::default(),
            exit: None,
            cpu_time: None,
            write_error,
            unfollowed: 0,
            files: files(written.series.as_ref(), self.output),
            removed: written.series.as_ref().map_or(RemovedFiles::default(), |series| series.removed),
            remarks: Vec::new(),
        }
    }

    /// How many samples the kernel says were lost in all, and the records that tell so.
    fn lost(&self) -> (u64, Vec<u8>) {
        let (mut total, mut records) = (0, Vec::new());
        for lost in self.events.lost() {
            total += lost.lost;
            let Some(spec) = self.specs.get(lost.event) else { continue };
            let id = SampleId {
                id: Some(lost.id),
                cpu: u32::try_from(lost.cpu).ok(),
                pid: Some(lost.task),
                tid: Some(lost.task),
                ..SampleId::default()
            };
            records.extend(build::lost_samples(&spec.attr, &id, lost.lost));
        }
        (total, records)
    }
}
