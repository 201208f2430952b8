//! The columns of a row group: each is encoded in memory, long ones beside each other, and then
//! they are put together.
use bytes::Bytes;
use kymo_symbols::pool;
use parquet::column::writer::{ColumnCloseResult, ColumnWriterImpl};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor};
use std::sync::Arc;

/// Values that are handed to the library at once.
const BATCH: usize = 8192;

/// Values of a column, which are run through once.
pub(crate) trait Values<T>: Iterator<Item = T> + Clone + Send + Sync {}

impl<T, I: Iterator<Item = T> + Clone + Send + Sync> Values<T> for I {}

/// A column's pages, and what the file says of them.
pub(crate) struct EncodedColumn {
    pub(crate) pages: Bytes,
    pub(crate) close: ColumnCloseResult,
}

type Encode<'a> =
    dyn Fn(&ColumnDescPtr, &WriterPropertiesPtr) -> Result<EncodedColumn, ParquetError> + Send + Sync + 'a;

/// The columns of a row group, in the order of the schema.
#[derive(Default)]
pub(crate) struct RowGroupColumns<'a>(Vec<Box<Encode<'a>>>);

impl<'a> RowGroupColumns<'a> {
    pub(crate) fn int64(&mut self, values: impl Values<i64> + 'a) {
        self.add::<Int64Type>(values.map(Some));
    }

    pub(crate) fn int32(&mut self, values: impl Values<i32> + 'a) {
        self.add::<Int32Type>(values.map(Some));
    }

    pub(crate) fn double(&mut self, values: impl Values<f64> + 'a) {
        self.add::<DoubleType>(values.map(Some));
    }

    pub(crate) fn optional_int64(&mut self, values: impl Values<Option<i64>> + 'a) {
        self.add::<Int64Type>(values);
    }

    pub(crate) fn optional_int32(&mut self, values: impl Values<Option<i32>> + 'a) {
        self.add::<Int32Type>(values);
    }

    pub(crate) fn text(&mut self, values: impl Values<ByteArray> + 'a) {
        self.optional_text(values.map(Some));
    }

    pub(crate) fn optional_text(&mut self, values: impl Values<Option<ByteArray>> + 'a) {
        self.add::<ByteArrayType>(values);
    }

    fn add<T: DataType>(&mut self, values: impl Values<Option<T::T>> + 'a) {
        self.0.push(Box::new(move |column, properties| encode::<T>(column, properties, values.clone())));
    }

    /// All of them; on all CPUs if they are long.
    pub(crate) fn encode(
        self,
        schema: &SchemaDescriptor,
        properties: &WriterPropertiesPtr,
        are_long: bool,
    ) -> Result<Vec<EncodedColumn>, ParquetError> {
        let (given, wanted) = (self.0.len(), schema.columns().len());
        if given != wanted {
            return Err(ParquetError::General(format!("{given} columns for a schema of {wanted}")));
        }
        let of = |(encode, column): &(Box<Encode<'_>>, &ColumnDescPtr)| encode(column, properties);
        let columns: Vec<_> = self.0.into_iter().zip(schema.columns()).collect();
        let encoded = if are_long { pool::map(&columns, of) } else { columns.iter().map(of).collect() };
        encoded.into_iter().collect()
    }
}

fn encode<T: DataType>(
    column: &ColumnDescPtr,
    properties: &WriterPropertiesPtr,
    mut values: impl Iterator<Item = Option<T::T>>,
) -> Result<EncodedColumn, ParquetError> {
    let found = T::get_physical_type();
    if found != column.physical_type() {
        let name = column.name();
        return Err(ParquetError::General(format!("column {name} has values of the type {found}")));
    }
    let mut pages = TrackedWrite::new(Vec::new());
    let page_writer = Box::new(SerializedPageWriter::new(&mut pages));
    let mut writer = ColumnWriterImpl::<T>::new(Arc::clone(column), Arc::clone(properties), page_writer);
    let is_optional = column.max_def_level() > 0;
    let (mut batch, mut levels) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
    loop {
        batch.clear();
        levels.clear();
        for value in values.by_ref().take(BATCH) {
            levels.push(i16::from(value.is_some()));
            batch.extend(value);
        }
        if levels.is_empty() {
            break;
        }
        writer.write_batch(&batch, is_optional.then_some(&levels[..]), None)?;
    }
    let close = writer.close()?;
    Ok(EncodedColumn { pages: pages.into_inner()?.into(), close })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::properties::WriterProperties;
    use parquet::schema::parser::parse_message_type;

    const SCHEMA: &str = "message rows {
      required int64 number;
      optional int32 thread;
      required binary name (STRING);
      required double rate;
    }";

    fn schema() -> SchemaDescriptor {
        SchemaDescriptor::new(Arc::new(parse_message_type(SCHEMA).expect("a schema")))
    }

    fn columns<'a>(rows: i64) -> RowGroupColumns<'a> {
        let mut columns = RowGroupColumns::default();
        columns.int64(0..rows);
        columns.optional_int32((0..rows).map(|at| (at % 3 > 0).then_some(at as i32)));
        columns.text((0..rows).map(|at| ByteArray::from(format!("name {}", at / 100).as_str())));
        columns.double((0..rows).map(|at| at as f64));
        columns
    }

    /// Checks that columns have the same pages and the same facts, encoded on one CPU or on all.
    #[test]
    fn on_all_cpus_the_same() {
        let (schema, properties) = (schema(), Arc::new(WriterProperties::new()));
        let encode = |are_long| columns(20_000).encode(&schema, &properties, are_long).expect("encoded");
        let (alone, together) = (encode(false), encode(true));
        assert_eq!(alone.len(), 4);
        for (one, other) in alone.iter().zip(&together) {
            assert_eq!(one.pages, other.pages);
            assert_eq!(one.close.metadata, other.close.metadata);
            assert_eq!(one.close.rows_written, 20_000);
        }
        let bounds = alone[1].close.metadata.statistics().expect("bounds");
        assert_eq!(bounds.null_count_opt(), Some(6667));
    }

    /// Checks that columns that are not those of the schema are refused.
    #[test]
    fn columns_of_another_schema() {
        let (schema, properties) = (schema(), Arc::new(WriterProperties::new()));
        let mut fewer = RowGroupColumns::default();
        fewer.int64(0..3);
        let reason = fewer.encode(&schema, &properties, false).err().expect("refused").to_string();
        assert!(reason.contains("1 columns for a schema of 4"), "{reason}");
        let mut others = columns(3);
        others.0.swap(0, 3);
        let reason = others.encode(&schema, &properties, false).err().expect("refused").to_string();
        assert!(reason.contains("column number has values of the type DOUBLE"), "{reason}");
    }
}
