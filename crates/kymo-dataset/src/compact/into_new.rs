//! Compaction into a new dataset, in a folder.
use super::{CompactOptions, Compacted, Folders, Merging};
use crate::error::DatasetError;
use crate::folder::DatasetFolder;
use crate::live::FolderFiles;
use crate::schema::{FileStem, Table};
use crate::store::{DatasetStore, open};
use crate::writer::DatasetFile;
use kymo_symbols::pool;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Names the host of files with rows of several ones.
const SEVERAL_HOSTS: i64 = 0;

/// Writes the rows of a dataset into a new one with few, large files.
///
/// # Errors
/// A sentence for a file that cannot be read, a new dataset that exists already, a day that the old
/// one does not have, and where it was cancelled. There is no new dataset then.
pub fn compact(
    dataset: &dyn DatasetStore,
    new: &Path,
    options: &CompactOptions<'_>,
) -> Result<Compacted, DatasetError> {
    let unfinished = Unfinished::beside(new)?;
    let target = DatasetFolder::open_or_create(&unfinished.path)?;
    let (merging, folders) = Merging::new(dataset, options)?;
    let start_ns = first_seen_ns(dataset, &folders)?;
    for (table, folders) in &folders {
        let folders: Vec<_> = folders.iter().collect();
        let done = pool::map(&folders, |(folder, files)| {
            write(&merging, (*table, folder), &files.live, (&target, start_ns))
        });
        done.into_iter().collect::<Result<(), _>>()?;
    }
    unfinished.finish(new)?;
    Ok(merging.done())
}

/// Writes the files of a folder into the same folder of a new dataset.
fn write(
    merging: &Merging<'_>,
    (table, folder): (Table, &str),
    mut files: &[crate::store::StoredFile],
    (target, start_ns): (&DatasetFolder, i64),
) -> Result<(), DatasetError> {
    let mut sequence = 0;
    while !files.is_empty() {
        let stem = FileStem { host_id: SEVERAL_HOSTS, start_ns, sequence };
        let merged = merging.merge(table, format!("{folder}/{stem}.parquet"), files)?;
        let (path, bytes) = merged.file.finish()?;
        merging.count(bytes.len(), merged.samples);
        target.put(&DatasetFile { table, path, bytes })?;
        files = &files[merged.taken.max(1)..];
        sequence += 1;
    }
    Ok(())
}

/// When the first of the hosts was seen, nanoseconds since 1970; 0 without hosts.
fn first_seen_ns(dataset: &dyn DatasetStore, folders: &Folders) -> Result<i64, DatasetError> {
    let mut first: Option<i64> = None;
    let of_hosts = folders.get(&Table::Hosts).into_iter().flat_map(|folders| folders.values());
    for file in of_hosts.flat_map(|folder: &FolderFiles| &folder.live) {
        let reader = open(dataset, file, Table::Hosts)?;
        let moments = reader.int64("first_seen")?.into_iter().flatten();
        first = moments.chain(first).min();
    }
    Ok(first.unwrap_or(0).max(0).saturating_mul(1000))
}

/// The hidden folder in which a dataset is made; it goes with this.
struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    fn beside(new: &Path) -> Result<Unfinished, DatasetError> {
        let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        if new.symlink_metadata().is_ok() && !is_empty(new) {
            let shown = new.display();
            return Err(DatasetError::Refused(format!(
                "{shown} exists already: name a folder that does not"
            )));
        }
        let named = |error| DatasetError::io(new.display(), error);
        let absolute = std::path::absolute(new).map_err(named)?;
        let name = absolute.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = absolute.with_file_name(format!(".{name}.kymo-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| DatasetError::io(path.display(), error))?;
        Ok(Unfinished { path })
    }

    fn finish(mut self, new: &Path) -> Result<(), DatasetError> {
        fs::rename(&self.path, new).map_err(|error| DatasetError::io(new.display(), error))?;
        // What others may call so from now on is theirs.
        self.path.clear();
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            _ = fs::remove_dir_all(&self.path);
        }
    }
}
