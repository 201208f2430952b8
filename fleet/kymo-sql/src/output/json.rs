//! One JSON object: docs/reference/formats/sql-json.md describes its keys.

use std::io::Write;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::{JsonArray, Writer};
use datafusion::arrow::record_batch::RecordBatch;
use serde::Serialize;

use super::{BatchWriter, failed};

/// Grows when a key changes its meaning or disappears.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Column<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    data_type: String,
}

pub(super) struct JsonWriter<'a> {
    rows: Writer<&'a mut (dyn Write + Send), JsonArray>,
}

impl<'a> JsonWriter<'a> {
    /// Writes everything before the rows.
    pub(super) fn new(
        schema: &SchemaRef,
        query: &str,
        out: &'a mut (dyn Write + Send),
    ) -> anyhow::Result<JsonWriter<'a>> {
        let columns: Vec<Column<'_>> = schema
            .fields()
            .iter()
            .map(|field| Column { name: field.name(), data_type: type_name(&field.data_type().to_string()) })
            .collect();
        let (query, columns) =
            (failed(serde_json::to_string(query))?, failed(serde_json::to_string(&columns))?);
        failed(write!(
            out,
            "{{\"schema\":\"kymo-sql\",\"schema_version\":{SCHEMA_VERSION},\"query\":{query},\"columns\":{columns},\"rows\":"
        ))?;
        Ok(JsonWriter { rows: WriterBuilder::new().with_explicit_nulls(true).build(out) })
    }
}

/// The type of a column without how it lies in memory.
fn type_name(arrow: &str) -> String {
    match arrow {
        "Utf8" | "Utf8View" | "LargeUtf8" => "text".to_owned(),
        "Float64" | "Float32" => "double".to_owned(),
        "Boolean" => "boolean".to_owned(),
        integer if integer.starts_with("Int") || integer.starts_with("UInt") => "integer".to_owned(),
        time if time.starts_with("Timestamp") => "timestamp".to_owned(),
        other => other.to_lowercase(),
    }
}

impl BatchWriter for JsonWriter<'_> {
    fn write(&mut self, batch: &RecordBatch) -> anyhow::Result<()> {
        failed(self.rows.write(batch))
    }

    fn finish(mut self: Box<Self>) -> anyhow::Result<()> {
        failed(self.rows.finish())?;
        let out = self.rows.into_inner();
        failed(out.write_all(b"}\n"))?;
        failed(out.flush())
    }
}
