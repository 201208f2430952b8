//! What is to be sent and is not yet: batches of files on disk, the oldest first.
//!
//! ```text
//!   put --> SPOOL/new-... --rename--> SPOOL/SINK-STARTNANOS-NUMBER-SAMPLES/... --> oldest
//!                                       |                                            |
//!      more than the bound: the oldest is dropped and counted            sent --> remove
//! ```
//!
//! # Invariants
//! - **P1** A batch has its name only when it is complete, and on the disk: a daemon that is killed
//!   and a machine that loses its power leave whole batches, and what has another name is removed
//!   at the next start. A file system that loses what it said to have written is found by
//!   [`whole`](crate::whole) before anything is sent: such a batch is dropped and counted.
//! - **P2** All batches together take at most the bound's bytes of the disk, in the blocks of the
//!   file system, folders included; what is dropped for that is counted, in batches, bytes and
//!   samples.
//! - **P3** A batch goes away when it was sent, rejected or dropped, and in no other case.
//! - **P4** One daemon at a time has the folder.
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What incomplete batches are called.
const INCOMPLETE: &str = "new-";
/// The file that a daemon locks.
const LOCK: &str = "lock";

/// Where a batch is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    /// The dataset: files at their places in it.
    Dataset,
    /// The collector: a request.
    Otlp,
}

impl Destination {
    const ALL: [Destination; 2] = [Destination::Dataset, Destination::Otlp];

    fn name(self) -> &'static str {
        match self {
            Destination::Dataset => "dataset",
            Destination::Otlp => "otlp",
        }
    }
}

/// A batch: older ones are smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Batch {
    /// When its samples began, ns since 1970.
    pub(crate) start_ns: u64,
    /// Tells batches of one moment apart.
    pub(crate) number: u32,
    /// Where it is to go.
    pub(crate) destination: Destination,
    /// How many samples it has.
    pub(crate) samples: u64,
}

impl Batch {
    fn name(&self) -> String {
        let Batch { start_ns, number, destination, samples } = self;
        format!("{}-{start_ns:020}-{number:06}-{samples}", destination.name())
    }

    fn parse(name: &str) -> Option<Batch> {
        let mut parts = name.split('-');
        let word = parts.next()?;
        let destination = Destination::ALL.into_iter().find(|destination| destination.name() == word)?;
        let (start_ns, number) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let samples = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Batch { start_ns, number, destination, samples })
    }
}

/// Batches that are gone without having been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Dropped {
    /// How many.
    pub(crate) batches: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Their samples.
    pub(crate) samples: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Batches and their bytes.
    batches: BTreeMap<Batch, u64>,
    bytes: u64,
    next: u32,
    dropped: Dropped,
}

/// A folder of batches.
#[derive(Debug)]
pub(crate) struct Spool {
    folder: PathBuf,
    most_bytes: u64,
    state: Mutex<State>,
    /// Wakes those that wait for a batch.
    pub(crate) arrived: Notify,
    _lock: File,
}

