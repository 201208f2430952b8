//! A dataset in few, large files: the rows of many small ones, which daemons write each minute.
//!
//! ```text
//!  samples  day, service: files of all hosts --> row groups of a million rows (samples)
//!  stacks   day:          files of all hosts --> each stack once               (stacks)
//!  frames, builds, hosts: files of all hosts --> each row once                 (tables)
//!
//!  merge: many files of a folder --> one file --> a new dataset               (into_new)
//!                                             '-> the same folder, in place   (in_place)
//! ```
//!
//! # Guarantees
//! - **C1** The sums over any columns of `samples` are those of the old dataset; the distinct rows
//!   of the other tables are the same, but that a function's name takes the place of none.
//! - **C2** A dataset that is written into a new one is only read. The new one gets its name when
//!   it is whole: it is made in a hidden folder beside it, which goes where this fails.
//! - **C3** In place, each row counts once at any moment, see `in_place`.
//! - **C4** Memory holds the rows of two row groups and one file for each CPU, the ids of all
//!   stacks of a day, and the distinct frames.
mod in_place;
mod into_new;
mod samples;
mod stacks;
mod tables;

pub use in_place::compact_in_place;
pub use into_new::compact;

use crate::encode::TableFile;
use crate::error::DatasetError;
use crate::live::{FolderFiles, live_folders};
use crate::read::TableReader;
use crate::schema::Table;
use crate::store::{DatasetStore, StoredFile, open};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
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
    /// Files that were read.
    pub old_files: u64,
    /// Their bytes.
    pub old_bytes: u64,
    /// Files that were written.
    pub new_files: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Rows of samples.
    pub rows: u64,
}

impl fmt::Display for Compacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |files: u64, bytes: u64| format!("{files} files of {:.1} MB", bytes as f64 / 1e6);
        let (old, new) = (of(self.old_files, self.old_bytes), of(self.new_files, self.new_bytes));
        write!(f, "{} rows of samples; {old} are {new} now", self.rows)
    }
}

/// Files that became one, which nobody has put anywhere yet.
struct Merged {
    file: TableFile,
    /// How many of the files, the first ones, it has the rows of.
    taken: usize,
    /// Rows of samples.
    samples: u64,
}

/// By table its folders, with their files.
type Folders = BTreeMap<Table, BTreeMap<String, FolderFiles>>;

/// One run: what reads files, and counts them.
struct Merging<'a> {
    store: &'a dyn DatasetStore,
    options: &'a CompactOptions<'a>,
    all: u64,
    read: AtomicU64,
    old_bytes: AtomicU64,
    new_files: AtomicU64,
    new_bytes: AtomicU64,
    rows: AtomicU64,
}

impl<'a> Merging<'a> {
    /// A run over the files that count in the folders of the wanted days.
    fn new(
        store: &'a dyn DatasetStore,
        options: &'a CompactOptions<'a>,
    ) -> Result<(Merging<'a>, Folders), DatasetError> {
        let mut folders = Folders::new();
        let (mut all, mut missing) = (0, options.days.clone());
        for table in Table::ALL {
            let mut of_table = live_folders(store, table)?;
            of_table.retain(|folder, _| match day_of(folder) {
                Some(day) => {
                    missing.remove(day);
                    options.days.is_empty() || options.days.contains(day)
                }
                None => true,
            });
            all += of_table.values().map(|folder| folder.live.len() as u64).sum::<u64>();
            folders.insert(table, of_table);
        }
        if folders.get(&Table::Hosts).is_none_or(BTreeMap::is_empty) {
            let shown = store.name();
            return Err(DatasetError::Refused(format!(
                "{shown} is no dataset of kymo: it has no files in hosts/"
            )));
        }
        if let Some(day) = missing.first() {
            let shown = store.name();
            return Err(DatasetError::Refused(format!("{shown} has no samples of the day {day}")));
        }
        let merging = Merging {
            store,
            options,
            all,
            read: AtomicU64::new(0),
            old_bytes: AtomicU64::new(0),
            new_files: AtomicU64::new(0),
            new_bytes: AtomicU64::new(0),
            rows: AtomicU64::new(0),
        };
        Ok((merging, folders))
    }

    /// One file at this path of as many of the files as it may have, at least of the first one.
    fn merge(&self, table: Table, path: String, files: &[StoredFile]) -> Result<Merged, DatasetError> {
        let all = |file| Merged { file, taken: files.len(), samples: 0 };
        match table {
            Table::Hosts => self.hosts(path, files).map(all),
            Table::Builds => self.builds(path, files).map(all),
            Table::Frames => self.frames(path, files).map(all),
            Table::Stacks => self.stacks(path, files).map(all),
            Table::Samples => self.samples(path, files),
        }
    }

    /// Opens a file of the dataset, and counts it.
    ///
    /// # Errors
    /// Where the run was cancelled, and what the reader says.
    fn open(&self, file: &StoredFile, table: Table) -> Result<TableReader, DatasetError> {
        // Relaxed: counts that nothing hangs on, and a flag that a signal's handler sets.
        if self.options.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
            return Err(DatasetError::Refused("it was interrupted".to_owned()));
        }
        let read = self.read.fetch_add(1, Ordering::Relaxed);
        if let Some(progress) = self.options.progress {
            progress(read, self.all);
        }
        self.old_bytes.fetch_add(file.bytes, Ordering::Relaxed);
        open(self.store, file, table)
    }

    /// Counts a file that was put.
    fn count(&self, bytes: usize, samples: u64) {
        self.new_files.fetch_add(1, Ordering::Relaxed);
        self.new_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.rows.fetch_add(samples, Ordering::Relaxed);
    }

    /// What was done. All threads that counted have ended.
    fn done(self) -> Compacted {
        Compacted {
            old_files: self.read.into_inner(),
            old_bytes: self.old_bytes.into_inner(),
            new_files: self.new_files.into_inner(),
            new_bytes: self.new_bytes.into_inner(),
            rows: self.rows.into_inner(),
        }
    }
}

/// About how many rows the file of these has, which decides about its indices: small files of
/// daemons have some dozen bytes for each row.
fn rows_of(files: &[StoredFile]) -> usize {
    const BYTES_OF_ROW: u64 = 16;
    let bytes: u64 = files.iter().map(|file| file.bytes).sum();
    usize::try_from(bytes / BYTES_OF_ROW).unwrap_or(usize::MAX)
}

/// The day of a folder, if it is one of a day.
fn day_of(folder: &str) -> Option<&str> {
    folder.split('/').find_map(|part| part.strip_prefix("day="))
}
