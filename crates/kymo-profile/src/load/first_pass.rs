//! A recording whose first pass was made, and its second pass: over all samples, or over a part of
//! them for an early look.
use super::tally::Merged;
use super::worker::{Context, Worker};
use super::{
    Count, LoadOptions, LoadTimes, Loaded, Parallelism, Progress, ReadPeriods, RecordCounts,
    counts_by_reading, sideband,
};
use crate::timeline::Timeline;
use crate::unwind_samples::StackUnwinder;
use kymo_data::{ReadError, ReadSummary, Recording};
use kymo_symbols::SymbolOptions;
use kymo_symbols::unwind::UnwindStats;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the first pass found.
pub(crate) struct FirstPass<'a> {
    recording: &'a Recording,
    options: &'a LoadOptions,
    symbols: &'a SymbolOptions,
    workers: usize,
    timeline: Arc<Timeline>,
    counts: RecordCounts,
    reads: ReadPeriods,
    took: Duration,
}

impl<'a> FirstPass<'a> {
    /// Makes the first pass. `symbols` says how names of generated code are read.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub(crate) fn read(
        recording: &'a Recording,
        options: &'a LoadOptions,
        symbols: &'a SymbolOptions,
        progress: Progress<'_>,
    ) -> Result<FirstPass<'a>, ReadError> {
        let workers = match options.workers {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let start = Instant::now();
        let (timeline, counts, reads) =
            sideband::collect(recording, workers, symbols, &|done, all| progress(0, done, all))?;
        let (timeline, took) = (Arc::new(timeline), start.elapsed());
        Ok(FirstPass { recording, options, symbols, workers, timeline, counts, reads, took })
    }

    /// Makes the second pass. `beside` runs during it on a thread of its own, for what needs the
    /// timeline only.
    ///
    /// # Errors
    /// When the file cannot be read, or has more samples than are held.
    pub(crate) fn samples(
        &self,
        progress: Progress<'_>,
        beside: &(dyn Fn(&Timeline) + Sync),
    ) -> Result<Loaded, ReadError> {
        self.pass(beside, |context| {
            self.recording.read_parallel(
                self.workers,
                || Worker::new(context),
                |worker, chunk| worker.chunk(context, chunk),
                &|done, all| progress(1, done, all),
            )
        })
    }

    /// Makes the second pass over one chunk in `one_in`, evenly over the recording. `None` where
    /// that is not possible (compressed recordings), or would be wrong: the periods of counters
    /// that are read with samples are differences to the read before.
    ///
    /// # Errors
    /// Those of [`FirstPass::samples`].
    pub(crate) fn some_samples(
        &self,
        one_in: NonZeroUsize,
        beside: &(dyn Fn(&Timeline) + Sync),
    ) -> Result<Option<Loaded>, ReadError> {
        let can_be_sampled = self.recording.can_be_sampled();
        if !can_be_sampled || self.recording.events.list.iter().any(counts_by_reading) {
            return Ok(None);
        }
        let loaded = self.pass(beside, |context| {
            self.recording.read_sampled(
                one_in,
                self.workers,
                || Worker::new(context),
                |worker, chunk| worker.chunk(context, chunk),
            )
        })?;
        Ok(Some(loaded))
    }

    fn pass(
        &self,
        beside: &(dyn Fn(&Timeline) + Sync),
        read: impl for<'c> FnOnce(&Context<'c>) -> Result<(Vec<Worker<'c>>, ReadSummary), ReadError>,
    ) -> Result<Loaded, ReadError> {
        let FirstPass { recording, options, workers, ref timeline, ref counts, ref reads, .. } = *self;
        let start = Instant::now();
        let unwinding = options.callchains && StackUnwinder::is_needed(recording);
        let unwinder = unwinding.then(|| StackUnwinder::new(timeline, recording, self.symbols));
        let cgroups = options.cgroups.as_ref().map(|names| counts.cgroups.named(names));
        let counts_threads = options.latency || options.dims.parallelism || options.parallelism.is_some();
        let parallelism = counts_threads.then(|| Parallelism::read(recording, workers)).transpose()?;
        let (parallelism, unwinder) = (parallelism.as_ref(), unwinder.as_ref());
        let context = Context { recording, timeline, options, cgroups, reads, parallelism, unwinder };
        let (workers, mut summary) = std::thread::scope(|scope| {
            // Without another thread it comes before, instead of beside.
            if std::thread::Builder::new().spawn_scoped(scope, || beside(timeline)).is_err() {
                beside(timeline);
            }
            read(&context)
        })?;
        let samples = start.elapsed();
        let mut unwind = UnwindStats::default();
        let unwinders = workers.iter().filter_map(|worker| worker.unwinder.as_ref());
        unwinders.for_each(|own| unwind.merge(own.stats()));
        let tallies = workers.into_iter().map(|worker| worker.tally).collect();
        let merged = Merged::of(tallies, recording, options);
        let merged = merged.map_err(|many| ReadError::TooMuch(many.to_string()))?;
        summary.problems.splice(0..0, counts.short.problems());
        let events = recording.events.list.len();
        let mut loaded = merged.finish(events, Arc::clone(timeline), counts.clone(), summary);
        count_values(recording, &mut loaded.totals);
        loaded.unwind = unwind;
        let merge = start.elapsed() - samples;
        loaded.times = LoadTimes { sideband: self.took, samples, merge };
        Ok(loaded)
    }
}

/// Records of an imported profile that are sums of counts stand for as many samples: a comparison
/// takes the noise of counting from their number.
fn count_values(recording: &Recording, totals: &mut [Count]) {
    let imported = recording.features.imported.iter().flat_map(|facts| &facts.events);
    for (total, facts) in totals.iter_mut().zip(imported) {
        if facts.samples_type.is_none() && facts.unit == "count" {
            total.samples = total.samples.max(total.period);
        }
    }
}
