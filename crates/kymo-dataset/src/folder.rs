//! A dataset in a folder of this user's own.
use crate::error::DatasetError;
use crate::schema::{FileStem, Table};
use crate::writer::DatasetFile;
use kymo_files::PrivateFolder;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder with the files of a dataset. Files get their names when they are whole: readers never
/// see parts of them. Files have mode 0600, folders 0700.
#[derive(Debug)]
pub struct DatasetFolder {
    path: PathBuf,
}

impl DatasetFolder {
    /// Opens a dataset to add files, or makes it: in a folder that does not exist or is empty.
    ///
    /// # Errors
    /// A sentence for a folder with other files, for another version of the layout, and for what
    /// the system says.
    pub fn open_or_create(path: &Path) -> Result<DatasetFolder, DatasetError> {
        let named = |error| DatasetError::io(path.display(), error);
        let absolute = std::path::absolute(path).map_err(named)?;
        match fs::read_dir(&absolute) {
            Ok(mut entries) => {
                if entries.next().is_some()
                    && !Table::ALL.iter().any(|table| absolute.join(table.name()).is_dir())
                {
                    return Err(DatasetError::Refused(format!(
                        "{} is not empty and no dataset: name another folder",
                        path.display()
                    )));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(named(error)),
        }
        PrivateFolder::open(&absolute, &[]).map_err(named)?;
        Ok(DatasetFolder { path: absolute })
    }

    /// Puts a file below the folder, in the place of the one with its name.
    ///
    /// # Errors
    /// What the system says, and a sentence for folders that others may change.
    pub fn put(&self, file: &DatasetFile) -> Result<(), DatasetError> {
        let mut names: Vec<&str> = file.path.split('/').collect();
        let name = names.pop().unwrap_or_default();
        let folder = PrivateFolder::open(&self.path, &names);
        let put = folder.and_then(|folder| folder.replace(OsStr::new(name), &file.bytes));
        put.map_err(|error| DatasetError::io(self.path.join(&file.path).display(), error))
    }

    /// Whether the dataset has files of this stem: of the same host and moment.
    pub fn has(&self, stem: &FileStem) -> bool {
        self.path.join(crate::schema::file_path(Table::Hosts, &[], stem)).exists()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
