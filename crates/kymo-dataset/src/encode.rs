//! Tables as Parquet files.
use crate::columns::RowGroupColumns;
use crate::error::DatasetError;
use crate::schema::{HOST_KEY, TABLE_KEY, Table, VERSION, VERSION_KEY};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::sync::Arc;

/// Distinct stacks of a row group are many; beyond this limit each value would take 8 bytes.
const DICTIONARY_BYTES: usize = 16 << 20;
/// Level of zstd: 3 is the default of the program.
const LEVEL: i32 = 3;
/// Files of fewer rows are not compressed. A compressor for each column takes longer to make than
/// the rows, of which most bytes are hashes: a daemon writes dozens of such files each minute.
const LEAST_COMPRESSED_ROWS: usize = 1000;
/// Columns of a file of as many rows are encoded on all CPUs; it has an index of pages, and filters
/// of ids.
const LEAST_PARALLEL_ROWS: usize = 100_000;

/// A Parquet file in memory.
pub(crate) struct TableFile {
    writer: SerializedFileWriter<Vec<u8>>,
    path: String,
    is_large: bool,
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
        Ok(TableFile { writer, path, is_large: rows >= LEAST_PARALLEL_ROWS })
    }

    /// Adds rows; `add` adds all columns in their order.
    pub(crate) fn row_group<'a>(
        &mut self,
        add: impl FnOnce(&mut RowGroupColumns<'a>),
    ) -> Result<(), DatasetError> {
        let mut columns = RowGroupColumns::default();
        add(&mut columns);
        let write = || {
            let encoded =
                columns.encode(self.writer.schema_descr(), self.writer.properties(), self.is_large)?;
            let mut group = self.writer.next_row_group()?;
            for column in encoded {
                group.append_column(&column.pages, column.close)?;
            }
            group.close()?;
            Ok(())
        };
        write().map_err(|error| encode_error(&self.path, error))
    }

    /// Adds a pair to its metadata.
    pub(crate) fn add_metadata(&mut self, key: &str, value: String) {
        self.writer.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
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

/// The columns by which the rows of each row group are sorted, by their places in the schema.
fn sorting_columns(table: Table) -> Option<Vec<SortingColumn>> {
    let columns: &[i32] = match table {
        // event, host_id, pid
        Table::Samples => &[8, 1, 2],
        // build_id, host_id
        Table::Builds | Table::Hosts => &[0],
        Table::Stacks | Table::Frames => return None,
    };
    let ascending =
        |column: &i32| SortingColumn { column_idx: *column, descending: false, nulls_first: false };
    Some(columns.iter().map(ascending).collect())
}

/// Columns that are looked up by single values, and how many distinct ones a filter has room for:
/// one of more values lets more row groups be read, and none too few.
fn looked_up(table: Table) -> &'static [(&'static str, u64)] {
    match table {
        Table::Samples => &[("stack_id", 100_000), ("leaf_location_id", 50_000), ("host_id", 1000)],
        Table::Stacks => &[("stack_id", 500_000)],
        Table::Frames => &[("location_id", 500_000)],
        Table::Builds | Table::Hosts => &[],
    }
}

