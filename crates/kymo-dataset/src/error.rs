//! What goes wrong with a dataset, as sentences.
use std::io;

/// Why a dataset was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file or folder; `object` names it.
    #[error("{object}: {error}")]
    Io {
        /// Path of the file or folder.
        object: String,
        /// What the system says.
        error: io::Error,
    },
    /// The rows did not become a Parquet file.
    #[error("failed to make the Parquet file {file}: {reason}")]
    Encode {
        /// Path below the dataset.
        file: String,
        /// What the library says.
        reason: String,
    },
    /// A file that is no Parquet file, or a damaged one.
    #[error("{file} is no whole Parquet file: {reason}")]
    Damaged {
        /// Path of the file.
        file: String,
        /// What the library says.
        reason: String,
    },
    /// A file of another program.
    #[error("{file} is no file of a kymo dataset: its metadata has no `{key}`")]
    Foreign {
        /// Path of the file.
        file: String,
        /// The key that is missing.
        key: &'static str,
    },
    /// A dataset of another version.
    #[error(
        "{file} has version {found} of the dataset's layout, and this kymo knows version {known}: write to another folder, or use the kymo that made it"
    )]
    Version {
        /// Path of the file.
        file: String,
        /// Version that the file says.
        found: String,
        /// Version of this program.
        known: u32,
    },
    /// A file with other columns than its table has.
    #[error("{file} has no column `{column}` of the type that the table {table} has: {reason}")]
    Column {
        /// Path of the file.
        file: String,
        /// Name of the column.
        column: String,
        /// Name of the table.
        table: &'static str,
        /// What is there instead.
        reason: String,
    },
    /// A folder that cannot be taken for a dataset, or not for these rows.
    #[error("{0}")]
    Refused(String),
}

impl DatasetError {
    /// Whether the file or folder is not there (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self, DatasetError::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// What a folder or store says of a file or folder; `object` names it.
    pub fn io(object: impl std::fmt::Display, error: io::Error) -> DatasetError {
        DatasetError::Io { object: object.to_string(), error }
    }
}
