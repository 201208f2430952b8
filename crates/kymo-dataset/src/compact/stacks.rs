//! The stacks of a day: each once, though every host has written it again and again.
use super::{Merging, rows_of};
use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::schema::Table;
use crate::store::StoredFile;
use rustc_hash::FxHashSet;

/// StackRows in a row group.
const ROWS_OF_GROUP: usize = 4 << 20;

/// StackRows that no row group has yet.
#[derive(Default)]
struct StackRows {
    stack_id: Vec<i64>,
    depth: Vec<i32>,
    location_id: Vec<i64>,
}

impl StackRows {
    fn write(&mut self, file: &mut TableFile) -> Result<(), DatasetError> {
        if !self.depth.is_empty() {
            file.row_group(|columns| {
                columns.int64(self.stack_id.iter().copied());
                columns.int32(self.depth.iter().copied());
                columns.int64(self.location_id.iter().copied());
            })?;
            *self = StackRows::default();
        }
        Ok(())
    }
}

impl Merging<'_> {
    pub(super) fn stacks(&self, path: String, files: &[StoredFile]) -> Result<TableFile, DatasetError> {
        let mut written: FxHashSet<i64> = FxHashSet::default();
        let mut rows = StackRows::default();
        let mut file = TableFile::new(Table::Stacks, "", path, rows_of(files))?;
        for stored in files {
            let reader = self.open(stored, Table::Stacks)?;
            // A stack's rows may be anywhere in its file: it is known when the file is read.
            let mut of_file = FxHashSet::default();
            for group in (0..reader.group_count()).map(|group| reader.group(group)) {
                let stack_id = group.required("stack_id", group.int64("stack_id")?)?;
                let depth = group.required("depth", group.int32("depth")?)?;
                let location_id = group.required("location_id", group.int64("location_id")?)?;
                for row in 0..stack_id.len() {
                    if !written.contains(&stack_id[row]) {
                        of_file.insert(stack_id[row]);
                        rows.stack_id.push(stack_id[row]);
                        rows.depth.push(depth[row]);
                        rows.location_id.push(location_id[row]);
                    }
                }
                if rows.depth.len() >= ROWS_OF_GROUP {
                    rows.write(&mut file)?;
                }
            }
            written.extend(of_file);
        }
        rows.write(&mut file)?;
        Ok(file)
    }
}
