//! A recording of counts: `kymo stat record`.
use crate::machine;
use crate::output::{Output, OutputError};
use crate::sink::Sink;
use kymo_data::{EventSpec, Features};
use std::io;
use std::path::Path;

/// Writes counts into a perf.data file or a pipe.
pub struct CountWriter {
    sink: Sink,
    features: Features,
}

impl CountWriter {
    /// Makes the file (one that is there becomes `PATH.old`), or begins the stream where `path` is
    /// `-`.
    ///
    /// # Errors
    /// [`OutputError`], as for any recording.
    pub fn create(
        path: &Path,
        events: &[EventSpec],
        cmdline: &[String],
        version: &str,
    ) -> Result<CountWriter, OutputError> {
        let features = Features {
            event_desc: events.iter().map(EventSpec::desc).collect(),
            stat: true,
            ..machine::features(version, cmdline)
        };
        let output = Output::parse(path);
        let (sink, naming) = Sink::create(&output, None, events, &features)?;
        if let Some(mut naming) = naming {
            naming.publish()?;
        }
        Ok(CountWriter { sink, features })
    }

    /// Appends whole records, and makes them readable.
    ///
    /// # Errors
    /// What the file says to a write.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.sink.append(records, 0)?;
        self.sink.publish(true)
    }

    /// Completes the recording.
    ///
    /// # Errors
    /// What the file says to a write; what was appended before stays readable.
    pub fn finish(self) -> io::Result<()> {
        match self.sink.finish(&self.features).error {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}