impl Spool {
    /// Opens a folder, which is made if there is none, with what an earlier daemon left there.
    ///
    /// # Errors
    /// The folder cannot be made, read or written, or another daemon has it.
    pub(crate) fn open(folder: &Path, most_bytes: u64) -> io::Result<Spool> {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join(LOCK))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            io::Error::new(io::ErrorKind::ResourceBusy, "another kymo daemon has this folder")
        })?;
        let mut state = State::default();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(INCOMPLETE) {
                fs::remove_dir_all(entry.path())?;
            } else if let Some(batch) = Batch::parse(&name) {
                let bytes = disk_bytes(&entry.path())?;
                state.bytes += bytes;
                state.next = state.next.max(batch.number.wrapping_add(1));
                state.batches.insert(batch, bytes);
            }
        }
        let spool = Spool {
            folder: folder.to_owned(),
            most_bytes,
            state: Mutex::new(state),
            arrived: Notify::new(),
            _lock: lock,
        };
        spool.keep_bound();
        Ok(spool)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch, whose files `write` makes in an empty folder; it says how many samples they
    /// have. Nothing is added where it has none.
    ///
    /// # Errors
    /// Those of `write`, and of the file system; nothing is left then.
    pub(crate) fn put(
        &self,
        destination: Destination,
        start_ns: u64,
        write: impl FnOnce(&Path) -> io::Result<u64>,
    ) -> io::Result<()> {
        let number = {
            let mut state = self.state();
            let number = state.next;
            state.next = number.wrapping_add(1) % 1_000_000;
            number
        };
        let new = self.folder.join(format!("{INCOMPLETE}{number:06}"));
        let made = fs::create_dir(&new).and_then(|()| write(&new)).and_then(|samples| {
            if samples == 0 {
                fs::remove_dir_all(&new)?;
                return Ok(());
            }
            let batch = Batch { start_ns, number, destination, samples };
            // File systems decide about blocks when they write.
            sync_below(&new)?;
            let bytes = disk_bytes(&new)?;
            fs::rename(&new, self.folder.join(batch.name()))?;
            File::open(&self.folder)?.sync_all()?;
            let mut state = self.state();
            state.bytes += bytes;
            state.batches.insert(batch, bytes);
            Ok(())
        });
        if made.is_err() {
            // What is left of it is removed at the next start.
            let _ = fs::remove_dir_all(&new);
        }
        self.keep_bound();
        self.arrived.notify_waiters();
        made
    }

    /// Drops the oldest batches until the rest is within the bound.
    fn keep_bound(&self) {
        let mut state = self.state();
        while state.bytes > self.most_bytes {
            let Some((batch, bytes)) = state.batches.pop_first() else { break };
            state.bytes -= bytes;
            state.dropped.batches += 1;
            state.dropped.bytes += bytes;
            state.dropped.samples += batch.samples;
            let _ = fs::remove_dir_all(self.folder.join(batch.name()));
        }
    }

    /// The oldest batch for a destination.
    pub(crate) fn oldest(&self, destination: Destination) -> Option<Batch> {
        self.state().batches.keys().find(|batch| batch.destination == destination).copied()
    }

    /// Where all batches are.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of a batch.
    pub(crate) fn path(&self, batch: &Batch) -> PathBuf {
        self.folder.join(batch.name())
    }

    /// Whether the batch was not dropped meanwhile.
    pub(crate) fn has(&self, batch: &Batch) -> bool {
        self.state().batches.contains_key(batch)
    }

    /// Forgets a batch that was sent, or that nobody will take.
    ///
    /// # Errors
    /// It cannot be removed: it would be sent again after the next start.
    pub(crate) fn remove(&self, batch: &Batch) -> io::Result<()> {
        let mut state = self.state();
        if let Some(bytes) = state.batches.remove(batch) {
            state.bytes -= bytes;
            drop(state);
            // Renamed first: what is removed in part must not be a batch.
            let gone = self.folder.join(format!("{INCOMPLETE}sent-{:06}", batch.number));
            fs::rename(self.path(batch), &gone)?;
            fs::remove_dir_all(gone)?;
        }
        Ok(())
    }

    /// Drops a batch whose files are not whole, and counts it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn drop_damaged(&self, batch: &Batch) -> io::Result<()> {
        {
            let mut state = self.state();
            let bytes = state.batches.get(batch).copied().unwrap_or(0);
            state.dropped.batches += 1;
            state.dropped.bytes += bytes;
            state.dropped.samples += batch.samples;
        }
        self.remove(batch)
    }

    /// How many batches wait, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        let state = self.state();
        (state.batches.len(), state.bytes)
    }

    /// What was dropped since the start.
    pub(crate) fn dropped(&self) -> Dropped {
        self.state().dropped
    }
}

/// The files of a batch, by their paths in it, sorted.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn files_of(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = folders.pop() {
        for entry in fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            if entry.file_type()?.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Has the files and folders below on the disk.
