//! A recording of records that somebody else has read from rings: the file, what was there before, and the end.
use crate::output::{self, Opened, Output, OutputError};
use crate::walk::Walk;
use crate::{build_ids, machine, synth};
use kymo_data::{Attr, EventSpec, Features, Writer, build};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

/// So many bytes are written at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Writes a perf.data file piece by piece. It opens at every moment, with all that was [published](Scribe::publish).
pub struct Scribe {
    writer: Writer<File>,
    walk: Walk,
    waiting: Vec<u8>,
    features: Features,
}

impl fmt::Debug for Scribe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scribe").field("samples", &self.walk.samples).finish_non_exhaustive()
    }
}

impl Scribe {
    /// Makes the file (one that is there becomes `PATH.old`), with its header and the names and mappings of these processes as they are now.
    /// The first of the events is the one that tells of names and mappings.
    ///
    /// # Errors
    /// [`OutputError`]; pipes are refused.
    pub fn create(
        path: &Path,
        events: &[EventSpec],
        pids: &[i32],
        cmdline: &[String],
        version: &str,
    ) -> Result<Scribe, OutputError> {
        let fail = |action| move |source| OutputError { action, path: path.to_owned(), source };
        let Opened::File(fresh) = output::open(&Output::File(path.to_owned()))? else {
            return Err(fail("write a recording of watchpoints to")(io::ErrorKind::Unsupported.into()));
        };
        let copy = fresh.file().try_clone().map_err(fail("write to"))?;
        let features = Features {
            event_desc: events.iter().map(EventSpec::desc).collect(),
            ..machine::features(version, cmdline)
        };
        let writer = Writer::create_with_features(copy, events, &Features::default())
            .map_err(fail("write the header of"))?;
        fresh.name()?;
        let attr: Attr = events.first().map(|event| event.attr.clone()).unwrap_or_default();
        let mut walk = Walk::new(attr.sample_type, true);
        let existing = synth::tasks(&attr, pids, true);
        walk.files.extend(existing.files);
        let mut waiting = existing.records;
        waiting.extend(build::finished_init());
        Ok(Scribe { writer, walk, waiting, features })
    }

    /// Takes whole records.
    ///
    /// # Errors
    /// What the file says to a write.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.walk.records(records);
        self.waiting.extend_from_slice(records);
        if self.waiting.len() >= CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    /// Every ring was read since the last time: readers may sort what came before that.
    ///
    /// # Errors
    /// As [`Scribe::append`].
    pub fn round(&mut self) -> io::Result<()> {
        self.append(&build::finished_round())
    }

    fn write(&mut self) -> io::Result<()> {
        self.writer.append(&self.waiting)?;
        self.waiting.clear();
        Ok(())
    }

    /// Makes everything so far readable.
    ///
    /// # Errors
    /// As [`Scribe::append`].
    pub fn publish(&mut self) -> io::Result<()> {
        self.write()?;
        self.writer.publish()
    }

    /// Completes the file; how many bytes it has.
    ///
    /// # Errors
    /// As [`Scribe::append`].
    pub fn finish(mut self) -> io::Result<u64> {
        self.write()?;
        self.features.build_ids = build_ids::of_recording(&[], &self.walk.files);
        self.features.sample_time = self.walk.times;
        self.writer.finish(&self.features)
    }
}
