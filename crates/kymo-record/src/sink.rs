//! The two forms of a recording behind one interface: a file whose header is updated, or a stream.
use crate::disk::{Choice, Finished, Landing, Retrying, Stream, open_port};
use crate::output::{self, Naming, Opened, Output, OutputError};
use kymo_data::{EventSpec, Features, FileWriter, PipeWriter, abi, build};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

/// Where records go.
pub(crate) enum Sink {
    File(Box<Landing<File>>),
    Pipe {
        writer: PipeWriter<Stream>,
        bytes: u64,
        /// Samples that did not get through.
        lost_samples: u64,
        failed: Option<io::Error>,
    },
    /// The file is complete, and there is no next one yet.
    Closed,
}

impl Sink {
    /// Begins the recording with everything that is known now: a stream cannot be completed later,
    /// and a recorder may be killed. The file has a header then, and no name yet
    /// ([`Naming::publish`]).
    pub(crate) fn create(
        output: &Output,
        until: Option<BorrowedFd<'_>>,
        events: &[EventSpec],
        features: &Features,
    ) -> Result<(Sink, Option<Naming>), OutputError> {
        let fail = |why| OutputError { action: "write the header of", path: output.path(), why };
        Ok(match output::open(output, until)? {
            Opened::File(file, naming) => {
                // Readers see by it that the recorder still runs. A file system without locks has
                // none.
                let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
                let port = open_port(&file, Choice::from_env());
                let writer =
                    FileWriter::create_with_features(Retrying(file), events, features).map_err(fail)?;
                (Sink::File(Box::new(Landing::new(writer, port))), naming)
            }
            Opened::Pipe(stream) => {
                let writer = PipeWriter::create(stream, events, features).map_err(fail)?;
                (Sink::Pipe { writer, bytes: 0, lost_samples: 0, failed: None }, None)
            }
        })
    }

    /// Another handle of the file that it is.
    pub(crate) fn another_handle(&self) -> io::Result<File> {
        match self {
            Sink::File(landing) => landing.another_handle(),
            Sink::Pipe { .. } | Sink::Closed => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Appends whole records, with so many samples among them.
    pub(crate) fn append(&mut self, records: &[u8], samples: u64) -> io::Result<()> {
        match self {
            Sink::File(landing) => landing.append(records, samples),
            Sink::Pipe { writer, bytes, lost_samples, failed } => {
                let result = writer.append(records);
                match &result {
                    Ok(()) => *bytes += records.len() as u64,
                    Err(error) => {
                        *lost_samples += samples;
                        failed.get_or_insert(error.kind().into());
                    }
                }
                result
            }
            Sink::Closed => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Makes what was appended readable for whoever opens the file now; without `all`, what of it
    /// has reached the file so far.
    pub(crate) fn publish(&mut self, all: bool) -> io::Result<()> {
        match self {
            Sink::File(landing) => landing.publish(all),
            Sink::Pipe { .. } | Sink::Closed => Ok(()),
        }
    }

    /// How large the recording is with everything that was appended.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Sink::File(landing) => landing.file_bytes(),
            Sink::Pipe { bytes, .. } => *bytes,
            Sink::Closed => 0,
        }
    }

    /// Whether the file is complete and there is no next one.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self, Sink::Closed)
    }

    /// Completes the recording.
    pub(crate) fn finish(mut self, features: &Features) -> Finished {
        if let Sink::Pipe { failed: None, .. } = &self {
            // The stream's header was written before the files were known. A failure is kept.
            let ids = features.build_ids.iter();
            let records = ids.flat_map(|id| build::build_id_entry(abi::PERF_RECORD_HEADER_BUILD_ID, id));
            _ = self.append(&records.collect::<Vec<u8>>(), 0);
        }
        match self {
            Sink::File(landing) => landing.finish(features),
            Sink::Pipe { mut writer, bytes, lost_samples, failed } => {
                let entry = |id| build::build_id_entry(abi::PERF_RECORD_HEADER_BUILD_ID, id);
                let build_ids: Vec<u8> = features.build_ids.iter().flat_map(entry).collect();
                let error = failed.or_else(|| {
                    // The last record says that nothing is missing.
                    writer.append(&build_ids).and_then(|()| writer.finish()).err()
                });
                Finished { bytes, error, lost_bytes: 0, lost_samples }
            }
            Sink::Closed => Finished { bytes: 0, error: None, lost_bytes: 0, lost_samples: 0 },
        }
    }
}
