//! ColumnWriters as Parquet.
use crate::error::DatasetError;
use crate::schema::{HOST_KEY, TABLE_KEY, Table, VERSION, VERSION_KEY};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::sync::Arc;

/// Values that are handed to the library at once.
const BATCH: usize = 8192;
/// Distinct stacks of a row group are many; beyond this limit each value would take 8 bytes.
const DICTIONARY_BYTES: usize = 16 << 20;
/// Level of zstd: 3 is the default of the program.
const LEVEL: i32 = 3;
/// Files of fewer rows are not compressed. A compressor for each column takes longer to make than
/// the rows, of which most bytes are hashes: a daemon writes dozens of such files each minute.
const LEAST_COMPRESSED_ROWS: usize = 1000;

/// A Parquet file in memory.
pub(crate) struct TableFile {
    writer: SerializedFileWriter<Vec<u8>>,
    path: String,
}

impl TableFile {
    /// An empty one, for about so many rows.
    pub(crate) fn new(
        table: Table,
        host: &str,
        path: String,
        rows: usize,
    ) -> Result<TableFile, DatasetError> {
        let make = || {
            let schema = Arc::new(parse_message_type(table.schema())?);
            let properties = Arc::new(properties(table, host, rows)?);
            SerializedFileWriter::new(Vec::new(), schema, properties)
        };
        let writer = make().map_err(|error| encode_error(&path, error))?;
        Ok(TableFile { writer, path })
    }

    /// Adds rows; `write` writes all columns in their order.
    pub(crate) fn row_group(
        &mut self,
        write: impl FnOnce(&mut ColumnWriters<'_, '_>) -> Result<(), ParquetError>,
    ) -> Result<(), DatasetError> {
        let add = || {
            let mut group = self.writer.next_row_group()?;
            write(&mut ColumnWriters { group: &mut group })?;
            group.close()?;
            Ok(())
        };
        add().map_err(|error| encode_error(&self.path, error))
    }

    /// Bytes of the row groups that it has.
    pub(crate) fn bytes_written(&self) -> usize {
        self.writer.bytes_written()
    }

    /// Path below the dataset, and the bytes.
    pub(crate) fn finish(self) -> Result<(String, Vec<u8>), DatasetError> {
        let bytes = self.writer.into_inner().map_err(|error| encode_error(&self.path, error))?;
        Ok((self.path, bytes))
    }
}

fn encode_error(file: &str, error: ParquetError) -> DatasetError {
    DatasetError::Encode { file: file.to_owned(), reason: error.to_string() }
}

fn properties(table: Table, host: &str, rows: usize) -> Result<WriterProperties, ParquetError> {
    let compression = match rows < LEAST_COMPRESSED_ROWS {
        true => Compression::UNCOMPRESSED,
        false => Compression::ZSTD(ZstdLevel::try_new(LEVEL)?),
    };
    let pairs =
        [(VERSION_KEY, VERSION.to_string()), (TABLE_KEY, table.name().into()), (HOST_KEY, host.into())];
    let pairs = pairs.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("kymo ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(pairs.collect()))
        .set_compression(compression)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        // Most files are small, and queries read whole row groups: an index of pages only costs.
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    // Moments and depths go up step by step; of ids a dictionary is best where they repeat in the
    // table, and plain ones where zstd finds the parts that stacks share.
    let (in_steps, plain): (&[&str], &[&str]) = match table {
        Table::Samples => (&["time"], &[]),
        Table::Stacks => (&[], &["location_id", "depth"]),
        Table::Frames => (&["address"], &["location_id"]),
        Table::Builds | Table::Hosts => (&[], &[]),
    };
    for column in in_steps {
        properties = properties
            .set_column_dictionary_enabled(ColumnPath::from(*column), false)
            .set_column_encoding(ColumnPath::from(*column), Encoding::DELTA_BINARY_PACKED);
    }
    for column in plain {
        properties = properties.set_column_dictionary_enabled(ColumnPath::from(*column), false);
    }
    Ok(properties.build())
}

/// The columns of a row group, each written as a whole, in the order of the schema.
pub(crate) struct ColumnWriters<'g, 'f> {
    group: &'g mut SerializedRowGroupWriter<'f, Vec<u8>>,
}

impl ColumnWriters<'_, '_> {
    pub(crate) fn int64(&mut self, values: impl Iterator<Item = i64>) -> Result<(), ParquetError> {
        self.required::<Int64Type>(values)
    }

    pub(crate) fn int32(&mut self, values: impl Iterator<Item = i32>) -> Result<(), ParquetError> {
        self.required::<Int32Type>(values)
    }

    pub(crate) fn double(&mut self, values: impl Iterator<Item = f64>) -> Result<(), ParquetError> {
        self.required::<DoubleType>(values)
    }

    pub(crate) fn text(&mut self, values: impl Iterator<Item = ByteArray>) -> Result<(), ParquetError> {
        self.required::<ByteArrayType>(values)
    }

    pub(crate) fn optional_int64(
        &mut self,
        values: impl Iterator<Item = Option<i64>>,
    ) -> Result<(), ParquetError> {
        self.optional::<Int64Type>(values)
    }

    pub(crate) fn optional_int32(
        &mut self,
        values: impl Iterator<Item = Option<i32>>,
    ) -> Result<(), ParquetError> {
        self.optional::<Int32Type>(values)
    }

    pub(crate) fn optional_text(
        &mut self,
        values: impl Iterator<Item = Option<ByteArray>>,
    ) -> Result<(), ParquetError> {
        self.optional::<ByteArrayType>(values)
    }

    fn required<T: DataType>(&mut self, values: impl Iterator<Item = T::T>) -> Result<(), ParquetError> {
        self.column::<T>(values.map(Some), false)
    }

    fn optional<T: DataType>(
        &mut self,
        values: impl Iterator<Item = Option<T::T>>,
    ) -> Result<(), ParquetError> {
        self.column::<T>(values, true)
    }

    fn column<T: DataType>(
        &mut self,
        mut values: impl Iterator<Item = Option<T::T>>,
        is_optional: bool,
    ) -> Result<(), ParquetError> {
        let missing = || ParquetError::General("the schema has fewer columns".to_owned());
        let mut column = self.group.next_column()?.ok_or_else(missing)?;
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
            let levels = is_optional.then_some(&levels[..]);
            column.typed::<T>().write_batch(&batch, levels, None)?;
        }
        column.close()
    }
}
