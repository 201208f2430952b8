//! Which files of a folder count: those that no merged file stands for.
//!
//! A merged file has in its metadata the names of all files whose rows it has, also of merged ones
//! before it ([`ReplacedFiles`]). So the PUT of that one file is the moment at which all of them
//! stop to count, whether they are there still, go one after the other, or come again.
//!
//! A list of an object store is in the order of the names, and a merged file has the last name of
//! its folder: a list that lacks a file because it is replaced and gone has the one that replaced
//! it. Other lists are made again until two are the same (`DatasetFolder`).
use crate::error::DatasetError;
use crate::read::{Tail, tail_of};
use crate::replaced::ReplacedFiles;
use crate::schema::{FileStem, Table};
use crate::store::{DatasetStore, StoredFile};
use bytes::Bytes;
use std::collections::BTreeMap;

/// What is read of the end of a merged file first: most have all of their metadata there.
const FIRST_TAIL: u64 = 64 << 10;

/// A merged file, and what its metadata says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedFile {
    /// Its name, without the folder.
    pub name: String,
    /// How many rows it has.
    pub rows: i64,
    /// The files that it stands for.
    pub replaced: ReplacedFiles,
}

/// Reads the metadata of a merged file step by step, for whoever does the reading.
///
/// ```text
/// let mut footer = MergedFooter::new(name, size);
/// while let Some(range) = footer.needed_range() { footer.add(bytes of range)?; }
/// footer.finish()
/// ```
#[derive(Debug)]
pub struct MergedFooter {
    name: String,
    size: u64,
    tail: u64,
    found: Option<MergedFile>,
}

impl MergedFooter {
    /// Of a file of this path and length.
    pub fn new(path: &str, size: u64) -> MergedFooter {
        MergedFooter { name: path.to_owned(), size, tail: FIRST_TAIL.min(size), found: None }
    }

    /// The bytes that are needed next, up to the end of the file; none: there is enough.
    pub fn needed_range(&self) -> Option<std::ops::Range<u64>> {
        self.found.is_none().then_some(self.size - self.tail..self.size)
    }

    /// Takes these bytes.
    ///
    /// # Errors
    /// A sentence for what is no whole Parquet file, and for one that says of no other file that it
    /// stands for it.
    pub fn add(&mut self, bytes: Bytes) -> Result<(), DatasetError> {
        match tail_of(&self.name, bytes, self.size)? {
            Tail::More(needed) => self.tail = needed,
            Tail::Whole(rows, Some(replaced)) => {
                let name = self.name.rsplit('/').next().unwrap_or_default().to_owned();
                self.found = Some(MergedFile { name, rows, replaced });
            }
            Tail::Whole(_, None) => {
                return Err(DatasetError::Damaged {
                    file: self.name.clone(),
                    reason: "it has the name of a merged file and does not say of which".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// What it says. [`needed_range`](MergedFooter::needed_range) has given none.
    pub fn finish(self) -> Option<MergedFile> {
        self.found
    }
}

/// Whether a file has the name of one that was merged in place.
pub fn is_merged(name: &str) -> bool {
    FileStem::parse(name).is_some_and(|stem| stem.is_merged())
}

/// Whether a file of this name does not count, because one of the merged files of its folder stands
/// for it.
pub fn is_replaced(name: &str, merged: &[MergedFile]) -> bool {
    merged.iter().any(|file| file.replaced.contains(name))
}

/// The files of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FolderFiles {
    /// Those whose rows count.
    pub(crate) live: Vec<StoredFile>,
    /// Those that a merged file stands for.
    pub(crate) replaced: Vec<StoredFile>,
    /// All merged ones, if there are others in the folder.
    pub(crate) merged: Vec<MergedFile>,
}

impl FolderFiles {
    /// Reads what merged files say of the others.
    pub(crate) fn of(store: &dyn DatasetStore, files: Vec<StoredFile>) -> Result<FolderFiles, DatasetError> {
        let mut merged = Vec::new();
        for file in files.iter().filter(|file| files.len() > 1 && is_merged(file.name())) {
            merged.push(footer(store, file)?);
        }
        let (replaced, live) = files.into_iter().partition(|file| is_replaced(file.name(), &merged));
        Ok(FolderFiles { live, replaced, merged })
    }

    /// What the metadata of a merged file says, which is in [`FolderFiles::merged`].
    pub(crate) fn merged(&self, file: &StoredFile) -> Option<&MergedFile> {
        self.merged.iter().find(|merged| merged.name == file.name())
    }
}

/// Reads the metadata of a merged file.
pub(crate) fn footer(store: &dyn DatasetStore, file: &StoredFile) -> Result<MergedFile, DatasetError> {
    let mut footer = MergedFooter::new(&file.path, file.bytes);
    while let Some(range) = footer.needed_range() {
        footer.add(store.read(&file.path, range)?)?;
    }
    footer.finish().ok_or_else(|| DatasetError::Refused(format!("{} has no metadata", file.path)))
}

/// The files of a table whose rows count, by their folders.
///
/// # Errors
/// Those of the store, and of merged files that are not whole.
pub(crate) fn live_folders(
    store: &dyn DatasetStore,
    table: Table,
) -> Result<BTreeMap<String, FolderFiles>, DatasetError> {
    let mut folders: BTreeMap<String, Vec<StoredFile>> = BTreeMap::new();
    for file in store.files(table.name())? {
        folders.entry(file.folder().to_owned()).or_default().push(file);
    }
    let of = |(folder, files)| Ok((folder, FolderFiles::of(store, files)?));
    folders.into_iter().map(of).collect()
}

/// The files of a table whose rows count: those that queries read.
///
/// # Errors
/// Those of the store, and of merged files that are not whole.
pub fn live_files(store: &dyn DatasetStore, table: Table) -> Result<Vec<StoredFile>, DatasetError> {
    Ok(live_folders(store, table)?.into_values().flat_map(|folder| folder.live).collect())
}

/// A recording that a dataset has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRecording {
    /// What the names of its files have in common.
    pub name: String,
    /// Whether these files are there no more, because merged ones have their rows.
    pub is_merged: bool,
}

/// Finds a recording by its files: those of the same host and moment, or of the same content where
/// the moment is not known.
///
/// # Errors
/// Those of the store, and of merged files that are not whole.
pub fn find(store: &dyn DatasetStore, stem: &FileStem) -> Result<Option<KnownRecording>, DatasetError> {
    let files = store.files(Table::Hosts.name())?;
    for file in files.iter().filter(|file| is_merged(file.name())) {
        if let Some(known) = footer(store, file)?.replaced.find(stem) {
            return Ok(Some(KnownRecording { name: known.to_string(), is_merged: true }));
        }
    }
    let known = files.iter().map(StoredFile::name).find(|name| stem.is_of(name));
    let known = known.and_then(|name| name.strip_suffix(".parquet"));
    Ok(known.map(|name| KnownRecording { name: name.to_owned(), is_merged: false }))
}
