//! The columns of a dataset's tables, as the query engine has them.
//!
//! `kymo-dataset` is the authority: its text becomes the engine's types.

use std::sync::Arc;

use anyhow::Context as _;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::parquet::arrow::parquet_to_arrow_schema;
use datafusion::parquet::schema::parser::parse_message_type;
use datafusion::parquet::schema::types::SchemaDescriptor;
use kymo_dataset::Table;

/// The columns of a table's files, without those of its folders.
///
/// # Errors
/// The engine cannot have such columns, which is a mistake in a program, not in a dataset.
pub(crate) fn file_schema(table: Table) -> anyhow::Result<SchemaRef> {
    let failed = || format!("the engine has no types for the table {}", table.name());
    let message = parse_message_type(table.schema()).with_context(failed)?;
    let descriptor = SchemaDescriptor::new(Arc::new(message));
    // Texts are arrays of their own, not views: a batch of views holds on to all texts that its
    // rows were taken from, and a sort counts these for each batch.
    Ok(Arc::new(parquet_to_arrow_schema(&descriptor, None).with_context(failed)?))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{DataType, TimeUnit};

    use super::*;

    /// Checks that each table has types in the engine, and one column of each kind.
    #[test]
    fn every_table_has_types() {
        for table in Table::ALL {
            file_schema(table).expect("types");
        }
        let samples = file_schema(Table::Samples).expect("types");
        let kind = |name: &str| samples.field_with_name(name).expect("a column").clone();
        let moment = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        assert_eq!(*kind("time").data_type(), moment);
        assert_eq!(*kind("command").data_type(), DataType::Utf8);
        assert!(!kind("stack_id").is_nullable() && kind("tid").is_nullable() && kind("waker").is_nullable());
    }
}
