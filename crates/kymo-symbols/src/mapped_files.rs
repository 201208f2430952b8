//! Files that running processes have mapped, held open by whoever records them.
//!
//! A path says little about a mapped file: in a container it means another file, an update puts
//! another one there, a deleted file or a memfd has none. A recorder opens each file while its
//! process lives and keeps the descriptor here. Names are then read from the file that was mapped,
//! until the recorder ends.
//!
//! # Invariants
//! - **F1** A file is given only to whoever asks for its build id, or where neither has one, for
//!   its path if no other file without a build id was mapped there.
//! - **F2** The descriptors are bounded: those of files that still lie at their path go first.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::elf::same_build_id;
use super::unwind::FileId;

/// Descriptors that are held, if the limit of the process allows for more.
const MOST_FILES: usize = 4096;
/// The same for the least limit.
const LEAST_FILES: usize = 16;
/// Processes that are remembered for a file.
const MOST_PROCESSES: usize = 8;
/// One in so many of the descriptors that the process may have.
const SHARE_OF_LIMIT: u64 = 4;

/// A file that a process has mapped.
#[derive(Debug)]
pub struct MappedCode {
    /// The path of the mapping.
    pub path: PathBuf,
    /// Device and inode as the mapping tells them, 0 where it does not.
    pub file_id: FileId,
    /// The build id, if the file has one.
    pub build_id: Option<Vec<u8>>,
    /// Whether it is an ELF file.
    pub is_elf: bool,
    file: File,
}

/// A file, and for whom it is held.
#[derive(Debug)]
struct Holding {
    code: Arc<MappedCode>,
    /// Processes that have it mapped, as far as told.
    pids: Vec<i32>,
    told: Instant,
}

/// The files of one recorder, or of all recorders of the process.
#[derive(Debug)]
pub struct MappedFiles {
    files: Mutex<Vec<Holding>>,
    most: usize,
    /// Files that could not be held any longer, though their paths do not lead to them.
    dropped: AtomicUsize,
}

/// Those of this process.
static OF_PROCESS: LazyLock<MappedFiles> = LazyLock::new(|| {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.unwrap_or(u64::MAX) / SHARE_OF_LIMIT;
    MappedFiles::new(usize::try_from(share).unwrap_or(usize::MAX).clamp(LEAST_FILES, MOST_FILES))
});

impl MappedCode {
    /// A file that was opened.
    pub fn new(
        path: &Path,
        file_id: FileId,
        (build_id, is_elf): (Option<Vec<u8>>, bool),
        file: File,
    ) -> MappedCode {
        MappedCode { path: path.to_owned(), file_id, build_id, is_elf, file }
    }

    /// A path that leads to this file as long as it is held.
    pub fn held_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The descriptor.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether its path here leads to this very file.
    pub fn is_at_path(&self) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), std::fs::metadata(&self.path)) else {
            return false;
        };
        (own.dev(), own.ino()) == (there.dev(), there.ino())
    }

    fn is_same(&self, other: &MappedCode) -> bool {
        self.path == other.path && self.file_id == other.file_id && self.build_id == other.build_id
    }
}

impl MappedFiles {
    fn new(most: usize) -> MappedFiles {
        MappedFiles { files: Mutex::default(), most, dropped: AtomicUsize::new(0) }
    }

