//! The recording that is shown, and whether its file is still the same.
use kymo_data::Recording;
use kymo_profile::view::RecordingView;
use kymo_symbols::SymbolStore;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// A recording that was read, to be shown.
#[derive(Debug)]
pub struct ShownRecording {
    /// The recording.
    pub recording: Recording,
    /// What was read of it.
    pub view: RecordingView,
    /// The symbols that it was read with.
    pub store: SymbolStore,
    /// Its file.
    pub file: ShownFile,
}

/// The file of a recording, as it was before it was read.
#[derive(Debug)]
pub struct ShownFile {
    path: PathBuf,
    before: Option<FileState>,
}

/// What changes when a file is written to, cut, or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    file: (u64, u64),
    bytes: u64,
    written: (i64, i64),
}

impl FileState {
    fn of(path: &Path) -> Option<FileState> {
        let found = std::fs::metadata(path).ok().filter(|found| found.is_file())?;
        let (file, written) = ((found.dev(), found.ino()), (found.mtime(), found.mtime_nsec()));
        Some(FileState { file, bytes: found.len(), written })
    }
}

impl ShownFile {
    /// To be called before the file is read. One that is no file, such as a pipe, is not looked at
    /// again.
    pub fn new(path: &Path) -> ShownFile {
        ShownFile { path: path.to_owned(), before: FileState::of(path) }
    }

    /// Whether it is not what was read any more.
    pub fn has_changed(&self) -> bool {
        self.before.is_some_and(|before| FileState::of(&self.path) != Some(before))
    }
}
