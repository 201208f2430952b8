//! What the files of other people may cost: one account of memory and work per run.
//!
//! A file's sizes are claims. A user can make a file of a terabyte from one block, and a section that unpacks to a
//! thousand times its length; root reads both. So the account counts bytes that the file system stores:
//!
//! ```text
//!  room  =  BASE  +  for each file: 3 x its first 256 KiB stored, 8 x what it stores beyond
//!  work  =  per module: WORK_BASE + 24 x bytes stored; what exceeds 8 x bytes stored comes from one pool
//! ```
//!
//! A real file earns more than its symbols and debug information take, however large it is, and however many hostile
//! files are read beside it. A hostile one is refused what it did not earn, with a sentence.
//!
//! Invariants:
//! - **B1** No byte of a hole is read in pieces beyond [`SMALL_READ`]: what is not stored has no symbols.
//! - **B2** Held memory never exceeds the room; a [`Charge`] gives its bytes back when it is dropped.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use hashbrown::{HashMap, HashSet};
use rustix::fs::{SeekFrom, seek};

/// Room that is there before any file earned some.
const BASE_BYTES: u64 = 128 << 20;
/// Up to here a file earns little, so that thousands of small ones do not add up.
const SMALL_FILE: u64 = 256 << 10;
/// Reads up to this size are made without a look for holes.
const SMALL_READ: u64 = 64 << 10;
/// Steps of a reader of debug information that any module may take, whatever its size.
const WORK_BASE: i64 = 8 << 20;
/// Bytes over which checksums are made: a small file can name a large one, and a thousand small files thousand large ones.
const MOST_SUMMED: u64 = 2 << 30;
/// Steps beyond eight per stored byte, of all modules together.
const WORK_POOL: i64 = 256 << 20;

/// One run's account. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    earned: AtomicU64,
    /// More is never held, whatever was earned.
    most: AtomicU64,
    held: AtomicU64,
    pool: AtomicI64,
    /// Files that have earned, by device and inode: to read one twice earns nothing more.
    files: Mutex<HashSet<(u64, u64)>>,
    checksums: Mutex<Checksums>,
}

