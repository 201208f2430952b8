//! Columns of a file of a dataset, whoever wrote it.
//!
//! The library is written for files of its own kind: it may panic on damaged ones, and it takes
//! sizes from them. So sizes are checked first, and a panic becomes a sentence.
use crate::error::DatasetError;
use crate::replaced::ReplacedFiles;
use crate::schema::{REPLACES_KEY, Table, check_metadata};
use bytes::Bytes;
use kymo_files::open_regular;
use parquet::basic::Type as Physical;
use parquet::column::reader::get_typed_column_reader;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{FileReader, SerializedFileReader};
use std::io::Read;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Bytes of a file that are read: those with frames and builds are far smaller.
pub(crate) const MOST_BYTES: u64 = 1 << 30;
/// Rows of a file: repeated values take next to nothing in it, and memory here.
pub(crate) const MOST_ROWS: i64 = 16 << 20;
/// What a column of a row group may become, unpacked.
const MOST_UNPACKED: i64 = 1 << 30;
/// Values that are read at once.
const BATCH: usize = 64 << 10;

/// A file of a dataset, with checked metadata.
pub struct TableReader {
    reader: SerializedFileReader<Bytes>,
    table: Table,
    name: String,
}

impl TableReader {
    /// Opens a file of a table.
    ///
    /// # Errors
    /// A sentence for what is no whole Parquet file, of another program, version or table.
    pub fn open(path: &Path, table: Table) -> Result<TableReader, DatasetError> {
        let read = || {
            let mut bytes = Vec::new();
            let file = open_regular(path)?;
            if file.metadata()?.len() > MOST_BYTES {
                return Err(std::io::Error::other(format!("it is larger than {} GiB", MOST_BYTES >> 30)));
            }
            file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| DatasetError::io(path.display(), error))?;
        TableReader::of_bytes(&path.display().to_string(), bytes.into(), table)
    }

    /// The same for the bytes of a file; `name` is for sentences.
    ///
    /// # Errors
    /// As [`TableReader::open`].
    pub fn of_bytes(name: &str, bytes: Bytes, table: Table) -> Result<TableReader, DatasetError> {
        let size = bytes.len() as i64;
        let reader = guarded(name, || SerializedFileReader::new(bytes))?;
        let metadata = reader.metadata();
        let pairs = metadata.file_metadata().key_value_metadata();
        let value = |key: &str| {
            let pair = pairs.into_iter().flatten().find(|pair| pair.key == key)?;
            pair.value.as_deref()
        };
        check_metadata(name, table, value)?;
        check_sizes(name, metadata, size)?;
        Ok(TableReader { reader, table, name: name.to_owned() })
    }

    /// Its name in sentences.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A value of its metadata.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        let pairs = self.reader.metadata().file_metadata().key_value_metadata();
        pairs.into_iter().flatten().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// How many rows it has.
    pub fn row_count(&self) -> usize {
        let rows = self.reader.metadata().row_groups().iter().map(|group| group.num_rows());
        rows.sum::<i64>().try_into().unwrap_or(0)
    }

    /// How many row groups it has.
    pub fn group_count(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// One of its row groups: the same questions, answered for its rows.
    pub fn group(&self, group: usize) -> RowGroup<'_> {
        RowGroup { reader: self, groups: group..(group + 1).min(self.group_count()) }
    }

