//! A dataset in a folder of this user's own.
use crate::error::DatasetError;
use crate::read::TableReader;
use crate::schema::{FileStem, Table};
use crate::writer::DatasetFile;
use kymo_files::PrivateFolder;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
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
        match fs::read_dir(path) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return DatasetFolder::open(path);
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(named(error)),
        }
        let path = std::path::absolute(path).map_err(named)?;
        PrivateFolder::open(&path, &[]).map_err(named)?;
        Ok(DatasetFolder { path })
    }

    /// Opens a dataset that exists.
    ///
    /// # Errors
    /// As [`DatasetFolder::open_or_create`], and a sentence for a folder without a dataset.
    pub fn open(path: &Path) -> Result<DatasetFolder, DatasetError> {
        let named = |error| DatasetError::io(path.display(), error);
        let dataset = DatasetFolder { path: std::path::absolute(path).map_err(named)? };
        fs::read_dir(&dataset.path).map_err(named)?;
        let first = dataset.files(Table::Hosts)?.into_iter().next().ok_or_else(|| {
            let shown = path.display();
            DatasetError::Refused(format!("{shown} is no dataset of kymo: it has no files in hosts/"))
        })?;
        TableReader::open(&dataset.path.join(first), Table::Hosts)?;
        PrivateFolder::open(&dataset.path, &[]).map_err(named)?;
        Ok(dataset)
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

    /// The files of a table, by their paths below the dataset, in the order of these. Files that
    /// are being written are not among them.
    ///
    /// # Errors
    /// What the system says of a folder.
    pub fn files(&self, table: Table) -> Result<Vec<String>, DatasetError> {
        let mut folders = vec![table.name().to_owned()];
        for _ in table.partitions() {
            folders = self.all_below(&folders)?;
        }
        let mut files = self.all_below(&folders)?;
        files.retain(|name| name.ends_with(".parquet"));
        Ok(files)
    }

    /// What the names of files of the same recording have in common, if it is in the dataset:
    /// those of the same host and moment, or of the same content where the moment is not known.
    ///
    /// # Errors
    /// What the system says of the folder.
    pub fn find(&self, stem: &FileStem) -> Result<Option<String>, DatasetError> {
        let names = self.names(Table::Hosts.name())?;
        let found = names.iter().find(|name| stem.is_of(name));
        Ok(found.and_then(|name| name.strip_suffix(".parquet")).map(str::to_owned))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn all_below(&self, folders: &[String]) -> Result<Vec<String>, DatasetError> {
        let mut all = Vec::new();
        for folder in folders {
            all.extend(self.names(folder)?.into_iter().map(|name| format!("{folder}/{name}")));
        }
        Ok(all)
    }

    /// What is in a folder below the dataset, hidden names left out; nothing where there is no such
    /// folder.
    fn names(&self, folder: &str) -> Result<Vec<String>, DatasetError> {
        let path = self.path.join(folder);
        let named = |error| DatasetError::io(path.display(), error);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(named(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(named)?.file_name();
            names.extend(name.into_string().ok().filter(|name| !name.starts_with('.')));
        }
        names.sort();
        Ok(names)
    }
}
