//! Answers as text, JSON and CSV. Batches are written as they arrive, so that an answer need not
//! fit into memory.

mod csv;
mod json;
mod text;

use std::io::Write;

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