fn sync_below(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_below(&entry.path())?;
        } else {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// What a folder takes of the disk, with all that is below it.
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    /// The unit of `st_blocks`, whatever the file system's own blocks are.
    const BLOCK: u64 = 512;
    let mut bytes = fs::symlink_metadata(folder)?.blocks() * BLOCK;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => entry.metadata()?.blocks() * BLOCK,
        };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(spool: &Spool, start_ns: u64, bytes: usize) {
        let write = |folder: &Path| fs::write(folder.join("body"), vec![0; bytes]).map(|()| 7);
        spool.put(Destination::Otlp, start_ns, write).unwrap();
    }

    /// What a batch of so many bytes takes on the file system of a folder.
    fn size(folder: &Path, bytes: usize) -> u64 {
        let spool = Spool::open(&folder.join("size"), u64::MAX).unwrap();
        put(&spool, 1, bytes);
        let (_, size) = spool.waiting();
        drop(spool);
        fs::remove_dir_all(folder.join("size")).unwrap();
        size
    }

    /// Checks that the bound counts what `du` does: the blocks of files and folders, which small
    /// files have more of than bytes.
    #[test]
    fn the_bound_counts_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), u64::MAX).unwrap();
        let write = |folder: &Path| {
            for service in 0..20 {
                let folder = folder.join(format!("service={service}"));
                fs::create_dir(&folder)?;
                fs::write(folder.join("x.parquet"), [0; 100])?;
            }
            Ok(1)
        };
        spool.put(Destination::Dataset, 1, write).unwrap();
        let batch = spool.path(&spool.oldest(Destination::Dataset).unwrap());
        let du = std::process::Command::new("du").args(["-s", "-B1"]).arg(&batch).output().unwrap();
        let text = String::from_utf8(du.stdout).unwrap();
        let (_, bytes) = spool.waiting();
        assert_eq!(text.split('\t').next(), Some(&*bytes.to_string()));
        assert!(bytes > 20 * 100, "{bytes}");
        drop(spool);
        assert_eq!(Spool::open(folder.path(), u64::MAX).unwrap().waiting(), (1, bytes));
    }

    /// Checks that batches come oldest first and only once, also after a restart, and that what was
    /// not complete is gone then.
    #[test]
    fn batches_survive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let (one, most) = (size(folder.path(), 10), 1 << 30);
        let spool = Spool::open(folder.path(), most).unwrap();
        put(&spool, 20, 10);
        put(&spool, 10, 10);
        fs::create_dir(folder.path().join("new-000099")).unwrap();
        assert!(Spool::open(folder.path(), most).is_err(), "two daemons have it");
        drop(spool);
        let spool = Spool::open(folder.path(), most).unwrap();
        assert!(!folder.path().join("new-000099").exists());
        assert_eq!(spool.waiting(), (2, 2 * one));
        let first = spool.oldest(Destination::Otlp).unwrap();
        assert_eq!((first.start_ns, first.samples), (10, 7));
        assert_eq!(spool.oldest(Destination::Dataset), None);
        spool.remove(&first).unwrap();
        assert_eq!(spool.oldest(Destination::Otlp).unwrap().start_ns, 20);
        drop(spool);
        assert_eq!(Spool::open(folder.path(), most).unwrap().waiting(), (1, one));
    }

    /// Checks that the oldest batches are dropped and counted beyond the bound, and no others.
    #[test]
    fn the_oldest_go_first_and_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let one = size(folder.path(), 10);
        let spool = Spool::open(folder.path(), 3 * one + one / 2).unwrap();
        (1..=5).for_each(|start_ns| put(&spool, start_ns, 10));
        assert_eq!(spool.waiting(), (3, 3 * one));
        assert_eq!(spool.dropped(), Dropped { batches: 2, bytes: 2 * one, samples: 14 });
        assert_eq!(spool.oldest(Destination::Otlp).unwrap().start_ns, 3);
        put(&spool, 6, 10 * one as usize);
        assert_eq!((spool.waiting(), spool.dropped().batches), ((0, 0), 6));
        assert_eq!(files_of(folder.path()).unwrap(), [PathBuf::from(LOCK)]);
    }

    /// Checks that a batch which is not whole is dropped and counted, once.
    #[test]
    fn a_damaged_batch_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let one = size(folder.path(), 10);
        let spool = Spool::open(folder.path(), 10 * one).unwrap();
        put(&spool, 1, 10);
        put(&spool, 2, 10);
        let first = spool.oldest(Destination::Otlp).unwrap();
        spool.drop_damaged(&first).unwrap();
        assert_eq!(spool.dropped(), Dropped { batches: 1, bytes: one, samples: 7 });
        assert_eq!(spool.waiting(), (1, one));
        assert!(!spool.path(&first).exists());
    }

    /// Checks that a batch whose files cannot be written leaves nothing.
    #[test]
    fn a_batch_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::open(folder.path(), 35).unwrap();
        let fails = spool.put(Destination::Dataset, 1, |folder| {
            fs::write(folder.join("half"), b"half")?;
            Err(io::Error::other("no space"))
        });
        assert!(fails.is_err());
        spool.put(Destination::Dataset, 2, |_| Ok(0)).unwrap();
        assert_eq!(spool.waiting(), (0, 0));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Checks that names of other files are no batches.
    #[test]
    fn other_names_are_no_batches() {
        let batch = Batch { start_ns: 5, number: 3, destination: Destination::Dataset, samples: 9 };
        assert_eq!(Batch::parse(&batch.name()), Some(batch));
        for name in ["", "lock", "dataset", "dataset-1-2", "dataset-1-2-3-4", "disk-1-2-3", "otlp-x-2-3"] {
            assert_eq!(Batch::parse(name), None, "{name}");
        }
    }
}
