//! A recording of records that the caller has read from rings itself (`kymo watch -o`).
use crate::build_ids::{self, FileBuildIds};
use crate::disk::{WriteError, count_samples};
use crate::mapped_files::{FileTap, FileWatch};
use crate::output::{Output, OutputError};
use crate::record_stats::RecordStats;
use crate::sink::Sink;
use crate::synth::TaskSynthesis;
use crate::{machine, synth};
use kymo_data::{Attr, EventSpec, Features, build};
use kymo_perf::proc::{self, KernelModule};
use std::fmt;
use std::io;
use std::path::Path;

/// So many bytes are written at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Writes a perf.data file piece by piece. It opens at every moment, with all
/// [rounds](StandaloneWriter::round) so far.
pub struct StandaloneWriter {
    sink: Sink,
    stats: RecordStats,
    waiting: Vec<u8>,
    features: Features,
    modules: Vec<KernelModule>,
    /// Whether records came since the last round.
    has_news: bool,
}

/// What became of the recording.
#[derive(Debug)]
pub struct StandaloneEnd {
    /// Size of the file up to the end of its records, in bytes.
    pub bytes: u64,
    /// Samples that are in the file.
    pub samples: u64,
    /// Why the file ends early, and how many samples are missing for that.
    pub failed: Option<(WriteError, u64)>,
}

impl fmt::Debug for StandaloneWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandaloneWriter").field("samples", &self.stats.samples).finish_non_exhaustive()
    }
}

impl StandaloneWriter {
    /// Makes the file (one that is there becomes `PATH.old`), with its header and the names and
    /// mappings of these processes as they are now. The first of the events is the one that tells
    /// of names and mappings.
    ///
    /// # Errors
    /// [`OutputError`]; pipes are refused.
    pub fn create(
        path: &Path,
        events: &[EventSpec],
        pids: &[i32],
        cmdline: &[String],
        version: &str,
    ) -> Result<StandaloneWriter, OutputError> {
        let output = Output::parse(path);
        if !output.is_file() {
            let why = io::ErrorKind::Unsupported.into();
            return Err(OutputError {
                action: "write a recording of watchpoints to",
                path: path.to_owned(),
                why,
            });
        }
        let features = Features {
            event_desc: events.iter().map(EventSpec::desc).collect(),
            build_ids: build_ids::kernel_build_id().into_iter().collect(),
            ..machine::features(version, cmdline)
        };
        let (sink, naming) = Sink::create(&output, None, events, &features)?;
        if let Some(mut naming) = naming {
            naming.publish()?;
        }
        let attr: Attr = events.first().map(|event| event.attr.clone()).unwrap_or_default();
        let mut stats = RecordStats::new(attr.sample_type, true);
        // Without the thread there is a recording, too: it has names as long as the files stay.
        stats.mapped_files = FileWatch::start(false, true).ok().map(|watch| FileTap::new(&watch));
        let wanted = TaskSynthesis { mappings: true, data: true, namespaces: false, build_ids: false };
        let existing = synth::tasks(&attr, pids, wanted);
        stats.files.extend(existing.files);
        let modules = proc::modules();
        let mut waiting = synth::kernel(&attr, proc::kernel_text(), &modules);
        waiting.extend(existing.records);
        synth::never_empty(&mut waiting);
        if let Some(mapped_files) = &mut stats.mapped_files {
            mapped_files.records(&waiting);
            // Whoever made the recording says next that it records; from then on files may vanish.
            mapped_files.wait();
        }
        Ok(StandaloneWriter { sink, stats, waiting, features, modules, has_news: true })
    }

    /// Takes whole records.
    ///
    /// # Errors
    /// What the file says to a write.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.stats.records(records);
        self.has_news |= !records.is_empty();
        if self.stats.excess {
            self.waiting.extend(self.stats.mended(records));
        } else {
            self.waiting.extend_from_slice(records);
        }
        if self.waiting.len() >= CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    /// Every ring was read since the last time: readers may sort what came before that. Makes it
    /// readable.
    ///
    /// # Errors
    /// As [`StandaloneWriter::append`].
    pub fn round(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.has_news) {
            return Ok(());
        }
        self.waiting.extend(build::finished_round());
        self.waiting.extend(self.stats.mapped_files.iter().flat_map(FileTap::take_build_ids));
        self.write()?;
        self.sink.publish(true)
    }

    fn write(&mut self) -> io::Result<()> {
        let written = self.sink.append(&self.waiting, count_samples(&self.waiting));
        // What could not be written is lost, and counted as such: it must not pile up.
        self.waiting.clear();
        written
    }

    /// Completes the file.
    pub fn finish(mut self) -> StandaloneEnd {
        let names = self.stats.mapped_files.take().map(|mapped_files| mapped_files.names_of_gone());
        self.waiting.extend(names.unwrap_or_default());
        let build_ids = FileBuildIds::of(&self.stats.files, true);
        self.waiting.extend(build_ids.records());
        // The sink remembers the first failure, and tells it at its end.
        let _ = self.write();
        self.features.build_ids = build_ids.table(&self.modules);
        self.features.sample_time = self.stats.times;
        let finished = self.sink.finish(&self.features);
        let lost = finished.lost_samples;
        StandaloneEnd {
            bytes: finished.bytes,
            samples: self.stats.samples.saturating_sub(lost),
            failed: finished.error.map(|error| (WriteError::from(error), lost)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::{Recording, abi};
    use std::fs::File;
    use std::sync::Arc;

    /// How many records and events a file has.
    fn content(path: &Path) -> (usize, usize) {
        let file = File::open(path).unwrap();
        let recording = Recording::open(Arc::new(file), Vec::new()).unwrap();
        let count =
            |records: &mut usize, chunk: &kymo_data::Chunk| *records += chunk.records().flatten().count();
        let (counts, summary) = recording.read_parallel(0, || 0, count, &|_, _| {}).unwrap();
        let records = counts.into_iter().sum();
        assert!(summary.problems.is_empty());
        (records, recording.events.list.len())
    }

    /// Checks that the file opens once something was published, that it has what was there and what
    /// was appended, and both events.
    #[test]
    fn opens_at_every_moment() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("watch.data");
        let attr = Attr {
            sample_type: abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME,
            flags: abi::ATTR_FLAG_SAMPLE_ID_ALL,
            ..Attr::default()
        };
        let spec = |id, name: &str| EventSpec { attr: attr.clone(), ids: vec![id], name: name.into() };
        let pid = std::process::id() as i32;
        let mut writer =
            StandaloneWriter::create(&path, &[spec(1, "a"), spec(2, "b")], &[pid], &[], "kymo").unwrap();
        writer.round().unwrap();
        let (before, events) = content(&path);
        assert!(before > 3 && events == 2);
        let comm = build::comm(&attr, &kymo_data::SampleId::default(), 7, 7, b"seven", false);
        writer.append(&comm).unwrap();
        writer.round().unwrap();
        let end = writer.finish();
        assert!(end.failed.is_none() && end.bytes < std::fs::metadata(&path).unwrap().len());
        assert!(content(&path).0 > before);
    }
}