    fn all(&self) -> RowGroup<'_> {
        RowGroup { reader: self, groups: 0..self.group_count() }
    }

    /// A column of 64-bit numbers.
    ///
    /// # Errors
    /// A sentence where there is no such column, and where it is damaged.
    pub fn int64(&self, column: &str) -> Result<Vec<Option<i64>>, DatasetError> {
        self.all().int64(column)
    }

    /// A column of 32-bit numbers.
    ///
    /// # Errors
    /// As [`TableReader::int64`].
    pub fn int32(&self, column: &str) -> Result<Vec<Option<i32>>, DatasetError> {
        self.all().int32(column)
    }

    /// A column of floating-point numbers.
    ///
    /// # Errors
    /// As [`TableReader::int64`].
    pub fn double(&self, column: &str) -> Result<Vec<Option<f64>>, DatasetError> {
        self.all().column::<DoubleType>(column)
    }

    /// A column of texts. What is no UTF-8 is shown as such.
    ///
    /// # Errors
    /// As [`TableReader::int64`].
    pub fn text(&self, column: &str) -> Result<Vec<Option<ByteArray>>, DatasetError> {
        self.all().text(column)
    }

    /// A column that has a value in every row.
    ///
    /// # Errors
    /// As [`TableReader::int64`]; a sentence where a value is missing.
    pub fn required<T>(&self, column: &str, values: Vec<Option<T>>) -> Result<Vec<T>, DatasetError> {
        let rows = values.len();
        let values: Vec<T> = values.into_iter().flatten().collect();
        match values.len() == rows {
            true => Ok(values),
            false => Err(self.wrong(column, "rows without a value")),
        }
    }

    fn wrong(&self, column: &str, reason: impl Into<String>) -> DatasetError {
        DatasetError::Column {
            file: self.name.clone(),
            column: column.to_owned(),
            table: self.table.name(),
            reason: reason.into(),
        }
    }
}

/// Rows of a file that belong together.
pub struct RowGroup<'a> {
    reader: &'a TableReader,
    groups: Range<usize>,
}

impl RowGroup<'_> {
    /// A column of 64-bit numbers.
    ///
    /// # Errors
    /// A sentence where there is no such column, and where it is damaged.
    pub fn int64(&self, column: &str) -> Result<Vec<Option<i64>>, DatasetError> {
        self.column::<Int64Type>(column)
    }

    /// A column of 32-bit numbers.
    ///
    /// # Errors
    /// As [`RowGroup::int64`].
    pub fn int32(&self, column: &str) -> Result<Vec<Option<i32>>, DatasetError> {
        self.column::<Int32Type>(column)
    }

    /// A column of texts. What is no UTF-8 is shown as such.
    ///
    /// # Errors
    /// As [`RowGroup::int64`].
    pub fn text(&self, column: &str) -> Result<Vec<Option<ByteArray>>, DatasetError> {
        let valid = |text: Option<ByteArray>| {
            text.map(|text| match text.as_utf8() {
                Ok(_) => text,
                Err(_) => ByteArray::from(String::from_utf8_lossy(text.data()).into_owned().into_bytes()),
            })
        };
        Ok(self.column::<ByteArrayType>(column)?.into_iter().map(valid).collect())
    }

    /// A column that has a value in every row.
    ///
    /// # Errors
    /// As [`RowGroup::int64`]; a sentence where a value is missing.
    pub fn required<T>(&self, column: &str, values: Vec<Option<T>>) -> Result<Vec<T>, DatasetError> {
        self.reader.required(column, values)
    }

    fn column<T: DataType>(&self, column: &str) -> Result<Vec<Option<T::T>>, DatasetError> {
        let file = self.reader;
        let wrong = |reason: String| file.wrong(column, reason);
        let schema = file.reader.metadata().file_metadata().schema_descr();
        let place = schema.columns().iter().position(|described| described.path().string() == column);
        let place = place.ok_or_else(|| wrong("there is none of this name".to_owned()))?;
        let described = schema.column(place);
        let expected: Physical = T::get_physical_type();
        if described.physical_type() != expected
            || described.max_rep_level() > 0
            || described.max_def_level() > 1
        {
            return Err(wrong(format!("it is of type {}", described.physical_type())));
        }
        let is_optional = described.max_def_level() == 1;
        let mut all = Vec::new();
        for group in self.groups.clone() {
            guarded(&file.name, || {
                let rows = file.reader.metadata().row_group(group).num_rows();
                let reader = file.reader.get_row_group(group)?.get_column_reader(place)?;
                read_values::<T>(get_typed_column_reader::<T>(reader), (rows, is_optional), &mut all)
            })?;
        }
        Ok(all)
    }
}