fn properties(table: Table, host: &str, rows: usize) -> Result<WriterProperties, ParquetError> {
    let compression = match rows < LEAST_COMPRESSED_ROWS {
        true => Compression::UNCOMPRESSED,
        false => Compression::ZSTD(ZstdLevel::try_new(LEVEL)?),
    };
    let is_large = rows >= LEAST_PARALLEL_ROWS;
    let pairs =
        [(VERSION_KEY, VERSION.to_string()), (TABLE_KEY, table.name().into()), (HOST_KEY, host.into())];
    let pairs = pairs.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value));
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("kymo ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(pairs.collect()))
        .set_compression(compression)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_sorting_columns(sorting_columns(table))
        // Most files are small, and queries read whole row groups: an index of pages only costs.
        .set_statistics_enabled(if is_large { EnabledStatistics::Page } else { EnabledStatistics::Chunk })
        .set_offset_index_disabled(!is_large);
    if is_large {
        for (column, distinct) in looked_up(table) {
            properties = properties
                .set_column_bloom_filter_enabled(ColumnPath::from(*column), true)
                .set_column_bloom_filter_max_ndv(ColumnPath::from(*column), *distinct);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::TableReader;
    use crate::samples::{BufferedSample, InternedEvent, InternedProcess, NO_LOCATION, SampleTables};
    use parquet::file::reader::{FileReader, SerializedFileReader};

    /// A file of samples of two events, hosts and processes, which come in no order.
    fn samples(rows: usize) -> bytes::Bytes {
        let mut tables = SampleTables::default();
        let [name, unit, state] = ["x", "ns", "on-cpu"].map(|text| tables.texts.number(text));
        let mut samples = Vec::new();
        for (event, host_id, pid) in
            [("task", 5, 9), ("cpu", 7, 2), ("task", 5, 1), ("cpu", 3, 4), ("cpu", 3, 1)]
        {
            let event = tables.texts.number(event);
            let event = tables.event(InternedEvent { event, value_unit: unit, state, waker: None });
            let process = tables.process(InternedProcess {
                host_id,
                pid,
                tid: None,
                command: name,
                container: None,
                pod: None,
                systemd_unit: None,
                service: 0,
            });
            for time_us in [3, 1, 2] {
                let (stack_id, value, samples_of) = (host_id * 100, 1, 1);
                samples.push(BufferedSample {
                    event,
                    process,
                    time_us,
                    stack_id,
                    leaf_location_id: NO_LOCATION,
                    value,
                    samples: samples_of,
                });
            }
        }
        let mut file = TableFile::new(Table::Samples, "", "samples/x.parquet".into(), rows).expect("a file");
        tables.write(&mut samples, &mut file).expect("rows");
        file.finish().expect("a file").1.into()
    }

    /// Checks that rows are sorted as the footer says, and that large files have an index of pages
    /// and filters of ids, and small ones do not.
    #[test]
    fn large_files_can_be_searched() {
        for (rows, is_large) in [(15, false), (usize::MAX, true)] {
            let bytes = samples(rows);
            let file = SerializedFileReader::new(bytes.clone()).expect("a Parquet file");
            let group = file.metadata().row_group(0);
            let sorted: Vec<i32> =
                group.sorting_columns().expect("sorted").iter().map(|column| column.column_idx).collect();
            let names: Vec<&str> =
                sorted.iter().map(|at| group.column(*at as usize).column_descr().name()).collect();
            assert_eq!(names, ["event", "host_id", "pid"]);
            for column in group.columns() {
                let name = column.column_descr().name();
                let is_id = ["stack_id", "leaf_location_id", "host_id"].contains(&name);
                assert_eq!(column.bloom_filter_offset().is_some(), is_large && is_id, "{name}");
                assert_eq!(column.offset_index_offset().is_some(), is_large, "{name}");
                assert_eq!(column.column_index_offset().is_some(), is_large, "{name}");
            }
            let reader = TableReader::of_bytes("x", bytes, Table::Samples).expect("samples");
            let text = |column| reader.text(column).expect("texts");
            let events: Vec<Vec<u8>> =
                text("event").into_iter().flatten().map(|text| text.data().to_vec()).collect();
            let hosts: Vec<i64> = reader.int64("host_id").expect("ids").into_iter().flatten().collect();
            let pids: Vec<i32> = reader.int32("pid").expect("numbers").into_iter().flatten().collect();
            let keys: Vec<_> = (0..events.len()).map(|row| (&events[row], hosts[row], pids[row])).collect();
            assert!(keys.len() == 15 && keys.is_sorted(), "{keys:?}");
        }
    }

    /// Checks that files which Spark or pyarrow wrote of a dataset are read: snappy is their
    /// default.
    #[test]
    fn snappy_is_read() {
        let schema = Arc::new(parse_message_type(Table::Stacks.schema()).expect("a schema"));
        let properties = properties(Table::Stacks, "", 3).expect("properties").into_builder();
        let properties = Arc::new(properties.set_compression(Compression::SNAPPY).build());
        let writer = SerializedFileWriter::new(Vec::new(), schema, properties).expect("a writer");
        let mut file = TableFile { writer, path: "stacks/x.parquet".into(), is_large: false };
        let add = |columns: &mut RowGroupColumns<'_>| {
            columns.int64([1, 1, 2].into_iter());
            columns.int32([0, 1, 0].into_iter());
            columns.int64([7, 8, 9].into_iter());
        };
        file.row_group(add).expect("rows");
        let bytes = file.finish().expect("a file").1;
        let reader = TableReader::of_bytes("x", bytes.into(), Table::Stacks).expect("stacks");
        assert_eq!(reader.int64("location_id").expect("ids"), [Some(7), Some(8), Some(9)]);
    }
}