    /// Those of all recorders of this process.
    pub fn of_process() -> &'static MappedFiles {
        &OF_PROCESS
    }

    /// Holds a file that this process has mapped.
    pub fn hold(&self, code: MappedCode, pid: i32) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let told = Instant::now();
        if let Some(known) = files.iter_mut().find(|known| known.code.is_same(&code)) {
            known.told = told;
            if known.pids.len() < MOST_PROCESSES && !known.pids.contains(&pid) {
                known.pids.push(pid);
            }
            return;
        }
        if files.len() >= self.most {
            files.retain(|file| !file.code.is_at_path());
            let surplus = (files.len() + 1).saturating_sub(self.most);
            files.drain(..surplus);
            // Relaxed: only a count.
            self.dropped.fetch_add(surplus, Ordering::Relaxed);
        }
        files.push(Holding { code: Arc::new(code), pids: vec![pid], told });
    }

    /// Lets go of files whose processes have ended, and which nobody told of for so long: for
    /// recorders that run for ever.
    pub fn release_ended(&self, after: Duration) {
        let is_alive = |pid: &i32| Path::new(&format!("/proc/{pid}")).exists();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| file.told.elapsed() < after || file.pids.iter().any(is_alive));
    }

    fn all(&self) -> Vec<Arc<MappedCode>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().map(|file| Arc::clone(&file.code)).collect()
    }

    /// The file of this mapping, if it is held.
    pub fn of_mapping(&self, path: &Path, build_id: &[u8], file_id: FileId) -> Option<Arc<MappedCode>> {
        let fits = |file: &MappedCode| match build_id {
            [] => file.path == path && file.file_id == file_id && file_id != FileId::default(),
            id => file.build_id.as_deref().is_some_and(|own| same_build_id(id, own)),
        };
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.iter().find(|file| fits(&file.code)).map(|file| Arc::clone(&file.code))
    }

    /// The file with the names of a module, if it is not the one at its path (F1). `file_id`: that
    /// of its mappings, where they tell it.
    pub(crate) fn elsewhere(
        &self,
        path: &Path,
        build_id: Option<&[u8]>,
        file_id: FileId,
    ) -> Option<Arc<MappedCode>> {
        let found = match build_id {
            Some(id) => self.of_mapping(path, id, FileId::default()),
            None if file_id != FileId::default() => self.of_mapping(path, &[], file_id),
            None => self.only_one_at(path),
        };
        found.filter(|file| file.is_elf && !file.is_at_path())
    }

    /// Whether the names of a module are in a file that is held, and not at its path.
    pub fn has_elsewhere(&self, path: &Path, build_id: Option<&[u8]>) -> bool {
        self.elsewhere(path, build_id, FileId::default()).is_some()
    }

    fn only_one_at(&self, path: &Path) -> Option<Arc<MappedCode>> {
        let mut found = self.all().into_iter().filter(|file| file.build_id.is_none() && file.path == path);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// How many such files were let go because no more descriptors may be held.
    pub fn dropped(&self) -> usize {
        // Relaxed: only a count.
        self.dropped.load(Ordering::Relaxed)
    }

    /// Files that their paths do not lead to any more, or never did from here.
    pub fn gone(&self) -> Vec<Arc<MappedCode>> {
        self.all().into_iter().filter(|file| !file.is_at_path()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(path: &Path, id: Option<u8>, inode: u64) -> MappedCode {
        let file = File::open(path).expect("it is there");
        MappedCode::new(path, (8, 1, inode), (id.map(|byte| vec![byte; 20]), true), file)
    }

    /// Checks that of two files that were mapped from one path each is found by its build id, that
    /// neither is given where nothing tells them apart, and that one that is gone can be read.
    #[test]
    fn two_files_of_one_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, held) = (folder.path().join("program"), MappedFiles::new(8));
        for (text, id) in [("first", 1), ("second", 2)] {
            std::fs::write(folder.path().join("new"), text).expect("written");
            std::fs::rename(folder.path().join("new"), &path).expect("replaced");
            held.hold(code(&path, Some(id), u64::from(id)), 1);
        }
        let text = |id: u8| {
            let file = held.elsewhere(&path, Some(&[id; 20]), FileId::default())?;
            std::fs::read_to_string(file.held_path()).ok()
        };
        assert_eq!(text(1).as_deref(), Some("first"));
        assert_eq!(text(2), None, "it is at its path");
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(text(2).as_deref(), Some("second"));
        assert_eq!((text(3), held.gone().len()), (None, 2));
        for inode in [7, 8] {
            std::fs::write(&path, "without").expect("written");
            held.hold(code(&path, None, inode), 1);
            std::fs::remove_file(&path).expect("it was there");
            assert_eq!(held.elsewhere(&path, None, FileId::default()).is_some(), inode == 7);
        }
    }

    /// Checks that a file is let go when its processes have ended, and not while one lives.
    #[test]
    fn ended_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, held) = (folder.path().join("program"), MappedFiles::new(8));
        std::fs::write(&path, "").expect("written");
        let own = std::process::id().cast_signed();
        held.hold(code(&path, Some(1), 1), i32::MAX);
        held.hold(code(&path, Some(2), 2), i32::MAX);
        held.hold(code(&path, Some(2), 2), own);
        held.release_ended(Duration::from_secs(3600));
        assert_eq!(held.all().len(), 2, "told of just now");
        held.release_ended(Duration::ZERO);
        let left: Vec<_> = held.all().iter().map(|file| file.file_id.2).collect();
        assert_eq!(left, [2]);
    }

    /// Checks that the number of descriptors is bounded, and that files which are not at their path
    /// stay longest.
    #[test]
    fn descriptors_are_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let (gone, held) = (folder.path().join("gone"), MappedFiles::new(3));
        std::fs::write(&gone, "").expect("written");
        held.hold(code(&gone, Some(0), 0), 1);
        std::fs::remove_file(&gone).expect("it was there");
        for number in 1..20 {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, "").expect("written");
            held.hold(code(&path, Some(number), u64::from(number)), 1);
        }
        assert!(held.files.lock().expect("no panic").len() <= 3);
        assert!(held.elsewhere(&gone, Some(&[0; 20]), FileId::default()).is_some());
        assert_eq!(held.dropped(), 0, "the others can be found");
        for number in 20..24 {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, "").expect("written");
            held.hold(code(&path, Some(number), u64::from(number)), 1);
            std::fs::remove_file(&path).expect("it was there");
        }
        assert_eq!(held.dropped(), 2, "of five that are gone");
    }
}
