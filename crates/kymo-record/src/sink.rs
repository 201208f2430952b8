//! The two forms of a recording behind one face: a file that can be brought up to date, or a stream.
use crate::output::Opened;
use crate::walk::whole_records_bytes;
use kymo_data::{EventSpec, Features, PipeWriter, Writer};
use std::fs::File;
use std::io;

/// So much is written at once.
const PIECE_BYTES: usize = 128 << 10;

/// Where records go.
pub(crate) enum Sink {
    File(Writer<File>),
    Pipe { writer: PipeWriter<File>, bytes: u64 },
}

impl Sink {
    /// Begins the recording. `early`: what readers need at once; `all`: everything that is known now, for a stream, which cannot be
    /// completed later.
    pub(crate) fn create(
        output: Opened,
        events: &[EventSpec],
        early: &Features,
        all: &Features,
    ) -> io::Result<Sink> {
        Ok(match output {
            Opened::File(file) => Sink::File(Writer::create_with_features(file, events, early)?),
            Opened::Pipe(file) => Sink::Pipe { writer: PipeWriter::create(file, events, all)?, bytes: 0 },
        })
    }

    /// Appends whole records.
    pub(crate) fn append(&mut self, records: &[u8]) -> io::Result<()> {
        match self {
            Sink::File(writer) => {
                // In pieces, so that a full disk takes whole records as long as it can.
                let mut rest = records;
                while rest.len() > PIECE_BYTES {
                    let whole = whole_records_bytes(rest, PIECE_BYTES);
                    let (piece, after) = rest.split_at(if whole == 0 { rest.len() } else { whole });
                    writer.append(piece)?;
                    rest = after;
                }
                writer.append(rest)
            }
            Sink::Pipe { writer, bytes } => {
                *bytes += records.len() as u64;
                writer.append(records)
            }
        }
    }

    /// Makes what was appended readable for whoever opens the file now.
    pub(crate) fn publish(&mut self) -> io::Result<()> {
        match self {
            Sink::File(writer) => writer.publish(),
            Sink::Pipe { .. } => Ok(()),
        }
    }

    /// How large the recording is.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Sink::File(writer) => writer.file_bytes(),
            Sink::Pipe { bytes, .. } => *bytes,
        }
    }

    /// Completes the recording. Returns bytes of records that are lost because a write had failed.
    pub(crate) fn finish(self, features: &Features) -> io::Result<u64> {
        match self {
            Sink::File(writer) => writer.finish(features),
            Sink::Pipe { writer, .. } => writer.finish().map(|_| 0),
        }
    }
}
