//! A dataset in few, large files: the rows of many small ones, which daemons write each minute.
//!
//! ```text
//!  samples  day, service: files of all hosts --> row groups of a million rows (samples)
//!  stacks   day:          files of all hosts --> each stack once               (stacks)
//!  frames, builds, hosts: files of all hosts --> each row once                 (tables)
//! ```
//!
//! # Guarantees
//! - **C1** The sums over any columns of `samples` are those of the old dataset; the distinct rows
//!   of the other tables are the same, but that a function's name takes the place of none.
//! - **C2** The old dataset is only read. The new one gets its name when it is whole: it is made in
//!   a hidden folder beside it, which goes where this fails.
//! - **C3** Memory holds the rows of two row groups and one file for each CPU, the ids of all
//!   stacks of a day, and the distinct frames.
mod samples;
mod stacks;
mod tables;

use crate::error::DatasetError;
use crate::folder::DatasetFolder;
use crate::schema::{FileStem, Table};
use kymo_symbols::pool;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is compacted, and how one hears of it.
#[derive(Default)]
pub struct CompactOptions<'a> {
    /// Only these days, `2026-11-27`; all where there are none.
    pub days: BTreeSet<String>,
    /// Gets the files that were read and those that there are.
    pub progress: Option<&'a (dyn Fn(u64, u64) + Sync)>,
    /// Ends it.
    pub cancel: Option<&'a AtomicBool>,
}

/// What became of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files of the old dataset that were read.
    pub old_files: u64,
    /// Their bytes.
    pub old_bytes: u64,
    /// Files of the new one.
    pub new_files: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Rows of samples.
    pub rows: u64,
}

/// Writes the rows of a dataset into a new one with few, large files.
///
/// # Errors
/// A sentence for a file that cannot be read, a new dataset that exists already, a day that the old
/// one does not have, and where it was cancelled. There is no new dataset then.
pub fn compact(
    dataset: &DatasetFolder,
    new: &Path,
    options: &CompactOptions<'_>,
) -> Result<Compacted, DatasetError> {
    let unfinished = Unfinished::beside(new)?;
    let target = DatasetFolder::open_or_create(&unfinished.path)?;
    let done = Compaction::new(dataset, &target, options)?.run()?;
    unfinished.finish(new)?;
    Ok(done)
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

/// One run.
struct Compaction<'a> {
    old: &'a DatasetFolder,
    new: &'a DatasetFolder,
    options: &'a CompactOptions<'a>,
    /// By table its files, grouped by their folder.
    folders: BTreeMap<Table, BTreeMap<String, Vec<String>>>,
    all: u64,
    read: AtomicU64,
    old_bytes: AtomicU64,
    new_files: AtomicU64,
    new_bytes: AtomicU64,
    rows: AtomicU64,
    start_ns: i64,
}

impl<'a> Compaction<'a> {
    fn new(
        old: &'a DatasetFolder,
        new: &'a DatasetFolder,
        options: &'a CompactOptions<'a>,
    ) -> Result<Compaction<'a>, DatasetError> {
        let mut folders: BTreeMap<Table, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        let (mut all, mut missing) = (0, options.days.clone());
        for table in Table::ALL {
            for file in old.files(table)? {
                let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
                if let Some(day) = day_of(&folder) {
                    if !options.days.is_empty() && !options.days.contains(day) {
                        continue;
                    }
                    missing.remove(day);
                }
                all += 1;
                folders.entry(table).or_default().entry(folder).or_default().push(file);
            }
        }
        if let Some(day) = missing.first() {
            let shown = old.path().display();
            return Err(DatasetError::Refused(format!("{shown} has no samples of the day {day}")));
        }
        let start_ns = tables::first_seen_ns(old, folders.get(&Table::Hosts))?;
        Ok(Compaction {
            old,
            new,
            options,
            folders,
            all,
            read: AtomicU64::new(0),
            old_bytes: AtomicU64::new(0),
            new_files: AtomicU64::new(0),
            new_bytes: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            start_ns,
        })
    }

    fn run(self) -> Result<Compacted, DatasetError> {
        self.hosts()?;
        self.builds()?;
        self.frames()?;
        self.each_folder(Table::Stacks, Compaction::stacks)?;
        self.each_folder(Table::Samples, Compaction::samples)?;
        // All threads that counted have ended.
        Ok(Compacted {
            old_files: self.read.into_inner(),
            old_bytes: self.old_bytes.into_inner(),
            new_files: self.new_files.into_inner(),
            new_bytes: self.new_bytes.into_inner(),
            rows: self.rows.into_inner(),
        })
    }

    /// Works on each folder of a table, on all CPUs.
    fn each_folder(
        &self,
        table: Table,
        work: impl Fn(&Compaction<'a>, &str, &[String]) -> Result<(), DatasetError> + Sync + Send,
    ) -> Result<(), DatasetError> {
        let folders: Vec<_> = self.folders.get(&table).into_iter().flatten().collect();
        let done = pool::map(&folders, |(folder, files)| work(self, folder, files));
        done.into_iter().collect()
    }

    /// The path of a file of the old dataset that is about to be read.
    ///
    /// # Errors
    /// Where the run was cancelled.
    fn next(&self, file: &str) -> Result<PathBuf, DatasetError> {
        // Relaxed: counts that nothing hangs on, and a flag that a signal's handler sets.
        if self.options.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(DatasetError::Refused("it was interrupted".to_owned()));
        }
        let read = self.read.fetch_add(1, Ordering::Relaxed);
        if let Some(progress) = self.options.progress {
            progress(read, self.all);
        }
        let path = self.old.path().join(file);
        let size = path.metadata().map_or(0, |found| found.len());
        self.old_bytes.fetch_add(size, Ordering::Relaxed);
        Ok(path)
    }

    /// Puts a file into the new dataset.
    fn put(&self, table: Table, file: crate::encode::TableFile) -> Result<(), DatasetError> {
        let (path, bytes) = file.finish()?;
        self.new_files.fetch_add(1, Ordering::Relaxed);
        self.new_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.new.put(&crate::writer::DatasetFile { table, path, bytes })
    }

    /// A file of the new dataset in a folder of the same name as in the old one.
    fn file(
        &self,
        table: Table,
        folder: &str,
        sequence: u32,
    ) -> Result<crate::encode::TableFile, DatasetError> {
        let stem = FileStem { host_id: SEVERAL_HOSTS, start_ns: self.start_ns, sequence };
        crate::encode::TableFile::new(table, "", format!("{folder}/{stem}.parquet"), usize::MAX)
    }
}

/// Names the host of files with rows of several ones.
const SEVERAL_HOSTS: i64 = 0;

/// The day of a folder, if it is one of a day.
fn day_of(folder: &str) -> Option<&str> {
    folder.split('/').find_map(|part| part.strip_prefix("day="))
}
