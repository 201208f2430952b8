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
pub(crate) struct Columns<'a>(Vec<Box<Encode<'a>>>);

impl<'a> Columns<'a> {
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
    let mut writer = ColumnWriterImpl::<T>::new(column.clone(), properties.clone(), page_writer);
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