/// Reads the values of a column of a row group.
fn read_values<T: DataType>(
    mut reader: parquet::column::reader::ColumnReaderImpl<T>,
    (rows, is_optional): (i64, bool),
    all: &mut Vec<Option<T::T>>,
) -> Result<(), ParquetError> {
    let mut left = usize::try_from(rows).unwrap_or(0);
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    while left > 0 {
        values.clear();
        levels.clear();
        let wanted = is_optional.then_some(&mut levels);
        let (records, _, _) = reader.read_records(left.min(BATCH), wanted, None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::General(format!("{left} values are missing")));
        }
        left = left.saturating_sub(records);
        let mut values = values.drain(..);
        match is_optional {
            true => all.extend(levels.iter().map(|level| if *level > 0 { values.next() } else { None })),
            false => all.extend(values.map(Some)),
        }
    }
    Ok(())
}

/// What the end of a file says.
pub(crate) enum Tail {
    /// So many bytes of its end are needed.
    More(u64),
    /// How many rows it has, and the files that it stands for, if it was merged in place.
    Whole(i64, Option<ReplacedFiles>),
}

/// Reads the metadata of a file of `size` bytes out of its last ones.
pub(crate) fn tail_of(name: &str, bytes: Bytes, size: u64) -> Result<Tail, DatasetError> {
    let had = bytes.len() as u64;
    let parsed = guarded(name, || {
        let mut reader = ParquetMetaDataReader::new();
        match reader.try_parse_sized(&bytes, size) {
            Ok(()) => reader.finish().map(Ok),
            Err(ParquetError::NeedMoreData(needed)) => Ok(Err(needed as u64)),
            Err(error) => Err(error),
        }
    })?;
    let damaged = |reason: &str| DatasetError::Damaged { file: name.to_owned(), reason: reason.to_owned() };
    let metadata = match parsed {
        Ok(metadata) => metadata,
        Err(needed) if needed > had && needed <= size => return Ok(Tail::More(needed)),
        Err(_) => return Err(damaged("its metadata is longer than the file")),
    };
    let file = metadata.file_metadata();
    let pair = file.key_value_metadata().into_iter().flatten().find(|pair| pair.key == REPLACES_KEY);
    let replaced = match pair.and_then(|pair| pair.value.as_deref()) {
        Some(text) => {
            let wrong = || damaged("the names of the files that it stands for are no such list");
            Some(ReplacedFiles::parse(text).ok_or_else(wrong)?)
        }
        None => None,
    };
    Ok(Tail::Whole(file.num_rows(), replaced))
}

/// Calls the library: an error or a panic of it is a sentence about the file.
fn guarded<T>(name: &str, call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DatasetError> {
    let damaged = |reason: String| DatasetError::Damaged { file: name.to_owned(), reason };
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| damaged(error.to_string())),
        Err(_) => Err(damaged("its content contradicts itself".to_owned())),
    }
}

/// Refuses metadata whose sizes cannot be true: the library believes them.
fn check_sizes(name: &str, metadata: &ParquetMetaData, size: i64) -> Result<(), DatasetError> {
    let damaged = |reason: &str| DatasetError::Damaged { file: name.to_owned(), reason: reason.to_owned() };
    let mut rows: i64 = 0;
    for group in metadata.row_groups() {
        let in_group = group.num_rows();
        rows = rows.checked_add(in_group).filter(|_| in_group >= 0).unwrap_or(i64::MAX);
        for column in group.columns() {
            let starts = [Some(column.data_page_offset()), column.dictionary_page_offset()];
            let begin = starts.into_iter().flatten().min().unwrap_or(-1);
            let end = begin.checked_add(column.compressed_size()).filter(|_| column.compressed_size() >= 0);
            if begin < 0 || end.is_none_or(|end| end > size) {
                return Err(damaged("a column lies outside of the file"));
            }
            if !(0..=MOST_UNPACKED).contains(&column.uncompressed_size()) {
                return Err(damaged("a column would take more memory than it may"));
            }
            if column.num_values() != in_group {
                return Err(damaged("a column has other rows than its row group"));
            }
        }
    }
    if rows > MOST_ROWS {
        return Err(damaged("it has more rows than are read from one file"));
    }
    Ok(())
}
