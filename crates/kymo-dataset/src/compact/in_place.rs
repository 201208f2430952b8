//! Compaction in place: the files of a folder become one of them, while daemons write and engines
//! read.
//!
//! ```text
//!  list the folder --> remove what is replaced --> merge the rest --> create the merged file
//!       ^                                                               |       |
//!       '---------------------------- another compactor was first <-----'       v
//!                                                             still the newest? remove its sources
//! ```
//!
//! # Why each row counts once
//! - **M1** The merged file has the names of all files whose rows it has in its metadata, and so
//!   those of merged files that it has the rows of. A reader leaves out what a merged file of the
//!   folder names. So one PUT decides, and a compactor that is killed before it has changed
//!   nothing, and after it nothing is left but to remove files that do not count.
//! - **M2** The names stay as long as the rows: a file that a daemon puts again because it did not
//!   hear the answer does not count again, whenever it comes. The next run removes it.
//! - **M3** The merged file has the number after the highest one of its folder in its name, and is
//!   created, never overwritten. Of two compactors that have seen the same folder, one creates it;
//!   the other one starts again. One that stood still meanwhile creates a file of an old number:
//!   the newer one that replaced that number names it, so it does not count. Its compactor looks
//!   for that before it removes anything.
use super::samples::{BYTES_OF_FILE, ROWS_OF_FILE};
use super::{CompactOptions, Compacted, Merged, Merging};
use crate::error::DatasetError;
use crate::live::{FolderFiles, MergedFile, is_merged};
use crate::replaced::ReplacedFiles;
use crate::schema::{FileStem, MERGED_HOST, REPLACES_KEY, Table};
use crate::store::{DatasetStore, StoredFile};
use crate::writer::DatasetFile;
use kymo_symbols::pool;

/// How often a folder is tried that other compactors work on, too.
const MOST_TRIES: u32 = 20;

/// Merges the files of each folder of a dataset into one (or some of 256 MiB), in place: readers of
/// the dataset count each row once at any moment, and so they do if this is killed at any moment.
///
/// # Errors
/// A sentence for a file that cannot be read, a day that there is not, and where it was cancelled.
/// What was merged before that stays.
pub fn compact_in_place(
    store: &dyn DatasetStore,
    options: &CompactOptions<'_>,
) -> Result<Compacted, DatasetError> {
    let (merging, folders) = Merging::new(store, options)?;
    // What samples refer to comes first, as writers put it.
    for (table, folders) in &folders {
        let folders: Vec<&String> = folders.keys().collect();
        let done = pool::map(&folders, |folder| merge_folder(&merging, *table, folder));
        done.into_iter().collect::<Result<(), _>>()?;
    }
    Ok(merging.done())
}

/// What a try to merge some files of a folder came to.
enum Step {
    /// There is nothing to merge.
    Done,
    /// Some were merged; others may be left.
    Merged,
    /// Another compactor was first.
    Late,
}

fn merge_folder(merging: &Merging<'_>, table: Table, folder: &str) -> Result<(), DatasetError> {
    let mut tries = 0;
    while tries < MOST_TRIES {
        match merge_some(merging, table, folder) {
            Ok(Step::Done) => return Ok(()),
            Ok(Step::Merged) => {}
            Ok(Step::Late) => tries += 1,
            // Another compactor has removed it.
            Err(error) if error.is_not_found() => tries += 1,
            Err(error) => return Err(error),
        }
    }
    let name = merging.store.name();
    Err(DatasetError::Refused(format!("other compactors change {name}/{folder} all the time")))
}