impl Account {
    /// Bytes that may be held.
    fn room(&self) -> u64 {
        // Relaxed: two numbers.
        self.earned.load(Ordering::Relaxed).min(self.most.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Checksums {
    /// By device and inode.
    known: HashMap<(u64, u64), Option<u32>>,
    /// Bytes that may still be summed up.
    left: u64,
}

impl Default for Budget {
    /// The account of this process.
    fn default() -> Budget {
        static PROCESS: LazyLock<Budget> = LazyLock::new(Budget::new);
        PROCESS.clone()
    }
}

impl Budget {
    /// An account of its own, for tests and programs that serve several users.
    pub fn new() -> Budget {
        Budget(Arc::new(Account {
            earned: AtomicU64::new(BASE_BYTES),
            most: AtomicU64::new(u64::MAX),
            held: AtomicU64::new(0),
            pool: AtomicI64::new(WORK_POOL),
            files: Mutex::default(),
            checksums: Mutex::new(Checksums { known: HashMap::new(), left: MOST_SUMMED }),
        }))
    }

    /// Bounds the account of this process: where memory is limited, a file that needs more is
    /// refused with a sentence, which is better than the end of the process.
    pub fn bound_process(bytes: u64) {
        Budget::default().0.most.store(bytes, Ordering::Relaxed);
    }

    /// Enters a file that stores this many bytes.
    pub(crate) fn admit(&self, metadata: &Metadata) {
        let id = (metadata.dev(), metadata.ino());
        if self.0.files.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            let stored = stored_bytes(metadata);
            let earned = 3 * stored.min(SMALL_FILE) + stored.saturating_sub(SMALL_FILE).saturating_mul(8);
            self.0.earned.fetch_add(earned, Ordering::Relaxed);
        }
    }

    /// Takes room for this many bytes, or nothing if it is not there.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Charge> {
        // Room is counted, nothing is published by it.
        let before = self.0.held.fetch_add(bytes, Ordering::Relaxed);
        let charge = Charge { account: Arc::clone(&self.0), bytes };
        (before.saturating_add(bytes) <= self.0.room()).then_some(charge)
    }

    /// The checksum of a file, made once however many others name it; nothing when too much was summed up already.
    pub(crate) fn checksum(&self, metadata: &Metadata, make: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let id = (metadata.dev(), metadata.ino());
        {
            let mut checksums = self.0.checksums.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(known) = checksums.known.get(&id) {
                return *known;
            }
            checksums.left = checksums.left.checked_sub(metadata.len())?;
        }
        let sum = make();
        self.0.checksums.lock().unwrap_or_else(PoisonError::into_inner).known.insert(id, sum);
        sum
    }

    /// The work that a module may cost whose file stores this many bytes.
    pub(crate) fn work(&self, stored: u64) -> Work {
        let stored = i64::try_from(stored).unwrap_or(i64::MAX >> 8).min(i64::MAX >> 8);
        Work {
            account: Arc::clone(&self.0),
            own: AtomicI64::new(8 * stored),
            more: AtomicI64::new(16 * stored + WORK_BASE),
        }
    }
}

/// Bytes that are held; gives them back.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// Takes over another charge of the same account.
    pub(crate) fn absorb(&mut self, mut other: Charge) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// The room that nobody holds.
    pub(crate) fn room_left(&self) -> u64 {
        let held = self.account.held.load(Ordering::Relaxed);
        self.account.room().saturating_sub(held)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The steps that are left to the readers of one module.
#[derive(Debug)]
pub(crate) struct Work {
    account: Arc<Account>,
    /// What its stored bytes pay for.
    own: AtomicI64,
    /// What it may take from the pool.
    more: AtomicI64,
}

impl Work {
    /// Takes a number of steps; whether they were left.
    pub(crate) fn take(&self, steps: i64) -> bool {
        if self.own.load(Ordering::Relaxed) > 0 {
            self.own.fetch_sub(steps, Ordering::Relaxed);
            return true;
        }
        self.more.fetch_sub(steps, Ordering::Relaxed) > steps
            && self.account.pool.fetch_sub(steps, Ordering::Relaxed) > steps
    }

    /// Gives back steps that were taken and not needed.
    pub(crate) fn give_back(&self, steps: i64) {
        self.own.fetch_add(steps, Ordering::Relaxed);
    }
}

/// Opens a regular file for reading. Nothing else is ever opened for longer than it takes to see what it is: neither
/// a pipe that was put in the file's place waits for a writer, nor does a terminal become this process's own.
///
/// # Errors
/// What the system says, and `InvalidInput` for what is no regular file.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    with_metadata(kymo_files::open_regular(path)?)
}

/// The same, and no symbolic link: for folders that everybody can write to.
///
/// # Errors
/// As [`open_regular`].
pub(crate) fn open_no_link(path: &Path) -> io::Result<(File, Metadata)> {
    with_metadata(kymo_files::open_no_link(path)?)
}

fn with_metadata(file: File) -> io::Result<(File, Metadata)> {
    let metadata = file.metadata()?;
    Ok((file, metadata))
}

/// The bytes that the file system stores of a file, at most its length.
pub(crate) fn stored_bytes(metadata: &Metadata) -> u64 {
    metadata.blocks().saturating_mul(512).min(metadata.len())
}

/// The bytes before a file's first hole, `most` of them at most, and whether that is all of the file.
pub(crate) fn read_stored(file: &mut File, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let len = file.metadata()?.len();
    let end = seek(&*file, SeekFrom::Hole(0)).unwrap_or(len);
    seek(&*file, SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(end.min(most)).read_to_end(&mut bytes)?;
    let is_all = end >= len && len <= most;
    Ok((bytes, is_all))
}

/// Whether most of this range of a file is stored. Small ranges are, by definition. A file system that packs files
/// shows no holes in them, so that they are served.
pub(crate) fn is_stored(file: &File, offset: u64, size: u64) -> bool {
    /// More pieces than a linker's file has; a file may have a hole in every second block.
    const MOST_PIECES: usize = 1 << 16;
    if size <= SMALL_READ {
        return true;
    }
    let Some(end) = offset.checked_add(size) else { return false };
    let (mut at, mut holes) = (offset, 0u64);
    for _ in 0..MOST_PIECES {
        if at >= end {
            break;
        }
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data.min(end),
            // Nothing but a hole up to the end of the file.
            Err(rustix::io::Errno::NXIO) => end,
            // The file system does not tell: reads are what is left.
            Err(_) => return true,
        };
        holes += data.saturating_sub(at);
        if data >= end {
            break;
        }
        at = seek(file, SeekFrom::Hole(data)).map_or(end, |hole| hole.max(data + 1));
    }
    holes <= size / 2
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::*;

    /// Checks that a file is summed up once, whoever asks, and that the sums of all files have an end.
    #[test]
    fn checksums_are_made_once() {
        let budget = Budget::new();
        let file = |bytes: u64| {
            let file = tempfile::tempfile().expect("a file");
            file.set_len(bytes).expect("a length");
            (file.metadata().expect("metadata"), file)
        };
        let (first, _kept) = file(1000);
        assert_eq!(budget.checksum(&first, || Some(7)), Some(7));
        assert_eq!(budget.checksum(&first, || panic!("it is known")), Some(7));
        let (large, _kept) = file(MOST_SUMMED);
        assert_eq!(budget.checksum(&large, || panic!("it is too long")), None);
        assert_eq!(budget.checksum(&first, || panic!("it is known")), Some(7));
    }

    /// Checks that charges are given back, that refused ones hold nothing, and that a file earns once.
    #[test]
    fn room_is_given_back() {
        let budget = Budget::new();
        let half = budget.reserve(BASE_BYTES / 2).expect("room");
        assert!(budget.reserve(BASE_BYTES).is_none());
        let rest = budget.reserve(BASE_BYTES / 2);
        assert!(rest.is_some());
        assert!(budget.reserve(1).is_none());
        drop(half);
        assert!(budget.reserve(BASE_BYTES / 2).is_some());
        drop(rest);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; 1 << 20]).expect("written");
        let metadata = file.metadata().expect("metadata");
        budget.admit(&metadata);
        let earned = budget.0.earned.load(Ordering::Relaxed);
        assert_eq!(earned, BASE_BYTES + 3 * SMALL_FILE + 8 * ((1 << 20) - SMALL_FILE));
        budget.admit(&metadata);
        assert_eq!(budget.0.earned.load(Ordering::Relaxed), earned);
    }

    /// Checks that a module has the steps that its bytes pay for when the pool is empty, and not many more.
    #[test]
    fn work_is_bounded_and_own_work_is_not_taken_by_others() {
        let budget = Budget::new();
        budget.0.pool.store(0, Ordering::Relaxed);
        let work = budget.work(1000);
        assert!((0..8000).all(|_| work.take(1)));
        assert!(!work.take(1));
        let fresh = Budget::new();
        let work = fresh.work(0);
        assert!(work.take(WORK_BASE - 2));
        assert!(!work.take(2));
        work.give_back(1);
        assert!(work.take(1) && !work.take(1));
    }

    /// Checks that holes are seen at every place of a range, and that stored bytes are none.
    #[test]
    fn holes_are_no_bytes() {
        let mut file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 30).expect("a hole");
        assert!(!is_stored(&file, 0, 1 << 30));
        assert!(is_stored(&file, 0, SMALL_READ));
        file.seek(io::SeekFrom::Start(1 << 29)).expect("a place");
        file.write_all(&vec![1; 1 << 20]).expect("written");
        assert!(is_stored(&file, 1 << 29, 1 << 20));
        assert!(is_stored(&file, (1 << 29) - (1 << 19), (1 << 20) + (1 << 19)));
        assert!(!is_stored(&file, 0, 1 << 30));
        assert!(!is_stored(&file, 1, u64::MAX));
    }

    /// Checks that a pipe and a device are refused without waiting.
    #[test]
    fn pipes_and_devices_are_not_opened() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        for path in [fifo.as_path(), Path::new("/dev/zero")] {
            assert_eq!(open_regular(path).expect_err("refused").kind(), io::ErrorKind::InvalidInput);
        }
    }
}
