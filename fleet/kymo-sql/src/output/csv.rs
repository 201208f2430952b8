//! CSV as RFC 4180 has it: a line of names, then the rows; NULL is empty.

use std::io::Write;

use datafusion::arrow::csv::{Writer, WriterBuilder};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;

use super::{BatchWriter, failed};

pub(super) struct CsvWriter<'a>(Writer<&'a mut (dyn Write + Send)>);

impl<'a> CsvWriter<'a> {
    /// Writes the line of names, also where no rows follow.
    pub(super) fn new(schema: &SchemaRef, out: &'a mut (dyn Write + Send)) -> anyhow::Result<CsvWriter<'a>> {
        let mut writer = WriterBuilder::new().with_header(true).build(out);
        failed(writer.write(&RecordBatch::new_empty(SchemaRef::clone(schema))))?;
        Ok(CsvWriter(writer))
    }
}

impl BatchWriter for CsvWriter<'_> {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        failed(self.0.write(batch))
    }

    fn finish(self: Box<Self>) -> anyhow::Result<()> {
        failed(self.0.into_inner().flush())
    }
}
