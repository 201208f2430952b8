//! A recording of records that the caller has read from rings itself (`kymo watch -o`).
use crate::output::{Output, OutputError};
use crate::record_stats::RecordStats;
use crate::sink::Sink;
use crate::synth::TaskSynthesis;
use crate::{build_ids, machine, synth};
use kymo_data::{Attr, EventSpec, Features, build};
use kymo_perf::proc::{self, KernelModule};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// So many bytes are written at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Writes a perf.data file piece by piece. It opens at every moment, with all that was
/// [published](StandaloneWriter::publish).
pub struct StandaloneWriter {
    path: PathBuf,
    sink: Sink,
    stats: RecordStats,
    waiting: Vec<u8>,
    features: Features,
    modules: Vec<KernelModule>,
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
            ..machine::features(version, cmdline)
        };
        let (sink, naming) = Sink::create(&output, None, events, &Features::default(), &features)?;
        if let Some(mut naming) = naming {
            naming.publish()?;
        }
        let attr: Attr = events.first().map(|event| event.attr.clone()).unwrap_or_default();
        let mut stats = RecordStats::new(attr.sample_type, true);
        let wanted = TaskSynthesis { mappings: true, data: true, namespaces: false };
        let existing = synth::tasks(&attr, pids, wanted);
        stats.files.extend(existing.files);
        let modules = proc::modules();
        let mut waiting = synth::kernel(&attr, proc::kernel_text(), &modules);
        waiting.extend(existing.records);
        synth::never_empty(&mut waiting);
        Ok(StandaloneWriter { path: path.to_owned(), sink, stats, waiting, features, modules })
    }

    /// Takes whole records.
    ///
    /// # Errors
    /// What the file says to a write.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.stats.records(records);
        if self.stats.excess {
            self.waiting.extend(self.stats.mended(records));
        } else {
            self.waiting.extend_from_slice(records);
        }
        if self.waiting.len() >= CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    /// Every ring was read since the last time: readers may sort what came before that.
    ///
    /// # Errors
    /// As [`StandaloneWriter::append`].
    pub fn round(&mut self) -> io::Result<()> {
        self.append(&build::finished_round())
    }

    fn write(&mut self) -> io::Result<()> {
        self.sink.append(&self.waiting, 0)?;
        self.waiting.clear();
        Ok(())
    }

    /// Makes everything so far readable.
    ///
    /// # Errors
    /// As [`StandaloneWriter::append`].
    pub fn publish(&mut self) -> io::Result<()> {
        self.write()?;
        self.sink.publish(true)
    }

    /// Completes the file; how many bytes it has.
    ///
    /// # Errors
    /// As [`StandaloneWriter::append`].
    pub fn finish(mut self) -> io::Result<u64> {
        self.write()?;
        self.features.build_ids = build_ids::of_recording(&self.modules, &self.stats.files);
        self.features.sample_time = self.stats.times;
        let finished = self.sink.finish(&self.features);
        if let Some(error) = finished.error {
            return Err(error);
        }
        if finished.lost_bytes > 0 {
            let why = format!("{} bytes of records could not be written", finished.lost_bytes);
            return Err(io::Error::other(why));
        }
        std::fs::metadata(&self.path).map(|meta| meta.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::{Recording, abi};
    use std::fs::File;
    use std::sync::Arc;

    fn names(path: &Path) -> (usize, usize) {
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
        writer.publish().unwrap();
        let (before, events) = names(&path);
        assert!(before > 3 && events == 2);
        let comm = build::comm(&attr, &kymo_data::SampleId::default(), 7, 7, b"seven", false);
        writer.append(&comm).unwrap();
        writer.round().unwrap();
        let bytes = writer.finish().unwrap();
        assert_eq!(bytes, std::fs::metadata(&path).unwrap().len());
        assert!(names(&path).0 > before);
    }
}
