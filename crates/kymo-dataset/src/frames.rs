//! The table `frames` as columns in memory.
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::read::TableReader;
use parquet::data_type::ByteArray;

/// Rows in a row group.
const ROWS_OF_GROUP: usize = 4 << 20;

/// Rows of the table `frames`.
#[derive(Default)]
pub(crate) struct Frames {
    pub(crate) location_id: Vec<i64>,
    pub(crate) inline_depth: Vec<i32>,
    pub(crate) function: Vec<Option<ByteArray>>,
    pub(crate) file: Vec<Option<ByteArray>>,
    pub(crate) line: Vec<Option<i32>>,
    pub(crate) module: Vec<ByteArray>,
    pub(crate) build_id: Vec<Option<ByteArray>>,
    pub(crate) address: Vec<i64>,
    pub(crate) kind: Vec<ByteArray>,
}

impl Frames {
    pub(crate) fn read(reader: &TableReader) -> Result<Frames, DatasetError> {
        Ok(Frames {
            location_id: reader.required("location_id", reader.int64("location_id")?)?,
            inline_depth: reader.required("inline_depth", reader.int32("inline_depth")?)?,
            function: reader.text("function")?,
            file: reader.text("file")?,
            line: reader.int32("line")?,
            module: reader.required("module", reader.text("module")?)?,
            build_id: reader.text("build_id")?,
            address: reader.required("address", reader.int64("address")?)?,
            kind: reader.required("kind", reader.text("kind")?)?,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.location_id.len()
    }

    /// Adds a row of others.
    pub(crate) fn push(&mut self, of: &Frames, row: usize) {
        self.location_id.push(of.location_id[row]);
        self.inline_depth.push(of.inline_depth[row]);
        self.function.push(of.function[row].clone());
        self.file.push(of.file[row].clone());
        self.line.push(of.line[row]);
        self.module.push(of.module[row].clone());
        self.build_id.push(of.build_id[row].clone());
        self.address.push(of.address[row]);
        self.kind.push(of.kind[row].clone());
    }

    /// Writes all rows.
    pub(crate) fn write(&self, file: &mut TableFile) -> Result<(), DatasetError> {
        for begin in (0..self.len()).step_by(ROWS_OF_GROUP) {
            let rows = begin..self.len().min(begin + ROWS_OF_GROUP);
            file.row_group(|columns| {
                columns.int64(self.location_id[rows.clone()].iter().copied());
                columns.int32(self.inline_depth[rows.clone()].iter().copied());
                columns.optional_text(self.function[rows.clone()].iter().cloned());
                columns.optional_text(self.file[rows.clone()].iter().cloned());
                columns.optional_int32(self.line[rows.clone()].iter().copied());
                columns.text(self.module[rows.clone()].iter().cloned());
                columns.optional_text(self.build_id[rows.clone()].iter().cloned());
                columns.int64(self.address[rows.clone()].iter().copied());
                columns.text(self.kind[rows.clone()].iter().cloned());
            })?;
        }
        Ok(())
    }
}
