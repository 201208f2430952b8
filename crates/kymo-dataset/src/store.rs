//! Where the files of a dataset are: a folder, or an object store.
use crate::error::DatasetError;
use crate::read::{MOST_BYTES, TableReader};
use crate::schema::Table;
use crate::writer::DatasetFile;
use bytes::Bytes;
use std::ops::Range;

/// A file of a dataset, as a listing has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredFile {
    /// Its path below the dataset.
    pub path: String,
    /// Its length.
    pub bytes: u64,
}

impl StoredFile {
    /// The folder of the file, below the dataset.
    pub fn folder(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// Its name in that folder.
    pub fn name(&self) -> &str {
        self.path.rsplit_once('/').map_or(&self.path, |(_, name)| name)
    }
}

/// What compaction, symbols and exports need of the place of a dataset. A folder has it
/// ([`DatasetFolder`](crate::DatasetFolder)), and so has every object store with conditional PUTs.
///
/// Paths are below the dataset, with `/` between the names. An error about a file that is not there
/// is one for which [`DatasetError::is_not_found`] holds.
pub trait DatasetStore: Sync {
    /// What it is called in sentences.
    fn name(&self) -> String;

    /// The Parquet files below a folder of the dataset, at any depth, by their paths; none where
    /// there is no such folder. A file that is there from the beginning of the call to its end is
    /// listed.
    ///
    /// # Errors
    /// What the place says.
    fn files(&self, folder: &str) -> Result<Vec<StoredFile>, DatasetError>;

    /// Bytes of a file.
    ///
    /// # Errors
    /// What the place says.
    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, DatasetError>;

    /// Puts a whole file, in the place of the one of its path, in one step.
    ///
    /// # Errors
    /// What the place says. The file may be there all the same.
    fn put(&self, file: &DatasetFile) -> Result<(), DatasetError>;

    /// Puts a whole file if none has its path, in one step; false: one has.
    ///
    /// # Errors
    /// What the place says. The file may be there all the same.
    fn create(&self, file: &DatasetFile) -> Result<bool, DatasetError>;

    /// Removes files, in any order; those that are not there count as removed.
    ///
    /// # Errors
    /// What the place says. Some may be removed.
    fn remove(&self, paths: &[String]) -> Result<(), DatasetError>;
}

/// Opens a file of a table.
///
/// # Errors
/// As [`TableReader::open`].
pub(crate) fn open(
    store: &dyn DatasetStore,
    file: &StoredFile,
    table: Table,
) -> Result<TableReader, DatasetError> {
    let name = format!("{}/{}", store.name(), file.path);
    if file.bytes > MOST_BYTES {
        let reason = std::io::Error::other(format!("it is larger than {} GiB", MOST_BYTES >> 30));
        return Err(DatasetError::io(name, reason));
    }
    TableReader::of_bytes(&name, store.read(&file.path, 0..file.bytes)?, table)
}
