//! A dataset in a folder of this user's own.
use crate::error::DatasetError;
use crate::live::is_merged;
use crate::read::TableReader;
use crate::schema::Table;
use crate::store::{DatasetStore, StoredFile};
use crate::writer::DatasetFile;
use bytes::Bytes;
use kymo_files::{PrivateFolder, open_regular};
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
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
        self.in_folder(&file.path, |folder, name| folder.replace(name, &file.bytes))
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

    /// Changes the folder of a file, which is made if there is none.
    fn in_folder<T>(
        &self,
        path: &str,
        change: impl FnOnce(&PrivateFolder, &OsStr) -> std::io::Result<T>,
    ) -> Result<T, DatasetError> {
        let mut names: Vec<&str> = path.split('/').collect();
        let name = names.pop().unwrap_or_default();
        let folder = PrivateFolder::open(&self.path, &names);
        let changed = folder.and_then(|folder| change(&folder, OsStr::new(name)));
        changed.map_err(|error| DatasetError::io(self.path.join(path).display(), error))
    }

    /// Adds the files below a folder of the dataset, as a list that others may change meanwhile.
    fn list(&self, folder: &str, files: &mut Vec<StoredFile>) -> Result<(), DatasetError> {
        for name in self.names(folder)? {
            let path = format!("{folder}/{name}");
            match self.path.join(&path).symlink_metadata() {
                Ok(found) if found.is_dir() => self.list(&path, files)?,
                Ok(found) if name.ends_with(".parquet") => {
                    files.push(StoredFile { path, bytes: found.len() });
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(DatasetError::io(self.path.join(path).display(), error)),
            }
        }
        Ok(())
    }
}

/// How often a folder is listed until no compaction changes it meanwhile.
const MOST_LISTS: u32 = 100;

impl DatasetStore for DatasetFolder {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The system lists files in no order. So there are two lists, of which the second one has all
    /// of the first one and no other merged file: no compaction removed anything between them.
    fn files(&self, folder: &str) -> Result<Vec<StoredFile>, DatasetError> {
        let list = || {
            let mut files = Vec::new();
            self.list(folder, &mut files)?;
            files.sort();
            Ok(files)
        };
        let is_in = |files: &[StoredFile], file: &StoredFile| {
            files.binary_search_by(|other| other.path.cmp(&file.path)).is_ok()
        };
        let mut before = list()?;
        for _ in 0..MOST_LISTS {
            let now = list()?;
            let has_all = before.iter().all(|file| is_in(&now, file));
            if has_all && now.iter().all(|file| !is_merged(file.name()) || is_in(&before, file)) {
                return Ok(now);
            }
            before = now;
        }
        let shown = self.path.join(folder);
        Err(DatasetError::Refused(format!("{} changes all the time: try it again", shown.display())))
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, DatasetError> {
        let path = self.path.join(path);
        let read = || {
            let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)];
            open_regular(&path)?.read_exact_at(&mut bytes, range.start)?;
            Ok(bytes)
        };
        read().map(Bytes::from).map_err(|error| DatasetError::io(path.display(), error))
    }

    fn put(&self, file: &DatasetFile) -> Result<(), DatasetError> {
        DatasetFolder::put(self, file)
    }

    fn create(&self, file: &DatasetFile) -> Result<bool, DatasetError> {
        self.in_folder(&file.path, |folder, name| folder.create(name, &file.bytes))
    }

    fn remove(&self, paths: &[String]) -> Result<(), DatasetError> {
        paths.iter().try_for_each(|path| self.in_folder(path, PrivateFolder::remove_name))
    }
}
