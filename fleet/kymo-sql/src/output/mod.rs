//! Answers as text, JSON and CSV. Batches are written as they arrive, so that an answer need not
//! fit into memory.

mod csv;
mod json;
mod text;

use std::io::{self, Write};

use anyhow::Context as _;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::physical_plan::SendableRecordBatchStream;
use futures::StreamExt as _;

use crate::progress::QueryProgress;
use crate::sentence;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputFormat {
    /// A table for people.
    Text,
    /// One object, with the columns and the rows.
    Json,
    /// A header and lines.
    Csv,
}

/// Stdout. The beginning of an answer is kept until there is more, so that a query which fails at
/// once can be asked again.
#[derive(Debug, Default)]
pub(crate) struct Output {
    kept: Vec<u8>,
    /// Whether something went out.
    pub(crate) is_written: bool,
}

/// What is kept before it is written.
const KEPT_BYTES: usize = 256 << 10;

impl Output {
    /// Writes the rest.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        failed(self.write_kept().and_then(|()| io::stdout().flush()))
    }

    fn write_kept(&mut self) -> io::Result<()> {
        self.is_written |= !self.kept.is_empty();
        io::stdout().write_all(&self.kept)?;
        self.kept.clear();
        Ok(())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() >= KEPT_BYTES {
            self.write_kept()?;
        }
        Ok(bytes.len())
    }

    /// Whole answers are flushed by [`Output::finish`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes batches of one answer.
trait BatchWriter {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()>;
    /// Writes what is still to be written; the number of rows.
    fn finish(self: Box<Self>) -> anyhow::Result<()>;
}

/// Writes an answer; the progress of the query ends where it begins.
///
/// # Errors
/// The query fails on its way, or the output cannot be written.
pub(crate) async fn write(
    mut stream: SendableRecordBatchStream,
    progress: QueryProgress,
    format: OutputFormat,
    query: &str,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let schema: SchemaRef = stream.schema();
    let mut next = stream.next().await;
    progress.finish().await;
    let mut writer: Box<dyn BatchWriter> = match format {
        OutputFormat::Text => Box::new(text::TableWriter::new(&schema, out)),
        OutputFormat::Json => Box::new(json::JsonWriter::new(&schema, query, out)?),
        OutputFormat::Csv => Box::new(csv::CsvWriter::new(&schema, out)?),
    };
    while let Some(batch) = next {
        writer.write(&batch.map_err(sentence::of_query)?)?;
        next = stream.next().await;
    }
    writer.finish()
}

/// What all say where the output breaks.
fn failed<T, E: std::error::Error + Send + Sync + 'static>(result: Result<T, E>) -> anyhow::Result<T> {
    result.context("failed to write the answer")
}