fn merge_some(merging: &Merging<'_>, table: Table, folder: &str) -> Result<Step, DatasetError> {
    let store = merging.store;
    let files = list(store, folder)?;
    // What a compactor that was killed has left, and what came again.
    store.remove(&paths(&files.replaced))?;
    let path = format!("{folder}/{}.parquet", next_stem(&files));
    let sources = sources(&files);
    let Some((mut merged, taken)) = merge_first(merging, table, &path, &sources)? else {
        return Ok(Step::Done);
    };
    merged.file.add_metadata(REPLACES_KEY, replaced_by(&files, taken).to_string());
    let (path, bytes) = merged.file.finish()?;
    let file = DatasetFile { table, path, bytes };
    if !store.create(&file)? {
        return Ok(Step::Late);
    }
    let is_newest = |files: &FolderFiles| files.live.iter().any(|live| live.path == file.path);
    if !is_newest(&list(store, folder)?) {
        store.remove(std::slice::from_ref(&file.path))?;
        return Ok(Step::Late);
    }
    store.remove(&paths(taken))?;
    merging.count(file.bytes.len(), merged.samples);
    Ok(if taken.len() < files.live.len() { Step::Merged } else { Step::Done })
}

/// Merges as many of the files as one may have, and says which; none: no two of them fit.
fn merge_first<'a>(
    merging: &Merging<'_>,
    table: Table,
    path: &str,
    mut sources: &'a [StoredFile],
) -> Result<Option<(Merged, &'a [StoredFile])>, DatasetError> {
    while sources.len() > 1 {
        let merged = merging.merge(table, path.to_owned(), sources)?;
        if merged.taken > 1 {
            let taken = &sources[..merged.taken];
            return Ok(Some((merged, taken)));
        }
        // The first one has so many rows that there is no room for others.
        sources = &sources[1..];
    }
    Ok(None)
}

/// The files of a folder alone: not of those below it.
fn list(store: &dyn DatasetStore, folder: &str) -> Result<FolderFiles, DatasetError> {
    let mut files = store.files(folder)?;
    files.retain(|file| file.folder() == folder);
    FolderFiles::of(store, files)
}

fn paths(files: &[StoredFile]) -> Vec<String> {
    files.iter().map(|file| file.path.clone()).collect()
}

/// The files that are merged: those with names of this program that are not full yet.
fn sources(files: &FolderFiles) -> Vec<StoredFile> {
    let is_full = |file: &StoredFile| {
        let rows = files.merged(file).map_or(0, |merged| merged.rows);
        file.bytes >= BYTES_OF_FILE / 2 || rows >= ROWS_OF_FILE / 2
    };
    let is_ours = |file: &&StoredFile| FileStem::parse(file.name()).is_some() && !is_full(file);
    let mut sources: Vec<StoredFile> = files.live.iter().filter(is_ours).cloned().collect();
    // The largest ones first: a merged one takes the new ones in, as far as there is room.
    sources.sort_by_key(|file| (!is_merged(file.name()), std::cmp::Reverse(file.bytes)));
    let mut bytes = 0;
    let fits = |file: &StoredFile| {
        bytes += file.bytes;
        bytes <= 2 * BYTES_OF_FILE
    };
    let count = sources.iter().map(fits).take_while(|fits| *fits).count();
    sources.truncate(count);
    sources
}

/// The name of the next merged file of the folder.
fn next_stem(files: &FolderFiles) -> FileStem {
    let stems = [&files.live, &files.replaced].into_iter().flatten();
    let merged = stems.filter_map(|file| FileStem::parse(file.name()).filter(FileStem::is_merged));
    let last = merged.map(|stem| stem.start_ns).max().unwrap_or(0);
    FileStem { host_id: MERGED_HOST, start_ns: last + 1, sequence: 0 }
}

/// The names of all files whose rows these have.
fn replaced_by(files: &FolderFiles, taken: &[StoredFile]) -> ReplacedFiles {
    let stems: Vec<FileStem> = taken.iter().filter_map(|file| FileStem::parse(file.name())).collect();
    let sets: Vec<&ReplacedFiles> = taken
        .iter()
        .filter_map(|file| files.merged(file))
        .map(|merged: &MergedFile| &merged.replaced)
        .collect();
    ReplacedFiles::new(&stems, &sets)
}
